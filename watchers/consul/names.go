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
	rank := func(name string) int {
		switch {
		case name == r.s.authority.Leader:
			return 0
		case slices.ContainsFunc(before, func(b topology.Member) bool { return b.Name == name }):
			return 1
		}
		return 2
	}
	return oneOfEach(members, choice[topology.Member]{
		key:  func(m topology.Member) string { return strings.ToLower(m.Name) },
		name: func(m topology.Member) string { return m.Name },
		rank: rank,
		out: func(m, kept topology.Member) {
			r.fault(r.prefix+"members/"+m.Name,
				"its name differs from that of %s by case only, which Consul and DNS cannot tell apart; this member is left out", kept.Name)
		},
	})
}

// choice says which of several things that are one stays.
type choice[T any] struct {
	key  func(T) string // those that are one have the same
	name func(T) string
	rank func(name string) int // the lowest stays, then the first by name, then by place
	out  func(left, kept T)    // called for each that is left out
}

// oneOfEach leaves one of those that are one.
func oneOfEach[T any](all []T, c choice[T]) []T {
	stays := make(map[string]int, len(all)) // key -> place
	for i, t := range all {
		at, taken := stays[c.key(t)]
		if taken {
			name, other := c.name(t), c.name(all[at])
			taken = cmp.Or(c.rank(name)-c.rank(other), strings.Compare(name, other)) >= 0
		}
		if !taken {
			stays[c.key(t)] = i
		}
	}
	var out []T
	for i, t := range all {
		if at := stays[c.key(t)]; at != i {
			c.out(t, all[at])
		} else {
			out = append(out, t)
		}
	}
	return out
}
