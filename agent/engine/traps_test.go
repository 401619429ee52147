package engine

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// The traps that have cost others most, each at any moment between two questions
// and with the model of the writer rule watching.

// moment is a random time below a bound.
func moment(t *rapid.T, below time.Duration) time.Duration {
	return time.Duration(rapid.IntRange(0, int(below/ms)-1).Draw(t, "moment")) * ms
}

// sprung is a healthy cluster, 45 s after its start and then some.
func sprung(t *rapid.T, kinds ...topology.AuthorityKind) *history {
	h := newHistory(t, rapid.SampledFrom(kinds).Draw(t, "authority"))
	h.p.AuthorityLost = rapid.SampledFrom([]topology.AuthorityLost{topology.LostHold, topology.LostSQLOnly}).Draw(t, "lost")
	h.run(45 * sec)
	h.run(moment(t, sec))
	h.want("primary", "a=up/writer b=down c=down")
	h.want("replica", "a=drain b=up c=up")
	return h
}

// never fails when a decision gives a node one of some verdicts: "replica b down".
func (h *history) never(pool, node string, verdicts ...topology.Verdict) {
	before := h.check
	h.check = func(s *topology.Snapshot) {
		if before != nil {
			before(s)
		}
		if v := verdict(s, pool, node); slices.Contains(verdicts, v) {
			h.t.Fatalf("%s is %s in %s\n%s", node, v, pool, show(s, h.now))
		}
	}
}

// always holds a node to a verdict.
func (h *history) always(pool, node string, want topology.Verdict) {
	all := []topology.Verdict{topology.Undecided, topology.Up, topology.Drain, topology.Down}
	h.never(pool, node, slices.DeleteFunc(all, func(v topology.Verdict) bool { return v == want })...)
}

// nothingChanges holds every node to the verdicts of a healthy cluster.
func (h *history) nothingChanges() {
	h.always("primary", "a", topology.Up)
	h.always("replica", "b", topology.Up)
	h.always("replica", "c", topology.Up)
}

// readsGoOn: somebody is up for reads.
func (h *history) readsGoOn() {
	before := h.check
	h.check = func(s *topology.Snapshot) {
		if before != nil {
			before(s)
		}
		if p, _ := s.Pool("replica"); len(p.Up()) == 0 {
			h.t.Fatalf("nobody serves reads\n%s", show(s, h.now))
		}
	}
}

// TestTrapKeyBlinks: the leader key is absent for 0.2 s, since its holder's
// session was lost and it took the key again.
func TestTrapKeyBlinks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := sprung(t, patroni)
		h.never("primary", "a", topology.Down, topology.Undecided)
		h.always("replica", "b", topology.Up)
		h.always("replica", "c", topology.Up)
		for range rapid.IntRange(1, 3).Draw(t, "times") {
			h.authority.Leader = ""
			if rapid.Bool().Draw(t, "seen at once") {
				h.askAuthority()
				h.want("primary", "a=drain/no_leader b=down c=down")
			}
			h.run(200 * ms)
			h.authority.Leader = "a"
			h.run(moment(t, 2*sec))
			h.askAuthority()
			h.want("primary", "a=up/writer")
		}
	})
}

// TestTrapPasswordRotated: the probe role's password is another one now. Sessions
// that stand go on for a while, new logins fail: for minutes.
func TestTrapPasswordRotated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := sprung(t, patroni, none)
		for _, n := range []string{"a", "b", "c"} {
			h.never("primary", n, topology.Undecided)
			h.never("replica", n, topology.Undecided, topology.Down)
		}
		named := h.p.Authority == patroni
		if h.never("primary", "a", topology.Down); named {
			h.always("primary", "a", topology.Up)
			h.readsGoOn()
		}
		for _, n := range rapid.Permutation([]string{"a", "b", "c"}).Draw(t, "order") {
			h.fail(n, topology.FailAuth, topology.ProbeLogin)
			h.run(moment(t, 20*sec))
			h.fails(n, topology.FailAuth)
		}
		h.run(moment(t, 5*time.Minute))
		if named && rapid.Bool().Draw(t, "failover") {
			h.check = nil
			h.moveLeader("b", 6)
			h.askAuthority()
			h.want("primary", "a=down b=down c=down")
			return
		}
		for _, n := range rapid.Permutation([]string{"a", "b", "c"}).Draw(t, "mended") {
			h.answers(n)
			h.run(moment(t, 2*sec))
		}
		h.run(4 * sec)
		h.want("primary", "a=up/writer")
		h.want("replica", "a=drain b=up c=up")
	})
}

// TestTrapSlotsTaken: 53300 for minutes, for fresh logins alone or for the kept
// sessions too. Nobody is taken out by that who is named or a replica.
func TestTrapSlotsTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := sprung(t, patroni, none)
		session := rapid.Bool().Draw(t, "the session is gone too")
		h.never("primary", "a", topology.Down, topology.Undecided)
		h.always("replica", "b", topology.Up)
		h.always("replica", "c", topology.Up)
		if h.p.Authority == patroni || !session {
			h.always("primary", "a", topology.Up)
		}
		for _, n := range rapid.Permutation([]string{"a", "b", "c"}).Draw(t, "order") {
			h.run(moment(t, 3*sec))
			if session {
				h.fails(n, topology.FailSlots)
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "logins") {
			for _, n := range []string{"a", "b", "c"} {
				h.fail(n, topology.FailSlots, topology.ProbeLogin)
			}
			h.run(5 * sec)
		}
		for _, n := range []string{"a", "b", "c"} {
			h.answers(n)
		}
		h.run(2 * sec)
		h.want("primary", "a=up")
	})
}

// TestTrapLocalFault: no file descriptor is left, so every question to anybody
// fails at once; or our network is gone, and the agent finds out by all clusters'
// falling silent together.
func TestTrapLocalFault(t *testing.T) {
	local := func(yes bool) topology.Observation {
		return topology.Observation{Local: &topology.Local{Isolated: topology.Bool(yes)}}
	}
	t.Run("no descriptors", rapid.MakeCheck(func(t *rapid.T) {
		h := sprung(t, patroni, none)
		h.nothingChanges()
		for _, n := range rapid.Permutation([]string{"a", "b", "c"}).Draw(t, "order") {
			h.fails(n, topology.FailLocal)
			h.run(moment(t, sec))
		}
		h.unheard = topology.FailLocal
		h.run(moment(t, 3*time.Minute))
		for _, n := range []string{"a", "b", "c"} {
			h.answers(n)
		}
		h.unheard = ""
		h.run(10 * sec)
	}))
	t.Run("no network", rapid.MakeCheck(func(t *rapid.T) {
		h := sprung(t, patroni, none)
		h.nothingChanges()
		class := rapid.SampledFrom([]topology.FailureClass{topology.FailTimeout, topology.FailUnreachable, topology.FailName, topology.FailLost}).Draw(t, "class")
		for _, n := range []string{"a", "b", "c"} {
			h.fails(n, class)
		}
		h.unheard = class
		h.run(moment(t, 900*ms)) // and up to a second of silence before
		h.fold(localSource, local(true))
		h.run(moment(t, 3*time.Minute))
		for _, n := range []string{"a", "b", "c"} {
			h.answers(n)
		}
		h.unheard = ""
		if rapid.Bool().Draw(t, "noticed late") {
			h.run(moment(t, 5*sec))
		}
		h.fold(localSource, local(false))
		h.run(10 * sec)
	}))
}

// TestTrapStopped: pgsteer itself does not run for 2.5 s. Deadlines that passed
// meanwhile make failures of answers that are there already.
func TestTrapStopped(t *testing.T) {
	stop := func(t *rapid.T, h *history) {
		h.pass(2500 * ms)
		for _, n := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "timed out") {
			h.fail(n, topology.FailTimeout, topology.ProbeFull)
		}
		if rapid.Bool().Draw(t, "decided before an answer") {
			h.decide()
		}
	}
	t.Run("nothing happened", rapid.MakeCheck(func(t *rapid.T) {
		h := sprung(t, patroni, none)
		h.nothingChanges()
		for range rapid.IntRange(1, 3).Draw(t, "stops") {
			stop(t, h)
			h.run(moment(t, 5*sec))
		}
		h.run(5 * sec)
	}))
	t.Run("a failover meanwhile", rapid.MakeCheck(func(t *rapid.T) {
		h := sprung(t, patroni, none)
		stop(t, h)
		h.become("a", rapid.SampledFrom([]*server{primary(5), standby(6)}).Draw(t, "the old one"))
		h.become("b", primary(6))
		h.moveLeader("b", 6)
		h.truth("c").Receiver.Timeline = 6
		h.run(2 * sec)
		h.want("primary", "a=down b=up/writer c=down")
	}))
}
