package engine

import (
	"cmp"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// blockedSlack is how far a writer's position may move while its commits count
// as blocked: checkpoints and the background writer go on without any commit.
const blockedSlack = 16 << 10

// raiseAlarms lists the cluster-wide troubles, in a fixed order.
func (r *round) raiseAlarms() {
	raise := func(code topology.Code, at topology.Mono, format string, args ...any) {
		r.alarms = append(r.alarms, r.effect(topology.Undecided, code, at, format, args...))
	}
	if r.auth.State == topology.AuthorityStateLost {
		raise(topology.CodeAuthorityLost, r.s.authority.at, "last word at %s", clock(r.now, r.s.authority.at))
	}
	if r.auth.State == topology.AuthorityStateUnknown && r.since(r.s.start.Mono, r.p.SilentAfter) {
		raise(topology.CodeAuthorityUnknown, r.s.start.Mono, "not heard since the start")
	}
	if r.foreignKey() {
		raise(topology.CodeForeignKey, 0, "initialize key says %d; the servers %d", r.s.authority.picture.SystemID, r.s.systemID)
	}
	if m := r.monitor(); m != nil && len(m.Claimants) > 1 {
		raise(topology.CodeTwoGoals, r.s.authority.at, "the monitor assigns writes to %v", m.Claimants)
	}
	if r.s.isolated == topology.Yes {
		raise(topology.CodeIsolated, 0, "every cluster is silent")
	}
	if claims := r.s.claimants(r.writes); len(claims) > 1 {
		goesOn := "none gets writes"
		if slices.Contains(claims, r.s.holder.name) {
			goesOn = r.s.holder.name + " goes on"
		}
		raise(topology.CodeTwoWriters, 0, "writable: %v; %s", claims, goesOn)
	}
	if n := r.s.nodes[r.s.holder.name]; n != nil {
		if r.stalled(n) {
			raise(topology.CodeWritesStalled, n.writeFailAt, "write probes of %s get no answer", n.Name)
		}
		if n.blockedAt != 0 && r.since(n.blockedAt, r.p.WritesBlockedAfter) {
			raise(topology.CodeWritesBlocked, n.blockedAt, "%d commits on %s wait for a standby", n.full.SyncWaiters, n.Name)
		}
	}
}

// writes: the node's word that it is writable stands. That of one that is being shut
// down, or that has fallen silent since, is no alarm: it may be gone, and after each
// planned switchover it is.
func (r *round) writes(n *node) bool {
	return r.claims(n) && n.startingAt == 0 && n.refusedOnce == 0 && n.silentAt == 0
}

// claimants are the nodes that a test holds for writable, by name; nil when it
// is at most one server, the usual case.
func (s *State) claimants(claims func(*node) bool) []string {
	var first *node
	rivals := false
	for _, n := range s.order {
		if claims(n) {
			rivals = rivals || first != nil && !same(first, n)
			first = cmp.Or(first, n)
		}
	}
	if !rivals {
		return nil
	}
	var names []string
	for _, n := range s.order {
		if claims(n) {
			names = append(names, n.Name)
		}
	}
	return names
}

// stalled: small writes on the node have got no answer for a while, so its
// storage hangs, though it may answer reads from memory.
func (r *round) stalled(n *node) bool {
	return n.writeFailAt != 0 && r.since(n.writeFailAt, r.p.WritesStalledAfter)
}

// learnWaiters notes since when commits wait while the position stands still.
func (n *node) learnWaiters(p *topology.Probe, at topology.Mono) {
	switch {
	case p.InRecovery != topology.No || p.SyncWaiters <= 0:
		n.blockedAt = 0
	case n.blockedAt == 0 || p.WriteLSN > n.blockedLSN+blockedSlack:
		n.blockedAt, n.blockedLSN = at, p.WriteLSN
	}
}
