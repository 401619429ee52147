package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// lateness is a replica's lag as the pool counts it: of a delayed replica only
// the time beyond its delay.
func (s seat) lateness() (topology.Size, time.Duration) {
	if s.pool.Role == topology.RoleDelayed {
		return 0, max(0, s.n.lag.Time-s.n.full.ApplyDelay)
	}
	return s.n.lag.Bytes, s.n.lag.Time
}

// judgeLag keeps the times of a replica's lag against its pool's limits.
func (r *round) judgeLag(s seat) {
	bytes, late := s.lateness()
	p, t := s.pool, s.t
	hard := p.MaxLagHard > 0 && bytes > p.MaxLagHard
	over := hard || p.MaxLag > 0 && bytes > p.MaxLag || p.MaxLagTime > 0 && late > p.MaxLagTime
	_, troubled := r.trouble(s, atOnce)
	under := !troubled && s.n.failingAt == 0 && s.n.lag.Known == topology.Yes && (p.MaxLag == 0 || bytes <= p.MaxLag/2) &&
		(p.MaxLagTime == 0 || late <= p.MaxLagTime/2) && (p.MaxLagHard == 0 || bytes <= p.MaxLagHard/2)
	r.mark(&t.overHardAt, hard)
	r.mark(&t.overAt, over)
	r.mark(&t.underAt, under)
	if s.n.lag.Known == topology.Yes {
		t.lag = s.n.lag
	}
	// The grace is for those who serve. A change by the hard limit does not wait
	// for min_dwell: that is about noise around the soft one.
	serves := s.was.Verdict == topology.Up
	dwelt := func() bool { return t.outAt == 0 || r.since(t.outAt, r.p.MinDwell) }
	switch {
	case t.out && under && r.since(t.underAt, r.p.LagReturnAfter) && dwelt():
		t.out, t.outAt, t.goodAt = false, r.now.Mono, t.underAt
	case t.out:
	case over && !serves, hard && r.since(t.overHardAt, r.p.LagGrace), over && r.since(t.overAt, r.p.LagGrace) && dwelt():
		t.out, t.outAt = true, r.now.Mono
	}
}

// mark keeps since when something holds.
func (r *round) mark(at *topology.Mono, holds bool) {
	switch {
	case !holds:
		*at = 0
	case *at == 0:
		*at = r.now.Mono
	}
}

func (r *round) lagEffect(s seat) effect {
	if s.n.lag.Known != topology.Yes && !receives(s.n) {
		return r.effect(topology.Drain, topology.CodeLagUnknown, 0, "no fresh position of the writer")
	}
	bytes, late := s.lateness()
	p, t := s.pool, s.t
	switch {
	case !t.out:
		return r.serving(s)
	case t.overHardAt != 0:
		return r.effect(topology.Drain, topology.CodeLagHard, t.outAt, "lag %s > %s", bytes.Short(), p.MaxLagHard)
	case p.MaxLag > 0 && bytes > p.MaxLag:
		return r.effect(topology.Drain, topology.CodeLag, t.outAt, "lag %s > %s", bytes.Short(), p.MaxLag)
	case t.overAt != 0:
		return r.effect(topology.Drain, topology.CodeLag, t.outAt, "lag %s > %s", late.Round(time.Second), p.MaxLagTime)
	case t.underAt != 0:
		return r.effect(topology.Drain, topology.CodeReturning, t.underAt, "lag is low again; returns soon")
	}
	return r.effect(topology.Drain, topology.CodeLag, t.outAt, "lag %s; returns below half of the limit", bytes.Short())
}

// readmit lets the least lagging of those whom lag alone keeps out serve, when
// fewer than the minimum would be left.
func (r *round) readmit(pool topology.Pool, pr *poolRound, want int) int {
	if want <= 0 || len(r.behind) == 0 {
		return 0
	}
	judged := r.provenWriter() != nil
	r.sortBehind()
	n := 0
	for _, c := range r.behind {
		if n == want {
			break
		}
		if !onlyLate(c) && (judged || !slices.Contains(unjudgeable, c.code)) {
			continue
		}
		pr.effects[c.n.i] = append(pr.effects[c.n.i][:0],
			r.effect(topology.Up, topology.CodeLagOverride, 0, "%s; too few replicas", c.text))
		pr.weights[c.n.i] = pool.FixedWeight(c.n.Name)
		n++
	}
	return n
}

// unjudgeable are the causes that need a proven writer; without one they keep
// nobody out who would be missed (design.md 4, invariant 5).
var unjudgeable = []topology.Code{
	topology.CodeLag, topology.CodeLagHard, topology.CodeLagUnknown, topology.CodeNotStreaming, topology.CodePathBroken, topology.CodePaused,
}

// sortBehind orders those who could serve by lag, least first. Who serves already
// counts as half as late, so that two of nearly the same lag do not take turns.
func (r *round) sortBehind() {
	late := func(c candidate) topology.Size {
		if c.was.Verdict == topology.Up {
			return c.t.lag.Bytes / 2
		}
		return c.t.lag.Bytes
	}
	slices.SortFunc(r.behind, func(a, b candidate) int {
		return cmp.Or(-cmp.Compare(a.t.lag.Known, b.t.lag.Known), cmp.Compare(late(a), late(b)), cmp.Compare(a.n.Name, b.n.Name))
	})
}

// onlyLate: lag alone keeps it out, or its memory (lag of before, hold-down).
func onlyLate(c candidate) bool {
	if c.pool.MaxLagHard > 0 && c.t.lag.Bytes > c.pool.MaxLagHard {
		return false
	}
	return c.code == topology.CodeLag || c.code == topology.CodeDamped || c.code == topology.CodeReturning && c.t.out
}

// staleEnough: replication is in trouble, or the authority has other plans, but the
// node answers and is within the hard limit, as far as anybody knows.
func (r *round) staleEnough(c candidate) bool {
	if !slices.Contains(stale, c.code) && !r.lastResort(c) {
		return onlyLate(c)
	}
	return c.n.failingAt == 0 && (c.pool.MaxLagHard == 0 || c.t.lag.Bytes <= c.pool.MaxLagHard)
}

// stale are the troubles of replication with which a replica may serve as a last resort.
var stale = []topology.Code{
	topology.CodeNotStreaming, topology.CodePathBroken, topology.CodePaused, topology.CodeLagUnknown, topology.CodeReturning,
}
