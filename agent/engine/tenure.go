package engine

import (
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// tenure is what is remembered of one node in one read pool: its lag against the
// pool's limits, how often it came and went, and the weight it has reached.
type tenure struct {
	goodAt topology.Mono // nothing speaks against it since

	// Lag.
	overAt, overHardAt topology.Mono // above the limits since
	underAt            topology.Mono // within half of them since
	out                bool          // lag has taken it out
	outAt              topology.Mono // last change of out
	lag                topology.Lag  // as last measured

	// Coming and going.
	left   []topology.Mono // departures of late
	leftAt topology.Mono   // the last one
	hold   time.Duration   // how long the last hold-down was
	heldTo topology.Mono

	// Weight.
	roseAt   topology.Mono // it returned, so its weight grows since
	weight   int           // by lag, in steps of ten
	weightAt topology.Mono // last change of it
}

func (n *node) tenure(pool string) *tenure {
	t := n.tenures[pool]
	if t == nil {
		t = &tenure{weight: 100}
		n.tenures[pool] = t
	}
	return t
}

// flapping are the causes by which a replica comes and goes by itself.
var flapping = []topology.Code{
	topology.CodeRefused, topology.CodePort, topology.CodeSilent, topology.CodeStarting, topology.CodeRoleUnknown,
	topology.CodeNotStreaming, topology.CodePathBroken, topology.CodePaused, topology.CodeTimeline,
	topology.CodeLagHard, topology.CodeLag, topology.CodeLagUnknown,
}

// departed counts a departure. One too many within a while holds the replica
// out; another one soon after a hold-down holds it twice as long.
func (r *round) departed(t *tenure) {
	f, now := r.p.Flap, r.now.Mono
	if f.Count <= 0 {
		return
	}
	if t.leftAt != 0 && now.Sub(t.leftAt) >= f.Calm {
		t.hold = 0
	}
	t.leftAt = now
	t.left = slices.DeleteFunc(t.left, func(at topology.Mono) bool { return now.Sub(at) >= f.Within })
	t.left = append(t.left, now)
	again := t.hold > 0 && now.Sub(t.heldTo) < f.Within
	if len(t.left) <= f.Count && !again {
		return
	}
	t.hold = min(max(2*t.hold, f.HoldDown), f.HoldDownMax)
	t.heldTo, t.left = now.Add(t.hold), t.left[:0]
}
