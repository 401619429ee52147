package engine

import (
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

const mb = 1 << 20

// behind makes a standby lag behind the writer by so many bytes.
func (w *world) behind(name string, bytes topology.LSN) {
	w.truth(name).ReplayLSN = w.truth("a").WriteLSN - bytes
}

// write moves the writer's position; standbys that stream keep up.
func (w *world) write(bytes topology.LSN) { w.truth("a").WriteLSN += bytes }

// TestReplicaRules: the read ladder, rule by rule, after everything has settled.
func TestReplicaRules(t *testing.T) {
	hour := func(w *world) { w.truth("c").ApplyDelay = time.Hour }
	tests := []struct {
		name   string
		happen func(*world)
		after  time.Duration
		want   string
	}{
		{"noloadbalance", func(w *world) { w.tagged("c", topology.TagNoLoadBalance, "true") }, sec, "b=up c=drain/noloadbalance"},
		{"noloadbalance off", func(w *world) { w.tagged("c", topology.TagNoLoadBalance, "false") }, sec, "c=up/replica"},
		{"delayed (FR-10)", hour, sec, "c=drain/delayed"},
		{"wrong identifier", func(w *world) { w.truth("c").SystemID = 666 }, sec, "c=down/identity"},
		{"lag at the limit", func(w *world) { w.write(64 * mb); w.behind("b", 0); w.behind("c", 64*mb) }, 3 * sec, "c=up/replica"},
		{"lag", func(w *world) { w.write(64*mb + 1); w.behind("b", 0); w.behind("c", 64*mb+1) }, 4 * sec, "b=up c=drain/lag"},
		{"lag, hard", func(w *world) { w.write(2 << 30); w.behind("b", 0) }, 4 * sec, "b=up c=drain/lag_hard"},
		{"received is not replayed", func(w *world) {
			w.write(100 * mb)
			w.behind("b", 0)
			w.truth("c").ReceiveLSN = w.truth("a").WriteLSN
		}, 4 * sec, "c=drain/lag"},
		{"replay position unknown, streaming", func(w *world) { w.truth("c").ReplayLSN = 0 }, 3 * sec, "c=up/replica"},
		{"replay position unknown, not streaming", func(w *world) {
			w.truth("c").ReplayLSN, w.truth("c").Receiver.Streaming = 0, topology.No
		}, 3 * sec, "c=drain/lag_unknown"},
		{"replay position unknown, dead link", func(w *world) {
			w.truth("c").ReplayLSN, w.truth("c").Receiver.MessageAge = 0, 50*sec
		}, 3 * sec, "c=drain/lag_unknown"},
		{"not streaming, in the grace", func(w *world) { w.truth("c").Receiver.Running = topology.No }, 9 * sec, "c=up/replica"},
		{"not streaming (FR-06)", func(w *world) { w.truth("c").Receiver.Running = topology.No }, 12 * sec, "b=up c=drain/not_streaming"},
		{"receiver unknown is not none (P3)", func(w *world) {
			w.truth("c").Receiver = topology.Receiver{MessageAge: -1}
		}, time.Minute, "c=up/replica"},
		{"no upstream configured", func(w *world) {
			w.truth("c").Receiver = topology.Receiver{Running: topology.No, MessageAge: -1}
			w.truth("c").Upstream = topology.No
		}, time.Minute, "c=drain/not_streaming"},
		{"paused while idle", func(w *world) { w.truth("c").ReplayPaused = topology.Yes }, time.Minute, "c=up/replica"},
		{"paused and behind, in the grace", func(w *world) {
			w.truth("c").ReplayPaused = topology.Yes
			w.write(mb)
			w.behind("b", 0)
		}, 5 * sec, "c=up/replica"},
		{"paused and behind", func(w *world) {
			w.truth("c").ReplayPaused = topology.Yes
			w.write(mb)
			w.behind("b", 0)
		}, 8 * sec, "b=up c=drain/paused"},
		{"other timeline, in the grace", func(w *world) { w.truth("c").Receiver.Timeline = 4 }, 9 * sec, "c=up/replica"},
		{"other timeline", func(w *world) { w.truth("c").Receiver.Timeline = 4 }, 12 * sec, "c=down/timeline"},
		{"starting (FR-08)", func(w *world) { w.fails("c", topology.FailStarting) }, sec, "c=drain/starting"},
		{"refused", func(w *world) { w.fails("c", topology.FailRefused) }, 3 * sec, "c=down/refused"},
		{"silent", func(w *world) { w.fails("c", topology.FailTimeout) }, 5 * sec, "c=drain/silent"},
		{"silent for long", func(w *world) { w.fails("c", topology.FailTimeout) }, 12 * sec, "c=down/silent"},
		{"role unknown", func(w *world) { w.fails("c", topology.FailAuth) }, 5 * sec, "c=drain/role_unknown"},
		{"no slot is no death", func(w *world) { w.fails("c", topology.FailSlots) }, time.Minute, "c=up/saturated"},
		{"promoted on its own", func(w *world) { w.become("c", primary(6)) }, sec, "c=down/fenced"},
		{"read-only primary", func(w *world) { w.become("c", primary(5)); w.truth("c").ReadOnly = topology.Yes }, sec, "c=drain/wrong_role"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := settled(t, patroni)
			tt.happen(w)
			w.run(tt.after)
			w.want("primary", "a=up/writer")
			w.want("replica", tt.want)
		})
	}
}

// TestIdleLag: an idle primary's replicas have no lag, however long it lasts,
// and a primary has none at all (FR-12).
func TestIdleLag(t *testing.T) {
	w := settled(t, patroni)
	w.run(24 * time.Hour / 100)
	f := Facts(w.s, w.now)
	if l := f.Nodes["b"].Lag; l.Known != topology.Yes || l.Bytes != 0 || l.Time != 0 {
		t.Fatalf("lag of b is %+v, want none", l)
	}
	if l := f.Nodes["a"].Lag; l.Known != topology.Unknown {
		t.Fatalf("lag of the primary is %+v, want unknown", l)
	}
}

// TestLagTime counts since the writer first passed the replayed position.
func TestLagTime(t *testing.T) {
	w := settled(t, patroni)
	w.write(mb)
	w.behind("b", 0)
	w.run(sec) // asked within: the writer has passed it
	from := w.now.Mono
	w.run(30 * sec)
	l := Facts(w.s, w.now).Nodes["c"].Lag
	if l.Bytes != mb || l.Time < 29*sec || l.Time > w.now.Mono.Sub(from)+sec {
		t.Fatalf("lag of c is %+v, want 1MB since about 30 s", l)
	}
}

// TestLagIsMeasuredAtTheSameMoment: what the writer wrote after the standby was
// asked is not its lag.
func TestLagIsMeasuredAtTheSameMoment(t *testing.T) {
	w := settled(t, patroni)
	for range 20 {
		w.write(500 * mb) // per second
		w.truth("b").ReplayLSN = w.truth("a").WriteLSN
		w.ask("b")
		w.pass(2 * ms)
		w.write(100 * mb)
		w.ask("a")
		w.want("replica", "b=up/replica")
		w.pass(998 * ms)
	}
}

// TestLagAfterStepBack: the memory of positions follows the writer, also to one
// on a lower timeline.
func TestLagAfterStepBack(t *testing.T) {
	w := settled(t, patroni)
	w.become("b", primary(4))
	w.become("c", standby(4))
	w.become("a", standby(4))
	w.moveLeader("b", 4)
	w.run(40 * sec)
	w.truth("b").WriteLSN += mb
	w.run(2 * sec)
	if l := Facts(w.s, w.now).Nodes["c"].Lag; l.Bytes != mb || l.Estimated || l.Known != topology.Yes {
		t.Fatalf("lag of c is %+v, want 1MB", l)
	}
}

// TestLagUnknown: a lag may rest on an old position of the writer for a while.
func TestLagUnknown(t *testing.T) {
	w := settled(t, patroni)
	w.truth("a").WriteLSN = 0
	w.truth("b").Receiver.LatestEnd = 0
	w.truth("c").Receiver.LatestEnd, w.truth("c").Receiver.Streaming = 0, topology.No
	w.run(25 * sec)
	w.want("replica", "b=up c=up")
	if l := Facts(w.s, w.now).Nodes["c"].Lag; l.Known != topology.Yes || !l.Estimated {
		t.Fatalf("lag of c is %+v, want an estimate", l)
	}
	w.run(10 * sec)
	w.want("replica", "b=up/replica c=drain/lag_unknown")
}

// TestMinimum: lag never takes the pool below min_replicas, up to the hard limit.
func TestMinimum(t *testing.T) {
	w := settled(t, patroni)
	w.write(200 * mb)
	w.behind("b", 100*mb)
	w.behind("c", 200*mb)
	w.run(4 * sec)
	w.want("replica", "a=drain b=up/lag_override c=drain/lag")
	w.p.Pools[1].MinReplicas = 2
	w.want("replica", "a=drain b=up/lag_override c=up/lag_override")
	w.write(2 << 30)
	w.behind("b", 100*mb)
	w.run(4 * sec)
	w.want("replica", "b=up/lag_override c=drain/lag_hard")
	w.behind("b", 2<<30)
	w.run(sec)
	w.want("replica", "a=up/fallback b=drain/lag_hard c=drain/lag_hard")
}

// TestFallback: in the same evaluation that takes the last replica out, and back
// in the one that lets a replica return (FR-13).
func TestFallback(t *testing.T) {
	w := settled(t, patroni)
	w.onDecide = func(s *topology.Snapshot) {
		if p, _ := s.Pool("replica"); len(p.Up()) == 0 {
			t.Fatalf("the read pool is empty\n%s", show(s, w.now))
		}
	}
	w.fails("b", topology.FailRefused)
	w.fails("c", topology.FailRefused)
	w.run(5 * sec)
	w.want("replica", "a=up/fallback b=down/refused c=down/refused")
	if p, _ := w.snap.Pool("replica"); !p.Fallback {
		t.Fatal("the fallback is not marked")
	}
	w.servers["d"] = standby(5) // a new node that nobody has asked ends no fallback
	w.servers["d"].fails = topology.FailTimeout
	w.listNodes()
	w.want("replica", "a=up/fallback d=undecided")
	w.answers("b")
	w.run(5 * sec)
	w.want("replica", "a=drain/wrong_role b=up/ramping")
}

func TestNoFallback(t *testing.T) {
	w := settled(t, patroni)
	w.p.Pools[1].Fallback = topology.FallbackNone
	w.fails("b", topology.FailRefused)
	w.fails("c", topology.FailRefused)
	w.run(5 * sec)
	w.want("replica", "a=drain/wrong_role b=down c=down")
	w.readPool().Fallback = topology.FallbackPrimary
	w.want("replica", "a=up/fallback b=down c=down")
	w.fails("a", topology.FailRefused)
	w.run(5 * sec)
	w.want("replica", "a=down b=down c=down")
	if p, _ := w.snap.Pool("replica"); p.Fallback {
		t.Fatal("a fallback is marked and nobody serves")
	}
}

// TestNoWriterNoLag: without a proven writer nothing is judged against it.
func TestNoWriterNoLag(t *testing.T) {
	w := settled(t, patroni)
	w.write(2 << 30)
	w.behind("b", 0)
	w.truth("c").Receiver.Running = topology.No
	w.run(15 * sec)
	w.want("replica", "b=up c=drain/not_streaming")
	w.fails("a", topology.FailTimeout)
	w.fails("b", topology.FailRefused)
	w.run(10 * sec)
	w.want("primary", "a=drain/silent")
	w.want("replica", "b=down c=up/lag_override")
}

// TestReturning: a replica that was out returns after 2 s of good answers; the
// first verdict comes at once.
func TestReturning(t *testing.T) {
	w := newWorld(t, patroni)
	w.askAll()
	w.want("replica", "b=up/replica c=up/replica")

	w = settled(t, patroni)
	w.fails("b", topology.FailRefused)
	w.run(3 * sec)
	w.want("replica", "b=down/refused")
	w.answers("b")
	w.pass(2 * ms)
	w.askAll()
	w.want("replica", "b=down/returning")
	w.fail("b", topology.FailStarting, topology.ProbeFull)
	w.want("replica", "b=down/starting") // it has no sessions to keep
	w.pass(10 * ms)
	w.askAll()
	w.want("replica", "b=down/returning")
	w.idle(1990 * ms)
	w.want("replica", "b=down/returning")
	w.idle(20 * ms)
	w.want("replica", "b=up/ramping")
}

// TestNoGraceOnReturn: who is out comes back when the trouble is over, not for
// the length of a grace (FR-07).
func TestNoGraceOnReturn(t *testing.T) {
	restart := false
	for _, lags := range []bool{false, false, true, true} {
		w := settled(t, patroni)
		w.truth("c").Receiver.Timeline = 4
		w.run(15 * sec)
		w.want("replica", "c=down/timeline")
		if lags { // nor as the last one that could serve
			w.write(100 * mb)
			w.fails("b", topology.FailRefused)
		}
		if restart = !restart; restart {
			w.restart()
		} else {
			w.fails("c", topology.FailRefused)
			w.run(5 * sec)
			w.answers("c")
		}
		w.onDecide = func(s *topology.Snapshot) {
			if verdict(s, "replica", "c") == topology.Up {
				t.Fatalf("c is up again\n%s", show(s, w.now))
			}
		}
		w.run(30 * sec)
		w.want("replica", "c=down/timeline")
	}
}

// TestNoGraceIsNoHaste: what drains for another reason is not cut sooner.
func TestNoGraceIsNoHaste(t *testing.T) {
	w := settled(t, patroni)
	w.fails("c", topology.FailStarting)
	w.run(sec)
	w.want("replica", "c=drain/starting")
	w.answers("c")
	w.truth("c").Receiver.Timeline = 4
	w.run(9 * sec)
	w.want("replica", "c=drain/timeline")
	w.run(3 * sec)
	w.want("replica", "c=down/timeline")
}

// TestDemotedPrimary serves reads at once, when it is seen as a standby.
func TestDemotedPrimary(t *testing.T) {
	w := settled(t, patroni)
	w.become("a", standby(5))
	w.ask("a")
	w.want("replica", "a=up/ramping")
}

// TestCascade: the leaf is measured against the writer, and its dead upstream
// alone does not take it out (FR-11).
func TestCascade(t *testing.T) {
	w := settled(t, patroni)
	w.truth("c").Receiver.SenderHost = "192.0.2.11"
	w.run(2 * sec)
	w.fails("b", topology.FailRefused)
	w.run(3 * sec)
	w.want("replica", "b=down/refused c=up/replica")
	w.truth("c").Receiver.Running = topology.No
	w.write(100 * mb)
	w.p.Pools[1].MinReplicas = 0
	w.run(4 * sec)
	w.want("replica", "a=up/fallback c=drain/lag")
	if l := Facts(w.s, w.now).Nodes["c"].Lag; l.Bytes != 100*mb {
		t.Fatalf("lag of c is %s, want 100MB", l.Bytes)
	}
}

// TestMaintenance drains, ends by itself, and hides nothing harsher (FR-36).
func TestMaintenance(t *testing.T) {
	w := settled(t, patroni)
	w.m.Records = []topology.MaintenanceRecord{{Node: "b", Reason: "kernel, and\nmore", Since: w.now.Wall, Until: w.now.Wall.Add(time.Minute)}}
	w.want("replica", "b=drain/maintenance c=up")
	p, _ := w.snap.Pool("replica")
	if v, _ := p.Verdict("b"); v.Reason().Text != "kernel; and more" || !v.Reason().Since.Equal(w.now.Wall) {
		t.Fatalf("reason %+v", v.Reason())
	}
	w.fails("b", topology.FailRefused)
	w.run(3 * sec)
	w.want("replica", "b=down/maintenance")
	w.answers("b")
	w.run(3 * sec)
	w.want("replica", "b=drain/maintenance")
	w.run(time.Minute)
	w.want("replica", "b=up/ramping")

	w.m.Records = []topology.MaintenanceRecord{{Node: "a", Reason: "disk", Since: w.now.Wall}}
	w.want("primary", "a=drain/maintenance b=down")
	w.fails("b", topology.FailRefused)
	w.fails("c", topology.FailRefused)
	w.run(5 * sec)
	w.want("replica", "a=drain/maintenance b=down c=down") // health may empty a pool
	w.moveLeader("b", 6)
	w.askAuthority()
	w.want("primary", "a=down/maintenance")
	w.m.Records = nil
	w.moveLeader("a", 6)
	w.run(2 * sec)
	w.want("primary", "a=up/writer")
}

// TestMaintenanceOfAPool takes a node out of one pool alone, be it one that writes;
// the role stays where it is.
func TestMaintenanceOfAPool(t *testing.T) {
	w := settled(t, patroni)
	other := w.p.Pools[1]
	other.Name = "other"
	w.p.Pools = append(w.p.Pools, other)
	w.run(3 * sec)
	w.m.Records = []topology.MaintenanceRecord{{Pool: "replica", Node: "b", Reason: "disk"}, {Pool: "primary", Reason: "schema"}}
	w.want("replica", "b=drain/maintenance c=up")
	w.want("other", "b=up c=up")
	w.want("primary", "a=drain/maintenance b=down/wrong_role")
	if w.snap.Writer != "a" {
		t.Errorf("the writer is %q", w.snap.Writer)
	}
}

// TestMaintenanceOfAPoolHasNoFallback: a whole pool that is out is not served by the
// primary in its place.
func TestMaintenanceOfAPoolHasNoFallback(t *testing.T) {
	w := settled(t, patroni)
	w.readPool().Fallback = topology.FallbackPrimary
	w.m.Records = []topology.MaintenanceRecord{{Pool: "replica", Node: "b"}, {Pool: "replica", Node: "c"}}
	w.want("replica", "a=up/fallback b=drain/maintenance c=drain/maintenance")
	w.m.Records = []topology.MaintenanceRecord{{Pool: "replica", Reason: "reports are rebuilt"}}
	w.want("replica", "a=drain/maintenance b=drain/maintenance c=drain/maintenance")
}

// TestMaintenanceEndsSessions: at the deadline those that are left end, at once.
func TestMaintenanceEndsSessions(t *testing.T) {
	w := settled(t, patroni)
	w.m.Records = []topology.MaintenanceRecord{
		{Reason: "all", Since: w.now.Wall},
		{Node: "b", Reason: "kernel", Since: w.now.Wall, DrainUntil: w.now.Wall.Add(300 * ms)},
	}
	w.run(290 * ms)
	w.want("replica", "b=drain/maintenance c=drain/maintenance")
	if left := w.wake.Sub(w.now.Mono); left != 10*ms {
		t.Errorf("decided again after %s, not at the deadline", left)
	}
	w.run(10 * ms)
	w.want("replica", "b=down/maintenance c=drain/maintenance")
	w.want("primary", "a=drain/maintenance")
}

// TestMaintenanceFenced: a node in maintenance that is also fenced is cut.
func TestMaintenanceFenced(t *testing.T) {
	w := settled(t, patroni)
	w.m.Records = []topology.MaintenanceRecord{{Node: "c", Reason: "disk", Since: w.now.Wall}}
	w.become("c", primary(6))
	w.run(sec)
	w.want("replica", "c=down/maintenance")
	w.truth("c").SystemID = 666
	w.run(sec)
	w.want("replica", "c=down/identity")
}

// TestMaintenanceAtTheStart cuts nobody's sessions.
func TestMaintenanceAtTheStart(t *testing.T) {
	w := newWorld(t, patroni)
	w.m.Records = []topology.MaintenanceRecord{{Reason: "all of it", Since: w.now.Wall}}
	w.want("primary", "a=drain/maintenance b=drain/maintenance")
	w.run(3 * sec)
	w.want("primary", "a=drain/maintenance b=down")
	w.want("replica", "b=drain/maintenance")
}

// TestReturnFromMaintenance: what a replica proves while it is out counts, and
// what it proved before, so that it does not matter when somebody decided.
func TestReturnFromMaintenance(t *testing.T) {
	w := settled(t, patroni)
	w.m.Records = []topology.MaintenanceRecord{{Node: "b", Reason: "test", Until: w.now.Wall.Add(300 * ms)}}
	w.want("replica", "b=drain/maintenance")
	w.run(290 * ms)
	w.want("replica", "b=drain/maintenance")
	w.run(10 * ms)
	w.want("replica", "b=up/ramping")
}
