package apply

import (
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// guard keeps the nodes of clusters that have suddenly none, for a while: an
// empty list is more often a source's hiccup than the truth (field report FR-28).
type guard struct {
	hold time.Duration
	last map[string]render.Cluster // as last seen with nodes
	// emptySince is when a cluster was first seen without nodes.
	emptySince map[string]topology.Mono
}

func newGuard(hold time.Duration) *guard {
	return &guard{hold: hold, last: map[string]render.Cluster{}, emptySince: map[string]topology.Mono{}}
}

// covered is what a guard made of a view.
type covered struct {
	view render.View
	// empty are the clusters that are held; of those in unknown not even the
	// earlier nodes are known, so nothing can be rendered.
	empty, unknown []string
	fresh          bool          // one of them was not held before
	until          topology.Mono // when the first of them has been held long enough; zero: none
}

// cover puts the earlier nodes where a cluster has none and has not been empty
// for long enough. A cluster that is empty at its first sight is held as well:
// the files may hold nodes from before a restart.
func (g *guard) cover(v render.View, now topology.Mono) covered {
	c := covered{view: v}
	for i, cluster := range v.Clusters {
		if !cluster.IsEmpty() {
			g.last[cluster.Name] = cluster
			delete(g.emptySince, cluster.Name)
			continue
		}
		since, held := g.emptySince[cluster.Name]
		if !held {
			since, c.fresh = now, true
			g.emptySince[cluster.Name] = now
		}
		end := since.Add(g.hold)
		if now >= end {
			delete(g.last, cluster.Name)
			continue
		}
		if c.until == 0 || end < c.until {
			c.until = end
		}
		c.empty = append(c.empty, cluster.Name)
		if earlier, ok := g.last[cluster.Name]; ok {
			v.Clusters[i] = earlier
		} else {
			c.unknown = append(c.unknown, cluster.Name)
		}
	}
	return c
}
