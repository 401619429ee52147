package simulate

import (
	"maps"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// changed says what a step has touched.
type changed struct {
	servers []string // by the names of their nodes
	logins  []string // those of which a step says how logins end
	keys    bool
	leader  bool
	consul  bool
	monitor bool
}

// change makes the truth what a step says.
func (r *run) change(e effects) changed {
	var c changed
	w := &r.world
	if e.kv != nil {
		before := w.keys.lock()
		w.keys.apply(e.kv)
		c.keys, c.leader = true, w.keys.lock() != before
	}
	for _, n := range e.sql {
		name := consul.LegalName(n.node)
		s := server{}
		if old := w.servers[name]; old != nil {
			s = *old
		}
		was := s
		for _, set := range n.changes {
			set(&s)
		}
		if s.fails != was.fails {
			s.failingAt = w.now
		}
		if s.login != was.login {
			c.logins = append(c.logins, name)
		}
		w.servers[name] = &s
		c.servers = append(c.servers, name)
	}
	if len(e.sql) > 0 {
		w.names = sortedKeys(w.servers)
		clear(w.lineages)
	}
	if e.consul != nil {
		c.consul = w.consul != *e.consul
		w.consul = *e.consul
	}
	if e.monitor != nil {
		w.monitor.apply(e.monitor, w.now)
		c.monitor = true
	}
	if e.listed {
		w.listed, r.listing = e.nodes, true
	}
	r.maintain(e.maintenance)
	return c
}

// maintain starts and ends maintenance, which the agent obeys at once.
func (r *run) maintain(all []maintenance) {
	for _, m := range all {
		r.wake = r.now.Mono
		if m.end {
			delete(r.outcasts, m.node)
			continue
		}
		rec := topology.MaintenanceRecord{Node: m.node, Reason: m.Reason, Who: m.Who, Since: r.now.Wall}
		if m.node == wholeCluster {
			rec.Node = ""
		}
		if m.For > 0 {
			rec.Until = r.now.Wall.Add(m.For)
		}
		r.outcasts[m.node] = rec
	}
}

// notice lets the watchers find at once what has changed. In a quiet step they
// find it in their own time; the leader key is watched, so that a change of it
// is always found at once.
func (r *run) notice(c changed, quiet bool) {
	if r.store != nil && (c.leader && r.world.consul == "" || !quiet && (c.keys || c.consul || c.monitor)) {
		r.store.nudge()
	}
	if quiet {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(r.probers)) {
		if slices.Contains(c.servers, name) {
			r.probers[name].nudge(slices.Contains(c.logins, name))
		}
	}
}
