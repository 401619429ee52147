package engine

import "github.com/pgsteer/pgsteer/agent/topology"

// notSelected says why a pool does not select a node, by its tags or by its role
// in replication; nil when it does.
func (r *round) notSelected(pool topology.Pool, n *node) (effect, bool) {
	if !pool.Select.Matches(n.Node) {
		return r.effect(topology.Drain, topology.CodeNotSelected, 0, "its tags do not fit the pool's select"), true
	}
	if why := r.otherRole(pool.Role, n); why != "" {
		return r.effect(topology.Drain, topology.CodeNotSelected, 0, why), true
	}
	return effect{}, false
}

// otherRole says why a node has not the role in replication that a pool wants.
func (r *round) otherRole(role topology.Role, n *node) string {
	switch role {
	case topology.RoleSync:
		if r.syncState(n) != topology.RoleSync {
			return "not a synchronous standby"
		}
	case topology.RoleQuorum:
		if r.syncState(n) != topology.RoleQuorum {
			return "not in the quorum"
		}
	case topology.RoleAsync:
		if s := r.syncState(n); s != topology.RoleAsync {
			return "commits wait for it"
		}
	case topology.RoleStandbyLeader:
		if !r.standbyCluster() || r.named() != n.Name {
			return "not the leader of a standby cluster"
		}
	case topology.RoleDelayed:
		if n.full == nil || n.full.ApplyDelay <= 0 {
			return "does not delay replay"
		}
	case topology.RoleAny:
	}
	return ""
}

// syncState is a standby's part in commits.
func (r *round) syncState(n *node) topology.Role {
	var said *topology.Authority
	if r.p.Authority != topology.AuthorityNone {
		said = r.s.authority.picture
	}
	var seen *topology.Probe
	if w := r.provenWriter(); w != nil {
		seen = w.full
	}
	return topology.AgreedRole(said.SyncRole(n.Name), seen.SyncRole(said.Application(n.Name)))
}
