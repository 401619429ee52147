package config

import (
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func (cs Clusters) check(s scope) {
	keys := make(map[string]string)      // where Patroni's keys lie -> cluster
	endpoints := make(map[string]string) // of Patroni's REST interface -> cluster
	names := make(map[string]string)
	joined := make(map[string]string) // cluster_pool -> who has it
	groups := make(map[string]string) // of pg_auto_failover -> cluster
	for _, c := range cs {
		in := s.in("clusters").in(c.Name)
		in.folded(names, "cluster", c.Name)
		c.check(in)
		for _, p := range c.Pools {
			// Sections of the built-in HAProxy template are named CLUSTER_POOL.
			id := c.Name + "_" + p.Name
			if other, ok := joined[id]; ok {
				in.in("pools").faultOf(p.Name, "pool %s of cluster %s is called %s in HAProxy's file, as is %s", p.Name, c.Name, id, other)
			}
			joined[id] = "pool " + p.Name + " of cluster " + c.Name
		}
		c.checkTiming(in, s.in("postgres"))
		c.checkAuthorityAge(in)
		if c.takes(in, topology.AuthorityMonitor) {
			c.Monitor.checkGroup(in.in("pg_auto_failover"), c.Name, groups)
		}
		if !c.takes(in, topology.AuthorityPatroni) {
			continue
		}
		if c.Patroni.Source == SourceREST || in.d.unsound[in.in("patroni").in("source").at] {
			c.Patroni.checkEndpoints(in.in("patroni").in("endpoints"), c.Name, endpoints)
			continue
		}
		prefix := c.Patroni.KeyPrefix()
		if other, ok := keys[prefix]; ok {
			in.in("patroni").fault("scope", "the keys below %s are those of cluster %s already", prefix, other)
		}
		keys[prefix] = c.Name
	}
}

// folded refuses a second name that differs by case only: Consul and DNS
// cannot tell them apart.
func (s scope) folded(seen map[string]string, what, name string) {
	folded := strings.ToLower(name)
	if other, ok := seen[folded]; ok && other != name {
		s.faultOf("", "%s %s differs from %s by case only, which Consul and DNS cannot tell apart", what, name, other)
	}
	seen[folded] = name
}

func (c Cluster) check(s scope) {
	c.checkSources(s)
	if c.takes(s, topology.AuthorityPatroni) {
		c.Patroni.check(s.in("patroni"))
	}
	if c.takes(s, topology.AuthorityMonitor) {
		c.Monitor.check(s.in("pg_auto_failover"))
	}
	c.Nodes.check(s, "nodes")
	c.Policy.check(s.in("policy"))
	c.checkWriteProbe(s)
	c.Pools.check(s)
	c.Switchover.check(s.in("switchover"), c)
	c.checkWeights(s)
	c.checkPorts(s)
	if s.written("postgres") {
		c.Postgres.check(s.in("postgres"))
	}
}

// takes reports whether the cluster has an authority, or may have: what is written for
// one is looked over also where the word that names the authority has a fault.
func (c Cluster) takes(s scope, a topology.AuthorityKind) bool {
	section := "patroni"
	if a == topology.AuthorityMonitor {
		section = "pg_auto_failover"
	}
	return c.Authority == a || s.d.unsound[s.in("authority").at] && s.written(section)
}

// checkSources wants exactly one place that says which nodes there are.
func (c Cluster) checkSources(s scope) {
	patroni, monitor := c.Authority == topology.AuthorityPatroni, c.Authority == topology.AuthorityMonitor
	c.ConsulService.check(s.in("consul_service"), c)
	if len(c.Nodes) > 0 && c.Inventory != "" {
		s.fault("inventory", "nodes and inventory exclude each other: list the nodes in one place")
	}
	switch service := c.ConsulService.Name != ""; {
	case service && (len(c.Nodes) > 0 || c.Inventory != ""):
		s.faultOf("consul_service", "consul_service excludes nodes and inventory: what lists the nodes must be one place")
	case len(c.Nodes) == 0 && c.Inventory == "" && !s.written("consul_service") && !patroni && !monitor && !s.d.unsound[s.in("authority").at]:
		s.fault("nodes", "cluster %s has no nodes: list them below `nodes`, name an `inventory` or a `consul_service`, or set `authority` to patroni or pg_auto_failover", c.Name)
	}
	if !patroni && s.written("patroni") && !s.d.unsound[s.in("authority").at] {
		s.faultOf("patroni", "these settings have no effect without `authority: patroni`")
	}
	if !monitor && s.written("pg_auto_failover") && !s.d.unsound[s.in("authority").at] {
		s.faultOf("pg_auto_failover", "these settings have no effect without `authority: pg_auto_failover`")
	}
}

// KeyScope is what a scope is in Consul: with Citus its group belongs to it.
func (p Patroni) KeyScope() string {
	if p.Group != "" {
		return p.Scope + "/" + p.Group
	}
	return p.Scope
}

// KeyPrefix is where the cluster's keys lie in Consul, with a slash at the end.
// Slashes around the namespace are dropped, as Patroni does.
func (p Patroni) KeyPrefix() string {
	if ns := strings.Trim(p.Namespace, "/"); ns != "" {
		return ns + "/" + p.KeyScope() + "/"
	}
	return p.KeyScope() + "/"
}

func (ns Nodes) check(s scope, key string) {
	s = s.in(key)
	names := make(map[string]string)
	addresses := make(map[topology.Address]string)
	for _, n := range ns {
		in := s.in(n.Name)
		in.folded(names, "node", n.Name)
		if n.Address.IsZero() {
			in.fault("", "node %s has no address, write %s: host:port", n.Name, n.Name)
			continue
		}
		a := topology.Address{Host: strings.ToLower(n.Address.Host), Port: n.Address.Port}
		if other, ok := addresses[a]; ok {
			in.fault("", "node %s has the address of node %s, %s: one server cannot be two nodes", n.Name, other, n.Address)
			continue
		}
		addresses[a] = n.Name
	}
}

// place is a key that a fault may be shown at.
type place struct {
	in  scope
	key string
}

// faultAt reports a fault of several keys at the first that is written, and
// nothing while one of them has a fault of form.
func faultAt(places []place, format string, args ...any) {
	at := places[0]
	for _, p := range slices.Backward(places) {
		if p.in.d.unsound[p.in.in(p.key).at] {
			return
		}
		if p.in.written(p.key) {
			at = p
		}
	}
	at.in.fault(at.key, format, args...)
}
