package engine

import (
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

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

// syncState is a standby's part in commits. The authority's word and the writer's
// own view must agree, as far as either is known: a standby that the key names
// may still be catching up (field report FR-09).
func (r *round) syncState(n *node) topology.Role {
	said, seen := r.syncSaid(n), r.syncSeen(n)
	switch {
	case said == topology.RoleAny:
		said = seen
	case seen == topology.RoleAny:
		seen = said
	}
	if said == seen && said != topology.RoleAny {
		return said
	}
	return topology.RoleAsync
}

// syncSaid is the authority's word, RoleAny when it keeps none.
func (r *round) syncSaid(n *node) topology.Role {
	a := r.s.authority.picture
	if r.p.Authority == topology.AuthorityNone || a == nil || a.SyncMode == "" {
		return topology.RoleAny
	}
	switch {
	case !slices.Contains(a.SyncStandbys, n.Name):
		return topology.RoleAsync
	case a.SyncMode == "quorum":
		return topology.RoleQuorum
	}
	return topology.RoleSync
}

// syncSeen is the writer's view, RoleAny while the writer is not proven. It knows
// standbys by their application_name, which Patroni sets to the member's name.
func (r *round) syncSeen(n *node) topology.Role {
	w := r.provenWriter()
	if w == nil {
		return topology.RoleAny
	}
	for _, s := range w.full.Standbys {
		if s.Name != n.Name || s.State != "streaming" {
			continue
		}
		switch s.SyncState {
		case "sync":
			return topology.RoleSync
		case "quorum":
			return topology.RoleQuorum
		}
	}
	return topology.RoleAsync
}
