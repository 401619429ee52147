package config

import (
	"maps"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Changes says which parts differ between two configurations, so that a reload
// restarts those and nothing else. A changed secret is a changed part.
type Changes struct {
	StateDir, Log, Listen, Local, Consul, HAProxy, Envoy bool

	Clusters  Delta // by name
	Templates Delta // by name
}

// Delta lists what came, went and differs, each in the order of its
// configuration.
type Delta struct{ Added, Removed, Changed []string }

// None reports whether nothing differs.
func (d Delta) None() bool { return len(d.Added)+len(d.Removed)+len(d.Changed) == 0 }

// None reports whether nothing differs.
func (c Changes) None() bool {
	return !c.StateDir && !c.Log && !c.Listen && !c.Local && !c.Consul && !c.HAProxy && !c.Envoy &&
		c.Clusters.None() && c.Templates.None()
}

// Diff compares two configurations. The shared postgres section does not count
// by itself: each cluster holds what it made of it. Neither does the order of
// clusters and templates.
func Diff(before, after *Config) Changes {
	return Changes{
		StateDir:  before.StateDir != after.StateDir,
		Log:       before.Log != after.Log,
		Listen:    before.Listen != after.Listen,
		Local:     before.Local != after.Local,
		Consul:    before.Consul != after.Consul,
		HAProxy:   !before.HAProxy.Equal(after.HAProxy),
		Envoy:     before.Envoy != after.Envoy,
		Clusters:  delta(before.Clusters, after.Clusters, func(c Cluster) string { return c.Name }, Cluster.Equal),
		Templates: delta(before.Templates, after.Templates, func(t Template) string { return t.Name }, Template.Equal),
	}
}

func delta[T any](before, after []T, name func(T) string, equal func(a, b T) bool) Delta {
	var d Delta
	old := make(map[string]T, len(before))
	for _, b := range before {
		old[name(b)] = b
	}
	kept := make(map[string]bool, len(after))
	for _, a := range after {
		n := name(a)
		kept[n] = true
		b, ok := old[n]
		switch {
		case !ok:
			d.Added = append(d.Added, n)
		case !equal(b, a):
			d.Changed = append(d.Changed, n)
		}
	}
	for _, b := range before {
		if !kept[name(b)] {
			d.Removed = append(d.Removed, name(b))
		}
	}
	return d
}

// Equal reports whether two clusters are configured alike. The order of nodes
// and pools counts, since sinks keep it.
func (c Cluster) Equal(o Cluster) bool {
	return c.Name == o.Name && c.Authority == o.Authority && c.Patroni == o.Patroni &&
		slices.EqualFunc(c.Nodes, o.Nodes, equalNode) && c.Inventory == o.Inventory &&
		c.Policy == o.Policy && slices.Equal(c.Pools, o.Pools) && c.Postgres == o.Postgres
}

func equalNode(a, b topology.Node) bool {
	return a.Name == b.Name && a.Address == b.Address && maps.Equal(a.Tags, b.Tags)
}

// Equal reports whether the same sockets are told in the same way.
func (h HAProxy) Equal(o HAProxy) bool {
	return slices.Equal(h.Sockets, o.Sockets) && h.Timeout == o.Timeout
}

// Equal reports whether two groups render, check and reload alike.
func (t Template) Equal(o Template) bool {
	return t.Name == o.Name && slices.Equal(t.Files, o.Files) && slices.Equal(t.Clusters, o.Clusters) &&
		slices.Equal(t.Check, o.Check) && slices.Equal(t.Reload, o.Reload) &&
		t.MasterSocket == o.MasterSocket && t.Timeout == o.Timeout && t.ReloadInterval == o.ReloadInterval
}
