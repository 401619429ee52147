package engine

import (
	"cmp"
	"slices"
	"time"

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
		was, _ := last.Verdict(n.Name)
		was.Verdict = r.s.standing(last, n.Name)
		e := r.returning(pool, was, n, r.replicaEffects(pool, was, n))
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
		case topology.Down:
		}
	}
	up += r.readmit(pool, behind, out, pool.MinReplicas-up)
	// At a start the replicas that have not been asked yet stand as they are.
	waiting := undecided && r.s.standing(last, writer) != topology.Up
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
	if r.s.last != nil {
		if p, ok := r.s.last.Pool(name); ok {
			return p
		}
	}
	return topology.PoolVerdicts{Pool: name}
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
func (r *round) replicaEffects(pool topology.Pool, was topology.NodeVerdict, n *node) []effect {
	if e, ok := r.identity(n); ok {
		return []effect{e}
	}
	var out []effect
	if e, ok := r.gone(n, true); ok {
		if was.Verdict == topology.Down {
			e.verdict = topology.Down // it has no sessions left to keep
		}
		out = append(out, e)
	}
	if e := r.replicaEffect(pool, was, n); len(out) == 0 || e.verdict > out[0].verdict {
		out = append(out, e)
	}
	return out
}

// replicaEffect are the rules for a node that can be talked to.
func (r *round) replicaEffect(pool topology.Pool, was topology.NodeVerdict, n *node) effect {
	h := r.s.holder
	if n.inRecovery == topology.No || n.inRecovery == topology.Unknown && h.restored && h.name == n.Name {
		return r.primaryInReadPool(n)
	}
	e := r.replicationEffect(pool, was, n)
	switch {
	case e.verdict == topology.Down:
		return e
	case n.aliveAt != 0 && n.roleAt == 0 && r.s.saved != nil && r.s.saved.Verdicts[pool.Name][n.Name] == topology.Up:
		// It served before the restart; that we may not ask it is no word against it.
		return r.effect(topology.Undecided, topology.CodeRoleUnknown, n.aliveAt, "role unknown: %s", n.failure.Class)
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
// a writable node that is not the writer is fenced. One that left recovery a
// moment ago and has not told its timeline may be the writer's successor: the
// sessions of its readers wait for that word.
func (r *round) primaryInReadPool(n *node) effect {
	h := r.s.holder
	switch {
	case h.name == n.Name && h.restored:
		return r.effect(topology.Undecided, topology.CodeNoEvidence, r.s.start.Mono, "held as writer")
	case n.writable() && n.timeline() != 0 && h.name != n.Name && (h.name != "" && !h.restored || r.named() != "" && r.named() != n.Name):
		return r.effect(topology.Down, topology.CodeFenced, n.roleAt, "writable but not the writer")
	}
	return r.effect(topology.Drain, topology.CodeWrongRole, n.roleAt, "primary")
}

// replicationEffect are the rules that need a proven writer to compare with.
func (r *round) replicationEffect(pool topology.Pool, was topology.NodeVerdict, n *node) effect {
	if r.provenWriter() == nil || n.full == nil {
		return r.effect(topology.Up, topology.CodeReplica, 0, "replica")
	}
	if e, bad := r.trouble(n, r.since); bad {
		return e
	}
	e := r.lagEffect(pool, n)
	out := was.Verdict == topology.Drain || was.Verdict == topology.Down
	if out && (e.verdict == topology.Up || was.Reason().Code != topology.CodeLag) {
		// The grace is for those who serve: who is out returns when it is over.
		atOnce := func(topology.Mono, time.Duration) bool { return true }
		if e, bad := r.trouble(n, atOnce); bad {
			e.verdict = was.Verdict
			return e
		}
	}
	return e
}

func (r *round) lagEffect(pool topology.Pool, n *node) effect {
	switch {
	case n.lag.Known != topology.Yes && !receives(n):
		return r.effect(topology.Drain, topology.CodeLagUnknown, 0, "no fresh position of the writer")
	case pool.MaxLagHard > 0 && n.lag.Bytes > pool.MaxLagHard:
		return r.effect(topology.Drain, topology.CodeLagHard, 0, "lag %s > %s", n.lag.Bytes.Short(), pool.MaxLagHard)
	case pool.MaxLag > 0 && n.lag.Bytes > pool.MaxLag:
		return r.effect(topology.Drain, topology.CodeLag, 0, "lag %s > %s", n.lag.Bytes.Short(), pool.MaxLag)
	}
	return r.effect(topology.Up, topology.CodeReplica, 0, "replica")
}

// trouble are the faults of replication that are given a grace.
func (r *round) trouble(n *node, over func(topology.Mono, time.Duration) bool) (effect, bool) {
	switch {
	case n.unstreamedAt != 0 && over(n.unstreamedAt, r.p.StreamingGrace):
		return r.effect(topology.Drain, topology.CodeNotStreaming, n.unstreamedAt, "no WAL receiver"), true
	case n.strayAt != 0 && over(n.strayAt, r.p.StreamingGrace):
		return r.effect(topology.Down, topology.CodeTimeline, n.strayAt, "follows timeline %d", n.full.Receiver.Timeline), true
	case n.pausedAt != 0 && over(n.pausedAt, r.p.PausedGrace):
		return r.effect(topology.Drain, topology.CodePaused, n.pausedAt, "replay paused; lag %s", n.lag.Bytes.Short()), true
	}
	return effect{}, false
}

// receives: the WAL receiver is alive, so a lag that cannot be told is no doubt.
func receives(n *node) bool {
	rc := &n.full.Receiver
	return rc.Streaming == topology.Yes && rc.MessageAge >= 0 && rc.MessageAge <= receiverFresh
}

// returning holds a replica that was out until it has been good for a while;
// what never was out (the first verdict) enters at once, and so does a demoted
// primary, which has nothing to recover from.
func (r *round) returning(pool topology.Pool, was topology.NodeVerdict, n *node, out []effect) []effect {
	if harshest(out) != topology.Up {
		delete(n.goodAt, pool.Name)
		return out
	}
	if n.goodAt[pool.Name] == 0 {
		n.goodAt[pool.Name] = r.now.Mono
	}
	if was.Verdict == topology.Up || was.Verdict == topology.Undecided || was.Reason().Code == topology.CodeWrongRole {
		return out
	}
	if n.failingAt == 0 && r.since(n.goodAt[pool.Name], r.p.ReturnAfter) {
		return out
	}
	return []effect{r.effect(was.Verdict, topology.CodeReturning, n.goodAt[pool.Name], "good again; returns soon")}
}
