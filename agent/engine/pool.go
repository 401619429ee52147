package engine

import (
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// decidePools makes every pool's verdicts, in the policy's order.
func (r *round) decidePools() {
	for i, pool := range r.p.Pools {
		pr := &r.pools[i]
		for j := range pr.weights {
			pr.weights[j] = 100
		}
		if pool.Mode == topology.ModeWrite {
			r.writePool(pool, pr)
		} else {
			r.readPool(pool, pr)
		}
	}
}

// writePool is the writer rule's word, and what this pool adds to it.
func (r *round) writePool(pool topology.Pool, pr *poolRound) {
	for _, n := range r.nodes {
		out := pr.effects[n.i][:0]
		out = append(out, r.writer[n.i]...)
		if n.Name == r.s.holder.name {
			if e, bad := r.portEffect(pool, n); bad {
				out = worsened(out, e)
			}
			if e, bad := r.maintainedIn(pool.Name, n); bad {
				out = worsened(out, e)
			}
			if e, bad := r.notSelected(pool, n); bad {
				out = worsened(out, e)
			}
			r.chooseSessions(pool, out)
		}
		pr.effects[n.i] = out
	}
}

// worsened adds a cause; beside one the word that all is well does not stand.
func worsened(out []effect, e effect) []effect {
	if v := harshest(out); v == topology.Up || v == topology.Undecided {
		out = out[:0]
	}
	return append(out, e)
}

// chooseSessions puts the pool's choice between drain and kill in place of the
// rule's own. In a write pool only causes that leave the role alone are chosen.
func (r *round) chooseSessions(pool topology.Pool, out []effect) {
	for i := range out {
		e := &out[i]
		v, chosen := pool.Sessions[e.code]
		if !chosen || e.verdict != topology.Drain && e.verdict != topology.Down {
			continue
		}
		switch {
		case pool.Mode == topology.ModeRead,
			e.code == topology.CodeMaintenance, e.code == topology.CodePort, e.code == topology.CodeNotSelected:
			e.verdict = v
		}
	}
}

// seat is one node in one read pool.
type seat struct {
	pool topology.Pool
	// was is the last verdict; while it is undecided the saved one, as balancers have it.
	was topology.NodeVerdict
	n   *node
	t   *tenure
}

// candidate is a seat that could serve, if need be.
type candidate struct {
	seat
	code topology.Code // what keeps it out
	text string
}

// readPool settles everything in one evaluation, so that no snapshot shows an
// empty pool that a readmission or the fallback would fill.
func (r *round) readPool(pool topology.Pool, pr *poolRound) {
	last := r.lastPool(pool.Name)
	r.behind = r.behind[:0]
	up, undecided := 0, false
	for _, n := range r.nodes {
		s := seat{pool: pool, n: n, t: n.tenure(pool.Name)}
		s.was, _ = last.Verdict(n.Name)
		s.was.Verdict = r.s.standing(last, n.Name)
		out := r.readEffects(pr.effects[n.i][:0], s)
		r.chooseSessions(pool, out)
		pr.effects[n.i] = out
		switch harshest(out) {
		case topology.Up:
			up++
			pr.weights[n.i] = r.weight(s, out)
		case topology.Undecided:
			undecided = true
		case topology.Drain:
			if len(out) > 1 {
				break
			}
			if _, other := r.excluded(s); !other {
				r.behind = append(r.behind, candidate{s, out[0].code, out[0].text})
			}
		case topology.Down:
		}
	}
	up += r.readmit(pool, pr, pool.MinReplicas-up)
	// At a start the replicas that have not been asked yet stand as they are, and so
	// does a stale one that serves for want of them.
	waiting := undecided && r.s.standing(last, r.writerUp()) != topology.Up
	if waiting {
		r.behind = slices.DeleteFunc(r.behind, func(c candidate) bool { return c.was.Verdict != topology.Up })
	}
	if up == 0 && (!waiting || pool.Fallback == topology.FallbackStale) {
		pr.fallback = r.fallBack(pool, pr)
	}
	r.preferZone(pool, pr)
	r.remember(last, pool, pr)
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

// fallBack lets the primary or the least lagging replica serve an empty pool.
func (r *round) fallBack(pool topology.Pool, pr *poolRound) bool {
	switch pool.Fallback {
	case topology.FallbackPrimary:
		n := r.s.nodes[r.writerUp()]
		if n == nil {
			return false
		}
		if e, bad := r.portEffect(pool, n); bad && e.verdict != topology.Undecided {
			return false
		}
		if _, out := r.maintainedIn(pool.Name, n); out {
			return false
		}
		pr.effects[n.i] = append(pr.effects[n.i][:0], r.effect(topology.Up, topology.CodeFallback, 0, "no eligible replica"))
		pr.weights[n.i] = percent(pool.FallbackWeight, pool.FixedWeight(n.Name))
		return true
	case topology.FallbackStale:
		r.sortBehind()
		i := slices.IndexFunc(r.behind, r.staleEnough)
		if i < 0 {
			return false
		}
		c := r.behind[i]
		pr.effects[c.n.i] = append(pr.effects[c.n.i][:0],
			r.effect(topology.Up, topology.CodeFallbackStale, 0, "no eligible replica; this one lags least (%s)", c.code))
		return true
	case topology.FallbackNone:
	}
	return false
}

// preferZone drains the nodes of other zones while the preferred one has enough
// of its own: as many as the pool's minimum, with half of their weight.
func (r *round) preferZone(pool topology.Pool, pr *poolRound) {
	if pool.Zone == "" {
		return
	}
	near, weight := 0, 0
	for _, n := range r.nodes {
		if n.Tags[topology.TagZone] == pool.Zone && harshest(pr.effects[n.i]) == topology.Up {
			near++
			weight += pr.weights[n.i]
		}
	}
	if near < max(1, pool.MinReplicas) || 2*weight < 100*near {
		return
	}
	for _, n := range r.nodes {
		if n.Tags[topology.TagZone] != pool.Zone && harshest(pr.effects[n.i]) == topology.Up {
			pr.effects[n.i] = append(pr.effects[n.i][:0], r.effect(topology.Drain, topology.CodeOtherZone, 0, "zone %s has enough", pool.Zone))
			pr.weights[n.i] = 100
		}
	}
}

// remember notes who came and who went, against the last snapshot.
func (r *round) remember(last topology.PoolVerdicts, pool topology.Pool, pr *poolRound) {
	for _, n := range r.nodes {
		was, known := last.Verdict(n.Name)
		is := harshest(pr.effects[n.i])
		if !known || was.Verdict == is {
			continue
		}
		t := n.tenure(pool.Name)
		switch {
		case was.Verdict == topology.Up && slices.Contains(flapping, pr.effects[n.i][0].code):
			r.departed(t)
		case is == topology.Up && (was.Verdict == topology.Drain || was.Verdict == topology.Down) && was.Reason().Code != topology.CodeOtherZone:
			t.roseAt = r.now.Mono
			if code := pr.effects[n.i][0].code; code == topology.CodeReplica || code == topology.CodeRamping {
				s := seat{pool: pool, n: n, t: t}
				pr.effects[n.i][0] = r.serving(s)
				pr.weights[n.i] = r.weight(s, pr.effects[n.i])
			}
		}
	}
}
