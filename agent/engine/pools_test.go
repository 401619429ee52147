package engine

import (
	"slices"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// readPool is the policy of the read pool, to be changed by a test.
func (w *world) readPool() *topology.Pool { return &w.p.Pools[1] }

func (w *world) weights(pool string) map[string]int {
	p, _ := w.snap.Pool(pool)
	out := make(map[string]int)
	for _, n := range p.Up() {
		out[n.Node] = n.Weight
	}
	return out
}

func (w *world) wantWeight(node string, want int) {
	w.t.Helper()
	w.decide()
	if got := w.weights("replica")[node]; got != want {
		w.t.Fatalf("weight of %s is %d, want %d\n%s", node, got, want, w.show())
	}
}

func (w *world) wantAlarms(want ...topology.Code) {
	w.t.Helper()
	w.decide()
	var got []topology.Code
	for _, a := range w.snap.Alarms {
		got = append(got, a.Code)
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("alarms %v, want %v\n%s", got, want, w.show())
	}
}

// TestLagGrace: lag takes a serving replica out after lag_grace, not at once, and
// lets it back below half of the limit for lag_return_after, not just below it.
func TestLagGrace(t *testing.T) {
	w := settled(t, patroni)
	w.write(100 * mb)
	w.behind("b", 0)
	w.behind("c", 0)
	w.run(sec + 10*ms)
	w.behind("c", 65*mb)
	w.askAll()
	w.want("replica", "c=up/replica")
	w.run(1900 * ms)
	w.want("replica", "c=up/replica")
	w.run(200 * ms)
	w.want("replica", "c=drain/lag")
	w.behind("c", 60*mb)
	w.run(30 * sec)
	w.want("replica", "c=drain/lag")
	w.behind("c", 32*mb)
	w.askAll()
	w.want("replica", "c=drain/returning")
	w.run(2900 * ms)
	w.want("replica", "c=drain/returning")
	w.run(200 * ms)
	w.want("replica", "c=up/ramping")
}

// TestLagSwings: around the limit a replica neither leaves nor comes back with
// every probe (FR-07).
func TestLagSwings(t *testing.T) {
	w := settled(t, patroni)
	w.write(200 * mb)
	w.behind("b", 0)
	changes, last := 0, topology.Up
	w.onDecide = func(s *topology.Snapshot) {
		if v := verdict(s, "replica", "c"); v != last {
			changes, last = changes+1, v
		}
	}
	for i := range 1300 {
		w.behind("c", topology.LSN(i%2)*130*mb)
		w.run(sec)
	}
	if changes > 2 {
		t.Fatalf("c changed %d times in 1300 s", changes)
	}
}

// TestMinDwell bounds how often the soft limit alone moves a replica.
func TestMinDwell(t *testing.T) {
	w := settled(t, patroni)
	w.p.Flap.Count = 0
	w.write(200 * mb)
	w.behind("b", 0)
	var moves []topology.Mono
	last := topology.Up
	w.onDecide = func(s *topology.Snapshot) {
		if v := verdict(s, "replica", "c"); v != last {
			moves, last = append(moves, w.now.Mono), v
		}
	}
	for range 60 {
		w.behind("c", 130*mb)
		w.run(4 * sec)
		w.behind("c", 0)
		w.run(4 * sec)
	}
	if len(moves) < 4 {
		t.Fatalf("%d moves, c should come and go", len(moves))
	}
	for i := 1; i < len(moves); i++ {
		if d := moves[i].Sub(moves[i-1]); d < w.p.MinDwell {
			t.Fatalf("only %s between two moves", d)
		}
	}
}

// TestHardLimitDoesNotDwell: min_dwell is about noise around the soft limit.
func TestHardLimitDoesNotDwell(t *testing.T) {
	w := settled(t, patroni)
	w.write(4 << 30)
	w.behind("b", 0)
	w.behind("c", 65*mb)
	w.run(4 * sec)
	w.want("replica", "c=drain/lag")
	w.behind("c", 0)
	w.run(14 * sec)
	w.want("replica", "c=up/ramping")
	w.behind("c", 2<<30)
	w.run(4 * sec)
	w.want("replica", "c=drain/lag_hard")
}

// TestLagInTime counts since the writer passed the replayed position; an idle
// cluster has none (FR-12).
func TestLagInTime(t *testing.T) {
	w := settled(t, patroni)
	w.readPool().MaxLagTime = 10 * sec
	w.run(time.Minute)
	w.want("replica", "c=up/replica")
	w.write(mb)
	w.behind("b", 0)
	w.run(9 * sec)
	w.want("replica", "c=up/replica")
	w.run(5 * sec)
	w.want("replica", "b=up/replica c=drain/lag")
	w.behind("c", 0)
	w.run(15 * sec)
	w.want("replica", "c=up/ramping")
}

// TestNewcomerLags: a first verdict knows no grace (vitess 17922).
func TestNewcomerLags(t *testing.T) {
	w := settled(t, patroni)
	w.write(100 * mb)
	w.behind("b", 0)
	w.behind("c", 0)
	w.run(2 * sec)
	w.servers["d"] = standby(5)
	w.listNodes()
	w.want("replica", "d=undecided")
	w.ask("d")
	w.want("replica", "d=drain/lag")
}

// TestOverrideKeepsItsNode: of two that lag alike the one that serves goes on.
func TestOverrideKeepsItsNode(t *testing.T) {
	w := settled(t, patroni)
	w.write(400 * mb)
	w.behind("b", 100*mb)
	w.behind("c", 110*mb)
	w.run(5 * sec)
	w.want("replica", "b=up/lag_override c=drain/lag")
	w.behind("b", 120*mb)
	w.run(5 * sec)
	w.want("replica", "b=up/lag_override c=drain/lag")
	w.behind("b", 250*mb)
	w.run(5 * sec)
	w.want("replica", "b=drain/lag c=up/lag_override")
}

// TestWriterLossFreesNoLaggard: a lagging replica does not return because there
// is no writer any more to measure it by.
func TestWriterLossFreesNoLaggard(t *testing.T) {
	w := settled(t, patroni)
	w.write(100 * mb)
	w.behind("b", 0)
	w.run(4 * sec)
	w.want("replica", "b=up c=drain/lag")
	w.fails("a", topology.FailRefused)
	w.authority.Leader = ""
	w.run(time.Minute)
	w.want("replica", "b=up/replica c=drain/lag")
}

// TestDamping: more than four departures within a minute hold a replica out for
// 30 s, then twice as long; calm forgets it.
func TestDamping(t *testing.T) {
	w := settled(t, patroni)
	flap := func() {
		w.fails("c", topology.FailStarting)
		w.run(sec)
		w.answers("c")
		w.run(5 * sec)
	}
	for range 4 {
		flap()
		w.want("replica", "c=up")
	}
	flap()
	w.want("replica", "c=drain/damped")
	w.run(24 * sec)
	w.want("replica", "c=drain/damped")
	w.run(5 * sec)
	w.want("replica", "c=up")
	flap() // soon after: held again, for a minute
	w.want("replica", "c=drain/damped")
	w.run(50 * sec)
	w.want("replica", "c=drain/damped")
	w.run(10 * sec)
	w.want("replica", "c=up")
	w.run(10 * time.Minute)
	for range 4 {
		flap()
		w.want("replica", "c=up")
	}
	flap()
	w.run(30 * sec)
	w.want("replica", "c=up")
}

// TestDampedServesIfNeeded: a hold-down never empties a pool.
func TestDampedServesIfNeeded(t *testing.T) {
	w := settled(t, patroni)
	w.readPool().Fallback = topology.FallbackNone
	for range 5 {
		w.fails("c", topology.FailStarting)
		w.run(sec)
		w.answers("c")
		w.run(5 * sec)
	}
	w.want("replica", "b=up c=drain/damped")
	w.fails("b", topology.FailRefused)
	w.run(2 * sec)
	w.want("replica", "b=down/refused c=up/lag_override")
}

// TestNoDampingByHand: what an operator does is no flapping.
func TestNoDampingByHand(t *testing.T) {
	w := settled(t, patroni)
	for range 8 {
		w.m.Records = []topology.MaintenanceRecord{{Node: "c", Reason: "test"}}
		w.run(sec)
		w.m.Records = nil
		w.run(4 * sec)
		w.want("replica", "c=up")
	}
}

// TestSlowStart: 25 %, then 50 %, then all, after a return and after a restart
// of the server; not at the agent's start.
func TestSlowStart(t *testing.T) {
	w := settled(t, patroni)
	w.wantWeight("c", 100)
	w.restart()
	w.run(3 * sec)
	w.wantWeight("c", 100)
	steps := func() {
		w.t.Helper()
		w.wantWeight("c", 25)
		w.run(14 * sec)
		w.wantWeight("c", 25)
		w.run(sec)
		w.wantWeight("c", 50)
		w.run(14 * sec)
		w.wantWeight("c", 50)
		w.run(2 * sec)
		w.wantWeight("c", 100)
		w.want("replica", "c=up/replica")
	}
	w.fails("c", topology.FailRefused)
	w.run(2 * sec)
	w.answers("c")
	for w.run(100 * ms); verdict(w.snap, "replica", "c") != topology.Up; {
		w.run(100 * ms)
	}
	steps()
	w.truth("c").StartedAt = w.now.Wall
	w.ask("c")
	w.decide()
	w.truth("c").StartedAt = w.now.Wall.Add(sec)
	w.ask("c")
	w.want("replica", "c=up/ramping")
	steps()
	for range 2 { // again, while its weight still grows
		w.fails("c", topology.FailStarting)
		w.run(sec)
		w.answers("c")
		for w.run(100 * ms); verdict(w.snap, "replica", "c") != topology.Up; {
			w.run(100 * ms)
		}
		w.wantWeight("c", 25)
		w.run(18 * sec)
		w.wantWeight("c", 50)
	}
	w.p.SlowStart = 0
	w.truth("c").StartedAt = w.now.Wall.Add(time.Hour)
	w.ask("c")
	w.want("replica", "c=up/replica")
}

// TestWeightByLag falls from half of the limit on, in steps, not oftener than
// every five seconds.
func TestWeightByLag(t *testing.T) {
	w := settled(t, patroni)
	w.write(200 * mb)
	w.behind("b", 0)
	for _, step := range []struct {
		lag  topology.LSN
		want int
	}{{32, 100}, {33, 100}, {36, 90}, {48, 60}, {60, 30}, {64, 10}, {0, 100}} {
		w.behind("c", step.lag*mb)
		w.run(6 * sec)
		w.wantWeight("c", step.want)
	}
	changes, last := 0, 100
	w.onDecide = func(*topology.Snapshot) {
		if now := w.weights("replica")["c"]; now != last {
			changes, last = changes+1, now
		}
	}
	for i := range 50 {
		w.behind("c", topology.LSN(i%2)*60*mb)
		w.run(sec)
	}
	if changes == 0 || changes > 11 {
		t.Fatalf("the weight changed %d times in 50 s", changes)
	}
	w.readPool().WeightByLag = false
	w.wantWeight("c", 100)
}

// TestFixedWeights multiply with the others.
func TestFixedWeights(t *testing.T) {
	w := settled(t, patroni)
	w.readPool().Weights = map[string]int{"b": 40, "a": 30}
	w.wantWeight("b", 40)
	w.wantWeight("c", 100)
	w.fails("b", topology.FailSlots)
	w.run(2 * sec)
	w.wantWeight("b", 20)
	w.readPool().FallbackWeight = 50
	w.fails("b", topology.FailRefused)
	w.fails("c", topology.FailRefused)
	w.run(3 * sec)
	w.wantWeight("a", 15)
}

// TestSelection: pools narrowed by tags and by role in replication.
func TestSelection(t *testing.T) {
	selector := func(s string) func(*topology.Pool) {
		sel, err := topology.ParseSelector(s)
		if err != nil {
			t.Fatal(err)
		}
		return func(p *topology.Pool) { p.Select = sel }
	}
	role := func(r topology.Role) func(*topology.Pool) { return func(p *topology.Pool) { p.Role = r } }
	sync := func(mode string, names ...string) func(*world) {
		return func(w *world) { w.authority.SyncMode, w.authority.SyncStandbys = mode, names }
	}
	view := func(name, state, sync string) topology.Standby {
		return topology.Standby{Name: name, State: state, SyncState: sync}
	}
	tests := []struct {
		name   string
		pool   func(*topology.Pool)
		happen func(*world)
		want   string
	}{
		{"tag", selector("disk=ssd"), func(w *world) { w.tagged("b", "disk", "ssd") }, "b=up/replica c=drain/not_selected"},
		{"tag differs", selector("disk!=ssd"), func(w *world) { w.tagged("b", "disk", "ssd") }, "b=drain/not_selected c=up/replica"},
		{"nobody", selector("disk=ssd"), func(*world) {}, "a=up/fallback b=drain/not_selected c=drain/not_selected"},
		{"sync by key and view", role(topology.RoleSync), func(w *world) {
			sync("sync", "c")(w)
			w.truth("a").Standbys = []topology.Standby{view("c", "streaming", "sync"), view("b", "streaming", "async")}
		}, "b=drain/not_selected c=up/replica"},
		{"named but catching up (FR-09)", role(topology.RoleSync), func(w *world) {
			sync("sync", "c")(w)
			w.truth("a").Standbys = []topology.Standby{view("c", "catchup", "sync")}
		}, "a=up/fallback c=drain/not_selected"},
		{"sync in the view but not in the key", role(topology.RoleSync), func(w *world) {
			sync("sync", "b")(w)
			w.truth("a").Standbys = []topology.Standby{view("c", "streaming", "sync")}
		}, "c=drain/not_selected b=drain/not_selected"},
		{"sync by the view alone", role(topology.RoleSync), func(w *world) {
			w.truth("a").Standbys = []topology.Standby{view("c", "streaming", "sync")}
		}, "b=drain/not_selected c=up/replica"},
		{"async", role(topology.RoleAsync), func(w *world) {
			w.truth("a").Standbys = []topology.Standby{view("c", "streaming", "sync"), view("b", "streaming", "async")}
		}, "b=up/replica c=drain/not_selected"},
		{"quorum", role(topology.RoleQuorum), func(w *world) {
			sync("quorum", "c", "b")(w)
			w.truth("a").Standbys = []topology.Standby{view("c", "streaming", "quorum")}
		}, "b=drain/not_selected c=up/replica"},
		{"delayed", role(topology.RoleDelayed), func(w *world) {
			w.truth("c").ApplyDelay = time.Hour
			w.tagged("c", topology.TagNoLoadBalance, "true")
			w.write(4 << 30)
			w.behind("b", 0)
		}, "b=drain/not_selected c=up/replica"},
		{"no standby leader", role(topology.RoleStandbyLeader), func(*world) {}, "b=drain/not_selected c=drain/not_selected"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := settled(t, patroni)
			tt.pool(w.readPool())
			tt.happen(w)
			w.run(4 * sec)
			w.want("replica", tt.want)
		})
	}
}

// TestStandbyLeader: in a cluster that replicates from another its leader is a
// standby that a pool of its own can name (FR-02).
func TestStandbyLeader(t *testing.T) {
	w := newWorld(t, patroni)
	w.become("a", standby(5))
	w.authority.StandbyCluster = true
	w.readPool().Role = topology.RoleStandbyLeader
	w.run(5 * sec)
	w.want("primary", "a=down/standby_cluster b=down/standby_cluster")
	w.want("replica", "a=up/replica b=drain/not_selected c=drain/not_selected")
	w.authority.StandbyCluster = false
	w.become("a", primary(6))
	w.run(3 * sec)
	w.want("primary", "a=up/writer")
}

// TestSelectInWritePools: the writer serves only the write pools that select it.
func TestSelectInWritePools(t *testing.T) {
	w := settled(t, patroni)
	second := topology.DefaultPool("near", topology.ModeWrite)
	second.Select, _ = topology.ParseSelector("zone=eu")
	w.p.Pools = append(w.p.Pools, second)
	w.want("near", "a=drain/not_selected b=down c=down")
	w.want("primary", "a=up/writer")
	w.tagged("a", "zone", "eu")
	w.want("near", "a=up/writer b=down c=down")
}

// TestPortRule: a pool's own port (FR-23).
func TestPortRule(t *testing.T) {
	w := settled(t, patroni)
	bouncer := topology.DefaultPool("bouncer", topology.ModeWrite)
	bouncer.Port = 6432
	reads := topology.DefaultPool("reads", topology.ModeRead)
	reads.Port = 6432
	w.p.Pools = append(w.p.Pools, bouncer, reads)
	w.want("bouncer", "a=undecided/port")
	for _, n := range []string{"a", "b", "c"} {
		w.portOpen(n, 6432)
	}
	w.want("bouncer", "a=up/writer b=down c=down")
	w.want("reads", "a=drain b=up c=up")
	p, _ := w.snap.Pool("bouncer")
	if v, _ := p.Verdict("a"); v.Address.Port != 6432 || v.Address.Host != address("a").Host {
		t.Fatalf("the pool offers %s", v.Address)
	}
	w.portFails("a", 6432, topology.FailRefused)
	w.want("bouncer", "a=up/writer")
	w.pass(60 * ms)
	w.portFails("a", 6432, topology.FailRefused)
	w.want("bouncer", "a=down/port b=down c=down")
	w.want("primary", "a=up/writer")
	w.portOpen("a", 6432)
	w.want("bouncer", "a=up/writer")
	w.portFails("a", 6432, topology.FailAuth) // it answers
	w.pass(5 * sec)
	w.want("bouncer", "a=up/writer")
	w.portOpen("c", 6432)
	w.run(sec)
	w.portFails("c", 6432, topology.FailTimeout)
	w.run(800 * ms) // from the last answer on
	w.want("reads", "c=up")
	w.run(200 * ms)
	w.want("reads", "c=drain/port")
	w.want("replica", "c=up/replica")
	w.run(8 * sec)
	w.want("reads", "c=down/port")
	w.m.Records = []topology.MaintenanceRecord{{Node: "a", Reason: "test"}}
	for range 2 {
		w.portFails("a", 6432, topology.FailRefused)
		w.pass(100 * ms)
	}
	w.decide()
	p, _ = w.snap.Pool("bouncer")
	if v, _ := p.Verdict("a"); v.Verdict != topology.Down || len(v.Reasons) != 2 || v.Reasons[0].Code != topology.CodeMaintenance {
		t.Fatalf("verdict on a in maintenance with a dead port is %+v", v)
	}
	w.m.Records = nil
	w.readPool().Port = 9 // not checked: believed
	w.readPool().PortCheck = topology.PortCheckNone
	w.want("replica", "b=up c=up")
}

func (w *world) portOpen(node string, port uint16) {
	w.fold(pgSource(node), topology.Observation{Port: &topology.PortOpen{Node: node, Address: w.truth(node).Address, Port: port}})
}

func (w *world) portFails(node string, port uint16, class topology.FailureClass) {
	w.fold(pgSource(node), topology.Observation{Failure: &topology.Failure{
		Class: class, Node: node, Address: w.truth(node).Address, Asked: topology.ProbePort, Port: port,
	}})
}

// TestPortAfterRestart: a restart lets nobody in whose port is dead, and a port
// that has never answered is no good one.
func TestPortAfterRestart(t *testing.T) {
	for _, class := range []topology.FailureClass{topology.FailTimeout, topology.FailRefused} {
		w := settled(t, patroni)
		w.p.Pools[0].Port, w.p.Pools[1].Port = 6432, 6432
		for _, n := range []string{"a", "b", "c"} {
			w.portOpen(n, 6432)
		}
		fail := func() {
			for _, n := range []string{"a", "b"} {
				w.portFails(n, 6432, class)
			}
		}
		fail()
		w.run(3 * sec)
		fail()
		w.run(9 * sec)
		if verdict(w.decide(), "primary", "a") < topology.Drain {
			t.Fatal(w.show())
		}
		w.onDecide = func(s *topology.Snapshot) {
			if verdict(s, "primary", "a") == topology.Up || verdict(s, "replica", "b") == topology.Up {
				t.Fatalf("%s: up with a dead port\n%s", class, show(s, w.now))
			}
		}
		w.restart()
		w.portOpen("c", 6432)
		w.askAll()
		w.decide()
		for range 4 {
			fail()
			w.run(800 * ms)
		}
		if v := verdict(w.snap, "primary", "a"); v != topology.Drain && v != topology.Down {
			t.Fatalf("%s: a is %s after all", class, v)
		}
		w.onDecide = nil
		w.portOpen("a", 6432)
		w.want("primary", "a=up/writer")
	}
}

// TestPortBesideSilence: of two causes the harsher one rules.
func TestPortBesideSilence(t *testing.T) {
	w := settled(t, patroni)
	w.readPool().Port = 6432
	for _, n := range []string{"a", "b", "c"} {
		w.portOpen(n, 6432)
	}
	w.want("replica", "b=up c=up")
	w.fails("c", topology.FailStarting)
	w.run(sec)
	w.want("replica", "c=drain/starting")
	for range 2 {
		w.portFails("c", 6432, topology.FailRefused)
		w.pass(100 * ms)
	}
	w.want("replica", "c=down/starting")
	w.portOpen("c", 6432)
	w.want("replica", "c=down/starting") // it has no sessions to keep
}

// TestSessions: a pool's choice between drain and kill (FR-14).
func TestSessions(t *testing.T) {
	w := settled(t, patroni)
	w.readPool().Sessions = map[topology.Code]topology.Verdict{
		topology.CodeLag: topology.Down, topology.CodeTimeline: topology.Drain, topology.CodeMaintenance: topology.Down,
	}
	w.p.Pools[0].Sessions = map[topology.Code]topology.Verdict{topology.CodeMaintenance: topology.Down, topology.CodeWrongRole: topology.Drain}
	w.write(100 * mb)
	w.truth("b").Receiver.Timeline = 4
	w.behind("b", 0)
	w.run(13 * sec)
	w.p.Pools[1].MinReplicas = 0
	w.want("replica", "b=drain/timeline c=down/lag")
	w.m.Records = []topology.MaintenanceRecord{{Node: "a", Reason: "test"}}
	w.want("primary", "a=down/maintenance")
	w.m.Records = nil
	w.moveLeader("b", 6)
	w.become("b", primary(6))
	w.become("a", standby(5))
	w.run(2 * sec)
	w.want("primary", "a=down/wrong_role b=up/writer") // the loss of the role is no choice
}

// TestStaleFallback: the least lagging replica that answers, within the hard limit.
func TestStaleFallback(t *testing.T) {
	w := settled(t, patroni)
	w.readPool().Fallback = topology.FallbackStale
	w.fails("b", topology.FailRefused)
	w.truth("c").Receiver.Running = topology.No
	w.run(12 * sec)
	w.want("replica", "a=drain b=down c=up/fallback_stale")
	if p, _ := w.snap.Pool("replica"); !p.Fallback {
		t.Fatal("the fallback is not marked")
	}
	w.write(2 << 30)
	w.run(4 * sec)
	w.want("replica", "a=drain b=down c=drain")
	w.answers("b")
	w.behind("b", 0)
	w.truth("b").Receiver.LatestEnd = w.truth("a").WriteLSN
	w.run(4 * sec)
	w.want("replica", "b=up c=drain/not_streaming")
}

// TestRequireStreaming can be waived for a pool, or a node that restores archives.
func TestRequireStreaming(t *testing.T) {
	w := settled(t, patroni)
	w.truth("c").Receiver.Running = topology.No
	w.readPool().RequireStreaming = false
	w.run(time.Minute)
	w.want("replica", "c=up/replica")
	w.readPool().RequireStreaming = true
	w.want("replica", "c=drain/not_streaming")
	w.tagged("c", topology.TagSource, "archive")
	w.run(5 * sec)
	w.want("replica", "c=up")
	w.write(100 * mb)
	w.behind("b", 0)
	w.run(15 * sec)
	w.want("replica", "c=drain/lag")
}

// TestPathBroken: who streams from a standby that receives nothing falls behind
// unseen; the upstream's text says who is down (FR-11).
func TestPathBroken(t *testing.T) {
	w := settled(t, patroni)
	w.truth("c").Receiver.SenderHost = address("b").Host
	w.truth("b").Receiver = topology.Receiver{Running: topology.No, MessageAge: -1}
	w.run(9 * sec)
	w.want("replica", "b=up c=up")
	w.run(3 * sec)
	w.want("replica", "b=drain/not_streaming c=drain/path_broken")
	w = settled(t, patroni)
	w.tagged("c", topology.TagReplicateFrom, "b")
	w.fails("b", topology.FailRefused)
	w.truth("c").Receiver = topology.Receiver{Running: topology.No, MessageAge: -1}
	w.run(12 * sec)
	p, _ := w.snap.Pool("replica")
	if v, _ := p.Verdict("c"); v.Reason().Text != "no WAL receiver; upstream b is down" {
		t.Fatalf("reason %+v", v.Reason())
	}
}

// TestZone: the preferred zone serves alone while it has enough.
func TestZone(t *testing.T) {
	w := settled(t, patroni)
	w.readPool().Zone = "eu"
	w.want("replica", "b=up c=up") // nobody is near
	w.tagged("b", topology.TagZone, "eu")
	w.want("replica", "b=up/replica c=drain/other_zone")
	w.fails("b", topology.FailStarting)
	w.run(sec)
	w.want("replica", "b=drain/starting c=up/replica")
	w.answers("b")
	w.run(4 * sec)
	w.want("replica", "b=up/ramping c=up/replica") // it has 25 % of its weight: the others help
	w.run(20 * sec)
	w.want("replica", "b=up/ramping c=drain/other_zone")
	w.readPool().MinReplicas = 2
	w.want("replica", "b=up c=up")
	w.fails("b", topology.FailRefused) // a fallback is for want of nodes, wherever they stand
	w.fails("c", topology.FailRefused)
	w.tagged("a", topology.TagZone, "us")
	w.run(3 * sec)
	w.want("replica", "a=up/fallback b=down c=down")
}

// TestSaturated: no free slot is no failure; a replica gets half its share, the
// writer stays, and the mark ends 30 s after the last refused login (FR-22).
func TestSaturated(t *testing.T) {
	w := settled(t, patroni)
	w.fail("a", topology.FailSlots, topology.ProbeLogin)
	w.fail("c", topology.FailSlots, topology.ProbeLogin)
	w.want("primary", "a=up/saturated")
	w.want("replica", "c=up/saturated")
	w.wantWeight("c", 50)
	w.run(29 * sec)
	w.want("primary", "a=up/saturated")
	w.run(2 * sec)
	w.want("primary", "a=up/writer")
	w.wantWeight("c", 100)
	w.fail("a", topology.FailSlots, topology.ProbeLogin)
	w.want("primary", "a=up/saturated")
	w.login("a")
	w.want("primary", "a=up/writer")
	w.fails("c", topology.FailSlots)
	w.run(5 * sec)
	w.want("replica", "c=up/saturated")
	w.fails("c", topology.FailAuth) // another word: there are slots, and it is not told what it is
	w.run(4 * sec)
	w.want("replica", "c=drain/role_unknown")
}

// TestWritesStalled: an alarm, and a drain only by choice.
func TestWritesStalled(t *testing.T) {
	w := settled(t, patroni)
	write := func() { w.fail("a", topology.FailTimeout, topology.ProbeWrite) }
	write()
	w.run(5 * sec)
	w.wantAlarms()
	w.run(sec)
	w.wantAlarms(topology.CodeWritesStalled)
	w.want("primary", "a=up/writer")
	w.p.WriteStall = topology.StallDrain
	w.want("primary", "a=drain/writes_stalled b=down")
	w.fold(pgSource("a"), topology.Observation{Probe: &topology.Probe{Node: "a", Address: address("a"), Kind: topology.ProbeWrite}})
	w.want("primary", "a=up/writer")
	w.wantAlarms()
	w.fail("a", topology.FailProtocol, topology.ProbeWrite) // no table, no right: no stall
	w.run(time.Minute)
	w.wantAlarms()
}

// TestWritesBlocked: commits wait while the position stands still.
func TestWritesBlocked(t *testing.T) {
	w := settled(t, patroni)
	w.truth("a").SyncWaiters = 7
	w.run(9 * sec)
	w.wantAlarms()
	w.run(3 * sec)
	w.wantAlarms(topology.CodeWritesBlocked)
	w.want("primary", "a=up/writer")
	w.write(mb)
	w.run(sec)
	w.wantAlarms()
	for range 30 { // busy and healthy: somebody always waits, and it goes on
		w.write(mb)
		w.run(sec)
		w.wantAlarms()
	}
	w.truth("a").SyncWaiters = 0
	w.run(time.Minute)
	w.wantAlarms()
}

// TestChangedInitializeKey: the servers are believed, until the one that the
// authority names has the key's identifier too.
func TestChangedInitializeKey(t *testing.T) {
	w := settled(t, patroni)
	w.authority.SystemID = 666
	w.run(time.Minute)
	w.want("primary", "a=up/writer")
	w.want("replica", "b=up c=up")
	w.wantAlarms(topology.CodeForeignKey)
	for _, n := range []string{"a", "b"} { // built anew
		w.truth(n).SystemID = 666
	}
	w.run(3 * sec)
	w.want("primary", "a=up/writer")
	w.want("replica", "b=up c=down/identity")
	w.wantAlarms()
}

// TestLagIsNotAllThatIsOwed: a lag that was small meanwhile lets nobody in who
// was out for another reason a moment ago.
func TestLagIsNotAllThatIsOwed(t *testing.T) {
	w := settled(t, patroni)
	w.write(100 * mb)
	w.behind("b", 0)
	w.run(5 * sec)
	w.want("replica", "c=drain/lag")
	w.behind("c", 0)
	w.ask("c")
	w.fails("c", topology.FailRefused)
	w.run(20 * sec)
	w.want("replica", "c=down/refused")
	w.answers("c")
	w.askAll()
	from := w.now.Mono
	for verdict(w.decide(), "replica", "c") != topology.Up {
		w.run(50 * ms)
	}
	if took := w.now.Mono.Sub(from); took < w.p.ReturnAfter {
		t.Fatalf("c is up %s after it answered", took)
	}
}
