package e2e

import (
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// A real Envoy on the printed bootstrap: writes reach the primary and reads the
// replicas, before and after a change of the writer; sessions to the old writer
// end, those of readers do not.
func TestEnvoyFollowsWriter(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{envoy: true})
	if _, err := f.envoy.Admin(t.Context(), "/ready"); err != nil {
		t.Errorf("Envoy is not ready: %v", err)
	}
	tr := f.clients(f.envoyWrite, f.envoyRead)
	readers := f.lab.Load(f.envoyRead, lab.LoadOptions{Sessions: 4, ReadOnly: true, Timeout: patient})
	f.settled("start", tr, time.Now())
	f.readsReach("n2", "n3")

	tl := f.switchover("n2")
	f.settled("switchover", tr, tl.NewWritable)
	f.is("main", "replica", "n1", topology.Up, topology.CodeReplica)
	f.readsReach("n1", "n3")
	// The session of a reader on the promoted node goes on too: it can read there.
	f.unbroken("held readers through a switchover", readers.Stop())
	f.unbroken("new readers through a switchover", tr.reads.Samples())

	f.envoyFreeze(tr)
	f.onlyWriters("held sessions", tr.held.Stop())
	f.onlyWriters("new sessions", tr.fresh.Stop())
	f.reading(tr.reads.Stop())
	if _, err := f.envoy.Admin(t.Context(), "/ready"); err != nil {
		t.Errorf("Envoy is not ready: %v", err)
	}
}

// readsReach waits until new read sessions have reached these nodes, and then
// allows no others.
func (f *front) readsReach(names ...string) {
	f.t.Helper()
	missing := make(map[int]bool)
	ports := make(map[int]bool)
	for _, n := range names {
		missing[f.node(n).Port()], ports[f.node(n).Port()] = true, true
	}
	f.until("reads on each replica", func() bool {
		delete(missing, f.reached(f.envoyRead))
		return len(missing) == 0
	})
	f.during(500*time.Millisecond, "reads reach the replicas", func() bool { return ports[f.reached(f.envoyRead)] })
}

// envoyFreeze lets the writer freeze, so that its sessions end by Envoy's hand
// or not at all, and wakes it after another was promoted.
func (f *front) envoyFreeze(tr mix) {
	f.t.Helper()
	old := f.writer()
	idle := watchEnd(f.t, f.session(f.envoyWrite, old.Port()))
	f.do(old.Freeze())
	f.is("main", "primary", old.Name(), topology.Drain, topology.CodeSilent)
	select {
	case at := <-idle:
		f.t.Errorf("a session ended at %s although its server is only silent", at)
	default:
	}
	tl := f.failover()
	decided := tl.NewWritable.Add(f.sinceWritable(tl))
	select {
	case at := <-idle:
		f.t.Logf("freeze: session to the old writer ended %s after the new one was writable, %s after the decision", at.Sub(tl.NewWritable), at.Sub(decided))
	case <-time.After(5 * time.Second):
		f.t.Error("a session to the frozen writer lives on 5 s after its successor was promoted")
	}
	f.settled("freeze", tr, tl.NewWritable)
	f.do(old.Thaw())
	f.is("main", "primary", old.Name(), topology.Down, topology.CodeOldTimeline)
	f.during(time.Second, "new sessions reach the new writer", func() bool { return f.reached(f.envoyWrite) == f.writer().Port() })
}
