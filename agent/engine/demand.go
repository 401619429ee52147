package engine

import (
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// How long to look closely: after a hint, and at most while the writer is in doubt.
const (
	hintBurst = 3 * time.Second
	maxBurst  = 30 * time.Second
)

// demand asks the watchers to look closer while things change.
func (r *round) demand() topology.Demand {
	var d topology.Demand
	doubt := r.doubt()
	switch {
	case !doubt:
		r.s.unsettled = 0
	case r.s.unsettled == 0:
		r.s.unsettled = r.now.Mono
	}
	inDoubt := doubt && !r.since(r.s.unsettled, maxBurst)
	hinted := r.s.hintAt != 0 && !r.since(r.s.hintAt, hintBurst)
	for _, n := range r.nodes {
		switch {
		case n.startingAt != 0 || n.aliveAt != 0:
			d.BackOff = append(d.BackOff, n.Name)
		case inDoubt || hinted:
			d.Burst = append(d.Burst, n.Name)
		}
	}
	d.Confirm = inDoubt && r.p.Authority != topology.AuthorityNone
	return d
}

// doubt: there should be a writer and there is none, or the one there is does
// not answer as one.
func (r *round) doubt() bool {
	if r.standbyCluster() {
		return false
	}
	n := r.s.nodes[r.s.holder.name]
	return n == nil || r.s.holder.restored || n.failingAt != 0 || !n.writable() ||
		r.auth.State == topology.AuthorityStateCurrent && r.auth.Leader != n.Name
}
