package engine

import (
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestSilence: no new sessions after 2 s, of which 100 ms are for telling balancers;
// the sessions end when another is named, or without an authority after kill_after
// (FR-04, FR-05).
func TestSilence(t *testing.T) {
	for _, class := range []topology.FailureClass{
		topology.FailTimeout, topology.FailUnreachable, topology.FailName, topology.FailLost, topology.FailShutdown,
	} {
		t.Run(string(class), func(t *testing.T) {
			w := settled(t, patroni)
			w.ask("a")
			w.fails("a", class)
			w.run(1890 * ms)
			w.want("primary", "a=up")
			w.run(10 * ms)
			w.want("primary", "a=drain/silent b=down")
			w.run(10 * time.Minute)
			w.want("primary", "a=drain/silent")
			w.moveLeader("b", 5)
			w.askAuthority()
			w.want("primary", "a=down/silent b=down/promoting")
		})
	}
}

// TestQuestionGivenUp: with the defaults of the probes a question has all its time
// before its node is silent, and an answer that comes a little later is in time too.
func TestQuestionGivenUp(t *testing.T) {
	const interval, timeout = sec, 800 * ms
	w := settled(t, patroni)
	w.onDecide = func(s *topology.Snapshot) {
		if s.Writer != "a" {
			t.Fatalf("a is out\n%s", show(s, w.now))
		}
	}
	for range 10 {
		w.ask("a")
		w.idle(interval + timeout)
		w.fail("a", topology.FailTimeout, topology.ProbeFull)
		w.idle(90 * ms)
	}
}

func TestSilenceWithoutAuthority(t *testing.T) {
	w := settled(t, none)
	w.ask("a")
	w.fails("a", topology.FailTimeout)
	w.run(1900 * ms)
	w.want("primary", "a=drain/silent")
	w.run(8090 * ms)
	w.want("primary", "a=drain/silent")
	w.run(10 * ms)
	w.want("primary", "a=down/silent")
	w.want("replica", "a=down/silent b=up c=up")
	w.answers("a")
	w.run(sec)
	w.want("primary", "a=up/writer") // nobody took over
}

// TestUnasked: a watcher that died is no proof of health.
func TestUnasked(t *testing.T) {
	w := settled(t, patroni)
	w.askAll()
	w.decide()
	w.idle(6 * sec)
	w.want("primary", "a=drain/silent")
	w.want("replica", "b=drain/silent c=drain/silent")
	w.idle(5 * sec)
	w.want("replica", "b=down/silent")
}

// TestLinkCut: a standby's receiver hears from the writer, so only our own link
// is cut.
func TestLinkCut(t *testing.T) {
	w := settled(t, patroni)
	w.fails("a", topology.FailTimeout)
	w.truth("b").Receiver.MessageAge = 100 * ms
	w.run(time.Minute)
	w.want("primary", "a=up/link_cut")
	w.truth("b").Receiver.MessageAge = 20 * sec
	w.run(3 * sec)
	w.want("primary", "a=drain/silent")
	w.truth("b").Receiver.MessageAge = 100 * ms
	w.run(2 * sec)
	w.want("primary", "a=up/link_cut")

	w.truth("b").Receiver.SenderHost = "192.0.2.12" // a cascade hears from another
	w.run(3 * sec)
	w.want("primary", "a=drain/silent")

	nodes := w.s.Nodes()
	nodes[0].HostName = "db-a" // as primary_conninfo may have it
	w.fold(fileSource, topology.Observation{Nodes: &topology.NodeList{Nodes: nodes}})
	w.truth("b").Receiver.SenderHost = "db-a"
	w.run(2 * sec)
	w.want("primary", "a=up/link_cut")
}

// TestLinkCutByStatus: the leader wrote its status after the last picture.
func TestLinkCutByStatus(t *testing.T) {
	w := settled(t, patroni)
	w.fails("a", topology.FailTimeout)
	w.interval = 500 * ms // as the watcher reads while the writer is in doubt
	for range 20 {
		w.authority.OptimeIndex++
		w.run(500 * ms)
		w.want("primary", "a=up")
	}
	w.run(4 * sec)
	w.want("primary", "a=drain/silent")

	for _, index := range []uint64{0, 20, 10, 10} { // the key is gone, is back as it was, and of an old backup
		w.authority.OptimeIndex = index
		w.run(500 * ms)
		w.want("primary", "a=drain/silent")
	}
	w.authority.OptimeIndex++ // from there on it is written as ever
	w.run(500 * ms)
	w.want("primary", "a=up/link_cut")

	w = settled(t, patroni) // what the last leader wrote is no word of the next one
	w.interval = 500 * ms
	w.fails("b", topology.FailTimeout)
	w.run(3 * sec)
	w.moveLeader("b", 5)
	w.authority.OptimeIndex++
	w.askAuthority()
	w.want("replica", "b=drain/silent")
}

// TestLinkCutWithoutAuthority: the word of others is enough to stay, also when
// nobody names the writer, but not while the authority is lost.
func TestLinkCutWithoutAuthority(t *testing.T) {
	w := settled(t, none)
	w.fails("a", topology.FailTimeout)
	w.truth("b").Receiver.MessageAge = 100 * ms
	w.run(time.Minute)
	w.want("primary", "a=up/link_cut")

	w = settled(t, patroni)
	w.fails("a", topology.FailTimeout)
	w.truth("b").Receiver.MessageAge = 100 * ms
	w.unheard = topology.FailStore
	w.run(time.Minute)
	w.want("primary", "a=drain/role_unknown")
}

// TestRefused counts once a second attempt confirmed it (FR-04, FR-05).
func TestRefused(t *testing.T) {
	for _, class := range []topology.FailureClass{topology.FailRefused, topology.FailReset} {
		w := settled(t, patroni)
		w.fail("a", class, topology.ProbeFull)
		w.fail("b", class, topology.ProbeFull)
		w.want("primary", "a=drain/refused")
		w.want("replica", "b=up")
		w.pass(40 * ms)
		w.fail("a", class, topology.ProbeFull)
		w.want("primary", "a=drain/refused") // too soon to be a second attempt
		w.pass(20 * ms)
		w.fail("a", class, topology.ProbeFull)
		w.fail("b", class, topology.ProbeFull)
		w.want("primary", "a=down/refused b=down")
		w.want("replica", "b=down/refused")
	}
}

// TestRefusedOnce: an answer between two refusals, good or not, proves life.
func TestRefusedOnce(t *testing.T) {
	w := settled(t, patroni)
	w.fail("a", topology.FailRefused, topology.ProbeFull)
	w.run(sec)
	w.fail("a", topology.FailRefused, topology.ProbeFull)
	w.want("primary", "a=drain/refused")
	w.pass(100 * ms)
	w.fail("a", topology.FailSlots, topology.ProbeFull)
	w.pass(100 * ms)
	w.fail("a", topology.FailRefused, topology.ProbeFull)
	w.want("primary", "a=drain/refused")
}

// TestStarting: 57P03 drains, and only an answer ends it; ended sessions
// (57P01) prove nothing yet.
func TestStarting(t *testing.T) {
	w := settled(t, patroni)
	w.fail("a", topology.FailShutdown, topology.ProbeFull)
	w.want("primary", "a=up")
	w.fail("a", topology.FailStarting, topology.ProbeFull)
	w.fail("b", topology.FailStarting, topology.ProbeFull)
	w.want("primary", "a=drain/starting b=down")
	w.want("replica", "b=drain/starting")
	w.pass(100 * ms)
	w.fail("a", topology.FailSlots, topology.ProbeFull) // it restarted: its role may be another
	w.want("primary", "a=drain/starting")
	w.ask("a")
	w.want("primary", "a=up/saturated")

	w.fails("b", topology.FailStarting)
	w.fails("a", topology.FailStarting)
	w.run(time.Minute)
	w.want("primary", "a=drain/starting")
	if len(w.demand.BackOff) != 2 {
		t.Fatalf("back-off of %v, want a and b", w.demand.BackOff)
	}
}

// TestSlowAnswers: who is asked seldom, since it refuses by word, is not silent.
func TestSlowAnswers(t *testing.T) {
	w := settled(t, patroni)
	w.interval = 5 * sec
	w.fails("a", topology.FailProtocol)
	w.onDecide = func(s *topology.Snapshot) {
		if s.Writer != "a" {
			t.Fatalf("a is out\n%s", show(s, w.now))
		}
	}
	w.run(time.Minute)
}

// TestSilenceStands: trouble of our own does not undo a silence that has lasted.
func TestSilenceStands(t *testing.T) {
	w := newWorld(t, none)
	w.become("c", standby(6)) // so that nobody enters
	w.run(2 * sec)
	w.fails("b", topology.FailTimeout)
	w.truth("b").InRecovery, w.truth("b").ReadOnly = topology.No, topology.No
	w.roleTick("b")
	w.run(15 * sec)
	w.want("primary", "b=down/silent")
	w.want("replica", "b=down/silent")
	w.fail("b", topology.FailLocal, topology.ProbeFull)
	w.want("primary", "b=down/silent")
	w.want("replica", "b=down/silent")
}

// TestFreshLogin: a postmaster that lets nobody in, while the old session works
// (eligibility 21).
func TestFreshLogin(t *testing.T) {
	for _, class := range []topology.FailureClass{
		topology.FailTimeout, topology.FailRefused, topology.FailUnreachable, topology.FailStarting,
	} {
		w := settled(t, patroni)
		w.fail("a", class, topology.ProbeLogin)
		w.run(1800 * ms)
		w.want("primary", "a=up/writer")
		w.run(200 * ms)
		w.want("primary", "a=drain/silent")
		w.fail("a", topology.FailSlots, topology.ProbeLogin)
		w.fail("a", topology.FailRefused, topology.ProbeLogin)
		w.run(time.Minute)
		w.want("primary", "a=drain/silent")
		w.login("a")
		w.want("primary", "a=up/writer")
	}
	for _, class := range []topology.FailureClass{topology.FailSlots, topology.FailAuth} {
		w := settled(t, patroni)
		w.fail("a", class, topology.ProbeLogin)
		w.run(time.Minute)
		w.want("primary", "a=up/writer")
	}
}

// TestLoginIsNoAnswer: a server that lets us in and then answers no question is
// silent (FR-04, variant 3).
func TestLoginIsNoAnswer(t *testing.T) {
	w := settled(t, patroni)
	w.fails("a", topology.FailTimeout)
	w.run(3 * sec)
	w.want("primary", "a=drain/silent")
	for range 10 {
		w.login("a")
		w.want("primary", "a=drain/silent")
		w.run(sec)
	}
}

// TestStandstill: while the agent itself did not run it could ask nobody.
func TestStandstill(t *testing.T) {
	for _, kind := range []topology.AuthorityKind{patroni, none} {
		w := settled(t, kind)
		w.pass(time.Minute)
		w.want("primary", "a=up")
		w.want("replica", "b=up c=up")
		w.idle(5600 * ms)
		w.want("replica", "b=up c=up")
		w.idle(200 * ms)
		w.want("primary", "a=drain/silent")

		w = settled(t, kind)
		w.fail("a", topology.FailTimeout, topology.ProbeFull)
		w.pass(time.Minute)
		w.want("primary", "a=up")
		w.run(sec)
		w.want("primary", "a=up/writer")
	}
}

// TestLocalTrouble: no file descriptors here is no evidence about a server.
func TestLocalTrouble(t *testing.T) {
	for _, kind := range []topology.AuthorityKind{patroni, none} {
		w := settled(t, kind)
		for _, n := range []string{"a", "b", "c"} {
			w.fails(n, topology.FailLocal)
		}
		w.run(5 * time.Minute)
		w.want("primary", "a=up")
		w.want("replica", "b=up c=up")
	}
	w := settled(t, patroni)
	w.fails("a", topology.FailLocal)
	w.unheard = topology.FailLocal
	w.run(5 * time.Minute)
	w.want("primary", "a=up")
}

// TestIsolated: every cluster fell silent at once, so silence takes nobody out.
func TestIsolated(t *testing.T) {
	for _, kind := range []topology.AuthorityKind{patroni, none} {
		w := settled(t, kind)
		for _, n := range []string{"a", "b", "c"} {
			w.fails(n, topology.FailTimeout)
		}
		w.unheard = topology.FailTimeout
		w.run(sec)
		w.fold(localSource, topology.Observation{Local: &topology.Local{Isolated: topology.Yes}})
		w.run(5 * time.Minute)
		w.want("primary", "a=up")
		w.want("replica", "b=up c=up")
		w.become("a", standby(5)) // contrary evidence still counts
		w.run(sec)
		w.want("primary", "a=down")

		w.fails("b", topology.FailTimeout)
		w.fold(localSource, topology.Observation{Local: &topology.Local{Isolated: topology.No}})
		w.run(1800 * ms)
		w.want("replica", "b=up")
		w.run(200 * ms)
		w.want("replica", "b=drain/silent")
	}
}

// TestFailuresOnlyAdd: what a failure proved stands until an answer ends it.
func TestFailuresOnlyAdd(t *testing.T) {
	all := []topology.FailureClass{
		topology.FailRefused, topology.FailReset, topology.FailLost, topology.FailTimeout, topology.FailUnreachable,
		topology.FailName, topology.FailTLS, topology.FailAuth, topology.FailDatabase, topology.FailSlots,
		topology.FailShutdown, topology.FailStarting, topology.FailProtocol, topology.FailLocal,
	}
	begins := map[string]func(*world){
		"silent":   func(w *world) { w.fails("a", topology.FailTimeout); w.fails("b", topology.FailTimeout) },
		"starting": func(w *world) { w.fails("a", topology.FailStarting); w.fails("b", topology.FailStarting) },
		"refused":  func(w *world) { w.fails("a", topology.FailRefused); w.fails("b", topology.FailRefused) },
	}
	for name, begin := range begins {
		for _, class := range all {
			for _, asked := range []topology.ProbeKind{topology.ProbeFull, topology.ProbeRole, topology.ProbeLogin} {
				w := settled(t, patroni)
				begin(w)
				w.run(4500 * ms)
				before := w.decide()
				w.fail("a", class, asked)
				w.fail("b", class, asked)
				after := w.decide()
				for _, pool := range []string{"primary", "replica"} {
					for _, n := range []string{"a", "b", "c"} {
						if was, is := verdict(before, pool, n), verdict(after, pool, n); is < was {
							t.Errorf("%s, then %s by %s: %s in %s went from %s to %s", name, class, asked, n, pool, was, is)
						}
					}
				}
			}
		}
	}
}

// TestLoginByName: a name that does not resolve is no silence of a server whose
// kept session answers (FR-29).
func TestLoginByName(t *testing.T) {
	w := settled(t, patroni)
	for range 20 {
		w.fail("a", topology.FailName, topology.ProbeLogin)
		w.fail("b", topology.FailTimeout, topology.ProbeLogin)
		w.run(sec)
	}
	w.want("primary", "a=up/writer")
	w.want("replica", "b=drain/silent c=up")
}

// TestOldWordEndsNoSilence: what others heard of a node a while ago does not let
// new sessions in again, not even for a moment.
func TestOldWordEndsNoSilence(t *testing.T) {
	w := settled(t, patroni) // the standbys' last message is 20 s old, an idle link
	w.fails("a", topology.FailTimeout)
	w.run(5 * sec)
	w.want("primary", "a=drain/silent")
	w.onDecide = func(s *topology.Snapshot) {
		if s.Writer != "" {
			t.Fatalf("a is up again\n%s", show(s, w.now))
		}
	}
	w.run(2 * time.Minute)
	w.onDecide = nil
	w.truth("b").Receiver.MessageAge = 100 * ms
	w.run(sec)
	w.want("primary", "a=up/link_cut")
}

// TestHeardIsRemembered: what a standby heard of a node a moment ago stays true
// when the standby is promoted.
func TestHeardIsRemembered(t *testing.T) {
	w := settled(t, patroni)
	w.truth("c").Receiver.MessageAge = 50 * ms
	w.fails("a", topology.FailTimeout)
	w.run(11 * sec)
	w.want("primary", "a=up/link_cut")
	w.become("c", primary(5))
	w.ask("c")
	w.want("primary", "a=up/link_cut")
	w.want("replica", "a=drain c=down")
	w.run(3 * sec)
	w.want("primary", "a=drain/silent")
}
