package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/drain"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// A replica is drained under clients of a PgBouncer that leads to HAProxy: its server
// connections are counted and named as any other, pgsteer has it replace them, and no
// client loses a transaction, be it new, lasting or long. The drain is done before the
// deadline, since nobody is left on the node.
func TestDrainBehindPgBouncer(t *testing.T) {
	t.Parallel()
	b := newBouncerRig(t, bouncerOptions{behindHAProxy: true, reads: true})
	b.maySignal()
	addr, n2 := b.bouncer.Addr(), b.node("n2").Port()
	all := []*pgbench{
		b.bench("churn", addr, "SELECT 1;\n\\sleep 20 ms\n", "-C", "-c", "4", "-T", "11"),
		b.bench("short", addr, "SELECT pg_sleep(0.02);\n", "-c", "4", "-T", "11"),
		b.bench("long", addr, "BEGIN;\nSELECT pg_sleep(1.5);\nCOMMIT;\n", "-c", "6", "-j", "2", "-T", "11"),
	}
	reads := b.lab.Load(addr, lab.LoadOptions{ReadOnly: true, Pooler: true, Sessions: 4, Timeout: patient})
	b.do(reads.Wait(t.Context(), "reads", func(x lab.Sample) bool { return x.Err == nil }))
	b.until("PgBouncer's connections on n2", func() bool { return b.sessions("n2", "long") > 0 && b.sessions("n2", "short") > 0 })

	const deadline = 8 * time.Second
	out := b.emptied("n2", deadline)
	counted := b.drain("its connections to be counted", func(r drain.Report) bool { return len(r.Left) > 0 || r.Phase.Over() })
	rep := b.drain("its end", func(r drain.Report) bool { return r.Phase.Over() })
	took := time.Since(out)
	t.Logf("%d were counted; over after %s: %d ended, %d left", len(counted.Left), took, len(rep.Ended), len(rep.Left))
	if rep.Phase != drain.Done || !rep.EndingAt.IsZero() {
		t.Errorf("it was over after %s: %+v", took, rep)
	}
	if n := b.sink("pgbouncer edge").Counters["reconnects"]; n == 0 {
		t.Error("PgBouncer was not told to replace its connections")
	}
	for _, c := range append(counted.Left, clientsOf(rep.Ended)...) {
		if began := time.UnixMicro(c.StartedUS); began.After(out.Add(time.Second)) {
			t.Errorf("a connection was opened %s after n2 was taken out: %+v", began.Sub(out), c)
		}
	}
	for _, c := range rep.Ended {
		if c.Why != "idle" || c.User != lab.AppUser || c.PID == 0 {
			t.Errorf("ended was %+v", c)
		}
	}
	for _, p := range all {
		text, aborted := p.end(t)
		if aborted > 0 || strings.Contains(text, "error") || !strings.Contains(text, "failed transactions: 0 ") {
			t.Errorf("of pgbench %s %d clients were aborted:\n%s", p.name, aborted, text)
		}
	}
	b.unbroken("readers through PgBouncer", reads.Stop())
	if n := b.sessions("n2", "short") + b.sessions("n2", "long") + b.sessions("n2", "churn"); n > 0 {
		t.Errorf("%d of PgBouncer's connections are on n2 again", n)
	}
	b.maintained(http.MethodDelete, "main/n2", "")
	b.is("main", "replica", "n2", topology.Up, topology.CodeReplica)
	b.until("new connections to n2", func() bool { return b.reached(b.read) == n2 })
}

func clientsOf(ended []drain.EndedClient) (all []drain.Client) {
	for _, c := range ended {
		all = append(all, c.Client)
	}
	return all
}

// A PgBouncer on the node itself, of which pgsteer knows nothing: its connections are
// ended and named as any other. A client that waits notices nothing, and one in a
// transaction is cut at the deadline. Since that PgBouncer still leads there, the next
// transaction opens a connection past all balancers: keep it from that before the
// server is stopped.
func TestDrainWithAPgBouncerOnTheNode(t *testing.T) {
	t.Parallel()
	f := newFront(t, drains(frontOptions{}))
	f.maySignal()
	f.is("main", "replica", "n3", topology.Up, topology.CodeReplica)
	bouncer, err := f.lab.PgBouncer(t.Context(), lab.PgBouncerOptions{Node: f.node("n2"), Settings: map[string]string{"pool_mode": "transaction"}})
	f.do(err)
	n2 := f.node("n2").Port()
	works, waits := f.called("works", bouncer.Addr(), n2), f.called("waits", bouncer.Addr(), n2)
	_, err = works.Exec(t.Context(), "BEGIN")
	f.do(err)
	if p := serverPort(waits); p != n2 { // on a connection of its own
		t.Fatalf("port %d", p)
	}
	const deadline = 5 * time.Second
	asked := time.Now()
	f.emptied("n2", deadline)
	f.drain("the idle connection to end", func(r drain.Report) bool { return len(r.Ended) == 1 && r.Ended[0].Application == "waits" })
	if p := serverPort(works); p != n2 {
		t.Errorf("before the deadline the transaction is on port %d", p)
	}
	rep := f.drain("its end", func(r drain.Report) bool { return r.Phase.Over() })
	f.ended(rep, map[string]int{"waits": 1, "works": 1})
	f.onTime(rep, asked, deadline)
	if _, err := works.Exec(context.Background(), "SELECT 1"); err == nil {
		t.Error("the transaction goes on")
	} else {
		t.Logf("the client in a transaction sees: %v", err)
	}
	if p := serverPort(waits); p != n2 || f.sessions("n2", "waits") != 1 {
		t.Errorf("the client that waited is on port %d, with %d connections", p, f.sessions("n2", "waits"))
	}
}
