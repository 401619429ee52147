package engine

import (
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestWriterLeaves: contrary evidence takes the writer out in the very next
// decision, whatever the authority.
func TestWriterLeaves(t *testing.T) {
	tests := []struct {
		name   string
		kind   topology.AuthorityKind
		happen func(*world)
		want   string
	}{
		{"in recovery", patroni, func(w *world) { w.become("a", standby(5)) }, "a=down/promoting"},
		{"in recovery, none", none, func(w *world) { w.become("a", standby(5)) }, "a=down/wrong_role"},
		{"read-only", patroni, func(w *world) { w.truth("a").ReadOnly = topology.Yes }, "a=down/read_only"},
		{"read-only, none", none, func(w *world) { w.truth("a").ReadOnly = topology.Yes }, "a=down/read_only"},
		{"another is named", patroni, func(w *world) { w.moveLeader("b", 5) }, "a=down b=down/promoting"},
		{"wrong identifier", patroni, func(w *world) { w.truth("a").SystemID = 666 }, "a=down/identity"},
		{"wrong identifier, none", none, func(w *world) { w.truth("a").SystemID = 666 }, "a=down/identity"},
		{"standby cluster", patroni, func(w *world) { w.authority.StandbyCluster = true }, "a=down/standby_cluster"},
		{"higher timeline anywhere, none", none, func(w *world) { w.become("c", standby(6)) }, "a=down"},
		{"second writable node, none", none, func(w *world) { w.become("b", primary(5)) }, "a=down b=down/two_writers"},
		{"second writable node, named stays", patroni, func(w *world) { w.become("b", primary(6)) }, "a=up/writer b=down/fenced"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := settled(t, tt.kind)
			tt.happen(w)
			w.pass(100 * ms)
			w.askAll()
			w.want("primary", tt.want)
		})
	}
}

// TestContraryBetweenDecisions: better word that follows before the next
// decision does not undo contrary evidence.
func TestContraryBetweenDecisions(t *testing.T) {
	tests := []struct {
		name   string
		happen func(*world)
	}{
		{"in recovery for a moment", func(w *world) {
			w.become("a", standby(5))
			w.ask("a")
			w.become("a", primary(5))
		}},
		{"another named for a moment", func(w *world) {
			w.moveLeader("b", 5)
			w.askAuthority()
			w.moveLeader("a", 5)
		}},
		{"refused twice, then back", func(w *world) {
			w.fail("a", topology.FailRefused, topology.ProbeFull)
			w.pass(100 * ms)
			w.fail("a", topology.FailRefused, topology.ProbeFull)
		}},
		{"another server for a moment", func(w *world) {
			w.truth("a").SystemID = 666
			w.ask("a")
			w.truth("a").SystemID = ownID
		}},
		{"another named, then the authority fails", func(w *world) {
			w.moveLeader("b", 5)
			w.askAuthority()
			w.unheard = topology.FailStore
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := settled(t, patroni)
			tt.happen(w)
			w.pass(10 * ms)
			w.askAll()
			w.want("primary", "a=down")
			w.pass(10 * ms)
			w.want("primary", "a=down")
		})
	}
	w := settled(t, patroni)
	w.fail("b", topology.FailRefused, topology.ProbeFull)
	w.pass(100 * ms)
	w.fail("b", topology.FailRefused, topology.ProbeFull)
	w.pass(2 * ms)
	w.ask("b")
	w.want("replica", "b=down/refused")
	w.want("replica", "b=down/returning")
}

func TestWriterEnters(t *testing.T) {
	tests := []struct {
		name   string
		kind   topology.AuthorityKind
		happen func(*world)
		want   string
	}{
		{"named and writable", patroni, func(*world) {}, "a=up/writer b=down/wrong_role"},
		{"alone on the highest timeline", none, func(*world) {}, "a=up/writer b=down/wrong_role"},
		{"named but in recovery", patroni, func(w *world) { w.moveLeader("b", 5) }, "a=down/fenced b=down/promoting"},
		{"writable, nobody named", patroni, func(w *world) { w.moveLeader("", 5) }, "a=drain/no_leader"},
		{"read-only", patroni, func(w *world) { w.truth("a").ReadOnly = topology.Yes }, "a=down/read_only"},
		{"read-only unknown", patroni, func(w *world) { w.truth("a").ReadOnly = topology.Unknown }, "a=undecided/no_evidence"},
		{"session mismatch", patroni, func(w *world) { w.authority.SessionAgrees = topology.No }, "a=undecided/session_mismatch"},
		{"session agreement unknown", patroni, func(w *world) { w.authority.SessionAgrees = topology.Unknown }, "a=up/writer"},
		{"identifier not told", patroni, func(w *world) { w.truth("a").SystemID = 0 }, "a=undecided/no_evidence"},
		{"identifier not told, none", none, func(w *world) { w.truth("a").SystemID = 0 }, "a=undecided/no_evidence"},
		{"wrong identifier", patroni, func(w *world) { w.truth("a").SystemID = 666 }, "a=down/identity"},
		{"wrong server beside it, none", none, func(w *world) { w.truth("c").SystemID = 666 }, "a=down/identity"},
		{"authority not heard", patroni, func(w *world) { w.unheard = topology.FailStore }, "a=undecided/authority_unknown"},
		{"standby cluster", patroni, func(w *world) { w.authority.StandbyCluster = true }, "a=down/standby_cluster"},
		{"two writable, none", none, func(w *world) { w.become("b", primary(5)) }, "a=down/two_writers b=down/two_writers"},
		{"two writable, newer wins, none", none, func(w *world) { w.become("b", primary(6)) }, "a=down b=up/writer"},
		{"standby on a higher timeline, none", none, func(w *world) { w.become("c", standby(6)) }, "a=down/old_timeline"},
		{"delayed, none", none, func(w *world) { w.truth("a").ApplyDelay = sec }, "a=down/nofailover"},
		{"nofailover, none", none, func(w *world) { w.tagged("a", topology.TagNoFailover, "true") }, "a=down/nofailover"},
		{"nofailover tag off, none", none, func(w *world) { w.tagged("a", topology.TagNoFailover, "false") }, "a=up/writer"},
		{"nofailover but named", patroni, func(w *world) { w.tagged("a", topology.TagNoFailover, "true") }, "a=up/writer"},
		{"role unknown", patroni, func(w *world) { w.fails("a", topology.FailSlots) }, "a=undecided/role_unknown"},
		{"starting", patroni, func(w *world) { w.fails("a", topology.FailStarting) }, "a=drain/starting"},
		{"refused", patroni, func(w *world) { w.fails("a", topology.FailRefused) }, "a=down/refused"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.kind)
			tt.happen(w)
			w.run(1500 * ms)
			w.want("primary", tt.want)
		})
	}
}

// TestEveryOtherNodeIsHeardFirst: without an authority nobody enters before the
// others have been heard or given up.
func TestEveryOtherNodeIsHeardFirst(t *testing.T) {
	w := newWorld(t, none)
	w.ask("a")
	w.want("primary", "a=undecided/no_evidence")
	w.ask("b")
	w.want("primary", "a=undecided/no_evidence")
	w.ask("c")
	w.want("primary", "a=up/writer")

	w = newWorld(t, none)
	w.fails("c", topology.FailTimeout)
	w.run(1800 * ms)
	w.wantWriter("")
	w.run(200 * ms) // c is silent now
	w.wantWriter("a")
}

// TestRivalByRoleTick: a node that has just become writable bars entry before
// its timeline is read.
func TestRivalByRoleTick(t *testing.T) {
	w := newWorld(t, none)
	w.ask("b")
	w.ask("c")
	w.truth("b").InRecovery, w.truth("b").ReadOnly = topology.No, topology.No
	w.pass(10 * ms)
	w.roleTick("b")
	w.ask("a")
	w.want("primary", "a=down/two_writers b=undecided/no_evidence")
}

// TestSessionMismatchBarsEntryOnly: a writer that has entered stays.
func TestSessionMismatchBarsEntryOnly(t *testing.T) {
	w := settled(t, patroni)
	w.authority.SessionAgrees = topology.No
	w.run(30 * sec)
	w.want("primary", "a=up/writer")
}

// TestRoleUnknownKeepsTheNamedWriter (FR-21, FR-22).
func TestRoleUnknownKeepsTheNamedWriter(t *testing.T) {
	classes := []topology.FailureClass{
		topology.FailSlots, topology.FailAuth, topology.FailDatabase, topology.FailTLS, topology.FailProtocol,
	}
	for _, c := range classes {
		t.Run(string(c), func(t *testing.T) {
			w := settled(t, patroni)
			w.fails("a", c)
			w.run(5 * time.Minute)
			want := "a=up/role_unknown"
			if c == topology.FailSlots {
				want = "a=up/saturated"
			}
			w.want("primary", want)
			w.want("replica", "b=up c=up") // nothing is judged against an unproven writer
			w.moveLeader("b", 6)
			w.askAuthority()
			w.want("primary", "a=down")

			w = settled(t, none) // nobody names it: no new sessions, the old ones live
			w.fails("a", c)
			w.run(5 * time.Minute)
			w.want("primary", "a=drain/role_unknown")

			w = settled(t, patroni)
			w.fails("a", c)
			w.unheard = topology.FailStore
			w.run(5 * time.Minute)
			w.want("primary", "a=drain/role_unknown")
		})
	}
}

// TestMinDown: a writer that was lost stays down for min_down, named and
// writable or not (FR-15).
func TestMinDown(t *testing.T) {
	w := settled(t, patroni)
	w.become("a", standby(5))
	w.ask("a")
	w.want("primary", "a=down")
	w.become("a", primary(5))
	w.pass(10 * ms)
	w.ask("a")
	w.want("primary", "a=down/min_down")
	w.idle(985 * ms)
	w.want("primary", "a=down/min_down")
	w.idle(10 * ms)
	w.want("primary", "a=up/writer")
}

// TestSwitchover: the pool is empty between the old writer and the new one, and
// the new one enters on a role tick, without waiting for a full probe (FR-16).
func TestSwitchover(t *testing.T) {
	w := settled(t, patroni)
	w.moveLeader("b", 6)
	w.fails("a", topology.FailRefused)
	w.askAll()
	w.want("primary", "a=down b=down/promoting")
	w.run(2 * sec)
	w.want("primary", "a=down/refused b=down/promoting")
	w.become("a", standby(5))
	w.run(sec)
	w.want("primary", "a=down/wrong_role b=down/promoting")
	w.become("b", primary(6))
	w.pass(50 * ms)
	w.roleTick("b")
	w.want("primary", "a=down/wrong_role b=up/writer")
}

// TestFrozenPrimaryWakes: it is writable after its successor's promotion, and
// fenced (FR-01, eligibility 5.7).
func TestFrozenPrimaryWakes(t *testing.T) {
	for _, kind := range []topology.AuthorityKind{patroni, none} {
		t.Run(string(kind), func(t *testing.T) {
			w := settled(t, kind)
			w.fails("a", topology.FailTimeout)
			w.run(2500 * ms)
			w.want("primary", "a=drain/silent")
			w.become("b", primary(6))
			w.moveLeader("b", 6)
			w.run(sec)
			w.want("primary", "a=down b=up/writer")
			w.answers("a")
			w.run(sec)
			w.want("primary", "a=down b=up/writer")
			w.want("replica", "a=down/fenced b=drain/wrong_role")
			if len(w.snap.Alarms) != 1 || w.snap.Alarms[0].Code != topology.CodeTwoWriters {
				t.Fatalf("alarms %v, want two_writers", w.snap.Alarms)
			}
		})
	}
}

// TestStrayPrimarySetsNoPace: only the writer's positions measure lag.
func TestStrayPrimarySetsNoPace(t *testing.T) {
	w := settled(t, patroni)
	w.become("c", primary(9))
	w.truth("c").WriteLSN = 50 << 30
	w.run(5 * sec)
	w.want("primary", "a=up/writer c=down/fenced")
	w.want("replica", "b=up/replica c=down/fenced")
}

// TestRivalGoesSilent: its word counts for as long as its sessions may be
// writing, kill_after, and no longer.
func TestRivalGoesSilent(t *testing.T) {
	w := newWorld(t, none)
	w.become("b", primary(5))
	w.run(3 * sec)
	w.want("primary", "a=down/two_writers b=down/two_writers")
	w.ask("b")
	w.fails("b", topology.FailTimeout)
	w.run(9900 * ms)
	w.want("primary", "a=down/two_writers b=drain/silent")
	w.run(200 * ms)
	w.want("primary", "a=up/writer")
}

// TestAddressChange: evidence and sessions belong to an address (FR-29).
func TestAddressChange(t *testing.T) {
	for _, kind := range []topology.AuthorityKind{patroni, none} {
		w := settled(t, kind)
		w.truth("a").Address = topology.Address{Host: "192.0.2.99", Port: 5432}
		w.listNodes()
		w.want("primary", "a=down")
		w.pass(10 * ms)
		w.askAll()
		w.want("primary", "a=down/min_down")
		w.run(2 * sec)
		w.want("primary", "a=up/writer")

		w = settled(t, kind) // word from the old address is no evidence
		old := w.truth("a").Address
		w.truth("a").Address = topology.Address{Host: "192.0.2.99", Port: 5432}
		w.listNodes()
		w.truth("a").Address = old
		w.run(5 * sec)
		w.want("primary", "a=down")
	}
}

// TestNewNode: one that has just been listed is undecided, not silent.
func TestNewNode(t *testing.T) {
	w := settled(t, patroni)
	w.run(60 * sec)
	w.servers["d"] = standby(5)
	w.servers["d"].fails = topology.FailTimeout
	w.listNodes()
	w.want("replica", "d=undecided/no_evidence b=up")
	w.want("primary", "d=down a=up")
	w.run(1500 * ms)
	w.want("replica", "d=undecided/no_evidence")
	w.run(sec)
	w.want("replica", "d=drain/silent")
}

func TestRemovedNode(t *testing.T) {
	w := settled(t, patroni)
	delete(w.servers, "a")
	w.fold(fileSource, topology.Observation{Nodes: &topology.NodeList{}}) // not confirmed (FR-28)
	w.wantWriter("a")
	w.listNodes()
	w.wantWriter("")
	if _, ok := w.snap.Node("a"); ok {
		t.Fatal("a is still listed")
	}
}

// TestTimelineMemory: it is never aged, kept over restarts, and reset by hand.
func TestTimelineMemory(t *testing.T) {
	w := settled(t, none)
	w.become("b", primary(6))
	w.run(2 * sec)
	w.wantWriter("b")
	w.fails("b", topology.FailTimeout)
	w.run(10 * time.Minute)
	w.want("primary", "a=down/old_timeline b=down/silent")
	w.restart()
	w.run(10 * time.Minute)
	w.want("primary", "a=down/old_timeline")
	w.s.ForgetTimeline()
	w.run(sec)
	w.want("primary", "a=up/writer")
}

// TestTimelineMemoryBeforeAWriter: it begins with the first answer.
func TestTimelineMemoryBeforeAWriter(t *testing.T) {
	w := newWorld(t, none)
	w.become("c", standby(6))
	w.ask("c")
	w.become("c", standby(5))
	w.run(5 * sec)
	w.want("primary", "a=down/old_timeline")
}

// TestForeignTimeline: another cluster's server teaches nothing.
func TestForeignTimeline(t *testing.T) {
	w := newWorld(t, none)
	w.become("c", primary(99))
	w.truth("c").SystemID = 666
	w.run(5 * sec)
	w.wantWriter("")
	w.become("c", standby(5))
	w.run(2 * sec)
	w.wantWriter("a")
	if w.s.timelines[ownID] != 5 {
		t.Fatalf("highest timeline %d, want 5", w.s.timelines[ownID])
	}
}

// TestUnprovenStays: once nothing proves the writer's role, trouble of our own is
// no proof either.
func TestUnprovenStays(t *testing.T) {
	w := settled(t, none)
	w.fails("a", topology.FailTLS)
	w.run(4 * sec)
	w.want("primary", "a=drain/role_unknown")
	w.fail("a", topology.FailLocal, topology.ProbeFull)
	w.want("primary", "a=drain/role_unknown")
	w.answers("a")
	w.ask("a")
	w.want("primary", "a=up/writer")
}

// TestSilentAndUnnamed: the sessions of a silent writer end when its name goes
// (FR-04); a writer that answers keeps them for leader_gap.
func TestSilentAndUnnamed(t *testing.T) {
	w := settled(t, patroni)
	w.authority.Leader = ""
	w.run(5 * sec)
	w.want("primary", "a=drain/no_leader")
	w = settled(t, patroni)
	w.fails("a", topology.FailTimeout)
	w.run(5 * sec)
	w.want("primary", "a=drain/silent")
	w.authority.Leader = ""
	w.askAuthority()
	w.want("primary", "a=down")
	w = settled(t, patroni) // in pause the key means nothing
	w.authority.Pause = topology.Yes
	w.fails("a", topology.FailTimeout)
	w.authority.Leader = ""
	w.run(time.Minute)
	w.want("primary", "a=drain/silent")
}

// TestOneServerByTwoNames: a wrong DNS record gives a replica the writer's address.
// The server is no rival of itself, for entering and for staying.
func TestOneServerByTwoNames(t *testing.T) {
	w := settled(t, none)
	w.servers["c"] = w.servers["a"]
	w.listNodes()
	w.run(5 * sec)
	w.want("primary", "a=up/writer")
	if len(w.snap.Alarms) > 0 {
		t.Errorf("alarms %v", w.snap.Alarms)
	}

	w = newWorld(t, none)
	w.servers["c"] = w.servers["a"]
	w.listNodes()
	w.run(5 * sec)
	pool, _ := w.snap.Pool("primary")
	if up := pool.Up(); len(up) != 1 || len(w.snap.Alarms) > 0 {
		t.Errorf("up %v, alarms %v", up, w.snap.Alarms)
	}
}
