package pgbouncer

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// pools shows cluster main: the writer n1, and the replicas with what they have; a code
// of "" means up.
func (r *rig) pools(n1, n2, n3 topology.Code) {
	verdict := func(node string, code topology.Code) topology.NodeVerdict {
		if code == "" {
			return topology.NodeVerdict{Node: node, Verdict: topology.Up, Reasons: []topology.Reason{{Code: topology.CodeReplica}}}
		}
		return topology.NodeVerdict{Node: node, Verdict: topology.Drain, Reasons: []topology.Reason{{Code: code}}}
	}
	r.views.Set("main", &topology.View{Snapshot: &topology.Snapshot{Cluster: "main", Writer: "n1", Pools: []topology.PoolVerdicts{
		{Pool: "primary", Mode: topology.ModeWrite, Nodes: []topology.NodeVerdict{verdict("n1", n1), verdict("n2", cmp.Or(n2, topology.CodeWrongRole))}},
		{Pool: "replica", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{verdict("n2", n2), verdict("n3", n3)}},
	}}})
}

// Of a node that operators took out the databases of its read pool are reconnected, once,
// when balancers have had their time. Lag, a pool with nobody else, and a writer that was
// taken out reconnect nobody.
func TestLeavesWhatWasTakenOut(t *testing.T) {
	const out, reports = topology.CodeMaintenance, `RECONNECT "reports"`
	r := newRig(t)
	r.frozen = time.Now()
	var looks atomic.Int64
	var refuse atomic.Bool
	r.before = func(command string) error {
		if command == "SHOW DATABASES" {
			looks.Add(1)
		}
		if strings.HasPrefix(command, "RECONNECT") && refuse.Load() {
			return errors.New("not now")
		}
		return nil
	}
	sent := 0
	is := func(what string, n int) {
		t.Helper()
		from := looks.Load()
		r.until("three looks", func() bool { return looks.Load() > from+3 })
		want := slices.Repeat([]string{reports}, n)
		if got := r.sent()[sent:]; !slices.Equal(got, want) {
			t.Errorf("%s: sent were %q, want %q", what, got, want)
		}
		sent = len(r.sent())
	}
	later := func() { r.ahead.Add(int64(leaveAfter)) }
	r.pools("", "", "")
	r.run()
	is("nobody is out", 0)
	r.pools("", topology.CodeLag, "")
	is("lag", 0)
	later()
	is("lag, later", 0)
	r.pools(out, "", "")
	is("the writer", 0)
	later()
	is("the writer, later", 0)
	r.pools("", out, "")
	is("n2 within the balancers' time", 0)
	r.set(func() { r.opening = map[string]int{"reports": 1, "app": 0} })
	later()
	is("n2, while a connection is opened", 0)
	r.set(func() { r.opening = map[string]int{"reports": 0, "app": 1} })
	is("n2", 1)
	later()
	is("n2, later", 0)
	r.pools("", out, out)
	is("all", 0)
	later()
	is("all, later", 0)
	r.pools("", "", out)
	is("n3, n2 is just back", 0)
	later()
	is("n3, since n2 is back", 1)
	r.pools("", "", "")
	is("n3 is back", 0)
	r.set(func() { r.opening = map[string]int{"reports": 1} })
	r.pools("", "", out)
	is("n3 again", 0)
	r.ahead.Add(int64(leaveAfter + leaveWithin))
	is("n3, although connections are opened all the time", 1)
	r.set(func() { r.opening = nil })
	r.pools("", "", "")
	is("nobody again", 0)
	refuse.Store(true)
	r.pools("", out, "")
	is("n2 again", 0)
	later()
	r.until("the failure to be told", func() bool {
		s := r.c.Status()[0]
		return s.Err != nil && strings.Contains(s.Err.Error(), "leave node n2 of cluster main, which was taken out") && strings.Contains(s.Err.Error(), "not now")
	})
	refuse.Store(false)
	r.until("a reconnect", func() bool { return r.c.Status()[0].Err == nil })
	sent = len(r.sent())
	is("n2, after it", 0)
	r.stop()
	r.run(func(b *Bouncer) { b.Templated = true })
	is("with a template", 0)
	later()
	is("with a template, later", 0)
	r.stop()
	r.run()
	is("after a restart within the balancers' time", 0)
	later()
	is("after a restart", 1)
}

// It is due when it is due, and not at the next look of a slow pace.
func TestLeavesInTime(t *testing.T) {
	for soon, want := range map[time.Duration]time.Duration{0: 5 * time.Second, time.Second: time.Second, time.Minute: 5 * time.Second} {
		if got := (&departures{soon: soon}).within(5 * time.Second); got != want {
			t.Errorf("with %s to go the pause is %s, want %s", soon, got, want)
		}
	}
}
