package e2e

import (
	"syscall"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// reloads reloads HAProxy that many times, one after the other, beside the test.
func (f *front) reloads(n int) <-chan error {
	done := make(chan error, 1)
	go func() {
		var err error
		for range n {
			if err = f.haproxy.Reload(f.t.Context()); err != nil {
				break
			}
		}
		done <- err
	}()
	return done
}

// Twenty reloads under a storm of new connections, while the writer moves: no
// session reaches a node before it is the writer, or after. Afterwards the
// sessions that a reload left behind are judged as the others are.
func TestHAProxyReloads(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{haproxy: true, replica: ", max_lag: 1MB"})
	storm := f.lab.Load(f.write, lab.LoadOptions{Sessions: 6, NewSession: true, Interval: time.Millisecond})
	f.writing(storm, f.writer())
	for _, to := range []string{"n2", "n3", "n2", "n1"} {
		reloaded := f.reloads(5)
		f.switchover(to)
		f.do(<-reloaded)
		f.writing(storm, f.writer())
	}
	samples := storm.Stop()
	t.Logf("%d tries to get in", len(samples))
	f.onlyWriters("new sessions through 20 reloads", samples)
	f.leftBehind()
}

// leftBehind opens sessions and reloads HAProxy. In the worker that the reload
// replaced nothing is checked any more; still the reader stays when its replica
// lags, and the writer's session ends within a second of another node's promotion.
// The old writer is frozen: what ends its session is HAProxy.
func (f *front) leftBehind() {
	f.t.Helper()
	old, lagging := f.writer(), f.node("n3")
	writer := watchEnd(f.t, f.session(f.write, old.Port()))
	reader := f.session(f.read, lagging.Port())
	f.do(f.haproxy.Reload(f.t.Context()))
	if behind, err := f.haproxy.OldWorkers(f.t.Context()); err != nil || len(behind) != 1 {
		f.t.Fatalf("old workers %v, %v; want one, with both sessions", behind, err)
	}
	reads := func() bool { return serverPort(reader) == lagging.Port() }

	f.do(lagging.PauseReplay(f.t.Context()))
	f.fallBehind(lagging.Name(), 3<<20)
	f.is("main", "replica", lagging.Name(), topology.Drain, topology.CodeLag)
	f.during(time.Second, "a reader in an old worker stays on its lagging replica", reads)
	f.do(lagging.ResumeReplay(f.t.Context()))

	f.do(old.Freeze())
	f.is("main", "primary", old.Name(), topology.Drain, topology.CodeSilent)
	tl, err := f.cluster.Failover(f.t.Context(), "n2")
	f.do(err)
	f.succeeded(f.node("n2"), tl)
	f.cut(writer, tl, time.Second)
	f.during(time.Second, "a reader in an old worker stays through a change of the writer", reads)
}

// pgsteer is killed and started again while HAProxy is reloaded. Nobody is cut. A
// worker that starts meanwhile has no word on anybody, and lets readers in, but no
// writer.
func TestHAProxyReloadsAndPgsteerDies(t *testing.T) {
	t.Parallel()
	program := buildProgram(t)
	var p *process
	f := newFront(t, frontOptions{haproxy: true, external: func(f *front) { p = f.run(program) }})
	tr := f.clients(f.write, f.read)
	readers := f.lab.Load(f.read, lab.LoadOptions{Sessions: 4, ReadOnly: true, Timeout: patient})
	f.settled("start", tr, time.Now())
	for range 3 {
		reloaded := f.reloads(3)
		p.kill()
		f.do(<-reloaded)
		f.during(300*time.Millisecond, "a new worker lets no writer in without a word", func() bool { return f.refuses(f.write) == nil })
		reloaded = f.reloads(3)
		p = f.run(program)
		f.do(<-reloaded)
		f.decided("n1")
		f.within(10*time.Second, "pgsteer to have looked into the old workers", func() bool {
			return f.sink("runtimeapi old workers of " + f.haproxy.MasterSocket()).Gauges["old_workers"] > 0
		})
		f.writing(tr.fresh, f.writer())
	}
	f.unbroken("held writers", tr.held.Stop())
	f.unbroken("held readers", readers.Stop())
	f.unbroken("new readers", tr.reads.Stop())
	f.onlyWriters("new sessions", tr.fresh.Stop())
	p.signal(syscall.SIGTERM)
	if err := p.wait(); err != nil {
		t.Errorf("pgsteer ended by SIGTERM with: %v", err)
	}
}
