package config

import (
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// minMinDown keeps a lost writer down long enough for balancers that ask as
// often as several times a second to see it.
const minMinDown = 100 * time.Millisecond

// Time between two reads of Patroni's keys in Consul that nothing asked for
// (watchers/consul), and of a round of questions to Patroni, an answer included
// (watchers/patroni).
const (
	consulRound = 10 * time.Second
	restRound   = 3 * time.Second
)

// minWritesStalled is the interval and the timeout of a write probe together
// (watchers/postgres): a write that is slow, but answered, is no stall.
const minWritesStalled = 3 * time.Second

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
	s.positive("writes_stalled_after", p.WritesStalledAfter)
	s.positive("writes_blocked_after", p.WritesBlockedAfter)
	if p.WritesStalledAfter > 0 && p.WritesStalledAfter < minWritesStalled {
		s.fault("writes_stalled_after", "writes_stalled_after %s is below %s, the interval and timeout of the write probe: a slow write would count as none",
			p.WritesStalledAfter, minWritesStalled)
	}
	p.Flap.check(s.in("flap"))
	p.checkHoldMax(s)
	if p.MinDown < minMinDown {
		s.fault("min_down", "min_down %s is below %s: no balancer would see that the writer was lost", p.MinDown, minMinDown)
	}
	if p.SilentAfter > p.KillAfter {
		faultAt([]place{{s, "kill_after"}, {s, "silent_after"}},
			"silent_after %s is above kill_after %s: a node stops taking sessions before it loses those it has", p.SilentAfter, p.KillAfter)
	}
}

// checkMinDown compares the time that a lost writer stays down with the time between two
// agent checks in the built-in file for HAProxy: one that is back before HAProxy has
// asked keeps its sessions (field report FR-15). Twice the time is wanted, since an
// answer takes its own. In files of others doctor looks.
func (c *Config) checkMinDown(s scope) {
	interval := c.HAProxy.File.AgentInterval
	file := s.in("haproxy").in("file")
	told := false // one of those that would stand at the interval
	for _, cl := range c.Clusters {
		in := s.in("clusters").in(cl.Name).in("policy")
		if !c.polled(cl) || cl.Policy.MinDown < minMinDown || interval <= 0 || cl.Policy.MinDown >= 2*interval {
			continue
		}
		atInterval := !in.written("min_down") && file.written("agent_interval")
		if told && atInterval {
			continue
		}
		told = told || atInterval
		faultAt([]place{{in, "min_down"}, {file, "agent_interval"}},
			"min_down %s of cluster %s is below twice agent_interval %s: HAProxy may ask before and after, and keep the sessions of a writer that was lost; write min_down %s or more, or agent_interval %s or less below haproxy.file",
			cl.Policy.MinDown, cl.Name, interval, 2*interval, (cl.Policy.MinDown / 2).Truncate(time.Millisecond))
	}
}

// polled reports whether a built-in file has HAProxy ask about writers of a cluster.
func (c *Config) polled(cl Cluster) bool {
	builtin := func(f File) bool { return f.Builtin == BuiltinHAProxy }
	return slices.ContainsFunc(cl.Pools, func(p Pool) bool { return p.Mode == topology.ModeWrite }) &&
		slices.ContainsFunc(c.Templates, func(t Template) bool { return t.Covers(cl.Name) && slices.ContainsFunc(t.Files, builtin) })
}

// checkHoldMax wants the time to begin to count before it is over, and to count
// at all.
func (p Policy) checkHoldMax(s scope) {
	switch {
	case p.HoldMax == 0:
	case p.AuthorityLost != topology.LostHold:
		faultAt([]place{{s, "hold_max"}, {s, "authority_lost"}}, "hold_max has no effect with `authority_lost: %s`, which holds nobody", p.AuthorityLost)
	case p.HoldMax < p.AuthorityMaxAge:
		faultAt([]place{{s, "hold_max"}, {s, "authority_max_age"}},
			"hold_max %s is below authority_max_age %s: sessions would end at the first question that the authority leaves open", p.HoldMax, p.AuthorityMaxAge)
	}
}

// check wants the times to make sense together. Without damping, count 0, they
// are not looked at, so that it can be switched off by one key.
func (f Flap) check(s scope) {
	if f.Count == 0 {
		return
	}
	s.positive("within", f.Within)
	s.positive("hold_down", f.HoldDown)
	if f.HoldDownMax < f.HoldDown {
		faultAt([]place{{s, "hold_down_max"}, {s, "hold_down"}},
			"hold_down_max %s is below hold_down %s: the first hold-down is the shortest", f.HoldDownMax, f.HoldDown)
	}
	if f.Calm < f.Within {
		faultAt([]place{{s, "calm"}, {s, "within"}},
			"calm %s is below within %s: departures would be forgotten before they are counted", f.Calm, f.Within)
	}
	if f.Calm < f.HoldDownMax {
		faultAt([]place{{s, "calm"}, {s, "hold_down_max"}},
			"calm %s is below hold_down_max %s: a node that is held out would be forgotten meanwhile", f.Calm, f.HoldDownMax)
	}
}

// checkWriteProbe refuses settings of the write probe where none is made.
func (c Cluster) checkWriteProbe(s scope) {
	if c.Postgres.WriteProbe != "" || s.d.unsound[s.in("postgres").in("write_probe").at] || s.d.unsound["postgres\x00write_probe"] {
		return
	}
	for _, key := range []string{"writes_stalled_after", "write_stall"} {
		if s.in("policy").written(key) {
			s.in("policy").fault(key, "%s has no effect without `write_probe` below `postgres`", key)
		}
	}
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

// checkAuthorityAge compares the policy with the reads of the authority: one whose
// word grows too old before it is read again would be lost at the end of every
// round, and nobody new would be admitted then.
func (c Cluster) checkAuthorityAge(s scope) {
	policy, limit := place{s.in("policy"), "authority_max_age"}, c.Policy.AuthorityMaxAge
	if limit <= 0 {
		return
	}
	switch m := c.Monitor; {
	case c.takes(s, topology.AuthorityMonitor):
		if in := s.in("pg_auto_failover"); m.Interval > 0 && m.Timeout > 0 && limit <= m.Interval+m.Timeout {
			faultAt([]place{{in, "interval"}, policy, {in, "timeout"}},
				"interval + timeout (%s + %s) of the monitor's reads is not below authority_max_age %s: its word would be too old before the next one, and the authority lost each time",
				m.Interval, m.Timeout, limit)
		}
	case !c.takes(s, topology.AuthorityPatroni) || s.d.unsound[s.in("patroni").in("source").at]:
	case c.Patroni.Source == SourceREST && limit <= restRound:
		faultAt([]place{policy}, "authority_max_age %s is not above %s, the time of a round of questions to Patroni: its word would be too old before the next one, and the authority lost each time",
			limit, restRound)
	case c.Patroni.Source != SourceREST && limit <= consulRound:
		faultAt([]place{policy}, "authority_max_age %s is not above %s, the time between two reads of Patroni's keys in Consul: its word would be too old before the next one, and the authority lost each time",
			limit, consulRound)
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
