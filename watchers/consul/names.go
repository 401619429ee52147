package consul

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// distinct leaves out members whose names differ from another's by case only:
// Consul, DNS and PostgreSQL's synchronous_standby_names cannot tell them apart,
// and one such pair must not keep everybody else waiting (field report FR-37). Of
// two, the holder of the leader key stays, else the one that the picture before
// had, else the first by name.
func (r *scopeReader) distinct(members, before []topology.Member) []topology.Member {
	rank := func(m topology.Member) int {
		switch {
		case m.Name == r.s.authority.Leader:
			return 0
		case slices.ContainsFunc(before, func(b topology.Member) bool { return b.Name == m.Name }):
			return 1
		}
		return 2
	}
	stays := make(map[string]topology.Member, len(members))
	for _, m := range members {
		folded := strings.ToLower(m.Name)
		other, taken := stays[folded]
		if !taken || cmp.Or(rank(m)-rank(other), strings.Compare(m.Name, other.Name)) < 0 {
			stays[folded] = m
		}
	}
	return slices.DeleteFunc(members, func(m topology.Member) bool {
		kept := stays[strings.ToLower(m.Name)].Name
		if kept == m.Name {
			return false
		}
		r.fault(r.prefix+"members/"+m.Name,
			"its name differs from that of %s by case only, which Consul and DNS cannot tell apart; this member is left out", kept)
		return true
	})
}
