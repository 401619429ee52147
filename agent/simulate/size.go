package simulate

import (
	"slices"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// The limits of a scenario, so that no file takes all memory or plays for days.
// docs/simulate.md states them.
const (
	maxValues = 1_000_000  // of a file once its anchors are followed
	maxDepth  = 100        // of maps and lists within each other
	maxNodes  = 1000       // that a file names
	maxProbes = 10_000_000 // that a file has to be played
)

// expansion counts the values that a file has once its anchors are followed.
// Each map and list is looked at once, however often an alias names it.
type expansion struct {
	sizes map[*yaml.Node]int
	above []*yaml.Node // maps and lists around the value, from the root on
	way   []hop        // the keys and indexes that lead to the value
}

// hop is a key of a map, or an index of a list.
type hop struct {
	key   string
	index int
}

// expands reports whether the file has an end and a legal size. Otherwise that
// is the file's only fault, since nothing else can be looked at.
func expands(v config.Value) bool {
	e := expansion{sizes: make(map[*yaml.Node]int)}
	_, fault := e.size(v.Node())
	if fault == "" {
		return true
	}
	for _, p := range e.way {
		below := v.Key(p.key)
		for i, element := range v.Elements() {
			if i == p.index {
				below = element
			}
		}
		v = below
	}
	v.Fault("%s", fault)
	return false
}

// size returns the number of values from a node on, or what is wrong with it;
// then the way leads there.
func (e *expansion) size(n *yaml.Node) (size int, fault string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode {
		return 1, ""
	}
	if known := e.sizes[n]; known > 0 {
		return known, ""
	}
	switch {
	case slices.Contains(e.above, n):
		return 0, "the anchor that is named here encloses this place, so the file would have no end"
	case len(e.above) == maxDepth:
		return 0, "maps and lists stand more than 100 deep within each other"
	}
	e.above = append(e.above, n)
	size, step := 1, 1
	if n.Kind == yaml.MappingNode {
		step = 2 // keys and values take turns
	}
	for i := step - 1; i < len(n.Content); i += step {
		p := hop{index: i}
		if step == 2 {
			p.key = n.Content[i-1].Value
		}
		e.way = append(e.way, p)
		below, fault := e.size(n.Content[i])
		if size += below; fault == "" && size > maxValues {
			fault = "the file is too large once its anchors are followed: it has more than 1,000,000 values"
		}
		if fault != "" {
			return 0, fault
		}
		e.way = e.way[:len(e.way)-1]
	}
	e.above = e.above[:len(e.above)-1]
	e.sizes[n] = size
	return size, ""
}

// small reports whether a file names few enough nodes; otherwise the first one
// that is too many is a fault, and nothing else is said of names.
func (f *file) small(n names) bool {
	all := n.all()
	if len(all) <= maxNodes {
		return true
	}
	sorted := sortedKeys(all)
	all[sorted[maxNodes]].Fault("the file names %d nodes; at most %d are played", len(all), maxNodes)
	f.sound = false
	return false
}

// bounded refuses what would take too long: at is where the end stands.
func (f *file) bounded(at config.Value) {
	p := f.scenario.probing
	if p.Off || !f.sound {
		return
	}
	end := float64(f.scenario.end())
	rounds := end / float64(max(p.Interval, time.Millisecond))
	if f.Cluster.Authority != topology.AuthorityNone {
		rounds += end / float64(p.Authority)
	}
	if probes := rounds * float64(max(1, len(f.nodes))); probes > maxProbes {
		at.Fault("up to here there are about %.0f questions to %d nodes; at most %d are played: end earlier, or raise the paces of probing",
			probes, len(f.nodes), maxProbes)
	}
}
