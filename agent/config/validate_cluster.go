package config

import (
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// minMinDown keeps a lost writer down long enough for balancers that ask as
// often as several times a second to see it.
const minMinDown = 100 * time.Millisecond

func (cs Clusters) check(s scope) {
	keys := make(map[string]string) // where Patroni's keys lie -> cluster
	names := make(map[string]string)
	for _, c := range cs {
		in := s.in("clusters").in(c.Name)
		in.folded(names, "cluster", c.Name)
		c.check(in)
		c.checkTiming(in, s.in("postgres"))
		if c.Authority != topology.AuthorityPatroni {
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
		s.fault("", "%s %s differs from %s by case only, which Consul and DNS cannot tell apart", what, name, other)
	}
	seen[folded] = name
}

func (c Cluster) check(s scope) {
	c.checkSources(s)
	if c.Authority == topology.AuthorityPatroni {
		c.Patroni.check(s.in("patroni"))
	}
	c.Nodes.check(s, "nodes")
	c.Policy.check(s.in("policy"))
	c.Pools.check(s)
	if s.written("postgres") {
		c.Postgres.check(s.in("postgres"))
	}
}

// checkSources wants exactly one place that says which nodes there are.
func (c Cluster) checkSources(s scope) {
	patroni := c.Authority == topology.AuthorityPatroni
	switch {
	case len(c.Nodes) > 0 && c.Inventory != "":
		s.fault("inventory", "nodes and inventory exclude each other: list the nodes in one place")
	case len(c.Nodes) == 0 && c.Inventory == "" && !patroni && !s.d.unsound[s.in("authority").at]:
		s.fault("nodes", "cluster %s has no nodes: list them below `nodes`, name an `inventory`, or set `authority: patroni`", c.Name)
	}
	if !patroni && s.written("patroni") && !s.d.unsound[s.in("authority").at] {
		s.fault("patroni", "these settings have no effect without `authority: patroni`")
	}
}

// KeyPrefix is where the cluster's keys lie in Consul, with a slash at the end.
// Slashes around the namespace are dropped, as Patroni does.
func (p Patroni) KeyPrefix() string {
	if ns := strings.Trim(p.Namespace, "/"); ns != "" {
		return ns + "/" + p.Scope + "/"
	}
	return p.Scope + "/"
}

func (p Patroni) check(s scope) {
	if p.Scope == "" || strings.Contains(p.Scope, "/") {
		s.fault("scope", "scope %s must be a text without slashes, as in Patroni's own configuration", quote(p.Scope))
	}
	if strings.Trim(p.Namespace, "/") == "" {
		s.fault("namespace", "namespace %s is empty; Patroni's default is service", quote(p.Namespace))
	}
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

func (p Policy) check(s scope) {
	s.positive("silent_after", p.SilentAfter)
	s.positive("kill_after", p.KillAfter)
	s.positive("refused_confirm", p.RefusedConfirm)
	s.positive("evidence_max_age", p.EvidenceMaxAge)
	s.positive("authority_max_age", p.AuthorityMaxAge)
	s.positive("return_after", p.ReturnAfter)
	s.positive("paused_grace", p.PausedGrace)
	s.positive("streaming_grace", p.StreamingGrace)
	s.positive("lag_unknown_after", p.LagUnknownAfter)
	if p.MinDown < minMinDown {
		s.fault("min_down", "min_down %s is below %s: no balancer would see that the writer was lost", p.MinDown, minMinDown)
	}
	if p.SilentAfter > p.KillAfter {
		faultAt([]place{{s, "kill_after"}, {s, "silent_after"}},
			"silent_after %s is above kill_after %s: a node stops taking sessions before it loses those it has", p.SilentAfter, p.KillAfter)
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

// checkTiming compares the policy with the probes it lives on: an answer may
// come an interval and a whole timeout after the last one, and a node that is
// merely slow must not count as silent.
func (c Cluster) checkTiming(s, shared scope) {
	slowest := c.Postgres.Interval + c.Postgres.QueryTimeout
	for _, limit := range []struct {
		key string
		is  time.Duration
	}{
		{"silent_after", c.Policy.SilentAfter},
		{"evidence_max_age", c.Policy.EvidenceMaxAge},
	} {
		if limit.is <= 0 || limit.is >= slowest {
			continue
		}
		c.timingFault(s, shared, limit.key, limit.is)
	}
}

func (c Cluster) timingFault(s, shared scope, key string, limit time.Duration) {
	places := []place{
		{s.in("policy"), key},
		{s.in("postgres"), "interval"},
		{s.in("postgres"), "query_timeout"},
		{shared, "interval"},
		{shared, "query_timeout"},
	}
	faultAt(places, "%s %s is below interval + query_timeout (%s + %s) of the probes: a slow answer would count as none",
		key, limit, c.Postgres.Interval, c.Postgres.QueryTimeout)
}

func (ps Pools) check(s scope) {
	if len(ps) == 0 {
		s.fault("pools", "there is no pool, nothing would be steered")
	}
	names := make(map[string]string)
	for _, p := range ps {
		in := s.in("pools").in(p.Name)
		in.folded(names, "pool", p.Name)
		if p.Mode == topology.ModeWrite {
			p.checkWrite(in)
		} else {
			p.checkRead(in)
		}
	}
}

// checkWrite refuses what has no meaning for the one writer: the lag rules are
// about nodes in recovery.
func (p Pool) checkWrite(s scope) {
	const only = "%s has no meaning in a pool with `mode: write`, the writer is never judged by lag"
	if p.Fallback != topology.FallbackNone {
		s.fault("fallback", "a pool with `mode: write` has no fallback: there is at most one writer, and nobody stands in for it")
	}
	if p.MaxLag != 0 {
		s.fault("max_lag", only, "max_lag")
	}
	if p.MaxLagHard != 0 {
		s.fault("max_lag_hard", only, "max_lag_hard")
	}
	if p.MinReplicas != 0 {
		s.fault("min_replicas", only, "min_replicas")
	}
}

func (p Pool) checkRead(s scope) {
	if p.MaxLag != 0 && p.MaxLagHard != 0 && p.MaxLag > p.MaxLagHard {
		faultAt([]place{{s, "max_lag"}, {s, "max_lag_hard"}},
			"max_lag %s is above max_lag_hard %s: the soft limit comes first (0 means no limit)", p.MaxLag, p.MaxLagHard)
	}
}
