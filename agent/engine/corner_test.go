package engine

import (
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestRestartRival: an equal rival that is heard before the held writer does not
// take the role from it; when both are heard neither has it.
func TestRestartRival(t *testing.T) {
	w := settled(t, none)
	w.become("b", primary(5))
	w.restart()
	w.ask("b")
	if w.decide(); w.snap.Held != "a" {
		t.Fatalf("held is %q, want a\n%s", w.snap.Held, w.show())
	}
	w.ask("a")
	w.ask("c")
	w.want("primary", "a=down b=down")
}

// TestRestartHoldsWhoMayNotEnter: the held writer is not cut for a rule of entry.
func TestRestartHoldsWhoMayNotEnter(t *testing.T) {
	w := settled(t, none)
	w.restart()
	w.tagged("a", topology.TagNoFailover, "true")
	w.run(time.Minute)
	w.want("primary", "a=undecided/nofailover b=down")
}

// TestRestartNotFenced: a replica that was promoted while we were away keeps its
// sessions as long as only a memory speaks against it.
func TestRestartNotFenced(t *testing.T) {
	w := settled(t, patroni)
	w.unheard = topology.FailStore
	w.restart()
	w.become("b", primary(5))
	w.ask("b")
	w.want("replica", "b=drain/wrong_role")
}

// TestStartCountsFromTheFirstWord: silence of the others is counted from when
// somebody was heard.
func TestStartCountsFromTheFirstWord(t *testing.T) {
	w := newWorld(t, patroni)
	w.idle(time.Minute)
	w.ask("a")
	w.want("replica", "a=drain/wrong_role b=undecided c=undecided")
	w.askAuthority()
	w.want("primary", "a=up/writer")
	w.want("replica", "a=drain/wrong_role b=undecided c=undecided") // no fallback before they are asked
	w.idle(5 * sec)
	w.want("replica", "b=undecided")
	w.idle(2 * sec)
	w.want("replica", "b=drain/silent")
}

// TestHalfAnAnswer is none: it takes nobody out and does not keep anybody in.
func TestHalfAnAnswer(t *testing.T) {
	w := settled(t, patroni)
	w.truth("a").ReadOnly = topology.Unknown
	w.run(sec)
	w.want("primary", "a=up/writer")
	w.run(6 * sec)
	w.want("primary", "a=drain/silent")
}

// TestReturningNeedsAnswers: one good answer and then failures is no return.
func TestReturningNeedsAnswers(t *testing.T) {
	w := settled(t, patroni)
	w.fails("b", topology.FailRefused)
	w.run(5 * sec)
	w.ask("b")
	w.answers("b")
	w.pass(10 * ms)
	w.ask("b")
	w.want("replica", "b=down/returning")
	w.fails("b", topology.FailSlots)
	w.onDecide = func(s *topology.Snapshot) {
		if verdict(s, "replica", "b") == topology.Up {
			t.Fatalf("b is up\n%s", show(s, w.now))
		}
	}
	w.run(10 * sec)
}

// TestFencedStaysCut, whatever its probes fail with.
func TestFencedStaysCut(t *testing.T) {
	w := settled(t, patroni)
	w.become("c", primary(6))
	w.run(sec)
	w.want("replica", "c=down/fenced")
	w.fails("c", topology.FailSlots)
	w.run(5 * sec)
	w.want("replica", "c=down/fenced")
}

// TestRefusedThenAlive: the confirmed refusal counts, although the server speaks
// again before the next decision.
func TestRefusedThenAlive(t *testing.T) {
	w := settled(t, patroni)
	w.fail("a", topology.FailRefused, topology.ProbeFull)
	w.pass(100 * ms)
	w.fail("a", topology.FailRefused, topology.ProbeFull)
	w.fail("a", topology.FailSlots, topology.ProbeFull)
	w.want("primary", "a=down/refused")
}

// TestUnknownMessageAge is no fresh word.
func TestUnknownMessageAge(t *testing.T) {
	w := settled(t, patroni)
	w.truth("b").Receiver.MessageAge, w.truth("c").Receiver.MessageAge = -1, -1
	w.fails("a", topology.FailTimeout)
	w.run(4 * sec)
	w.want("primary", "a=drain/silent")
}

// TestAlarmEnds: a dead primary's last word is no second writer for ever.
func TestAlarmEnds(t *testing.T) {
	w := settled(t, patroni)
	w.fails("a", topology.FailTimeout)
	w.become("b", primary(6))
	w.moveLeader("b", 6)
	w.run(15 * sec)
	w.want("primary", "a=down b=up/writer")
	if len(w.snap.Alarms) != 0 {
		t.Fatalf("alarms %v, want none", w.snap.Alarms)
	}
}

// TestWake: the engine asks to be woken when a rule falls due, and each second.
func TestWake(t *testing.T) {
	w := settled(t, patroni)
	w.ask("a")
	word := w.now.Mono
	w.pass(1300 * ms)
	w.fail("a", topology.FailTimeout, topology.ProbeFull)
	w.ask("b")
	w.ask("c")
	w.decide()
	if want := word.Add(1900 * ms); w.wake != want {
		t.Fatalf("wake in %s, want in %s", w.wake.Sub(w.now.Mono), want.Sub(w.now.Mono))
	}
	w = settled(t, patroni)
	if w.askAll(); w.decide() == nil || w.wake != w.now.Mono.Add(maxSleep) {
		t.Fatalf("wake in %s, want in %s", w.wake.Sub(w.now.Mono), maxSleep)
	}
}

// TestRefusedOnceThenAlive: a refused connection keeps new sessions away until
// the node answers; another failure, though it proves life, is no answer.
func TestRefusedOnceThenAlive(t *testing.T) {
	w := settled(t, patroni)
	w.fail("a", topology.FailRefused, topology.ProbeFull)
	w.want("primary", "a=drain/refused")
	w.pass(ms)
	w.fail("a", topology.FailSlots, topology.ProbeFull)
	w.want("primary", "a=drain/refused")
	w.pass(200 * ms) // a refusal after a sign of life is the first again
	w.fail("a", topology.FailRefused, topology.ProbeFull)
	w.want("primary", "a=drain/refused")
	w.pass(ms)
	w.ask("a")
	w.want("primary", "a=up/writer")
}

// TestRefusalsAroundLife: refusals count together only while nothing between
// them shows life, and what was confirmed stays until an answer.
func TestRefusalsAroundLife(t *testing.T) {
	w := settled(t, patroni)
	refuse := func(after time.Duration) {
		w.pass(after)
		w.fail("a", topology.FailRefused, topology.ProbeFull)
	}
	refuse(0)
	refuse(10 * ms)
	w.pass(10 * ms)
	w.fail("a", topology.FailSlots, topology.ProbeFull)
	refuse(sec)
	w.want("primary", "a=drain/refused")
	refuse(60 * ms)
	w.want("primary", "a=down/refused")
	w.pass(ms)
	w.fail("a", topology.FailSlots, topology.ProbeFull)
	w.pass(2 * sec)
	w.want("primary", "a=down/refused")
}

// TestAnswerOlderThanRefusal: an answer to a question from before the refusals is
// no newer word than they are.
func TestAnswerOlderThanRefusal(t *testing.T) {
	w := settled(t, patroni)
	asked, p := w.now, *w.truth("a")
	p.Node = "a"
	for range 2 {
		w.pass(100 * ms)
		w.fail("a", topology.FailRefused, topology.ProbeFull)
	}
	w.want("primary", "a=down/refused")
	w.pass(1100 * ms)
	w.fold(pgSource("a"), topology.Observation{AskedAt: asked, At: w.now, Probe: &p})
	w.want("primary", "a=down/refused")
	w.ask("a")
	w.want("primary", "a=up/writer")
}
