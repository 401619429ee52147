package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// waits are the times between two steps of a history.
var waits = []time.Duration{ms, 10 * ms, 60 * ms, 300 * ms, sec, 2100 * ms, 3500 * ms, 11 * sec, 21 * sec}

// drawReadPool is a read pool of random settings.
func drawReadPool(t *rapid.T) topology.Pool {
	p := topology.DefaultPool("random", topology.ModeRead)
	p.MaxLag = rapid.SampledFrom([]topology.Size{0, 16 * mb, 64 * mb}).Draw(t, "max_lag")
	p.MaxLagHard = rapid.SampledFrom([]topology.Size{0, 256 * mb, 1 << 30}).Draw(t, "max_lag_hard")
	p.MaxLagTime = rapid.SampledFrom([]time.Duration{0, 0, 10 * sec}).Draw(t, "max_lag_time")
	p.MinReplicas = rapid.IntRange(0, 2).Draw(t, "min_replicas")
	p.Fallback = rapid.SampledFrom([]topology.Fallback{topology.FallbackNone, topology.FallbackPrimary, topology.FallbackStale}).Draw(t, "fallback")
	p.RequireStreaming = rapid.Bool().Draw(t, "require_streaming")
	p.WeightByLag = rapid.Bool().Draw(t, "weight_by_lag")
	return p
}

// replication are the kinds of events about lag, streams and the writer that
// replicas follow.
var replication = []string{
	"write", "write", "behind", "behind", "behind", "upToDate", "upToDate", "unreceived", "received", "paused", "resumed",
	"run", "run", "run", "run", "gone", "back", "fails", "answers",
}

func drawReplication(t *rapid.T) []event {
	return drawBlocks(t, func(t *rapid.T) event {
		return event{
			Kind: rapid.SampledFrom(replication).Draw(t, "kind"),
			Node: rapid.SampledFrom([]string{"b", "c"}).Draw(t, "node"),
			TL:   topology.Timeline(rapid.IntRange(1, 20).Draw(t, "amount")),
			Wait: rapid.SampledFrom(waits).Draw(t, "wait"),
		}
	}, 60)
}

// replicate plays an event of replication.
func (w *world) replicate(e event) {
	p := w.truth(e.Node)
	switch e.Kind {
	case "write":
		w.write(topology.LSN(e.TL) * mb)
	case "behind": // from nothing over the soft limits to the hard ones
		w.behind(e.Node, topology.LSN(e.TL)*topology.LSN(e.TL)*4*mb)
	case "upToDate":
		w.behind(e.Node, 0)
	case "unreceived":
		p.Receiver.Running, p.Receiver.Streaming = topology.No, topology.No
	case "received":
		p.Receiver.Running, p.Receiver.Streaming = topology.Yes, topology.Yes
	case "paused":
		p.ReplayPaused = topology.Yes
	case "resumed":
		p.ReplayPaused = topology.No
	case "gone":
		w.fails("a", topology.FailRefused)
	case "back":
		w.answers("a")
	case "fails":
		w.fails(e.Node, topology.FailTimeout)
	case "answers":
		w.answers(e.Node)
	}
	w.run(e.Wait)
}

// TestInvariant05LagEmptiesNoPool: whoever is out for lag alone is not missed, and
// without a proven writer nobody goes for reasons that need one to compare with.
func TestInvariant05LagEmptiesNoPool(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, rapid.SampledFrom([]topology.AuthorityKind{patroni, none}).Draw(t, "authority"))
		pool := drawReadPool(t)
		w.p.Pools = append(w.p.Pools, pool)
		w.write(4 << 30)
		w.behind("b", 0)
		w.behind("c", 0)
		w.run(3 * sec)
		was := w.snap
		w.onDecide = func(s *topology.Snapshot) {
			for _, policy := range []topology.Pool{*w.readPool(), pool} {
				before, _ := was.Pool(policy.Name)
				now, _ := s.Pool(policy.Name)
				if why := missed(s, policy, now, Facts(w.s, w.now)) + unfair(s, before, now); why != "" {
					t.Fatalf("%s\nbefore\n%snow\n%s", why, show(was, w.now), show(s, w.now))
				}
			}
			was = s
		}
		for _, e := range drawReplication(t) {
			w.replicate(e)
		}
	})
}

// missed names a node that is out for lag alone although its pool needs it, or
// says that the fallback did not come.
func missed(s *topology.Snapshot, policy topology.Pool, p topology.PoolVerdicts, f *topology.Facts) string {
	up := len(p.Up())
	for _, n := range p.Nodes {
		lag := f.Nodes[n.Node].Lag
		within := policy.MaxLagHard == 0 || lag.Bytes <= policy.MaxLagHard
		if n.Verdict == topology.Drain && len(n.Reasons) == 1 && n.Reason().Code == topology.CodeLag &&
			lag.Known == topology.Yes && within && up < policy.MinReplicas {
			return fmt.Sprintf("%s is out of %s for lag, with %d of %d up", n.Node, p.Pool, up, policy.MinReplicas)
		}
	}
	if up == 0 && !p.Undecided() && policy.Fallback == topology.FallbackPrimary && s.Writer != "" {
		return p.Pool + " is empty beside a writer"
	}
	return ""
}

// comparing are the causes that need a proven writer to compare with.
var comparing = []topology.Code{
	topology.CodeLag, topology.CodeLagHard, topology.CodeLagUnknown, topology.CodeNotStreaming,
	topology.CodePathBroken, topology.CodePaused, topology.CodeTimeline,
}

// unfair names a node that left for a cause that nobody can judge now. One that
// served for want of others goes when it is not wanted any more.
func unfair(s *topology.Snapshot, before, p topology.PoolVerdicts) string {
	for _, n := range s.Pools[0].Nodes {
		if n.Verdict != topology.Down {
			return "" // there may be a writer
		}
	}
	for _, n := range p.Nodes {
		was, _ := before.Verdict(n.Node)
		stopgap := []topology.Code{topology.CodeLagOverride, topology.CodeFallbackStale}
		if was.Verdict == topology.Up && n.Verdict != topology.Up && slices.Contains(comparing, n.Reason().Code) &&
			!slices.Contains(stopgap, was.Reason().Code) {
			return fmt.Sprintf("%s left %s for %s without a writer", n.Node, p.Pool, n.Reason().Code)
		}
	}
	return ""
}

// ending are the causes that end a replica's sessions at once.
var ending = []topology.Code{
	topology.CodeIdentity, topology.CodeFenced, topology.CodeRefused, topology.CodePort, topology.CodeTimeline,
}

// ended: one of the causes ends sessions; silence does when it has been long.
func ended(n topology.NodeVerdict, long bool) bool {
	return slices.ContainsFunc(n.Reasons, func(r topology.Reason) bool {
		return slices.Contains(ending, r.Code) || r.Code == topology.CodeSilent && long
	})
}

// TestInvariant07SessionsDrainOrEnd: in a read pool sessions end by death, fencing
// and divergence, by silence not before kill_after; by lag, maintenance and all
// else they go on.
func TestInvariant07SessionsDrainOrEnd(t *testing.T) {
	check := func(t *rapid.T, w *world) func(*topology.Snapshot) {
		was, out := w.decide(), make(map[string]topology.Mono)
		return func(s *topology.Snapshot) {
			for _, p := range s.Pools {
				before, _ := was.Pool(p.Pool)
				for _, n := range p.Nodes {
					v, _ := before.Verdict(n.Node)
					key := p.Pool + " " + n.Node
					if n.Verdict == topology.Up || out[key] == 0 {
						out[key] = w.now.Mono
					}
					if p.Mode == topology.ModeRead && (v.Verdict == topology.Up || v.Verdict == topology.Drain) && n.Verdict == topology.Down &&
						!ended(n, w.now.Mono.Sub(out[key]) >= w.p.KillAfter-unasked*w.p.SilentAfter) {
						t.Fatalf("sessions at %s in %s end\n%s", n.Node, p.Pool, show(s, w.now))
					}
				}
			}
			was = s
		}
	}
	t.Run("any history", rapid.MakeCheck(func(t *rapid.T) {
		h := drawHistory(t)
		h.p.Pools = append(h.p.Pools, drawReadPool(t))
		h.check = check(t, h.world)
		for _, e := range except(drawSteps(t, 60), "restart", "coldStart", "address", "swap") {
			h.play(e)
		}
	}))
	t.Run("replication", rapid.MakeCheck(func(t *rapid.T) {
		w := newWorld(t, patroni)
		w.p.Pools = append(w.p.Pools, drawReadPool(t))
		w.write(4 << 30)
		w.run(3 * sec)
		w.onDecide = check(t, w)
		for _, e := range drawReplication(t) {
			w.replicate(e)
		}
	}))
}
