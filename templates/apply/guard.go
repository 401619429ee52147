package apply

import (
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// guard keeps the nodes of clusters that have suddenly none, or less than half,
// for a while: such a list is more often a source's hiccup than the truth (field
// report FR-28).
type guard struct {
	hold time.Duration
	last map[string]render.Cluster // as last believed
	// since is when a cluster's nodes were first not believed.
	since map[string]topology.Mono
}

func newGuard(hold time.Duration) *guard {
	return &guard{hold: hold, last: map[string]render.Cluster{}, since: map[string]topology.Mono{}}
}

// doubts reports whether a cluster lost more than it loses in an ordinary change.
func (g *guard) doubts(c render.Cluster) bool {
	return reachable(c) == 0 || 2*reachable(c) < reachable(g.last[c.Name])
}

// reachable counts servers with an address: one whose name nobody can resolve is
// as good as gone from a balancer's file.
func reachable(c render.Cluster) (n int) {
	for _, p := range c.Pools {
		for _, s := range p.Servers {
			if s.Address.IsValid() {
				n++
			}
		}
	}
	return n
}

// covered is what a guard made of a view.
type covered struct {
	view render.View
	// held are the clusters whose nodes are not believed; of those in unknown not
	// even the earlier ones are known, so nothing can be rendered.
	held, unknown []string
	fresh         bool          // one of them was not held before
	until         topology.Mono // when the first of them has been held long enough; zero: none
}

// cover puts the earlier nodes where a cluster lost its own and has not been
// like that for long enough. A cluster that is empty at its first sight is held as
// well: the files may hold nodes from before a restart.
func (g *guard) cover(v render.View, now topology.Mono) covered {
	c := covered{view: v}
	for i, cluster := range v.Clusters {
		if !g.doubts(cluster) {
			g.last[cluster.Name] = cluster
			delete(g.since, cluster.Name)
			continue
		}
		since, held := g.since[cluster.Name]
		if !held {
			since, c.fresh = now, true
			g.since[cluster.Name] = now
		}
		end := since.Add(g.hold)
		if now >= end {
			g.last[cluster.Name] = cluster
			continue
		}
		if c.until == 0 || end < c.until {
			c.until = end
		}
		c.held = append(c.held, cluster.Name)
		if earlier, ok := g.last[cluster.Name]; ok {
			v.Clusters[i] = earlier
		} else {
			c.unknown = append(c.unknown, cluster.Name)
		}
	}
	return c
}
