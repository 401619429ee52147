package healthapi

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// The bounds of a memory: how many replies, and how long a request may be that
// is remembered. Above the first everything is forgotten, so that odd requests
// cannot fill it for good.
const (
	maxKept   = 8192
	maxTarget = 256
)

// memory keeps replies until the view, the settings or the time may change them.
// The zero value is ready.
type memory struct {
	get, head, options sync.Map // request target → *kept
	size               atomic.Int64
	clusters           sync.Map // name → *epochs
}

// basis is what a reply rests on.
type basis struct {
	cluster  string
	view     *topology.View
	settings *Settings
	until    topology.Mono // zero: it rests on more, and may not be kept
}

// kept is a reply and how long it holds.
type kept struct {
	reply    *reply
	cluster  string
	settings *Settings
	until    topology.Mono
	of       *epochs
	epoch    uint64
}

// epochs counts a cluster's views. Replies hold the number of theirs and not the
// view itself, so that old views are freed.
type epochs struct{ last atomic.Pointer[epoch] }

type epoch struct {
	view   *topology.View
	number uint64
}

// of returns a view's number. One that comes back gets another.
func (e *epochs) of(v *topology.View) uint64 {
	for {
		last := e.last.Load()
		next := &epoch{view: v, number: 1}
		if last != nil {
			if last.view == v {
				return last.number
			}
			next.number = last.number + 1
		}
		if e.last.CompareAndSwap(last, next) {
			return next.number
		}
	}
}

func (m *memory) of(method string) *sync.Map {
	switch method {
	case http.MethodGet:
		return &m.get
	case http.MethodHead:
		return &m.head
	case http.MethodOptions:
		return &m.options
	}
	return nil
}

// recall returns the reply to a request that was answered before, nil when there
// is none that still holds.
func (s *Server) recall(r *http.Request, set *Settings) *reply {
	if len(r.RequestURI) > maxTarget {
		return nil
	}
	m := s.memory.of(r.Method)
	if m == nil {
		return nil
	}
	v, ok := m.Load(r.RequestURI)
	if !ok {
		return nil
	}
	k := v.(*kept)
	if k.settings != set || s.opts.Now().Mono > k.until || k.of.of(s.opts.Views.Get(k.cluster)) != k.epoch {
		return nil
	}
	return k.reply
}

// remember keeps a reply for the next request of the same kind.
func (s *Server) remember(r *http.Request, rep *reply, b basis) {
	m := s.memory.of(r.Method)
	if b.until == 0 || m == nil || len(r.RequestURI) > maxTarget {
		return
	}
	found, _ := s.memory.clusters.LoadOrStore(b.cluster, new(epochs))
	of := found.(*epochs)
	k := &kept{reply: rep, cluster: b.cluster, settings: b.settings, until: b.until, of: of, epoch: of.of(b.view)}
	if _, had := m.Swap(r.RequestURI, k); !had && s.memory.size.Add(1) > maxKept {
		s.memory.forget()
	}
}

func (m *memory) forget() {
	m.size.Store(0)
	m.get.Clear()
	m.head.Clear()
	m.options.Clear()
	m.clusters.Clear()
}
