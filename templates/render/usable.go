package render

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// usable returns the nodes of a snapshot that a file can hold, by name, each with
// the tags that it can hold. One that cannot be written must not keep all others
// waiting (field reports FR-28, FR-37).
func (v *View) usable(snap *topology.Snapshot) []topology.Node {
	var nodes []topology.Node
	for _, n := range snap.Nodes {
		if err := topology.CheckName(n.Name); err != nil {
			v.leaveOut("node %s is left out: %v", quoted(snap.Cluster+"/"+n.Name), err)
			continue
		}
		n.Tags = v.usableTags(snap.Cluster, n)
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b topology.Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

func (v *View) usableTags(cluster string, n topology.Node) map[string]string {
	tags := maps.Clone(n.Tags)
	maps.DeleteFunc(tags, func(key, value string) bool {
		bad := hasControl(key) || hasControl(value)
		if bad {
			v.leaveOut("tag %s of node %s is left out: it has a line break or another control character",
				quoted(key), quoted(cluster+"/"+n.Name))
		}
		return bad
	})
	return tags
}

func (v *View) leaveOut(format string, args ...any) {
	v.LeftOut = append(v.LeftOut, fmt.Sprintf(format, args...))
}
