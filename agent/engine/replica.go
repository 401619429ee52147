package engine

import (
	"cmp"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// readPool returns every node's effects in a read pool, and whether the writer
// serves it for want of replicas. Both are settled in one evaluation, so that
// no snapshot shows an empty pool that a fallback would fill.
func (r *round) readPool(pool topology.Pool, writer string) (map[string][]effect, bool) {
	out := make(map[string][]effect, len(r.nodes))
	last := r.lastPool(pool.Name)
	up, undecided := 0, false
	var behind []*node
	for _, n := range r.nodes {
		e := r.returning(pool, last, n, r.replicaEffects(pool, last, n))
		out[n.Name] = r.withMaintenance(n, e)
		switch harshest(out[n.Name]) {
		case topology.Up:
			up++
		case topology.Undecided:
			undecided = true
		case topology.Drain:
			if len(out[n.Name]) == 1 && e[0].reason.Code == topology.CodeLag {
				behind = append(behind, n)
			}
		}
	}
	up += r.readmit(pool, behind, out, pool.MinReplicas-up)
	// At a start the replicas that have not been asked yet stand as they are.
	waiting := undecided && !last.Fallback && r.s.standing(last, writer) != topology.Up
	if up > 0 || waiting || pool.Fallback != topology.FallbackPrimary || writer == "" {
		return out, false
	}
	out[writer] = []effect{r.effect(topology.Up, topology.CodeFallback, 0, "no eligible replica")}
	return out, true
}

// standing is a node's last verdict, as balancers have it: while it is undecided
// the saved one.
func (s *State) standing(last topology.PoolVerdicts, node string) topology.Verdict {
	v, _ := last.Verdict(node)
	if v.Verdict == topology.Undecided && s.saved != nil {
		return s.saved.Verdicts[last.Pool][node]
	}
	return v.Verdict
}

func (r *round) lastPool(name string) topology.PoolVerdicts {
	if r.s.last == nil {
		return topology.PoolVerdicts{}
	}
	p, _ := r.s.last.Pool(name)
	return p
}

// withMaintenance adds an operator's word to what else holds against a node.
func (r *round) withMaintenance(n *node, out []effect) []effect {
	m, ok := r.maintained(n)
	switch {
	case !ok:
		return out
	case out[0].verdict == topology.Up || out[0].verdict == topology.Undecided:
		return []effect{m}
	case out[0].reason.Code == topology.CodeIdentity:
		return append(out, m)
	}
	return append([]effect{m}, out...)
}

// readmit lets the least lagging of the soft-limited replicas serve when lag
// alone would leave fewer than the minimum.
func (r *round) readmit(pool topology.Pool, behind []*node, out map[string][]effect, want int) int {
	slices.SortFunc(behind, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.lag.Bytes, b.lag.Bytes), cmp.Compare(a.Name, b.Name))
	})
	n := max(0, min(want, len(behind)))
	for _, b := range behind[:n] {
		out[b.Name] = []effect{r.effect(topology.Up, topology.CodeLagOverride, 0,
			"lag %s > %s; too few replicas", b.lag.Bytes.Short(), pool.MaxLag)}
	}
	return n
}

// replicaEffects is the read ladder for one node: the first cause, and a harsher
// one that holds beside it.
func (r *round) replicaEffects(pool topology.Pool, last topology.PoolVerdicts, n *node) []effect {
	if e, ok := r.identity(n); ok {
		return []effect{e}
	}
	var out []effect
	if e, ok := r.gone(n, true); ok {
		if v, _ := last.Verdict(n.Name); v.Verdict == topology.Down {
			e.verdict = topology.Down // it has no sessions left to keep
		}
		out = append(out, e)
	}
	if e := r.replicaEffect(pool, n); len(out) == 0 || e.verdict > out[0].verdict {
		out = append(out, e)
	}
	return out
}

// replicaEffect are the rules for a node that can be talked to.
func (r *round) replicaEffect(pool topology.Pool, n *node) effect {
	if n.inRecovery == topology.No {
		return r.primaryInReadPool(n)
	}
	e := r.replicationEffect(pool, n)
	switch {
	case e.verdict == topology.Down:
		return e
	case n.aliveAt != 0 && r.since(max(n.roleAt, n.knownAt), r.p.EvidenceMaxAge):
		return r.effect(topology.Drain, topology.CodeRoleUnknown, n.aliveAt, "role unknown: %s", n.failure.Class)
	case n.inRecovery == topology.Unknown:
		return r.effect(topology.Undecided, topology.CodeNoEvidence, n.knownAt, "not asked yet")
	case n.HasTag(topology.TagNoLoadBalance):
		return r.effect(topology.Drain, topology.CodeNoLoadBalance, 0, "tagged noloadbalance")
	case n.full != nil && n.full.ApplyDelay > 0:
		return r.effect(topology.Drain, topology.CodeDelayed, 0, "delays replay by %s", n.full.ApplyDelay)
	}
	return e
}

// primaryInReadPool: a primary serves reads only as a fallback, so it drains;
// a writable node that is not the writer is fenced.
func (r *round) primaryInReadPool(n *node) effect {
	h := r.s.holder
	switch {
	case h.name == n.Name && h.restored:
		return r.effect(topology.Undecided, topology.CodeNoEvidence, r.s.start.Mono, "held as writer")
	case n.writable() && h.name != n.Name && (h.name != "" && !h.restored || r.named() != "" && r.named() != n.Name):
		return r.effect(topology.Down, topology.CodeFenced, n.roleAt, "writable but not the writer")
	}
	return r.effect(topology.Drain, topology.CodeWrongRole, n.roleAt, "primary")
}

// replicationEffect are the rules that need a proven writer to compare with.
func (r *round) replicationEffect(pool topology.Pool, n *node) effect {
	ok := r.effect(topology.Up, topology.CodeReplica, 0, "replica")
	if r.provenWriter() == nil || n.full == nil {
		return ok
	}
	switch {
	case n.unstreamedAt != 0 && r.since(n.unstreamedAt, r.p.StreamingGrace):
		return r.effect(topology.Drain, topology.CodeNotStreaming, n.unstreamedAt, "no WAL receiver")
	case n.strayAt != 0 && r.since(n.strayAt, r.p.StreamingGrace):
		return r.effect(topology.Down, topology.CodeTimeline, n.strayAt, "follows timeline %d", n.full.Receiver.Timeline)
	case n.pausedAt != 0 && r.since(n.pausedAt, r.p.PausedGrace):
		return r.effect(topology.Drain, topology.CodePaused, n.pausedAt, "replay paused; lag %s", n.lag.Bytes.Short())
	case n.lag.Known != topology.Yes:
		if rc := n.full.Receiver; rc.Streaming == topology.Yes && rc.MessageAge >= 0 && rc.MessageAge <= receiverFresh {
			return ok
		}
		return r.effect(topology.Drain, topology.CodeLagUnknown, 0, "no fresh position of the writer")
	case pool.MaxLagHard > 0 && n.lag.Bytes > pool.MaxLagHard:
		return r.effect(topology.Drain, topology.CodeLagHard, 0, "lag %s > %s", n.lag.Bytes.Short(), pool.MaxLagHard)
	case pool.MaxLag > 0 && n.lag.Bytes > pool.MaxLag:
		return r.effect(topology.Drain, topology.CodeLag, 0, "lag %s > %s", n.lag.Bytes.Short(), pool.MaxLag)
	}
	return ok
}

// returning holds a replica that was out until it has been good for a while;
// what never was out (the first verdict) enters at once, and so does a demoted
// primary, which has nothing to recover from.
func (r *round) returning(pool topology.Pool, last topology.PoolVerdicts, n *node, out []effect) []effect {
	if harshest(out) != topology.Up {
		delete(n.goodAt, pool.Name)
		return out
	}
	v, _ := last.Verdict(n.Name)
	why := v.Reason().Code
	if v.Verdict == topology.Up || v.Verdict == topology.Undecided || why == topology.CodeWrongRole {
		return out
	}
	if n.goodAt[pool.Name] == 0 {
		n.goodAt[pool.Name] = r.now.Mono
	}
	if n.failingAt == 0 && r.since(n.goodAt[pool.Name], r.p.ReturnAfter) {
		return out
	}
	return []effect{r.effect(v.Verdict, topology.CodeReturning, n.goodAt[pool.Name], "good again; returns soon")}
}
