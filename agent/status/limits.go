package status

import (
	"strconv"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// limits reads the value of each key that topology.CodeInfo names: the policy's,
// and those of the pool. A test holds the list against the codes.
var limits = map[string]func(topology.Policy, topology.Pool) string{
	"silent_after":         policyTime(func(p topology.Policy) time.Duration { return p.SilentAfter }),
	"kill_after":           policyTime(func(p topology.Policy) time.Duration { return p.KillAfter }),
	"refused_confirm":      policyTime(func(p topology.Policy) time.Duration { return p.RefusedConfirm }),
	"evidence_max_age":     policyTime(func(p topology.Policy) time.Duration { return p.EvidenceMaxAge }),
	"authority_max_age":    policyTime(func(p topology.Policy) time.Duration { return p.AuthorityMaxAge }),
	"leader_gap":           policyTime(func(p topology.Policy) time.Duration { return p.LeaderGap }),
	"min_down":             policyTime(func(p topology.Policy) time.Duration { return p.MinDown }),
	"return_after":         policyTime(func(p topology.Policy) time.Duration { return p.ReturnAfter }),
	"paused_grace":         policyTime(func(p topology.Policy) time.Duration { return p.PausedGrace }),
	"streaming_grace":      policyTime(func(p topology.Policy) time.Duration { return p.StreamingGrace }),
	"lag_unknown_after":    policyTime(func(p topology.Policy) time.Duration { return p.LagUnknownAfter }),
	"lag_grace":            policyTime(func(p topology.Policy) time.Duration { return p.LagGrace }),
	"lag_return_after":     policyTime(func(p topology.Policy) time.Duration { return p.LagReturnAfter }),
	"min_dwell":            policyTime(func(p topology.Policy) time.Duration { return p.MinDwell }),
	"slow_start":           policyTime(func(p topology.Policy) time.Duration { return p.SlowStart }),
	"writes_stalled_after": policyTime(func(p topology.Policy) time.Duration { return p.WritesStalledAfter }),
	"writes_blocked_after": policyTime(func(p topology.Policy) time.Duration { return p.WritesBlockedAfter }),
	"flap.within":          policyTime(func(p topology.Policy) time.Duration { return p.Flap.Within }),
	"flap.hold_down":       policyTime(func(p topology.Policy) time.Duration { return p.Flap.HoldDown }),
	"flap.hold_down_max":   policyTime(func(p topology.Policy) time.Duration { return p.Flap.HoldDownMax }),
	"flap.calm":            policyTime(func(p topology.Policy) time.Duration { return p.Flap.Calm }),
	"flap.count":           func(p topology.Policy, _ topology.Pool) string { return strconv.Itoa(p.Flap.Count) },
	"hold_max":             func(p topology.Policy, _ topology.Pool) string { return noneOr(p.HoldMax == 0, exactly(p.HoldMax)) },
	"authority_lost":       func(p topology.Policy, _ topology.Pool) string { return string(p.AuthorityLost) },
	"write_stall":          func(p topology.Policy, _ topology.Pool) string { return string(p.WriteStall) },

	"max_lag": func(_ topology.Policy, p topology.Pool) string { return noneOr(p.MaxLag == 0, p.MaxLag.String()) },
	"max_lag_hard": func(_ topology.Policy, p topology.Pool) string {
		return noneOr(p.MaxLagHard == 0, p.MaxLagHard.String())
	},
	"max_lag_time": func(_ topology.Policy, p topology.Pool) string {
		return noneOr(p.MaxLagTime == 0, exactly(p.MaxLagTime))
	},
	"min_replicas":      func(_ topology.Policy, p topology.Pool) string { return strconv.Itoa(p.MinReplicas) },
	"fallback":          func(_ topology.Policy, p topology.Pool) string { return string(p.Fallback) },
	"fallback_weight":   func(_ topology.Policy, p topology.Pool) string { return strconv.Itoa(p.FallbackWeight) + "%" },
	"require_streaming": func(_ topology.Policy, p topology.Pool) string { return strconv.FormatBool(p.RequireStreaming) },
	"select": func(_ topology.Policy, p topology.Pool) string {
		return noneOr(p.Select.String() == "", p.Select.String())
	},
	"role": func(_ topology.Policy, p topology.Pool) string {
		return noneOr(p.Role == topology.RoleAny, string(p.Role))
	},
	"zone": func(_ topology.Policy, p topology.Pool) string { return noneOr(p.Zone == "", p.Zone) },
}

func policyTime(of func(topology.Policy) time.Duration) func(topology.Policy, topology.Pool) string {
	return func(p topology.Policy, _ topology.Pool) string { return exactly(of(p)) }
}

// noneOr says none for a limit that is not set.
func noneOr(none bool, value string) string {
	if none {
		return "none"
	}
	return value
}

// Limit is a key of the configuration that bounds a reason, and its value.
type Limit struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// limitsOf are the keys behind a verdict's reasons, each once. A pool that the
// policy does not have (any more) has none.
func limitsOf(reasons []topology.Reason, p topology.Policy, pool topology.Pool) []Limit {
	out := []Limit{}
	if pool.Name == "" {
		return out
	}
	seen := make(map[string]bool)
	add := func(key, value string) {
		if !seen[key] {
			seen[key] = true
			out = append(out, Limit{key, value})
		}
	}
	for _, r := range reasons {
		for _, key := range r.Code.Info().Keys {
			if value := limits[key]; value != nil {
				add(key, value(p, pool))
			}
		}
		if v, ok := pool.Sessions[r.Code]; ok {
			add("sessions."+string(r.Code), sessionsWord(v))
		}
	}
	return out
}

// sessionsWord is how the configuration says what becomes of sessions.
func sessionsWord(v topology.Verdict) string {
	if v == topology.Down {
		return "end"
	}
	return "keep"
}
