package engine

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestGeneration moves with decisions only.
func TestGeneration(t *testing.T) {
	w := settled(t, patroni)
	before := w.snap
	w.run(20 * sec)
	w.write(10 * mb) // lag, positions and ages are no decision
	w.authority.OptimeIndex++
	w.run(20 * sec)
	if w.snap != before {
		t.Fatalf("generation went from %d to %d\n%s", before.Generation, w.snap.Generation, w.show())
	}
	w.write(100 * mb)
	w.behind("b", 0)
	w.run(2 * sec) // c drains by lag: a decision, but none to hurry for
	if w.snap.Generation != before.Generation+1 || w.snap.Urgent != before.Urgent {
		t.Fatalf("generation %d urgent %d, want %d and %d\n%s", w.snap.Generation, w.snap.Urgent, before.Generation+1, before.Urgent, w.show())
	}
}

// TestUrgent: sinks hurry for a writer, a node that is down, and maintenance.
func TestUrgent(t *testing.T) {
	tests := []struct {
		name   string
		happen func(*world)
		urgent bool
	}{
		{"writer drains", func(w *world) { w.fail("a", topology.FailStarting, topology.ProbeFull) }, true},
		{"writer lost", func(w *world) { w.truth("a").ReadOnly = topology.Yes; w.ask("a") }, true},
		{"replica down", func(w *world) {
			w.fail("b", topology.FailRefused, topology.ProbeFull)
			w.pass(100 * ms)
			w.fail("b", topology.FailRefused, topology.ProbeFull)
		}, true},
		{"maintenance", func(w *world) { w.m.Records = []topology.MaintenanceRecord{{Node: "b", Reason: "disk"}} }, true},
		{"replica drains", func(w *world) { w.fail("b", topology.FailStarting, topology.ProbeFull) }, false},
		{"tag", func(w *world) { w.tagged("b", "zone", "x") }, false},
		{"authority lost", func(w *world) { w.unheard = topology.FailStore; w.askAuthority() }, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := settled(t, patroni)
			before := w.decide()
			tt.happen(w)
			after := w.decide()
			if after.Generation != before.Generation+1 {
				t.Fatalf("generation went from %d to %d, want one more", before.Generation, after.Generation)
			}
			if got := after.Urgent == after.Generation; got != tt.urgent {
				t.Fatalf("urgent: %t, want %t", got, tt.urgent)
			}
		})
	}
}

// TestSince is kept while a reason holds, over other changes.
func TestSince(t *testing.T) {
	w := settled(t, patroni)
	w.write(100 * mb)
	w.behind("b", 0)
	w.run(4 * sec)
	w.want("replica", "c=drain/lag")
	since := func(pool, node string) time.Time {
		p, _ := w.snap.Pool(pool)
		v, _ := p.Verdict(node)
		return v.Reason().Since
	}
	lag, writer := since("replica", "c"), since("primary", "a")
	w.run(20 * sec)
	w.fails("b", topology.FailRefused)
	w.behind("c", 100*mb)
	w.p.Pools[1].MinReplicas = 0
	w.run(5 * sec)
	w.want("replica", "b=down/refused c=drain/lag")
	if !since("replica", "c").Equal(lag) || !since("primary", "a").Equal(writer) {
		t.Fatalf("since moved: lag from %s to %s, writer from %s to %s", lag, since("replica", "c"), writer, since("primary", "a"))
	}
}

// TestGenerationGoesOn: a cluster that is set up anew in a running agent counts on.
func TestGenerationGoesOn(t *testing.T) {
	w := newWorld(t, patroni)
	w.s = NewState(Options{Cluster: "main", Generation: 41, Start: w.now})
	if s := w.decide(); s.Generation != 42 || s.Urgent != 42 {
		t.Fatalf("generation %d, urgent %d, want 42", s.Generation, s.Urgent)
	}
}

// TestHashIgnoresOrder: agents that saw the same in another order decide the
// same, and say so with the same hash.
func TestHashIgnoresOrder(t *testing.T) {
	want := ""
	for _, order := range permutations([]string{"a", "b", "c", "leader"}) {
		w := newWorld(t, patroni)
		w.askIn(order)
		w.run(3 * sec)
		w.fails("a", topology.FailTimeout)
		w.moveLeader("b", 6)
		w.become("b", primary(6))
		w.askIn(order)
		w.run(20 * sec)
		if want == "" {
			want = w.snap.Hash
		}
		if w.snap.Hash != want {
			t.Fatalf("%v: hash %s, others had %s\n%s", order, w.snap.Hash, want, w.show())
		}
	}
}

// TestObserveOnce: an observation counts once, and one for another address not
// at all.
func TestObserveOnce(t *testing.T) {
	w := settled(t, patroni)
	refused := topology.Observation{
		Cluster: "main", Source: pgSource("a"), Seq: w.seq[pgSource("a")] + 1, AskedAt: w.now, At: w.now,
		Failure: &topology.Failure{Class: topology.FailRefused, Node: "a", Address: address("a")},
	}
	Observe(w.s, refused)
	for range 3 {
		w.pass(100 * ms)
		Observe(w.s, refused)
	}
	w.want("primary", "a=drain/refused")
	named := w.authority
	old := topology.Observation{Cluster: "main", Source: consulSource, Seq: w.seq[consulSource], AskedAt: w.now, At: w.now, Authority: &named}
	old.AskedAt.Mono, old.At.Mono = old.AskedAt.Mono.Add(-sec), old.At.Mono.Add(-sec)
	w.moveLeader("b", 5)
	w.askAuthority()
	Observe(w.s, old)
	if w.decide(); w.snap.Authority.Leader != "b" {
		t.Fatalf("an old picture counted again\n%s", w.show())
	}
	w.moveLeader("a", 5)
	w.run(2 * sec)
	w.want("primary", "a=up")
	elsewhere := refused
	elsewhere.Seq = w.seq[pgSource("a")]
	elsewhere.Failure = &topology.Failure{Class: topology.FailRefused, Node: "a", Address: address("b")}
	for range 3 {
		w.pass(100 * ms)
		elsewhere.Seq++
		elsewhere.AskedAt, elsewhere.At = w.now, w.now
		Observe(w.s, elsewhere)
	}
	w.want("primary", "a=up")
}

// TestNewWatcherCountsFromOne: what was asked after the last answer is new,
// whatever its number.
func TestNewWatcherCountsFromOne(t *testing.T) {
	w := settled(t, patroni)
	w.run(time.Minute)
	w.seq[pgSource("a")], w.seq[consulSource] = 0, 0
	w.run(10 * sec)
	w.want("primary", "a=up/writer")
	w.become("a", standby(5))
	w.run(sec)
	w.want("primary", "a=down")
}

// TestLateAnswer: a word asked before the newest one is no news.
func TestLateAnswer(t *testing.T) {
	w := settled(t, patroni)
	w.become("a", standby(5))
	w.ask("a")
	w.want("primary", "a=down")
	w.pass(1500 * ms)
	p := primary(5).probe
	p.Node, p.Address = "a", address("a")
	w.fold(pgSource("a"), topology.Observation{
		AskedAt: topology.Clock{Mono: w.now.Mono.Add(-2 * sec)}, At: w.now, Probe: &p,
	})
	w.want("primary", "a=down")
}

// TestDemand: look closely while the picture is unsettled, 30 s at most.
func TestDemand(t *testing.T) {
	w := settled(t, patroni)
	w.run(10 * sec)
	if len(w.demand.Burst) != 0 || w.demand.Confirm {
		t.Fatalf("demand %+v in a settled cluster", w.demand)
	}
	w.fail("a", topology.FailLost, topology.ProbeFull)
	w.decide()
	if !slices.Equal(w.demand.Burst, []string{"a", "b", "c"}) || !w.demand.Confirm {
		t.Fatalf("demand %+v after a lost session, want a burst of all and a confirmation", w.demand)
	}
	w.fails("a", topology.FailTimeout)
	w.run(29 * sec)
	if len(w.demand.Burst) != 3 {
		t.Fatalf("demand %+v while the writer is in doubt", w.demand)
	}
	w.run(5 * sec)
	if len(w.demand.Burst) != 0 || w.demand.Confirm {
		t.Fatalf("demand %+v, want none after 30 s", w.demand)
	}
	w.answers("a")
	w.run(10 * sec)
	w.unheard = topology.FailStore // an outage of the authority is one hint, not one a second
	w.run(10 * sec)
	if len(w.demand.Burst) != 0 {
		t.Fatalf("demand %+v during an outage of the authority", w.demand)
	}
}

func TestFactsSayWhatIsKnown(t *testing.T) {
	w := settled(t, patroni)
	w.login("a")
	w.authority.Members = []topology.Member{{Name: "a", Role: "primary"}}
	w.run(sec)
	w.fail("b", topology.FailTimeout, topology.ProbeFull)
	f := Facts(w.s, w.now)
	a, b := f.Nodes["a"], f.Nodes["b"]
	if a.InRecovery != topology.No || a.Member == nil || a.LoginAt == 0 || a.FailingAt != 0 || a.Probe == nil {
		t.Errorf("facts of a: %+v", a)
	}
	if b.FailingAt != w.now.Mono || b.Failure.Class != topology.FailTimeout || b.AnsweredAt == 0 {
		t.Errorf("facts of b: %+v", b)
	}
	if f.Timeline != 5 || f.SystemID != ownID || f.WriteLSN != 50_000_000 || f.Authority.Leader != "a" {
		t.Errorf("facts: %+v", f)
	}
	var sources []string
	for _, s := range f.Sources {
		sources = append(sources, s.Source.String())
	}
	if got, want := strings.Join(sources, " "), "consul/main file/config postgres/a postgres/b postgres/c"; got != want {
		t.Errorf("sources %q, want %q", got, want)
	}
}

// TestRing keeps the newest positions, in bounds.
func TestRing(t *testing.T) {
	var g lsnRing
	for i := range 3 * ringSize {
		g.push(topology.LSN(10*(i+1)), topology.Mono(i+1))
	}
	if len(g.entries) > ringSize || g.newest() != 30*ringSize {
		t.Fatalf("%d entries, newest %d", len(g.entries), g.newest())
	}
	if p := g.at(3*ringSize - 1); p != 30*ringSize-10 {
		t.Errorf("position at an earlier moment is %d", p)
	}
	if p := g.at(1); p != 0 {
		t.Errorf("position before the memory is %d, want unknown", p)
	}
	if at, ok := g.passed(30*ringSize - 15); !ok || at != 3*ringSize-1 {
		t.Errorf("passed at %d, %t", at, ok)
	}
	if _, ok := g.passed(30 * ringSize); ok {
		t.Error("the newest position has not been passed")
	}
	g.push(1, 5000) // the writer does not go back
	if g.newest() != 30*ringSize {
		t.Errorf("newest is %d", g.newest())
	}
}

// TestRingFollowsTheWriter: positions are of one timeline, the writer's own,
// whichever way its number changes.
func TestRingFollowsTheWriter(t *testing.T) {
	w := settled(t, patroni)
	stray := topology.SourceID{Kind: topology.SourcePostgres, Name: "c"}
	p := primary(7).probe
	p.Node, p.Address, p.WriteLSN = "c", address("c"), 1<<40
	w.fold(stray, topology.Observation{Probe: &p}) // not the writer: sets no pace
	if got := w.s.ring; got.timeline != 5 || got.newest() != 50_000_000 {
		t.Fatalf("positions %+v after a stray primary", got)
	}
	w.answers("c")
	for _, tl := range []topology.Timeline{6, 4} { // 4: restored in place
		w.become("a", primary(tl))
		w.truth("a").WriteLSN = topology.LSN(tl) << 30
		w.run(sec)
		if got := w.s.ring; got.timeline != tl || got.newest() != topology.LSN(tl)<<30 {
			t.Fatalf("positions %+v, want those of timeline %d", got, tl)
		}
	}
}

// TestSourceHealth: a source is as well as the question that it is asked for.
func TestSourceHealth(t *testing.T) {
	w := settled(t, patroni)
	failing := func() bool {
		for _, src := range Facts(w.s, w.now).Sources {
			if src.Source == pgSource("a") {
				return src.FailingAt != 0
			}
		}
		return false
	}
	w.fail("a", topology.FailAuth, topology.ProbeLogin)
	w.portFails("a", 6432, topology.FailRefused)
	w.fail("a", topology.FailTimeout, topology.ProbeWrite)
	if failing() {
		t.Error("a login, a port and a write make the source fail")
	}
	if f := Facts(w.s, w.now).Nodes["a"].Failure; f == nil || f.Asked != topology.ProbeLogin || f.Class != topology.FailAuth {
		t.Errorf("the failed login is not told: %+v", f)
	}
	w.fail("a", topology.FailTimeout, topology.ProbeFull)
	w.login("a")
	w.portOpen("a", 6432)
	if !failing() {
		t.Error("a login and a port mend the source")
	}
	w.pass(2 * ms)
	w.ask("a")
	if failing() || Facts(w.s, w.now).Nodes["a"].Failure != nil {
		t.Error("an answer does not mend the source")
	}
	f := Facts(w.s, w.now)
	if p := f.Nodes["a"].Ports[6432]; p.OKAt == 0 || p.FailingAt != 0 {
		t.Errorf("port %+v", p)
	}
	if len(f.Claims) != 1 || f.Claims[0] != "a" {
		t.Errorf("claims %v", f.Claims)
	}
}

// TestSame: a decision that differs in anything that a sink reads is another one.
func TestSame(t *testing.T) {
	w := settled(t, patroni)
	r := &w.s.round
	if !r.same(w.snap) {
		t.Fatal("the last snapshot is not what was decided last")
	}
	for name, change := range map[string]func(*topology.Snapshot){
		"authority":        func(s *topology.Snapshot) { s.Authority.State = topology.AuthorityStateLost },
		"leader":           func(s *topology.Snapshot) { s.Authority.Leader = "b" },
		"writer":           func(s *topology.Snapshot) { s.Writer = "" },
		"held":             func(s *topology.Snapshot) { s.Held = "a" },
		"complete":         func(s *topology.Snapshot) { s.Complete = false },
		"a node less":      func(s *topology.Snapshot) { s.Nodes = s.Nodes[1:] },
		"a node's name":    func(s *topology.Snapshot) { s.Nodes[0].Name = "z" },
		"a node's address": func(s *topology.Snapshot) { s.Nodes[0].Address.Port++ },
		"a node's tags":    func(s *topology.Snapshot) { s.Nodes[0].Tags = map[string]string{"zone": "eu"} },
		"a pool less":      func(s *topology.Snapshot) { s.Pools = s.Pools[1:] },
		"a pool's name":    func(s *topology.Snapshot) { s.Pools[0].Pool = "z" },
		"a pool's mode":    func(s *topology.Snapshot) { s.Pools[0].Mode = topology.ModeRead },
		"fallback":         func(s *topology.Snapshot) { s.Pools[1].Fallback = true },
		"verdict":          func(s *topology.Snapshot) { s.Pools[1].Nodes[1].Verdict = topology.Drain },
		"weight":           func(s *topology.Snapshot) { s.Pools[1].Nodes[1].Weight = 50 },
		"offered address":  func(s *topology.Snapshot) { s.Pools[1].Nodes[1].Address.Port++ },
		"offered node":     func(s *topology.Snapshot) { s.Pools[1].Nodes[1].Node = "z" },
		"reason":           func(s *topology.Snapshot) { s.Pools[1].Nodes[1].Reasons[0].Code = topology.CodeRamping },
		"a reason more": func(s *topology.Snapshot) {
			n := &s.Pools[1].Nodes[1]
			n.Reasons = append(n.Reasons, topology.Reason{Code: topology.CodeLag})
		},
		"alarm": func(s *topology.Snapshot) { s.Alarms = []topology.Reason{{Code: topology.CodeTwoWriters}} },
	} {
		s := r.compose()
		change(s)
		if r.same(s) {
			t.Errorf("another %s makes no difference", name)
		}
	}
	s := r.compose()
	s.Pools[1].Nodes[1].Reasons[0].Text, s.DecidedAt, s.Generation = "another", s.DecidedAt.Add(sec), 99
	if !r.same(s) {
		t.Error("a text, a time or a generation makes a difference")
	}
}
