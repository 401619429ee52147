package engine

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// The invariants of design.md section 4, by number. Those of read pools are in
// invariants_read_test.go.

// except drops the kinds of events that a property does not speak of.
func except(events []event, kinds ...string) []event {
	return slices.DeleteFunc(events, func(e event) bool { return slices.Contains(kinds, e.Kind) })
}

// TestInvariant01AtMostOneWriter in each of several write pools, and nobody beside
// it who is not down.
func TestInvariant01AtMostOneWriter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		pooled, picky := topology.DefaultPool("pooled", topology.ModeWrite), topology.DefaultPool("picky", topology.ModeWrite)
		pooled.Port = 6432
		if err := picky.Select.UnmarshalText([]byte("!" + topology.TagNoFailover)); err != nil {
			t.Fatalf("%v", err)
		}
		h.p.Pools = append(h.p.Pools, pooled, picky)
		h.check = func(s *topology.Snapshot) {
			for _, p := range s.Pools {
				if why := badWriter(s, p); why != "" {
					t.Fatalf("%s\n%s", why, show(s, h.now))
				}
			}
		}
		for _, e := range drawSteps(t, 80) {
			if h.play(e); e.Kind == "ask" {
				h.portOpen(e.Node, pooled.Port)
			}
		}
	})
}

// badWriter says what is wrong with the writers of a pool.
func badWriter(s *topology.Snapshot, p topology.PoolVerdicts) string {
	up := p.Up()
	switch {
	case p.Mode != topology.ModeWrite || len(up) == 0:
		return ""
	case len(up) > 1 || up[0].Node != s.Writer:
		return fmt.Sprintf("%d nodes are up in %s and the writer is %q", len(up), p.Pool, s.Writer)
	case s.Guard(p) != topology.Down:
		return fmt.Sprintf("the guard of %s is %s beside a writer", p.Pool, s.Guard(p))
	}
	for _, n := range p.Nodes {
		if n.Node != s.Writer && n.Verdict != topology.Down {
			return fmt.Sprintf("%s is %s in %s beside a writer", n.Node, n.Verdict, p.Pool)
		}
	}
	return ""
}

// TestInvariant02EntersByBothSides: histories about entry. Whoever becomes the
// writer is named (or alone on the highest timeline) and has just said itself
// that it is writable; the model says who that is.
func TestInvariant02EntersByBothSides(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		for _, e := range drawSteps(t, 60) {
			h.play(e)
			if e.TL == 7 { // whatever stands is gone, so somebody has to enter
				h.play(event{Kind: "coldStart"})
			}
		}
	})
}

// TestInvariant03LeavesAtContraryWord: histories of a writer that stands. It is
// down with the first contrary word and for min_down, takes no new session after
// two seconds of silence, and loses none for less: the model says which it is.
func TestInvariant03LeavesAtContraryWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		h.run(3 * sec)
		h.wantWriter("a")
		lost := make(map[string]topology.Mono)
		was := h.snap
		h.check = func(s *topology.Snapshot) {
			for _, n := range s.Nodes {
				before, now := verdict(was, "primary", n.Name), verdict(s, "primary", n.Name)
				switch {
				case now == topology.Up && lost[n.Name] != 0 && h.now.Mono.Sub(lost[n.Name]) < h.p.MinDown:
					t.Fatalf("%s is up %s after its loss\n%s", n.Name, h.now.Mono.Sub(lost[n.Name]), show(s, h.now))
				case now == topology.Down && before == topology.Up:
					lost[n.Name] = h.now.Mono
				}
			}
			was = s
		}
		for _, e := range except(drawSteps(t, 60), "coldStart", "wall", "wallBack") { // the memory of a loss outlives a restart, by the wall clock
			h.play(e)
		}
	})
}

// TestInvariant04AuthorityAway: nobody enters, and who stands is cut by SQL alone.
func TestInvariant04AuthorityAway(t *testing.T) {
	away := func(t *rapid.T) *history {
		h := newHistory(t, patroni)
		h.run(3 * sec)
		h.wantWriter("a")
		h.unheard = rapid.SampledFrom([]topology.FailureClass{topology.FailStore, topology.FailTimeout, topology.FailRefused, topology.FailDenied}).Draw(t, "away")
		h.askAuthority()
		h.decide()
		return h
	}
	back := []string{"heardAgain", "unheard", "coldStart"}
	t.Run("nobody enters", rapid.MakeCheck(func(t *rapid.T) {
		h := away(t)
		gone := false
		h.check = func(s *topology.Snapshot) {
			gone = gone || verdict(s, "primary", "a") == topology.Down
			if s.Writer != "" && (s.Writer != "a" || gone) {
				t.Fatalf("%s entered while the authority is away\n%s", s.Writer, show(s, h.now))
			}
		}
		for _, e := range except(drawSteps(t, 60), back...) {
			h.play(e)
		}
	}))
	t.Run("nobody is cut", rapid.MakeCheck(func(t *rapid.T) {
		h := away(t)
		h.check = func(s *topology.Snapshot) {
			if s.Writer != "a" {
				t.Fatalf("a healthy writer is out\n%s", show(s, h.now))
			}
		}
		for _, e := range except(drawSteps(t, 60), append(back, "restart", "idle", "promote", "swap", "lose")...) {
			if e.Node != "a" {
				h.play(e)
			}
		}
	}))
}

// TestInvariant06UnknownIsNeverHealthy: a failed probe improves nothing, every
// fact expires, and what was not measured is no lag of zero.
func TestInvariant06UnknownIsNeverHealthy(t *testing.T) {
	t.Run("a failed probe", failedProbe)
	t.Run("facts expire", factsExpire)
	t.Run("lag", rapid.MakeCheck(func(t *rapid.T) {
		h := drawHistory(t)
		h.check = func(s *topology.Snapshot) {
			for name, n := range Facts(h.s, h.now).Nodes {
				if n.Lag.Known == topology.Yes && (n.InRecovery != topology.Yes || n.Probe.ReplayLSN == 0) {
					t.Fatalf("%s lags by %s, who told?\n%s", name, n.Lag.Bytes, show(s, h.now))
				}
			}
		}
		for _, e := range drawSteps(t, 60) {
			if h.play(e); e.Kind == "behind" && e.TL == 7 {
				h.truth(e.Node).ReplayLSN = 0
			}
		}
	}))
}

// TestInvariant08SilenceChangesNothing: sources that fail, an empty answer that
// nobody confirmed, and members whose keys are gone for a while.
func TestInvariant08SilenceChangesNothing(t *testing.T) {
	classes := []topology.FailureClass{topology.FailContent, topology.FailStore, topology.FailDenied, topology.FailTimeout, topology.FailRefused}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, patroni)
		src := rapid.SampledFrom([]topology.SourceID{fileSource, consulSource}).Draw(t, "source of nodes")
		w.s = NewState(Options{Cluster: "main", NodeSources: []topology.SourceID{src}, Start: w.now})
		list := w.listNodes
		if src == consulSource {
			list = func() { w.members("a", "b", "c") }
		}
		list()
		w.run(45 * sec)
		before := w.decide()
		w.onDecide = func(s *topology.Snapshot) {
			if !sameVerdicts(before, s) || !cmp.Equal(before.Nodes, s.Nodes) {
				t.Fatalf("before\n%safter\n%s", show(before, w.now), show(s, w.now))
			}
		}
		for range rapid.IntRange(1, 20).Draw(t, "troubles") {
			switch rapid.IntRange(0, 3).Draw(t, "trouble") {
			case 0:
				w.fold(src, topology.Observation{Nodes: &topology.NodeList{}})
			case 1:
				there := rapid.SliceOfDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.ID).Draw(t, "members")
				w.members(there...)
				w.run(rapid.SampledFrom(waits).Draw(t, "for"))
				w.members(there...)
			case 2:
				w.unheard = rapid.SampledFrom(classes).Draw(t, "class")
			default:
				class := rapid.SampledFrom(classes).Draw(t, "class")
				w.fold(src, topology.Observation{Failure: &topology.Failure{Class: class, Text: "in vain"}})
			}
			w.decide()
			w.run(rapid.SampledFrom(waits).Draw(t, "wait"))
			list()
		}
	})
}

// TestInvariant09RolesMoveNoNode: files are made of a snapshot's nodes, and no
// change of a role, a lag or a key moves those.
func TestInvariant09RolesMoveNoNode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		before := h.decide().Nodes
		h.check = func(s *topology.Snapshot) {
			if diff := cmp.Diff(before, s.Nodes); diff != "" {
				t.Fatalf("the nodes moved:\n%s", diff)
			}
		}
		for _, e := range except(drawSteps(t, 60), "address", "swap", "unlist", "tag") {
			h.play(e)
		}
	})
}

// TestInvariant10RestartCutsNobody and empties no pool; without its sources it
// admits nobody either.
func TestInvariant10RestartCutsNobody(t *testing.T) {
	t.Run("verdicts stand", restartCutsNobody)
	t.Run("nobody is admitted", restartAdmitsNobody)
}

// TestInvariant11EveryVerdictExplained by reasons of the closed list, with a text
// for people and since when.
func TestInvariant11EveryVerdictExplained(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		h.p.Pools = append(h.p.Pools, drawReadPool(t))
		h.check = func(s *topology.Snapshot) { checkTexts(t, s) }
		for _, e := range drawSteps(t, 60) {
			h.play(e)
		}
	})
}
