package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// BenchmarkAutoFailoverGap measures what clients at HAProxy see of a change of the
// writer that pg_auto_failover's monitor decides: from the moment at which the new
// writer's server takes writes, asked directly every 2 ms, to the first good write
// of a client that opens a session every 10 ms, and of the slowest of four held
// sessions. Each iteration is one change; -benchtime=10x makes ten. What the monitor
// and the keepers take before that moment is theirs, and not in the figures.
func BenchmarkAutoFailoverGap(b *testing.B) {
	g := newAutoGap(b)
	for _, way := range []struct {
		name  string
		begin func() error
	}{
		{"switchover", func() error { return g.auto.Decide(g.t.Context(), "perform_failover('default', 0)") }},
		{"kill", func() error { return g.writer.Kill() }},
	} {
		b.Run(way.name, func(b *testing.B) {
			g.t = b
			var fresh, held []time.Duration
			readOnly := 0
			for b.Loop() {
				c := g.change(way.begin)
				fresh, held, readOnly = append(fresh, c.fresh), append(held, c.held), readOnly+c.readOnly
			}
			b.ReportMetric(0, "ns/op") // the change itself, which is the monitor's
			for name, all := range map[string][]time.Duration{"new": fresh, "held": held} {
				slices.Sort(all)
				b.ReportMetric(all[(len(all)-1)/2].Seconds()*1000, name+"-p50-ms")
				b.ReportMetric(all[len(all)-1].Seconds()*1000, name+"-max-ms")
			}
			b.ReportMetric(float64(readOnly), "read-only-writes")
		})
	}
}

// autoGap is a cluster of two under pg_auto_failover with HAProxy before it.
type autoGap struct {
	*autoRig
	front        *front // its HAProxy
	writer, next *lab.AutoFailoverNode
}

func newAutoGap(b *testing.B) *autoGap {
	b.Helper()
	p := autoRigOf(b, 2, lab.NeedAutoFailover, lab.NeedHAProxy)
	f := &front{rig: p.rig, write: p.addr(), read: p.addr()}
	p.steer(fmt.Sprintf(`    pools:
      primary: {mode: write, listen: %q}
      replica: {mode: read, listen: %q}
%s`, f.write, f.read, p.haproxyConfig()))
	p.up()
	p.settled("n1", "n2")
	f.startHAProxy()
	return &autoGap{autoRig: p, front: f, writer: p.auto.Node("n1"), next: p.auto.Node("n2")}
}

// change is what clients saw of one change of the writer.
type change struct {
	fresh, held time.Duration
	// readOnly counts writes that reached a server before it took any.
	readOnly int
}

// change moves the writer, and leaves a cluster that is whole.
func (g *autoGap) change(begin func() error) change {
	g.t.Helper()
	fresh := g.lab.Load(g.front.write, lab.LoadOptions{NewSession: true})
	held := g.lab.Load(g.front.write, lab.LoadOptions{Sessions: 4})
	g.writes(fresh, 1, g.writer)
	g.writes(held, 4, g.writer)
	writable := make(chan time.Time, 1)
	go func() { writable <- g.writableAt(g.t.Context(), g.next) }()
	g.do(begin())
	at := <-writable
	if at.IsZero() {
		g.t.Fatalf("%s did not take writes", g.next.Name())
	}
	g.writes(fresh, 1, g.next)
	g.writes(held, 4, g.next)
	c := change{fresh: gap(fresh.Samples(), at), held: slowest(held.Samples(), at)}
	for _, x := range append(fresh.Stop(), held.Stop()...) {
		if state, ok := errors.AsType[*pgconn.PgError](x.Err); ok && state.Code == "25006" {
			c.readOnly++
		}
	}
	g.do(g.writer.Start(g.t.Context()))
	g.writer, g.next = g.next, g.writer
	g.settled(g.writer.Name(), g.next.Name())
	return c
}

// writes waits until every session of a load has written on a node.
func (g *autoGap) writes(l *lab.Load, sessions int, n *lab.AutoFailoverNode) {
	g.t.Helper()
	for i := range sessions {
		g.do(l.Wait(g.t.Context(), fmt.Sprintf("session %d to write on %s", i, n.Name()), func(x lab.Sample) bool {
			return x.Session == i && x.Op == lab.Write && x.Err == nil && x.Port == n.Port()
		}))
	}
}

// writableAt asks a server until it takes writes; zero: it did not.
func (g *autoGap) writableAt(ctx context.Context, n *lab.AutoFailoverNode) time.Time {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var conn *pgx.Conn
	defer func() { closeConn(conn) }()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		if conn == nil || conn.IsClosed() {
			conn, _ = n.Conn(ctx, lab.AppUser, "postgres")
		}
		if conn != nil && whatIs(ctx, conn) == "writable" {
			return time.Now()
		}
		select {
		case <-ctx.Done():
			return time.Time{}
		case <-tick.C:
		}
	}
}
