package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// traffic is what applications do while something happens.
type traffic struct {
	p     *patroniRig
	begin time.Time
	idle  []<-chan time.Time // sessions that only wait, through HAProxy and Envoy
	// Sessions that last, through HAProxy and Envoy; a new one for each operation.
	kept, keptEnvoy, fresh, reads *lab.Load
}

// traffic starts clients of every kind on the present writer.
func (p *patroniRig) traffic(leader *lab.PatroniNode) *traffic {
	p.t.Helper()
	const patient = 8 * time.Second // a busy machine is no failure
	x := &traffic{p: p}
	for _, addr := range []string{p.write, p.envoyWrite} {
		x.idle = append(x.idle, watchEnd(p.t, p.session(addr, leader.Port())))
	}
	x.kept = p.lab.Load(p.write, lab.LoadOptions{Sessions: 4, Timeout: patient})
	x.keptEnvoy = p.lab.Load(p.envoyWrite, lab.LoadOptions{Timeout: patient})
	x.fresh = p.lab.Load(p.write, lab.LoadOptions{NewSession: true, Timeout: patient, Interval: 25 * time.Millisecond})
	x.reads = p.lab.Load(p.read, lab.LoadOptions{ReadOnly: true, NewSession: true, Timeout: patient, Interval: 25 * time.Millisecond})
	for _, l := range []*lab.Load{x.kept, x.keptEnvoy, x.fresh} {
		p.t.Cleanup(func() { l.Stop() })
		p.do(l.Wait(p.t.Context(), "a write", func(s lab.Sample) bool { return s.Op == lab.Write && s.Err == nil }))
	}
	p.t.Cleanup(func() { x.reads.Stop() })
	x.begin = time.Now()
	return x
}

// uncut fails the test when a session that lasts was cut, or an operation on it
// or a read failed.
func (x *traffic) uncut() {
	x.p.t.Helper()
	for i, c := range x.idle {
		select {
		case at := <-c:
			x.p.t.Errorf("idle session %d (0: HAProxy, 1: Envoy) was cut %s after the beginning", i, at.Sub(x.begin))
		default:
		}
	}
	x.p.unbroken("lasting sessions through HAProxy", x.kept.Samples())
	x.p.unbroken("lasting sessions through Envoy", x.keptEnvoy.Samples())
	x.p.unbroken("reads", x.reads.Samples())
}

// undisturbed is uncut, and new sessions were let in all the time.
func (x *traffic) undisturbed() {
	x.p.t.Helper()
	x.uncut()
	x.p.unbroken("new sessions", x.fresh.Samples())
}

// alive reports whether no idle session has ended. It takes no moment away.
func (x *traffic) alive() bool {
	for _, c := range x.idle {
		if len(c) > 0 {
			return false
		}
	}
	return true
}

// ends waits until every idle session has ended and returns when each did.
func (x *traffic) ends() []time.Time {
	x.p.t.Helper()
	var at []time.Time
	for i, c := range x.idle {
		x.p.until(fmt.Sprintf("the end of idle session %d (0: HAProxy, 1: Envoy)", i), func() bool { return len(c) > 0 })
		at = append(at, <-c)
	}
	return at
}

// never fails the test for each operation on a port that began in a time.
func (x *traffic) never(port int, from, until time.Time) {
	x.p.t.Helper()
	n := 0
	for _, l := range []*lab.Load{x.kept, x.keptEnvoy, x.fresh} {
		for _, s := range between(l.Samples(), from.Add(clockSlack), until) {
			if n++; s.Err == nil && s.Port == port {
				x.p.t.Errorf("%s at %s was on port %d, which was not the writer", s.Op, s.At.Format(time.StampMilli), port)
			}
		}
	}
	x.p.t.Logf("%d operations looked at for port %d", n, port)
}

// writable fails the test for each write that met a server that takes none.
func (x *traffic) writable() {
	x.p.t.Helper()
	for _, l := range []*lab.Load{x.kept, x.keptEnvoy, x.fresh} {
		for _, s := range l.Samples() {
			if e, ok := errors.AsType[*pgconn.PgError](s.Err); ok && e.Code == "25006" {
				x.p.t.Errorf("%s at %s on port %d met a read-only server", s.Op, s.At.Format(time.StampMilli), s.Port)
			}
		}
	}
}

// book records every view that was published, in order.
type book struct {
	mu    sync.Mutex
	views []*topology.View
}

// record writes down what the agent decides until the test ends.
func (p *patroniRig) record() *book {
	b := &book{}
	sub := p.agent.Views().Subscribe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	views := p.agent.Views()
	go func() {
		defer close(done)
		defer sub.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case <-sub.Ready():
				sub.Take()
				b.mu.Lock()
				b.views = append(b.views, views.Get("main"))
				b.mu.Unlock()
			}
		}
	}()
	p.t.Cleanup(func() { cancel(); <-done })
	return b
}

// all returns what was recorded until now.
func (b *book) all() []*topology.View {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.views)
}

// saw reports whether a node had a verdict for a reason in a pool.
func (b *book) saw(pool, node string, want topology.Verdict, code topology.Code) bool {
	return slices.ContainsFunc(b.all(), func(v *topology.View) bool {
		p, _ := v.Snapshot.Pool(pool)
		n, _ := p.Verdict(node)
		return n.Verdict == want && n.Reason().Code == code
	})
}

// proven fails the test for a view in which a writer is not named by a current
// authority and writable by its own word.
func (b *book) proven(tb testing.TB) {
	tb.Helper()
	n := 0
	for _, v := range b.all() {
		w := v.Snapshot.Writer
		if w == "" {
			continue
		}
		n++
		f := v.Facts.Nodes[w]
		if v.Snapshot.Authority.Leader != w || f.InRecovery != topology.No || f.ReadOnly != topology.No {
			tb.Errorf("generation %d has writer %s, while the authority (%s) names %q and its own word is in recovery: %s, read-only: %s",
				v.Snapshot.Generation, w, v.Snapshot.Authority.State, v.Snapshot.Authority.Leader, f.InRecovery, f.ReadOnly)
		}
	}
	tb.Logf("%d views with a writer, all proven", n)
}
