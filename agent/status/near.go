package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/near"
)

// fewNodes is how many names are all listed for one that is unknown.
const fewNodes = 10

// longestNode is the length of the longest CLUSTER/NODE; see topology.CheckName.
const longestNode = 63 + 1 + 63

// unknownNode says which names there are instead of CLUSTER/NODE, or of NODE
// alone: all of them when they are few, else those that are near.
func (s *Server) unknownNode(asked string) string {
	asked = asked[:min(len(asked), longestNode)]
	var names []string
	for _, c := range slices.Sorted(slices.Values(s.o.Clusters())) {
		if v := s.o.Views.Get(c); v != nil && v.Snapshot != nil {
			for _, n := range v.Snapshot.Nodes {
				names = append(names, c+"/"+n.Name)
			}
		}
	}
	text := fmt.Sprintf("there is no node %s; ", asked)
	switch {
	case len(names) == 0:
		return text + "known are: none yet, of the clusters " + strings.Join(s.o.Clusters(), " ")
	case len(names) <= fewNodes:
		return text + "known are: " + strings.Join(names, " ")
	}
	near := func(name string) int {
		if !strings.Contains(asked, "/") {
			_, name, _ = strings.Cut(name, "/")
		}
		return near.Distance(asked, name)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(near(a), near(b)) })
	return fmt.Sprintf("%snear are: %s, of %d", text, strings.Join(names[:fewNodes/2], " "), len(names))
}

// manyNodes says that a node's name alone does not tell which one is meant.
func manyNodes(found []why) string {
	var names []string
	for _, w := range found[:min(len(found), fewNodes)] {
		names = append(names, w.cluster.Name+"/"+w.node.Name)
	}
	return fmt.Sprintf("%d clusters have a node %s; say which: %s", len(found), found[0].node.Name, strings.Join(names, " "))
}
