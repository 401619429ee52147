package latest

import (
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ready reports whether a subscription has a token, and takes it.
func ready[K comparable, V any](s *Subscription[K, V]) bool {
	select {
	case <-s.Ready():
		return true
	default:
		return false
	}
}

func sorted(keys []string) []string {
	slices.Sort(keys)
	return keys
}

func TestNewestWins(t *testing.T) {
	var m Map[string, int]
	if m.Get("a") != nil || m.Keys() != nil {
		t.Fatal("an empty map has a value")
	}
	m.Set("a", new(1))
	m.Set("a", new(2))
	m.Refresh("b", new(3))
	if *m.Get("a") != 2 || *m.Get("b") != 3 || m.Get("c") != nil {
		t.Fatalf("a is %d, b is %d", *m.Get("a"), *m.Get("b"))
	}
	if keys := sorted(m.Keys()); !slices.Equal(keys, []string{"a", "b"}) {
		t.Fatalf("keys %v", keys)
	}
	m.Delete("a")
	if m.Get("a") != nil || len(m.Keys()) != 1 {
		t.Fatal("a is still there")
	}
	m.Delete("never there")
}

// TestSubscription: each changed key once, however often it changed.
func TestSubscription(t *testing.T) {
	var m Map[string, int]
	m.Set("a", new(1))
	s := m.Subscribe()
	if !ready(s) || !slices.Equal(s.Take(), []string{"a"}) {
		t.Fatal("a present key does not count as changed")
	}
	if ready(s) || len(s.Take()) != 0 {
		t.Fatal("nothing changed, and yet there is something to take")
	}
	m.Refresh("a", new(2))
	m.Refresh("new", new(2))
	if ready(s) {
		t.Fatal("a refresh woke a subscriber")
	}
	for range 100 {
		m.Set("a", new(3))
		m.Set("b", new(4))
	}
	m.Delete("b")
	if !ready(s) {
		t.Fatal("no token after changes")
	}
	if ready(s) {
		t.Fatal("more than one token")
	}
	if keys := sorted(s.Take()); !slices.Equal(keys, []string{"a", "b"}) {
		t.Fatalf("changed keys %v", keys)
	}
	s.Close()
	m.Set("a", new(5))
	if ready(s) {
		t.Fatal("a closed subscription was woken")
	}
	s.Close()
}

func TestSubscribeToNothing(t *testing.T) {
	var m Map[string, int]
	s := m.Subscribe()
	defer s.Close()
	if ready(s) {
		t.Fatal("a token although there is no key")
	}
}

// TestConcurrent: readers see values that never go back, subscribers end up with
// every writer's last value, and nobody waits for a slow one.
func TestConcurrent(t *testing.T) {
	const writers, last = 8, 2000
	var m Map[int, int]
	slow := m.Subscribe() // never takes until the end
	defer slow.Close()
	quick := m.Subscribe()
	defer quick.Close()
	var writing, reading sync.WaitGroup
	done := make(chan struct{})
	for k := range writers {
		writing.Go(func() {
			for v := 1; v <= last; v++ {
				if v%3 == 0 {
					m.Refresh(k, new(v))
				} else {
					m.Set(k, new(v))
				}
			}
			m.Set(k, new(last))
		})
		reading.Go(func() {
			for before := 0; before < last; {
				if v := m.Get(k); v != nil {
					if *v < before {
						t.Errorf("%d went from %d to %d", k, before, *v)
						return
					}
					before = *v
				}
			}
		})
	}
	seen := make(map[int]int)
	reading.Go(func() {
		for {
			select {
			case <-quick.Ready():
				for _, k := range quick.Take() {
					seen[k] = *m.Get(k)
				}
			case <-done:
				return
			}
		}
	})
	writing.Wait()
	close(done)
	reading.Wait()
	for _, k := range quick.Take() {
		seen[k] = *m.Get(k)
	}
	for k := range writers {
		if seen[k] != last {
			t.Errorf("the subscriber saw %d of %d, want %d", seen[k], k, last)
		}
	}
	if keys := slow.Take(); len(keys) != writers {
		t.Errorf("the slow subscriber learned of %v", keys)
	}
}

// TestConcurrentKeys: keys come and go while others are read.
func TestConcurrentKeys(t *testing.T) {
	var m Map[int, int]
	m.Set(-1, new(1))
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Go(func() {
			for range 500 {
				m.Set(k, new(k))
				if *m.Get(k) != k {
					t.Errorf("%d has another's value", k)
				}
				m.Delete(k)
				if m.Get(k) != nil {
					t.Errorf("%d is still there", k)
				}
				if m.Get(-1) == nil {
					t.Error("a key that nobody deleted is gone")
				}
				s := m.Subscribe()
				m.Keys()
				s.Close()
			}
		})
	}
	wg.Wait()
	if keys := m.Keys(); !slices.Equal(keys, []int{-1}) {
		t.Errorf("keys %v, want -1", keys)
	}
}

func BenchmarkGet(b *testing.B) {
	var m Map[string, int]
	for _, k := range []string{"main", "orders", "billing"} {
		m.Set(k, new(1))
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if m.Get("orders") == nil {
				b.Error("no value")
			}
		}
	})
}

func BenchmarkSet(b *testing.B) {
	var m Map[string, int]
	s := m.Subscribe()
	defer s.Close()
	v := new(1)
	b.ReportAllocs()
	for range b.N {
		m.Set("main", v)
	}
}
