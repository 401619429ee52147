package config

import (
	"maps"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

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
		p.checkPort(in)
		if p.EnvoySessions == EnvoyDrain && p.Mode == topology.ModeRead {
			in.fault("envoy_sessions", "envoy_sessions: drain ends all sessions of a pool at once, which is wrong where `mode: read` has several nodes; use health-check or keep")
		}
	}
}

// writeChoices are the reasons that a write pool gives and that leave a choice. A
// node without the writer role never keeps sessions there, so wrong_role is none.
var writeChoices = []topology.Code{topology.CodeMaintenance, topology.CodePort, topology.CodeNotSelected}

// checkWrite refuses what has no meaning for the one writer.
func (p Pool) checkWrite(s scope) {
	if p.Fallback != topology.FallbackNone {
		s.fault("fallback", "a pool with `mode: write` has no fallback: there is at most one writer, and nobody stands in for it")
	}
	for _, k := range []struct {
		key string
		set bool
		why string
	}{
		{"max_lag", p.MaxLag != 0, "the writer is never judged by lag"},
		{"max_lag_hard", p.MaxLagHard != 0, "the writer is never judged by lag"},
		{"max_lag_time", p.MaxLagTime != 0, "the writer is never judged by lag"},
		{"min_replicas", p.MinReplicas != 0, "the writer is never judged by lag"},
		{"role", p.Role != topology.RoleAny, "it is the writer's, which is no standby"},
		{"fallback_weight", p.FallbackWeight != 0, "it has no fallback"},
		{"require_streaming", p.RequireStreaming, "the writer has no WAL receiver"},
		{"weight_by_lag", p.WeightByLag, "the writer is never judged by lag"},
		{"weights", len(p.Weights) > 0, "there is at most one writer"},
		{"prefer_zone", p.PreferZone, "there is at most one writer, wherever it stands"},
	} {
		if k.set {
			s.fault(k.key, "%s has no meaning in a pool with `mode: write`, %s", k.key, k.why)
		}
	}
	for _, code := range slices.Sorted(maps.Keys(p.Sessions)) {
		if !slices.Contains(writeChoices, code) {
			s.in("sessions").fault(string(code), "reason `%s` leaves no choice in a pool with `mode: write`: there only %s do", code, list(texts(writeChoices...)))
		}
	}
}

func (p Pool) checkRead(s scope) {
	if p.MaxLag != 0 && p.MaxLagHard != 0 && p.MaxLag > p.MaxLagHard {
		faultAt([]place{{s, "max_lag"}, {s, "max_lag_hard"}},
			"max_lag %s is above max_lag_hard %s: the soft limit comes first (0 means no limit)", p.MaxLag, p.MaxLagHard)
	}
	if p.Fallback != topology.FallbackPrimary {
		p.idle(s, "fallback_weight", "fallback", "`fallback: primary`")
	}
	if p.WeightByLag && p.MaxLag == 0 {
		p.idle(s, "weight_by_lag", "max_lag", "`max_lag`")
	}
}

// checkPort wants a port for what is about one.
func (p Pool) checkPort(s scope) {
	if p.Port == 0 {
		p.idle(s, "port_check", "port", "`port`")
	}
}

// idle refuses a key that is written and has no effect, because another key,
// which must be sound, is not as it would have to be.
func (p Pool) idle(s scope, key, other, needs string) {
	if s.written(key) && !s.d.unsound[s.in(other).at] {
		s.fault(key, "%s has no effect without %s", key, needs)
	}
}

// checkWeights wants the nodes that have a weight to exist.
func (c Cluster) checkWeights(s scope) {
	names, ok := c.listed(s)
	if !ok {
		return
	}
	for _, p := range c.Pools {
		for _, node := range slices.Sorted(maps.Keys(p.Weights)) {
			if !slices.Contains(names, node) {
				s.in("pools").in(p.Name).in("weights").fault(node, "no such node: %s", UnknownWord(node, names))
			}
		}
	}
}

// checkPorts refuses a pool's own port where two nodes share a host: both would be
// offered at one address.
func (c Cluster) checkPorts(s scope) {
	hosts := make(map[string]string)
	for _, n := range c.Nodes {
		host := strings.ToLower(n.Address.Host)
		other, ok := hosts[host]
		if hosts[host] = n.Name; !ok || host == "" {
			continue
		}
		for _, p := range c.Pools {
			if p.Port != 0 {
				s.in("pools").in(p.Name).fault("port", "nodes %s and %s share the host %s, so port %d would be one server for both", other, n.Name, host, p.Port)
			}
		}
	}
}
