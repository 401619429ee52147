package engine

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// noHarm fails when a restarted engine drains or downs somebody, or when it
// admits a writer.
func (w *world) noHarm(standing *topology.Snapshot, admits bool) {
	w.onDecide = func(s *topology.Snapshot) {
		for _, p := range standing.Pools {
			for _, up := range p.Up() {
				if v := verdict(s, p.Pool, up.Node); v != topology.Up && v != topology.Undecided {
					w.t.Fatalf("%s was up in %s and is %s after the restart\n%s", up.Node, p.Pool, v, show(s, w.now))
				}
			}
		}
		if s.Writer != "" && !admits {
			w.t.Fatalf("%s was admitted\n%s", s.Writer, show(s, w.now))
		}
	}
}

func permutations(s []string) [][]string {
	if len(s) < 2 {
		return [][]string{slices.Clone(s)}
	}
	var out [][]string
	for i := range s {
		rest := slices.Delete(slices.Clone(s), i, i+1)
		for _, p := range permutations(rest) {
			out = append(out, append([]string{s[i]}, p...))
		}
	}
	return out
}

// askIn asks the nodes and the authority ("leader") in an order.
func (w *world) askIn(order []string) {
	for _, who := range order {
		w.pass(5 * ms)
		if who == "leader" {
			w.askAuthority()
		} else {
			w.ask(who)
		}
		w.decide()
	}
}

// TestRestart: the order of the first answers decides nothing.
func TestRestart(t *testing.T) {
	for _, kind := range []topology.AuthorityKind{patroni, none} {
		for _, order := range permutations([]string{"a", "b", "c", "leader"}) {
			w := settled(t, kind)
			standing := w.snap
			w.restart()
			w.want("primary", "a=undecided")
			if w.snap.Held != "a" {
				t.Fatalf("held is %q, want a", w.snap.Held)
			}
			w.noHarm(standing, true)
			w.askIn(order)
			w.want("primary", "a=up/writer b=down c=down")
			w.want("replica", "a=drain b=up c=up")
			if w.snap.Held != "" {
				t.Fatalf("%q is still held", w.snap.Held)
			}
		}
	}
}

// TestRestartInFallback: the primary goes on serving reads.
func TestRestartInFallback(t *testing.T) {
	for _, order := range permutations([]string{"a", "b", "leader"}) {
		w := settled(t, patroni)
		w.fails("b", topology.FailRefused)
		w.fails("c", topology.FailTimeout)
		w.run(15 * sec)
		w.want("replica", "a=up/fallback")
		standing := w.snap
		w.restart()
		w.noHarm(standing, true)
		w.askIn(order)
		w.want("primary", "a=up/writer")
		w.want("replica", "a=up/fallback")
		w.run(15 * sec)
		w.want("replica", "a=up/fallback b=down/refused c=down/silent")
	}
}

// TestRestartInFallbackWithoutARole: it stands although it does not tell its role.
func TestRestartInFallbackWithoutARole(t *testing.T) {
	w := settled(t, patroni)
	w.fails("b", topology.FailRefused)
	w.fails("c", topology.FailRefused)
	w.run(5 * sec)
	w.want("replica", "a=up/fallback")
	w.fails("a", topology.FailTLS)
	standing := w.snap
	w.restart()
	w.noHarm(standing, false)
	w.run(15 * sec)
	w.want("primary", "a=undecided/role_unknown")
	w.want("replica", "a=undecided b=down/refused c=down/refused")
}

// TestRestartBesideAStrayWriter: one that answers before the authority does is
// no word against the writer that stands.
func TestRestartBesideAStrayWriter(t *testing.T) {
	w := settled(t, patroni)
	w.become("c", primary(6))
	standing := *w.snap
	standing.Pools = standing.Pools[:1] // c left the read pool by itself
	w.restart()
	w.noHarm(&standing, true)
	w.askIn([]string{"c", "a"})
	w.want("primary", "a=undecided/authority_unknown c=undecided/authority_unknown")
	w.askIn([]string{"leader"})
	w.want("primary", "a=up/writer c=down/fenced")
}

// TestRestartAfterFailoverWithoutAuthority: the old writer is silent, another one
// is writable on a higher timeline, and the authority does not speak. The old one
// is dropped, nobody is admitted (invariant 4).
func TestRestartAfterFailoverWithoutAuthority(t *testing.T) {
	w := settled(t, patroni)
	w.unheard = topology.FailTimeout
	w.restart()
	w.become("b", primary(6))
	w.become("c", standby(6))
	w.fails("a", topology.FailTimeout)
	w.run(sec)
	w.want("primary", "a=undecided b=undecided/authority_unknown c=down")
	w.run(2 * sec)
	w.want("primary", "a=down b=undecided/authority_unknown c=down")
	w.unheard = ""
	w.moveLeader("b", 6)
	w.run(sec)
	w.want("primary", "a=down b=up/writer c=down")
}

// TestRestartWithoutAuthority: what stands is held, nobody is admitted, nobody
// is cut, for as long as it takes (FR-26).
func TestRestartWithoutAuthority(t *testing.T) {
	w := settled(t, patroni)
	standing := w.snap
	w.unheard = topology.FailStore
	w.restart()
	w.noHarm(standing, false)
	w.run(10 * time.Minute)
	w.want("primary", "a=undecided/authority_unknown b=down")
	w.restart() // the saved writer outlives another restart
	w.run(time.Minute)
	w.want("primary", "a=undecided/authority_unknown b=down")
	w.onDecide = nil
	w.unheard = ""
	w.run(sec)
	w.want("primary", "a=up/writer")
}

// TestRestartSavedVerdicts: who is undecided keeps the verdict that was saved.
func TestRestartSavedVerdicts(t *testing.T) {
	w := settled(t, patroni)
	before := w.s.Save(w.now)
	w.unheard = topology.FailStore
	for n := range w.servers {
		w.fails(n, topology.FailLocal)
	}
	w.restart()
	w.run(sec)
	after := w.s.Save(w.now)
	before.SavedAt = after.SavedAt
	if d := cmp.Diff(before, after); d != "" {
		t.Fatalf("saved state changed over a restart without evidence:\n%s", d)
	}
	text, err := json.Marshal(after)
	if err != nil {
		t.Fatal(err)
	}
	var read topology.Saved
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(after, read); d != "" {
		t.Fatalf("saved state is not read as it was written:\n%s", d)
	}
}

// TestRestartAfterFailover: meanwhile b was promoted.
func TestRestartAfterFailover(t *testing.T) {
	for _, kind := range []topology.AuthorityKind{patroni, none} {
		for _, frozen := range []bool{false, true} {
			for _, order := range permutations([]string{"a", "b", "c", "leader"}) {
				w := settled(t, kind)
				if !frozen { // else the old primary is writable still
					w.become("a", standby(6))
				}
				w.become("b", primary(6))
				w.become("c", standby(6))
				w.moveLeader("b", 6)
				w.restart()
				w.onDecide = func(s *topology.Snapshot) {
					if s.Writer == "a" {
						t.Fatalf("%v: the old writer was admitted\n%s", order, show(s, w.now))
					}
				}
				w.askIn(order)
				w.run(2 * sec)
				w.want("primary", "a=down b=up/writer c=down")
			}
		}
	}
}

// TestRestartWhileTheWriterIsGone: the old writer answers nothing, another is
// named: its sessions end at once.
func TestRestartWhileTheWriterIsGone(t *testing.T) {
	w := settled(t, patroni)
	w.fails("a", topology.FailTimeout)
	w.moveLeader("b", 5)
	w.restart()
	w.askAll()
	w.want("primary", "a=down b=down/promoting")
}

// TestRestartKeepsAddresses: the saved address stands until the configuration's
// own list is there, so that it does not change twice during a start.
func TestRestartKeepsAddresses(t *testing.T) {
	w := settled(t, patroni)
	saved := w.s.Save(w.now)
	w.s = NewState(Options{Cluster: "main", NodeSources: []topology.SourceID{consulSource, fileSource}, Saved: &saved, Start: w.now})
	var other []topology.Node
	for _, n := range saved.Nodes {
		n.Address.Host = "198.51.100.7"
		other = append(other, n)
	}
	w.fold(consulSource, topology.Observation{Nodes: &topology.NodeList{Nodes: other}})
	w.want("primary", "a=undecided")
	if n, _ := w.snap.Node("a"); n.Address != address("a") || w.snap.Complete {
		t.Fatalf("a is at %s, complete %t; want the saved address", n.Address, w.snap.Complete)
	}
	w.listNodes()
	w.want("primary", "a=undecided")
	if n, _ := w.snap.Node("a"); n.Address != address("a") || !w.snap.Complete {
		t.Fatalf("a is at %s, complete %t; want the configuration's address", n.Address, w.snap.Complete)
	}
	if w.snap.Held != "a" {
		t.Fatalf("held is %q, want a", w.snap.Held)
	}
}

// TestFirstStart: with nothing saved, nobody who may be the writer is cut before
// there is evidence.
func TestFirstStart(t *testing.T) {
	tests := []struct {
		name   string
		happen func(*world)
		want   string
	}{
		{"nothing answers", func(w *world) {
			w.unheard = topology.FailTimeout
			for n := range w.servers {
				w.fails(n, topology.FailTimeout)
			}
		}, "a=undecided/no_evidence b=undecided/no_evidence"},
		{"nobody is asked", func(w *world) { w.interval, w.tick = time.Hour, w.now.Mono.Add(time.Hour) }, "a=undecided b=undecided"},
		{"named, silent", func(w *world) { w.fails("a", topology.FailTimeout) }, "a=drain/silent b=down/wrong_role"},
		{"not named, silent", func(w *world) { w.moveLeader("b", 5); w.fails("a", topology.FailTimeout) }, "a=down/silent b=down/promoting"},
		{"named, no slot", func(w *world) { w.fails("a", topology.FailSlots) }, "a=undecided/role_unknown"},
		{"named, no slot after an answer", func(w *world) {
			w.unheard = topology.FailStore
			w.run(sec)
			w.unheard = ""
			w.authority.SessionAgrees = topology.No
			w.fails("a", topology.FailSlots)
		}, "a=undecided"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, patroni)
			tt.happen(w)
			w.run(time.Minute)
			w.want("primary", tt.want)
		})
	}
}

// TestRestartWithAWrongPassword: nobody tells a role, so what stands is held in
// every pool, however long it lasts (invariant 10).
func TestRestartWithAWrongPassword(t *testing.T) {
	for _, class := range []topology.FailureClass{topology.FailAuth, topology.FailSlots} {
		w := settled(t, none)
		for _, name := range []string{"a", "b", "c"} {
			w.fails(name, class)
		}
		w.restart()
		w.run(30 * sec)
		w.want("primary", "a=undecided/role_unknown")
		w.want("replica", "a=undecided b=undecided/role_unknown c=undecided/role_unknown")
	}
}

// TestStandstillAdmitsNobodyUnheard: after a standstill the first answer decides
// nothing; every rival is heard again first, also one that was a standby before.
func TestStandstillAdmitsNobodyUnheard(t *testing.T) {
	for name, before := range map[string]*server{"a second primary": primary(5), "a standby": standby(5)} {
		w := settled(t, none)
		if name == "a standby" {
			w.fail("a", topology.FailRefused, topology.ProbeFull)
			w.pass(100 * ms)
			w.fail("a", topology.FailRefused, topology.ProbeFull)
		}
		w.become("b", before)
		w.ask("b")
		if w.decide(); w.snap.Writer != "" {
			t.Fatalf("%s: %s is the writer before the standstill\n%s", name, w.snap.Writer, w.show())
		}
		w.become("b", primary(5))
		w.pass(5 * time.Minute)
		w.decide()
		w.ask("a")
		if w.decide(); w.snap.Writer != "" {
			t.Errorf("%s: %s was admitted before b was asked\n%s", name, w.snap.Writer, w.show())
		}
		w.ask("b")
		w.decide()
		w.want("primary", "a=down/two_writers b=down/two_writers")
	}
}

// TestSourcesExchangedWithANewNode: the configuration gets a node that does not
// answer. Within the process the writer stands on as soon as it is heard; after
// a start it may have moved to that node, so it waits.
func TestSourcesExchangedWithANewNode(t *testing.T) {
	for _, continues := range []bool{true, false} {
		w := settled(t, none)
		saved := w.s.Save(w.now)
		w.become("d", standby(5))
		w.servers["d"].probe.Address = address("d")
		w.fails("d", topology.FailTimeout)
		w.pass(10 * ms)
		w.s = NewState(Options{
			Cluster: "main", NodeSources: []topology.SourceID{fileSource}, Saved: &saved, Start: w.now, Continues: continues,
		})
		w.wake, w.snap = w.now.Mono, nil
		w.listNodes()
		w.decide()
		w.want("primary", "a=undecided")
		for _, name := range []string{"a", "b", "c"} {
			w.ask(name)
		}
		w.decide()
		if got := w.snap.Writer == "a"; got != continues {
			t.Errorf("continues %t: writer %q\n%s", continues, w.snap.Writer, w.show())
		}
		// Once heard, the new node counts like any other.
		w.answers("d")
		w.become("d", primary(6))
		w.servers["d"].probe.Address = address("d")
		w.run(2 * sec)
		w.want("primary", "a=down d=up/writer")
	}
}

// TestRestartKeepsMinDown: a loss of the writer role outlives the process, so
// that balancers see it.
func TestRestartKeepsMinDown(t *testing.T) {
	for _, kind := range []topology.AuthorityKind{patroni, none} {
		w := settled(t, kind)
		w.become("a", standby(5))
		w.ask("a")
		w.want("primary", "a=down")
		w.become("a", primary(5))
		lost := w.now.Mono
		w.restart()
		for w.now.Mono.Sub(lost) < w.p.MinDown-30*ms {
			w.run(20 * ms)
			w.askAll()
			w.wantWriter("")
		}
		w.run(100 * ms)
		w.askAll()
		w.want("primary", "a=up/writer")
	}
}

// TestRestartWithClockSetBack: a loss in the future is one of now.
func TestRestartWithClockSetBack(t *testing.T) {
	w := settled(t, patroni)
	w.become("a", standby(5))
	w.ask("a")
	w.decide()
	w.become("a", primary(5))
	w.now.Wall = w.now.Wall.Add(-time.Hour)
	w.restart()
	w.askAll()
	w.want("primary", "a=down/min_down")
	w.run(1100 * ms)
	w.want("primary", "a=up/writer")
}

// TestIncompleteObeys: while a source of nodes is missing, contrary evidence counts
// all the same.
func TestIncompleteObeys(t *testing.T) {
	w := newWorld(t, patroni)
	saved := settled(t, patroni).s.Save(w.now)
	w.s = NewState(Options{Cluster: "main", NodeSources: []topology.SourceID{fileSource, consulSource}, Saved: &saved, Start: w.now})
	w.listNodes()
	w.run(3 * sec)
	if w.snap.Complete {
		t.Fatal("a source that has not delivered is taken for delivered")
	}
	w.want("primary", "a=up/writer")
	w.become("a", standby(5))
	w.run(sec)
	w.want("primary", "a=down")
}

// TestHeldJudgesNoLag: a writer that is only held from before is no measure.
func TestHeldJudgesNoLag(t *testing.T) {
	w := settled(t, patroni)
	w.unheard = topology.FailStore
	w.restart()
	w.write(100 * mb)
	w.run(20 * sec)
	w.want("primary", "a=undecided")
	w.want("replica", "b=up c=up")
}

// TestStandstillAtStart: the time in which the authority may speak first does not
// pass while the agent itself stands still.
func TestStandstillAtStart(t *testing.T) {
	w := settled(t, patroni)
	w.restart()
	w.become("b", primary(6))
	w.ask("b")
	w.decide()
	w.pass(21 * sec)
	w.want("primary", "a=undecided")
	w.askAuthority() // which still names a
	w.ask("a")
	w.want("primary", "a=up/writer b=down")
}

// TestUnheardAuthorityIsAnAlarm: also when it was lost before the start.
func TestUnheardAuthorityIsAnAlarm(t *testing.T) {
	w := settled(t, patroni)
	w.unheard = topology.FailStore
	w.restart()
	w.run(sec)
	w.wantAlarms()
	w.run(2 * sec)
	w.wantAlarms(topology.CodeAuthorityUnknown)
	w.unheard = ""
	w.run(sec)
	w.wantAlarms()
}
