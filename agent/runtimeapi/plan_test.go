package runtimeapi

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// told plans a snapshot and returns the commands, and what is confirmed after them.
func told(t *testing.T, s *topology.Snapshot, confirmed map[server]want) ([]string, map[server]want) {
	t.Helper()
	p, err := New(Options{Sockets: []string{"/run/x"}, Views: new(latest.Map[string, topology.View]), Now: func() topology.Clock { return topology.Clock{} }})
	if err != nil {
		t.Fatal(err)
	}
	k := p.sockets[0]
	k.confirmed["main"] = confirmed
	steps := plan(k.o, s, confirmed)
	inOrder(steps)
	var commands []string
	for _, st := range steps {
		commands = append(commands, st.commands...)
	}
	k.take(steps, make([]string, len(commands)))
	return commands, k.confirmed["main"]
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
	commands, confirmed := told(t, s, map[server]want{{"be_main_primary", "n1"}: {verdict: up, weight: 100}})
	want := []string{"set server be_main_primary/n2 agent down", "shutdown sessions server be_main_primary/n2"}
	if diff := cmp.Diff(want, commands); diff != "" {
		t.Error(diff)
	}
	if got := confirmed[server{"be_main_primary", "n1"}].verdict; got != up {
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

func TestChunksFitTheBuffer(t *testing.T) {
	var steps []step
	for i := range 1000 {
		steps = append(steps, newStep("c", server{"be_" + strings.Repeat("x", 60), fmt.Sprint(i)}, want{verdict: down}))
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

func TestSplit(t *testing.T) {
	// Taken from HAProxy 2.6: success, an error of one line, success, information.
	got := split("\nNo such server.\n\n\nName: HAProxy\nPid: 7\n\n")
	want := []string{"", "No such server.", "", "Name: HAProxy\nPid: 7"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if pid := processOf(got[3]).pid; pid != "7" {
		t.Errorf("process %q, want 7", pid)
	}
	if got := split("cut of"); len(got) != 0 {
		t.Errorf("an answer without its end counts: %q", got)
	}
}

func TestNewRefusesSocketsOnANetwork(t *testing.T) {
	for socket, good := range map[string]bool{
		"/run/haproxy/admin.sock": true, "127.0.0.1:9999": true, "[::1]:9999": true, "localhost:9999": true,
		"10.0.0.1:9999": false, "lb.example:9999": false, "admin.sock": false, "": false,
	} {
		_, err := New(Options{Sockets: []string{socket}, Views: new(latest.Map[string, topology.View]), Now: func() topology.Clock { return topology.Clock{} }})
		if (err == nil) != good {
			t.Errorf("New(%q) = %v, want good: %t", socket, err, good)
		}
	}
}
