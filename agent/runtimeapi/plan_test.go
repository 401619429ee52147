package runtimeapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

const (
	up        = topology.Up
	drain     = topology.Drain
	down      = topology.Down
	undecided = topology.Undecided
)

// pool has the nodes n1, n2 … with the given verdicts.
func pool(name string, mode topology.Mode, verdicts ...topology.Verdict) topology.PoolVerdicts {
	p := topology.PoolVerdicts{Pool: name, Mode: mode}
	for i, v := range verdicts {
		p.Nodes = append(p.Nodes, topology.NodeVerdict{Node: fmt.Sprintf("n%d", i+1), Verdict: v, Weight: 100})
	}
	return p
}

func snapshot(generation, urgent uint64, pools ...topology.PoolVerdicts) *topology.Snapshot {
	return &topology.Snapshot{Cluster: "main", Generation: generation, Urgent: urgent, Complete: true, Pools: pools}
}

// told plans a snapshot on a socket that knows a roster, and returns the commands,
// and what is confirmed after them.
func told(t *testing.T, s *topology.Snapshot, confirmed map[server]want) ([]string, map[server]want) {
	t.Helper()
	k := newTestSocket(t)
	k.confirmed["main"] = confirmed
	k.rosters["main"] = make(roster)
	for srv, w := range confirmed {
		if !w.guard {
			k.rosters["main"][srv] = true
		}
	}
	return k.tell(s), k.confirmed["main"]
}

// testSocket plans without a HAProxy, every command of which succeeds.
type testSocket struct{ *socket }

func newTestSocket(t *testing.T) testSocket {
	t.Helper()
	p, err := New(Options{Sockets: []string{"/run/x"}, Views: new(latest.Map[string, topology.View]), Now: func() topology.Clock { return topology.Clock{} }})
	if err != nil {
		t.Fatal(err)
	}
	return testSocket{p.sockets[0]}
}

// tell returns the commands for a snapshot.
func (k testSocket) tell(s *topology.Snapshot) (commands []string) {
	show(k.o.Views, s)
	k.pending[s.Cluster] = true
	steps, _ := k.steps(0)
	for _, st := range steps {
		commands = append(commands, st.commands...)
	}
	k.take(steps, make([]string, len(commands)), make(complaints))
	return commands
}

func TestPlanOrder(t *testing.T) {
	half := pool("replica", topology.ModeRead, down, up, drain)
	half.Nodes[1].Weight = 50
	commands, confirmed := told(t, snapshot(1, 1, pool("primary", topology.ModeWrite, up, down, undecided), half), nil)
	want := []string{
		"set server be_main_primary/n2 agent down",
		"shutdown sessions server be_main_primary/n2",
		"set server be_main_replica/n1 agent down",
		"shutdown sessions server be_main_replica/n1",
		"set server be_main_replica/n3 weight 0%",
		"set server be_main_replica/n3 agent up",
		"set server be_main_primary/n1 weight 100%",
		"set server be_main_primary/n1 agent up",
		"set server be_main_replica/n2 weight 50%",
		"set server be_main_replica/n2 agent up",
		"set server guard_main_primary/g agent down",
	}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Error("first push:", diff)
	}

	commands, confirmed = told(t, snapshot(2, 2, pool("primary", topology.ModeWrite, down, up, down), half), confirmed)
	want = []string{
		"set server be_main_primary/n1 agent down",
		"shutdown sessions server be_main_primary/n1",
		"set server be_main_primary/n3 agent down",
		"shutdown sessions server be_main_primary/n3",
		"set server be_main_primary/n2 weight 100%",
		"set server be_main_primary/n2 agent up",
	}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Error("switchover:", diff)
	}

	commands, _ = told(t, snapshot(3, 3, pool("primary", topology.ModeWrite, down, down, down), half), confirmed)
	want = []string{
		"set server guard_main_primary/g agent up", // shuts the pool before its last writer goes
		"set server be_main_primary/n2 agent down",
		"shutdown sessions server be_main_primary/n2",
	}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Error("writer lost:", diff)
	}
}

// Weights move in slow start, with lag, and for a fallback: each step is told, and
// nothing of servers that stay as they are.
func TestPlanTellsWeights(t *testing.T) {
	at := func(weights ...int) topology.PoolVerdicts {
		p := pool("reports", topology.ModeRead, up, up, drain)
		for i, w := range weights {
			p.Nodes[i].Weight = w
		}
		return p
	}
	_, confirmed := told(t, snapshot(1, 1, at(25, 100, 100)), nil)
	for _, step := range []struct {
		name string
		pool topology.PoolVerdicts
		want []string
	}{
		{"one ramps", at(50, 100, 100), []string{"set server be_main_reports/n1 weight 50%", "set server be_main_reports/n1 agent up"}},
		{"nothing", at(50, 100, 100), nil},
		{"a weight of who drains is none", at(50, 100, 30), nil},
		{"two at once", at(100, 10, 30), []string{
			"set server be_main_reports/n1 weight 100%", "set server be_main_reports/n1 agent up",
			"set server be_main_reports/n2 weight 10%", "set server be_main_reports/n2 agent up",
		}},
	} {
		var commands []string
		commands, confirmed = told(t, snapshot(2, 1, step.pool), confirmed)
		if diff := cmp.Diff(step.want, commands); diff != "" {
			t.Errorf("%s: %s", step.name, diff)
		}
	}
}

func TestPlanHoldsWhatIsUndecided(t *testing.T) {
	s := snapshot(1, 1, pool("primary", topology.ModeWrite, undecided, down))
	commands, confirmed := told(t, s, map[server]want{{Backend: "be_main_primary", Server: "n1"}: {verdict: up, weight: 100}})
	want := []string{"set server be_main_primary/n2 agent down", "shutdown sessions server be_main_primary/n2"}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Error(diff)
	}
	if got := confirmed[server{Backend: "be_main_primary", Server: "n1"}].verdict; got != up {
		t.Errorf("undecided n1 is confirmed %s, want up as before", got)
	}
	s.Complete = false
	s.Pools[0].Nodes = s.Pools[0].Nodes[1:]
	if commands, _ = told(t, s, confirmed); len(commands) > 0 {
		t.Errorf("an incomplete list of nodes causes %q", commands)
	}
}

func TestPlanTakesOutWhatIsGoneOnce(t *testing.T) {
	s := snapshot(1, 1, pool("primary", topology.ModeWrite, up, down))
	_, confirmed := told(t, s, nil)
	s.Pools[0].Nodes = s.Pools[0].Nodes[:1]
	commands, confirmed := told(t, s, confirmed)
	want := []string{"set server be_main_primary/n2 agent down", "shutdown sessions server be_main_primary/n2"}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Error(diff)
	}
	if commands, _ = told(t, s, confirmed); len(commands) > 0 {
		t.Errorf("told again: %q", commands)
	}
}

// A pool that is taken out of the configuration is not ours any more: its servers
// keep their state and their sessions. When it comes back everything is told.
func TestPlanLeavesAloneWhatIsNoLongerOurs(t *testing.T) {
	k := newTestSocket(t)
	primary, reports := pool("primary", topology.ModeWrite, up, down), pool("reports", topology.ModeRead, up, up)
	k.tell(snapshot(1, 1, primary, reports))
	if commands := k.tell(snapshot(2, 2, primary)); len(commands) > 0 {
		t.Errorf("a removed pool causes %q", commands)
	}
	gone := snapshot(3, 3, primary)
	gone.Pools[0].Nodes = gone.Pools[0].Nodes[:1]
	want := []string{"set server be_main_primary/n2 agent down", "shutdown sessions server be_main_primary/n2"}
	if diff := cmp.Diff(want, k.tell(gone)); diff != "" {
		t.Error("a removed node:", diff)
	}
	if commands := k.tell(snapshot(4, 4, gone.Pools[0], reports)); len(commands) != 4 {
		t.Errorf("the pool is back and is told %q, want 4 commands", commands)
	}
}

// A node that left while HAProxy could not be told is taken out afterwards, and
// forgotten when HAProxy does not have it any more.
func TestPlanTakesOutWhatLeftMeanwhile(t *testing.T) {
	k := newTestSocket(t)
	k.tell(snapshot(1, 1, replicas(up, up)))
	k.everything()
	want := []string{
		"set server be_main_replica/n2 agent down", "shutdown sessions server be_main_replica/n2",
		"set server be_main_replica/n1 weight 100%", "set server be_main_replica/n1 agent up",
	}
	if diff := cmp.Diff(want, k.tell(snapshot(2, 2, replicas(up)))); diff != "" {
		t.Error(diff)
	}
	k.everything()
	k.pending["main"] = true
	steps, _ := k.steps(0)
	bad := make(complaints)
	k.take(steps, []string{"No such server.", "No such server.", "", ""}, bad)
	if len(bad) > 0 {
		t.Errorf("complaints about a server that is gone: %v", bad)
	}
	k.everything()
	if commands := k.tell(snapshot(3, 3, replicas(up))); len(commands) != 2 {
		t.Errorf("told %q, want n1 alone", commands)
	}
}

// A server that HAProxy's process cannot know from anybody would serve on no
// evidence. It drains while others of its pool serve, and only then.
func TestPlanHoldsOutWhatNobodyKnows(t *testing.T) {
	hold := []string{"set server be_main_replica/n2 weight 0%", "set server be_main_replica/n2 agent up"}
	for _, c := range []struct {
		name  string
		young bool // HAProxy's process is younger than we are
		heard bool // n2 was decided since it began
		first topology.Verdict
		want  []string
	}{
		{"a new node beside one that serves", true, false, up, hold},
		{"pgsteer was restarted, not HAProxy", false, false, up, nil},
		{"decided once, unknown again", true, true, up, nil},
		{"nobody serves", true, false, drain, nil},
		{"nobody is known", true, false, undecided, nil},
	} {
		k := newTestSocket(t)
		k.young = c.young
		if c.heard {
			k.tell(snapshot(1, 1, replicas(c.first, up)))
			clear(k.confirmed)
		}
		commands := k.tell(snapshot(2, 2, replicas(c.first, undecided)))
		got := slices.DeleteFunc(commands, func(s string) bool { return !strings.Contains(s, "/n2 ") })
		if diff := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		want := []string{"set server be_main_replica/n2 weight 100%", "set server be_main_replica/n2 agent up"}
		if got := k.tell(snapshot(3, 3, replicas(c.first, up))); c.want != nil && !cmp.Equal(want, got) {
			t.Errorf("%s: once decided it is told %q", c.name, got)
		}
	}
}

func TestChunksFitTheBuffer(t *testing.T) {
	var steps []step
	for i := range 1000 {
		srv := server{Backend: "be_" + strings.Repeat("x", 60), Server: fmt.Sprint(i)}
		steps = append(steps, step{server: srv, commands: commands(srv, want{verdict: down})})
	}
	n := 0
	for _, part := range chunks(steps) {
		size := 0
		for _, s := range part {
			n++
			size += len(strings.Join(s.commands, ";")) + 1
		}
		if size > 8000 {
			t.Errorf("a request of %d bytes", size)
		}
	}
	if n != len(steps) {
		t.Errorf("%d of %d steps in chunks", n, len(steps))
	}
}
