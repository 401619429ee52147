package engine

import (
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// forgetAfter is how long a node stays after an authority's list lacks it.
// Patroni's member key is no proof that there is a server: Patroni deletes it
// and writes it anew when its session has changed, Consul deletes it with the
// session while PostgreSQL goes on, and a damaged value has no address. Until
// then the node is judged by its own evidence, so a member that has left for
// good is merely down; forgetting it is what costs a reload.
const forgetAfter = 5 * time.Minute

// listed folds what a source lists now. A file is an operator's word and counts
// at once; what an authority's list lacks goes after forgetAfter, or as soon as
// another node has its address.
func (s *State) listed(id topology.SourceID, nodes []topology.Node, at topology.Mono) {
	before, heard := s.lists[id]
	nodes = slices.Clone(nodes)
	if id.Kind != topology.SourceFile {
		if !heard { // an earlier run may have heard of more
			before = s.lists[topology.SourceID{Kind: sourceSaved}]
		}
		nodes = s.keepMissing(before, nodes, at)
	}
	s.lists[id] = nodes
	s.mergeNodes(at)
}

// keepMissing adds to a list those of the list before that it lacks.
func (s *State) keepMissing(before, now []topology.Node, at topology.Mono) []topology.Node {
	out := now
	for _, n := range before {
		known := func(o topology.Node) bool { return o.Name == n.Name || o.Address == n.Address }
		if slices.ContainsFunc(now, known) {
			delete(s.missing, n.Name)
			continue
		}
		if s.missing[n.Name] == 0 {
			s.missing[n.Name] = at
		}
		if at.Sub(s.missing[n.Name]) < forgetAfter {
			out = append(out, n)
		} else {
			delete(s.missing, n.Name)
		}
	}
	return out
}
