package engine

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestPropertyWriter holds every decision of random histories against an oracle
// that knows only the log (design.md 4, invariants 1, 2 and 3).
func TestPropertyWriter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)()
		if w.snap == nil {
			watch(w)
		} else {
			w = drawWatched(t, w)
		}
		for _, e := range drawEvents(t, 60) {
			w.apply(e)
		}
	})
}

// drawWatched begins the same world anew with the oracle in place.
func drawWatched(t *rapid.T, like *world) *world {
	w := newWorld(t, like.p.Authority)
	w.p = like.p
	watch(w)
	w.run(3 * sec)
	return w
}

// TestPropertyBatches: the same when several observations come in between two
// decisions.
func TestPropertyBatches(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWatched(t, drawWorld(t)())
		for range rapid.IntRange(1, 12).Draw(t, "batches") {
			for _, e := range drawEvents(t, 6) {
				if e.Kind == "run" || e.Kind == "idle" || e.Kind == "standstill" || e.Kind == "address" {
					continue
				}
				w.applyQuietly(e)
				w.pass(ms)
				w.ask(e.Node)
			}
			w.run(200 * ms)
			w.decide()
		}
	})
}

// applyQuietly plays an event without deciding.
func (w *world) applyQuietly(e event) {
	see := w.onDecide
	s, keep := w.s, *w
	w.onDecide = nil
	switch e.Kind {
	case "fail":
		w.fail(e.Node, e.Class, topology.ProbeFull)
	case "failLogin":
		w.fail(e.Node, e.Class, topology.ProbeLogin)
	case "roleTick":
		w.roleTick(e.Node)
	case "ask", "login", "isolated", "notIsolated":
	default:
		w.applyTruth(e)
	}
	w.askAuthority()
	w.onDecide, w.s, w.wake = see, s, keep.wake
}

// failedProbe: a failed probe never makes the verdict on its node better, at once
// or later (invariant 6).
func failedProbe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin, events := drawWorld(t), drawEvents(t, 40)
		node := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "failing")
		class := rapid.SampledFrom(allClasses).Draw(t, "failure")
		asked := rapid.SampledFrom([]topology.ProbeKind{topology.ProbeFull, topology.ProbeRole, topology.ProbeLogin}).Draw(t, "asked")
		without, with := begin(), begin()
		for _, e := range events {
			without.apply(e)
			with.apply(e)
		}
		with.fail(node, class, asked)
		proves := class == topology.FailLocal || alive(class) || class == topology.FailStarting
		for i := range 150 {
			a, b := without.decide(), with.decide()
			for _, pool := range []string{"primary", "replica"} {
				if va, vb := verdict(a, pool, node), verdict(b, pool, node); vb < va {
					t.Fatalf("%d ms after a failed probe (%s, %s) %s in %s is %s, without it %s\n%s%s", 100*i, class, asked, node, pool, vb, va,
						show(a, without.now), show(b, with.now))
				}
			}
			if proves {
				break // it proves life, so later silence counts from it
			}
			without.idle(100 * ms)
			with.idle(100 * ms)
		}
	})
}

// factsExpire: after any history, nobody stays up without new
// observations.
func factsExpire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWorld(t)()
		for _, e := range drawEvents(t, 40) {
			if e.Kind != "isolated" {
				w.apply(e)
			}
		}
		w.idle(unasked * w.p.SilentAfter)
		for range 50 {
			for _, p := range w.decide().Pools {
				if len(p.Up()) > 0 {
					t.Fatalf("still up in %s\n%s", p.Pool, w.show())
				}
			}
			w.idle(time.Second)
		}
	})
}

// restartCutsNobody: a restart alone cuts and drains nobody (invariant 10).
func restartCutsNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin, before, after := drawWorld(t), drawEvents(t, 40), drawEvents(t, 15)
		before = slices.DeleteFunc(before, func(e event) bool { return e.Kind == "isolated" }) // the agent tells it anew
		after = slices.DeleteFunc(after, func(e event) bool { return e.Kind == "address" })    // another server, of which nothing stands
		kept, restarted := begin(), begin()
		for _, e := range before {
			kept.apply(e)
			restarted.apply(e)
		}
		standing := restarted.decide()
		kept.pass(10 * ms)
		restarted.restart()
		kept.listNodes()
		out := make(map[string]bool) // who went out in both; the restarted engine has to learn more before they return
		for _, e := range after {
			kept.apply(e)
			restarted.apply(e)
			if w := restarted.snap.Writer; w != "" && w != kept.snap.Writer {
				return // another one was admitted: from here on they are two histories
			}
			for _, p := range standing.Pools {
				for _, up := range p.Up() {
					kp, _ := kept.snap.Pool(p.Pool)
					was, _ := kp.Verdict(up.Node)
					is := verdict(restarted.snap, p.Pool, up.Node)
					rp, _ := restarted.snap.Pool(p.Pool)
					if was.Reason().Code == topology.CodeFallback && (len(rp.Up()) > 0 || up.Reason().Code != topology.CodeFallback) {
						continue // a replica serves instead, or the writer was admitted meanwhile
					}
					if was.Reason().Code == topology.CodeLagOverride && len(rp.Up()) > 0 {
						continue // another one of those behind serves instead
					}
					key := p.Pool + "/" + up.Node
					out[key] = is > topology.Up && (out[key] || was.Verdict > topology.Up)
					if was.Verdict == topology.Up && is > topology.Up && !out[key] {
						t.Fatalf("after %v: %s in %s is %s because of the restart\nkept %srestarted %s", e, up.Node, p.Pool, is, kept.show(), restarted.show())
					}
				}
			}
		}
	})
}

// restartAdmitsNobody while the authority is away.
func restartAdmitsNobody(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, patroni)
		for _, e := range drawEvents(t, 30) {
			w.apply(e)
		}
		w.unheard = topology.FailStore
		w.restart()
		for _, e := range drawEvents(t, 30) {
			if e.Kind == "heardAgain" || e.Kind == "unheard" {
				continue
			}
			w.apply(e)
			if w.snap.Writer != "" {
				t.Fatalf("%s was admitted\n%s", w.snap.Writer, w.show())
			}
		}
	})
}

// TestPropertyDecideOften: more decisions do not change what is decided.
func TestPropertyDecideOften(t *testing.T) {
	fewer(t, 8)
	rapid.Check(t, func(t *rapid.T) {
		begin, events := drawWorld(t), drawEvents(t, 40)
		// In a standstill nobody decides, seldom or often.
		events = slices.DeleteFunc(events, func(e event) bool { return e.Kind == "standstill" })
		seldom, often := begin(), begin()
		step := time.Duration(rapid.IntRange(3, 400).Draw(t, "step")) * ms
		often.onDecide = func(*topology.Snapshot) { often.wake = min(often.wake, often.now.Mono.Add(step)) }
		for _, e := range events {
			seldom.apply(e)
			often.apply(e)
			if a, b := seldom.snap, often.snap; !sameVerdicts(a, b) {
				t.Fatalf("after %v, decided seldom\n%sdecided often\n%s", e, show(a, seldom.now), show(b, often.now))
			}
		}
	})
}

func sameVerdicts(a, b *topology.Snapshot) bool {
	for i, p := range a.Pools {
		for j, n := range p.Nodes {
			if n.Verdict != b.Pools[i].Nodes[j].Verdict {
				return false
			}
		}
	}
	return a.Writer == b.Writer && a.Held == b.Held
}
