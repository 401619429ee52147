package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// BenchmarkAutoFailoverGap measures what clients at HAProxy and at Envoy see of a
// change of the writer that pg_auto_failover's monitor decides: from the moment at
// which the new writer's server takes writes, asked directly every 2 ms, to the first
// good write of a client that opens a session every 10 ms, and of the slowest of four
// held sessions. Each iteration is one change; `make bench BENCH=AutoFailoverGap` makes
// ten of each kind. What the monitor and the keepers take before that moment is theirs,
// and not in the figures. A session that reaches the new writer while it is still
// read-only fails it, and so does a write on the old one after that moment.
func BenchmarkAutoFailoverGap(b *testing.B) {
	g := newAutoGap(b, "", "n1", "n2")
	for _, way := range []struct {
		name       string
		begin, end func() error
	}{
		{"switchover", func() error { return g.auto.Decide(g.t.Context(), "perform_failover('default', 0)") }, func() error { return nil }},
		{"kill", func() error { return g.writer.Kill() }, g.revive},
		{"maintenance", g.maintenance("start"), g.maintenance("stop")},
		{"freeze", func() error { return g.writer.Freeze() }, func() error { return g.writer.Thaw() }},
		{"kill-while-the-monitor-is-away", g.killUnseen, g.revive},
	} {
		g.bench(b, way.name, way.begin, way.end)
	}
	three := newAutoGap(b, "", "n1", "n2", "n3")
	three.bench(b, "switchover-of-three", three.promotion, func() error { return nil })
}

func (g *autoGap) bench(b *testing.B, name string, begin, end func() error) {
	b.Run(name, func(b *testing.B) {
		g.t, g.front.t = b, b
		seen := make(map[string][]change)
		for b.Loop() {
			for at, c := range g.change(begin, end) {
				seen[at] = append(seen[at], c)
			}
		}
		b.ReportMetric(0, "ns/op") // the change itself, which is the monitor's
		for at, all := range seen {
			report(b, at, all)
		}
	})
}

// TestAutoFailoverClients: no session of a client reaches a node that the monitor has
// chosen and that is still read-only, and none writes on the old writer afterwards, at
// HAProxy and at Envoy. Of three nodes the winner goes another way than of two. The agent
// lives on the monitor's notifications there: its own reads are far apart.
func TestAutoFailoverClients(t *testing.T) {
	for _, nodes := range [][]string{{"n1", "n2"}, {"n1", "n2", "n3"}} {
		t.Run(fmt.Sprintf("of %d", len(nodes)), func(t *testing.T) {
			g := newAutoGap(t, seldom, nodes...)
			g.announced()
			for at, c := range g.change(g.promotion, func() error { return nil }) {
				if c.early+c.late > 0 {
					t.Errorf("%s: %d sessions reached the new writer before it took writes, %d writes the old one after that", at, c.early, c.late)
				}
				if worst := 3 * time.Second; c.fresh > worst || c.held > worst {
					t.Errorf("%s: writes came back after %s, those of held sessions after %s", at, c.fresh, c.held)
				}
			}
		})
	}
}

// report tells what clients saw at one balancer.
func report(b *testing.B, at string, all []change) {
	b.Helper()
	var fresh, held []time.Duration
	early, late := 0, 0
	for _, c := range all {
		fresh, held = append(fresh, c.fresh), append(held, c.held)
		early, late = early+c.early, late+c.late
	}
	for name, v := range map[string][]time.Duration{"new": fresh, "held": held} {
		slices.Sort(v)
		for _, q := range []int{50, 99} {
			b.ReportMetric(v[min(len(v)*q/100, len(v)-1)].Seconds()*1000, fmt.Sprintf("%s-%s-p%d-ms", at, name, q))
		}
	}
	b.ReportMetric(float64(early), at+"-read-only-sessions")
	b.ReportMetric(float64(late), at+"-old-writes")
	if early+late > 0 {
		b.Errorf("%s: %d sessions reached a new writer before it took writes, %d writes an old one after that", at, early, late)
	}
}

// autoGap is a cluster under pg_auto_failover with HAProxy and Envoy before it. Its
// first two nodes are the writer by turns.
type autoGap struct {
	*autoRig
	front        *front
	writer, next *lab.AutoFailoverNode
	others       []string
}

// newAutoGap makes one whose agent reads the monitor at least every interval; empty: the
// default.
func newAutoGap(tb testing.TB, interval string, nodes ...string) *autoGap {
	tb.Helper()
	p := autoRigOf(tb, len(nodes), lab.NeedAutoFailover, lab.NeedHAProxy, lab.NeedEnvoy)
	p.interval = interval
	f := &front{rig: p.rig, write: p.addr(), read: p.addr()}
	f.envoyWrite, f.envoyRead = atEnvoy(f.write), atEnvoy(f.read)
	p.steer(fmt.Sprintf(`    pools:
      primary: {mode: write, listen: %q}
      replica: {mode: read, listen: %q}
envoy: {listen_host: %s}
%s`, f.write, f.read, envoyHost, p.haproxyConfig()))
	p.up()
	p.settled(nodes[0], nodes[1:]...)
	f.startHAProxy()
	f.startEnvoy()
	return &autoGap{autoRig: p, front: f, writer: p.auto.Node(nodes[0]), next: p.auto.Node(nodes[1]), others: nodes[2:]}
}

// The time between two reads of the monitor that nothing asks for, and what bounds a
// notification: far less, whatever the machine does besides.
const (
	seldom    = "20s"
	heardSoon = 5 * time.Second
)

// announced holds that the agent hears of a change by the monitor's notification. No
// server changes its role by this one, so that nothing else makes the agent ask; and of
// two within heardSoon at most one can be found by a read that was due.
func (g *autoGap) announced() {
	g.t.Helper()
	for _, to := range []struct {
		priority int
		tag      string
	}{{0, "true"}, {50, ""}} {
		g.priority(g.next.Name(), to.priority)
		took := g.within(heardSoon, fmt.Sprintf("the notification of %s's candidate priority %d", g.next.Name(), to.priority), func() bool {
			return g.tag(g.next.Name(), topology.TagNoFailover) == to.tag
		})
		g.t.Logf("candidate priority %d to the agent: %s", to.priority, took)
	}
	g.settled(g.writer.Name(), append([]string{g.next.Name()}, g.others...)...)
}

// promotion has the monitor hand the writer's role to the next one.
func (g *autoGap) promotion() error {
	return g.auto.Decide(g.t.Context(), "perform_promotion('default', '"+g.next.Name()+"')")
}

// maintenance takes the writer out by the monitor's word, or puts that node back.
func (g *autoGap) maintenance(word string) func() error {
	return func() error {
		id := strings.TrimPrefix(g.writer.Name(), "n") // they were registered in this order
		return g.auto.Decide(g.t.Context(), word+"_maintenance("+id+")")
	}
}

func (g *autoGap) revive() error { return g.writer.Start(g.t.Context()) }

// killUnseen kills the writer while the monitor is away, and starts that again.
func (g *autoGap) killUnseen() error {
	ctx := g.t.Context()
	return errors.Join(g.auto.Monitor().Stop(ctx), g.writer.Kill(), g.auto.Monitor().Start(ctx))
}

// change is what clients saw of one change of the writer.
type change struct {
	fresh, held time.Duration
	// early counts sessions that reached the new writer before it took writes, and
	// writes that it refused as read-only; late those that the old one took afterwards.
	early, late int
}

// autoClients are the clients at one balancer.
type autoClients struct{ fresh, held *lab.Load }

func (g *autoGap) clients() map[string]autoClients {
	all := make(map[string]autoClients)
	for at, addr := range map[string]string{"haproxy": g.front.write, "envoy": g.front.envoyWrite} {
		all[at] = autoClients{g.lab.Load(addr, lab.LoadOptions{NewSession: true}), g.lab.Load(addr, lab.LoadOptions{Sessions: 4})}
	}
	return all
}

// change moves the writer, and leaves a cluster that is whole. It returns what the
// clients saw at each balancer, until then: an old writer that wakes meets them too.
func (g *autoGap) change(begin, end func() error) map[string]change {
	g.t.Helper()
	all := g.clients()
	wait := func(on *lab.AutoFailoverNode) {
		for _, c := range all {
			g.writes(c.fresh, 1, on)
			g.writes(c.held, 4, on)
		}
	}
	wait(g.writer)
	writable := make(chan time.Time, 1)
	go func() { writable <- g.writableAt(g.t.Context(), g.next) }()
	g.do(begin())
	at := <-writable
	if at.IsZero() {
		g.t.Fatalf("%s did not take writes", g.next.Name())
	}
	wait(g.next)
	g.do(end())
	g.settled(g.next.Name(), append([]string{g.writer.Name()}, g.others...)...)
	seen := make(map[string]change)
	for name, c := range all {
		fresh, held := c.fresh.Stop(), c.held.Stop()
		x := change{fresh: gap(fresh, at), held: slowest(held, at)}
		x.early, x.late = g.strays(append(fresh, held...), at)
		seen[name] = x
	}
	g.writer, g.next = g.next, g.writer
	return seen
}

// strays counts what was on a node that was not the writer, see change.
func (g *autoGap) strays(samples []lab.Sample, at time.Time) (early, late int) {
	for _, x := range samples {
		state, refused := errors.AsType[*pgconn.PgError](x.Err)
		switch {
		case refused && state.Code == "25006",
			x.Err == nil && x.Port == g.next.Port() && x.End().Before(at.Add(-clockSlack)):
			early++
		case x.Err == nil && x.Port == g.writer.Port() && x.At.After(at.Add(clockSlack)):
			late++
		}
	}
	return early, late
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
