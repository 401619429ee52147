// Package latest holds values of which only the newest counts.
//
// Guarantees: a reader always gets the newest value, never a queue; a write
// never waits for a reader; a subscriber that was busy learns afterwards which
// keys changed, each once, however often they did. Reads take no lock.
package latest

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Map is the newest value per key. The zero value is ready. Writers of
// different keys may run at the same time; each key should have one writer.
type Map[K comparable, V any] struct {
	cells atomic.Pointer[map[K]*atomic.Pointer[V]] // copied on a change of keys

	mu   sync.Mutex // guards the change of keys and everything below
	subs map[*Subscription[K, V]]struct{}
}

// Get returns the newest value of a key, nil when there is none.
func (m *Map[K, V]) Get(k K) *V {
	cells := m.cells.Load()
	if cells == nil {
		return nil
	}
	if c := (*cells)[k]; c != nil {
		return c.Load()
	}
	return nil
}

// Keys returns every key, in no order.
func (m *Map[K, V]) Keys() []K {
	cells := m.cells.Load()
	if cells == nil {
		return nil
	}
	keys := make([]K, 0, len(*cells))
	for k := range *cells {
		keys = append(keys, k)
	}
	return keys
}

// Refresh replaces a value without waking subscribers.
func (m *Map[K, V]) Refresh(k K, v *V) {
	if cells := m.cells.Load(); cells != nil {
		if c := (*cells)[k]; c != nil {
			c.Store(v)
			return
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	next := make(map[K]*atomic.Pointer[V])
	if cells := m.cells.Load(); cells != nil {
		maps.Copy(next, *cells)
	}
	if next[k] == nil {
		next[k] = new(atomic.Pointer[V])
	}
	next[k].Store(v)
	m.cells.Store(&next)
}

// Set replaces a value and wakes subscribers.
func (m *Map[K, V]) Set(k K, v *V) {
	m.Refresh(k, v)
	m.wake(k)
}

// Delete forgets a key and wakes subscribers.
func (m *Map[K, V]) Delete(k K) {
	m.mu.Lock()
	next := make(map[K]*atomic.Pointer[V])
	if cells := m.cells.Load(); cells != nil {
		maps.Copy(next, *cells)
	}
	delete(next, k)
	m.cells.Store(&next)
	m.mu.Unlock()
	m.wake(k)
}

func (m *Map[K, V]) wake(k K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s := range m.subs {
		s.dirty[k] = struct{}{}
		select {
		case s.ready <- struct{}{}:
		default:
		}
	}
}

// Subscription learns which keys changed.
type Subscription[K comparable, V any] struct {
	m     *Map[K, V]
	dirty map[K]struct{} // guarded by m.mu
	ready chan struct{}
}

// Subscribe returns a subscription to which every present key counts as
// changed. Close it when done.
func (m *Map[K, V]) Subscribe() *Subscription[K, V] {
	s := &Subscription[K, V]{m: m, dirty: make(map[K]struct{}), ready: make(chan struct{}, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if cells := m.cells.Load(); cells != nil {
		for k := range *cells {
			s.dirty[k] = struct{}{}
		}
	}
	if len(s.dirty) > 0 {
		s.ready <- struct{}{}
	}
	if m.subs == nil {
		m.subs = make(map[*Subscription[K, V]]struct{})
	}
	m.subs[s] = struct{}{}
	return s
}

// Ready has a token whenever Take would return something.
func (s *Subscription[K, V]) Ready() <-chan struct{} { return s.ready }

// Take returns the keys that changed since the last Take, in no order.
func (s *Subscription[K, V]) Take() []K {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	keys := make([]K, 0, len(s.dirty))
	for k := range s.dirty {
		keys = append(keys, k)
	}
	clear(s.dirty)
	return keys
}

// Close ends the subscription.
func (s *Subscription[K, V]) Close() {
	s.m.mu.Lock()
	defer s.m.mu.Unlock()
	delete(s.m.subs, s)
}
