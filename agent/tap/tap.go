package tap

import (
	"sync"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// defaultBuffer is how many events a reader may be behind: half a minute of a
// cluster of five nodes that are asked every 50 ms.
const defaultBuffer = 4096

// Tap is where one cluster can be watched. Its state goroutine calls Folded and
// Decided; anybody may read. The zero value is ready.
type Tap struct {
	mu      sync.Mutex // guards everything below; nobody waits for anything while holding it
	kept    kept
	decided Decided
	readers map[*reader]bool
	over    string // why nothing will come any more; empty while something may
}

// Decided is one evaluation of the rules.
type Decided struct {
	At       topology.Clock
	Snapshot *topology.Snapshot
	Saved    topology.Saved // what an agent would know after a restart now
}

// event is what a reader gets; exactly one field is set.
type event struct {
	observation *topology.Observation
	decided     *decision
	lost        uint64 // so many events before this one did not fit
}

// decision is an evaluation without what only a new reader needs.
type decision struct {
	at       topology.Clock
	snapshot *topology.Snapshot
}

// present is what the agent knows at one moment.
type present struct {
	observations []topology.Observation // in the order in which they were folded
	decided      Decided                // zero before the first decision
}

// reader is one that watches. The tap sends while it holds its lock.
type reader struct {
	events chan event    // never closed
	ended  chan struct{} // closed when nothing more will be sent
	why    string        // why it was ended; read it after ended is closed
	lost   uint64        // events that did not fit since the last that did
}

// Folded tells of an observation that was folded just now.
func (t *Tap) Folded(o topology.Observation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept.take(o)
	if len(t.readers) == 0 {
		return
	}
	shared := o // by all readers; o itself stays off the heap while there is none
	e := event{observation: &shared}
	for r := range t.readers {
		r.send(e)
	}
}

// Decided tells of an evaluation that has just been made.
func (t *Tap) Decided(d Decided) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.Snapshot != t.decided.Snapshot {
		t.kept.forget(d.Snapshot)
	}
	t.decided = d
	if len(t.readers) == 0 {
		return
	}
	e := event{decided: &decision{d.At, d.Snapshot}}
	for r := range t.readers {
		r.send(e)
	}
}

// Cut ends every present reader, since what it was told of the cluster at the
// beginning does not hold any more; new ones may come.
func (t *Tap) Cut(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for r := range t.readers {
		r.end(why)
	}
	clear(t.readers)
}

// Close ends every reader, and those that still come at once.
func (t *Tap) Close(why string) {
	t.Cut(why)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = why
}

// read begins to watch; what is known now goes with it, so that nothing is
// missing between the two and nothing comes twice.
func (t *Tap) read(buffer int) (*reader, present) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &reader{events: make(chan event, buffer), ended: make(chan struct{})}
	if t.over != "" {
		r.end(t.over)
		return r, present{}
	}
	if t.readers == nil {
		t.readers = make(map[*reader]bool)
	}
	t.readers[r] = true
	return r, present{observations: t.kept.all(), decided: t.decided}
}

// leave ends a reader that wants no more.
func (t *Tap) leave(r *reader) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.readers, r)
}

// send never waits.
func (r *reader) send(e event) {
	if r.lost > 0 {
		select {
		case r.events <- event{lost: r.lost}:
			r.lost = 0
		default:
		}
	}
	if r.lost == 0 {
		select {
		case r.events <- e:
			return
		default:
		}
	}
	r.lost++
}

func (r *reader) end(why string) {
	r.why = why
	close(r.ended)
}
