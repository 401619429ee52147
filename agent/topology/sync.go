package topology

import "slices"

// SyncRole is the authority's word on a standby's part in commits: RoleSync,
// RoleQuorum or RoleAsync, and RoleAny when it keeps none.
func (a *Authority) SyncRole(standby string) Role {
	switch {
	case a == nil || a.SyncMode == "":
		return RoleAny
	case !slices.Contains(a.SyncStandbys, standby):
		return RoleAsync
	case a.SyncMode == "quorum":
		return RoleQuorum
	}
	return RoleSync
}

// Application is the application_name by which a node's upstream knows it: its
// name, unless the authority says otherwise.
func (a *Authority) Application(node string) string {
	if a == nil {
		return node
	}
	for i := range a.Members {
		if m := &a.Members[i]; m.Name == node && m.Application != "" {
			return m.Application
		}
	}
	return node
}

// SyncRole is a writer's own view of a standby's part in commits, RoleAny without
// one. It knows standbys by their application_name, see Application; one that is
// still catching up has no part yet.
func (p *Probe) SyncRole(standby string) Role {
	if p == nil {
		return RoleAny
	}
	for _, s := range p.Standbys {
		switch {
		case s.Name != standby || s.State != "streaming":
		case s.SyncState == "sync":
			return RoleSync
		case s.SyncState == "quorum":
			return RoleQuorum
		}
	}
	return RoleAsync
}

// AgreedRole is a standby's part in commits by the authority's word and by the
// writer's view. Where both are known they must agree: a standby that the key
// names may still be catching up (field report FR-09).
func AgreedRole(said, seen Role) Role {
	switch {
	case said == RoleAny:
		said = seen
	case seen == RoleAny:
		seen = said
	}
	if said != seen || said == RoleAny {
		return RoleAsync
	}
	return said
}
