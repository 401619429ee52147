package xds

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// Memory keeps which listeners stand at Envoys over a restart. Without it an
// upgrade that writes a listener differently would end every session.
type Memory interface {
	// Load returns what Save was given last, nil for nothing.
	Load() ([]byte, error)
	// Save keeps b. It may take its time.
	Save(b []byte) error
}

// standing is a listener as Envoys have it.
type standing struct {
	// Writer whom the listener was made for, nil for a read pool.
	Writer *string `json:"writer,omitempty"`
	// Release is the operator's word when it was made, see Options.Release.
	Release string `json:"release"`
	Bytes   []byte `json:"bytes"`
}

// hold keeps listeners as they stand. Every difference in one ends its sessions,
// so a listener changes when its writer does, whose sessions end in any case, or
// when the operator gives another word of release. All of it belongs to the
// goroutine of the publisher, but for saving.
type hold struct {
	log      *slog.Logger
	memory   Memory
	release  string
	stand    map[string]standing // by name
	unsaved  chan []byte
	mu       sync.Mutex // guards withheld
	withheld map[string]struct{}
}

func newHold(m Memory, release string, log *slog.Logger) *hold {
	h := &hold{
		log: log, memory: m, release: release,
		stand: make(map[string]standing), unsaved: make(chan []byte, 1), withheld: make(map[string]struct{}),
	}
	if m == nil {
		return h
	}
	b, err := m.Load()
	if err == nil && b != nil {
		err = json.Unmarshal(b, &h.stand)
	}
	maps.DeleteFunc(h.stand, func(_ string, l standing) bool { return len(l.Bytes) == 0 })
	if err != nil {
		h.stand = make(map[string]standing)
		log.Error("which listeners stand at Envoys is not known; those that this version makes are served, and end sessions where they differ", "error", err)
	}
	return h
}

// keep replaces listeners of a new set by those that stand, where these may not
// change yet. writers has the writers of write pools.
func (h *hold) keep(next map[string]*resource, writers map[string]string) {
	changed := false
	for name, r := range next {
		wanted := standing{Release: h.release, Bytes: r.wire.GetResource().GetValue()}
		if w, write := writers[name]; write {
			wanted.Writer = &w
		}
		old, stands := h.stand[name]
		free := !stands || old.Release != h.release || !sameWriter(old.Writer, wanted.Writer)
		if free || bytes.Equal(old.Bytes, wanted.Bytes) {
			changed = changed || free
			h.stand[name] = wanted
			h.note(name, false)
			continue
		}
		next[name] = resourceOf(kindListener, name, old.Bytes)
		h.note(name, true)
	}
	if changed {
		h.save()
	}
}

// forget drops the listeners of a cluster that are not in its new set.
func (h *hold) forget(cluster string, next map[string]*resource) {
	gone := false
	for name := range h.stand {
		if clusterOf(name) == cluster && next[name] == nil {
			delete(h.stand, name)
			h.note(name, false)
			gone = true
		}
	}
	if gone {
		h.save()
	}
}

func sameWriter(a, b *string) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// note remembers whether a listener's change is held back, and logs news of it.
func (h *hold) note(name string, back bool) {
	h.mu.Lock()
	_, was := h.withheld[name]
	if back {
		h.withheld[name] = struct{}{}
	} else {
		delete(h.withheld, name)
	}
	h.mu.Unlock()
	if back && !was {
		h.log.Warn("a changed listener is held back, since it would end its sessions; it is served when its writer changes, or when envoy.release gets another text", "listener", name)
	}
}

// names are the listeners whose change is held back.
func (h *hold) names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.withheld))
}

// save hands what stands to the goroutine that writes it.
func (h *hold) save() {
	if h.memory == nil {
		return
	}
	b, err := json.MarshalIndent(h.stand, "", "  ")
	if err != nil {
		h.log.Error("which listeners stand cannot be kept over a restart", "error", err)
		return
	}
	select {
	case <-h.unsaved: // an older one that was not written yet
	default:
	}
	h.unsaved <- b
}

// run writes what stands until ctx ends, off the way of decisions: a disk that
// hangs must not delay them.
func (h *hold) run(ctx context.Context) {
	write := func(b []byte) {
		if err := h.memory.Save(b); err != nil {
			h.log.Error("which listeners stand was not saved; a restart may serve them differently", "error", err)
		}
	}
	for {
		select {
		case b := <-h.unsaved:
			write(b)
		case <-ctx.Done():
			select {
			case b := <-h.unsaved:
				write(b)
			default:
			}
			return
		}
	}
}
