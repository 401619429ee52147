package mesh

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// change is what is to be written of a cluster.
type change struct {
	set  []Registration // the primary last
	drop []string       // IDs of instances that are deregistered
}

func (c change) empty() bool { return len(c.set) == 0 && len(c.drop) == 0 }

// planned is the outcome of a plan.
type planned struct {
	change
	// whole is all that will stand afterwards.
	whole map[string]Registration
	gone  []string // IDs that stand and whose node has left the cluster
}

// plan compares what is wanted with what stands. confirmed tells of which nodes it
// is confirmed that they have left.
func plan(want []Instance, standing map[string]Registration, s Settings, confirmed func(id string) bool) planned {
	p := planned{whole: maps.Clone(standing)}
	if p.whole == nil {
		p.whole = make(map[string]Registration)
	}
	wanted := make(map[string]bool, len(want))
	for _, in := range onePrimary(want, standing) {
		id := ID(in.Cluster, in.Node)
		wanted[id] = true
		old, stands := standing[id]
		if keeps(in, old) {
			continue
		}
		next := in.carry(old).registration(s)
		if !stands || !same(old, next) {
			p.put(next)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(standing)) {
		switch {
		case wanted[id]:
		case confirmed(id):
			p.drop = append(p.drop, id)
			delete(p.whole, id)
		default:
			p.gone = append(p.gone, id)
			if next := departed(standing[id], s); !same(standing[id], next) {
				p.put(next)
			}
		}
	}
	slices.SortStableFunc(p.set, func(a, b Registration) int { return cmp.Compare(rank(a), rank(b)) })
	return p
}

// onePrimary lets a primary that takes no sessions wait for the tag while another node
// stands with it of which nothing is decided.
func onePrimary(want []Instance, standing map[string]Registration) []Instance {
	primary := slices.IndexFunc(want, func(in Instance) bool { return in.Role == RolePrimary && in.Status == Critical })
	if primary < 0 || !slices.ContainsFunc(want, func(in Instance) bool {
		return in.Node != want[primary].Node && in.KeepPrimary && isPrimary(standing[ID(in.Cluster, in.Node)])
	}) {
		return want
	}
	want = slices.Clone(want)
	want[primary].Role = RoleUnknown
	return want
}

func (p *planned) put(r Registration) {
	p.set = append(p.set, r)
	p.whole[r.ID] = r
}

// rank: whoever loses the tag primary is written before who gets it.
func rank(r Registration) int {
	if isPrimary(r) {
		return 1
	}
	return 0
}

// keeps reports whether what stands of a node is held.
func keeps(in Instance, old Registration) bool {
	if isPrimary(old) {
		return in.KeepPrimary
	}
	return in.KeepOther
}

func isPrimary(r Registration) bool {
	return slices.Contains(r.Tags, RolePrimary) || r.Meta[metaRole] == RolePrimary
}

const departedOutput = "no node of the cluster, or of this host, any more"

// departed is an instance whose node is none of the cluster any more, or another host's.
func departed(r Registration, s Settings) Registration {
	r.Tags = slices.DeleteFunc(slices.Clone(r.Tags), func(t string) bool {
		return t == RolePrimary || t == tagMaster || t == RoleReplica || t == RoleStandbyLeader || slices.Contains(parts, t)
	})
	r.Meta = maps.Clone(r.Meta)
	if r.Meta == nil {
		r.Meta = make(map[string]string)
	}
	r.Meta[metaRole], r.Meta[metaReason] = RoleUnknown, string(topology.CodeNotSelected)
	delete(r.Meta, metaSync)
	r.EnableTagOverride = false
	r.Check = s.check(RoleUnknown, Critical, departedOutput)
	return r
}

// same reports whether there is nothing to write. The words of a check that passes
// make no difference: they are no change of anything that is routed by.
func same(a, b Registration) bool {
	return !a.outdated && a.Service == b.Service && a.Address == b.Address && a.Port == b.Port && slices.Equal(a.Tags, b.Tags) && maps.Equal(a.Meta, b.Meta) &&
		a.Passing == b.Passing && a.Warning == b.Warning && a.EnableTagOverride == b.EnableTagOverride && a.Sidecar == b.Sidecar &&
		a.Check.Status == b.Check.Status && a.Check.Notes == b.Check.Notes && (a.Check.Output == b.Check.Output || b.Check.Status == Passing)
}

// pgsteers reports whether an ID is one that this package writes.
func pgsteers(id string) bool { return strings.HasPrefix(id, "pgsteer:") }

// ours reports whether an ID is one that is written for a cluster.
func ours(cluster, id string) bool { return strings.HasPrefix(id, idPrefix(cluster)) }
