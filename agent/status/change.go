package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// why is one reason of one verdict, with all that an explanation of it needs.
type why struct {
	cluster ClusterReport
	node    NodeReport
	policy  topology.Policy
	pool    topology.Pool
	verdict PoolVerdict
	reason  topology.Reason
	now     time.Time
}

// age is how long the reason has held.
func (w why) age() time.Duration { return max(0, w.now.Sub(w.reason.Since)) }

// left is what remains of a time that began with the reason.
func (w why) left(d time.Duration) string { return span(max(0, d-w.age())) }

// sentence is the manual's sentence. The first half of one on silence is made
// better by what is known of the node, the second half would be wrong where the
// verdict is another one.
func (w why) sentence() string {
	info := w.reason.Code.Info()
	first, second, _ := strings.Cut(info.Manual, ". ")
	if info.Sessions != topology.SessionsSilent {
		return info.Manual
	}
	if w.verdict.Verdict != topology.Undecided {
		second = "The cluster is decided without it, so it is out."
	}
	if w.reason.Code == topology.CodeNoEvidence && w.node.Answered != nil {
		first = "The node has not proven all that is asked of it lately"
	} else if w.reason.Code == topology.CodeNoEvidence && w.node.Failure != nil {
		first = "The node is asked and has never answered"
	}
	return first + ". " + second
}

// until says what ends the reason, or would change an up verdict.
func (w why) until() string {
	text := w.reason.Code.Info().Until
	if more := measured[w.reason.Code]; more != nil {
		text = joined(text, more(w))
	}
	if w.verdict.Mode == topology.ModeRead && w.reason.Code != topology.CodeReturning && w.verdict.Verdict != topology.Up &&
		slices.Contains(w.reason.Code.Info().Keys, "return_after") {
		text = joined(text, fmt.Sprintf("then it returns after %s of good answers", exactly(w.policy.ReturnAfter)))
	}
	return text
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// weight is the verdict's weight, and what made it less where no reason tells.
func (w why) weight() string {
	own := w.pool.FixedWeight(w.node.Name)
	text := fmt.Sprintf("%d%%", w.verdict.Weight)
	if w.verdict.Reason().Code == topology.CodeReplica && w.verdict.Weight < own {
		text += fmt.Sprintf(" of %d%%, by its lag (weight_by_lag)", own)
	}
	return text
}

// entry says how a node gets the writer role, whatever keeps it out now.
func (w why) entry() string {
	kind := w.cluster.Snapshot.Authority.Kind
	if kind == topology.AuthorityNone {
		return "it enters when SQL shows it writable alone on the highest timeline ever seen"
	}
	return fmt.Sprintf("it enters when %s names it and SQL shows it writable (evidence at most %s old)", kind, exactly(w.policy.EvidenceMaxAge))
}

// measured adds numbers, and the operator's way out, to what the list of codes
// says of an end.
var measured = map[topology.Code]func(why) string{
	topology.CodeWriter: func(w why) string { return "it drains after " + exactly(w.policy.SilentAfter) + " of silence" },
	topology.CodeReplica: func(w why) string {
		text := "after " + exactly(w.policy.SilentAfter) + " of silence"
		if limit := lagLimits(w.pool, 1); limit != "" {
			text = "above " + limit + " for " + exactly(w.policy.LagGrace) + ", and " + text
		}
		return "it drains " + text
	},
	topology.CodeRamping:  func(w why) string { return w.left(w.policy.SlowStart) + " left" },
	topology.CodeFallback: func(why) string { return "it leaves in the same decision" },
	topology.CodeLag:      lagReturn,
	topology.CodeLagHard:  lagReturn,
	topology.CodeReturning: func(w why) string {
		return fmt.Sprintf("good for %s of %s, after lag of %s", span(w.age()), exactly(w.policy.ReturnAfter), exactly(w.policy.LagReturnAfter))
	},
	topology.CodeNoEvidence: failingNow,
	topology.CodeRefused:    failingNow,
	topology.CodePort: func(w why) string {
		for _, p := range w.node.Ports {
			if p.Port == w.pool.Port && p.Failure != nil {
				return fmt.Sprintf("now %s for %s", p.Failure.Class, seconds(p.Failing))
			}
		}
		return ""
	},
	topology.CodeSilent: func(w why) string {
		switch {
		case w.verdict.Verdict != topology.Drain || w.node.Failing == 0: // only new logins get no answer
			return ""
		case w.verdict.Mode == topology.ModeWrite && w.cluster.Snapshot.Authority.Kind != topology.AuthorityNone:
			return "those of a node that the authority names end when another is named"
		}
		return w.left(w.policy.KillAfter) + " left"
	},
	topology.CodeNoLeader: func(w why) string { return w.left(w.policy.LeaderGap) + " left, or at once when another node is named" },
	topology.CodeAuthorityLost: func(w why) string {
		if w.policy.HoldMax == 0 {
			return ""
		}
		return w.left(w.policy.HoldMax) + " left, then the writer's sessions end"
	},
	topology.CodeMinDown: func(w why) string { return w.left(w.policy.MinDown) + " left" },
	topology.CodeRoleUnknown: func(w why) string {
		if f := w.node.Failure; f == nil || f.Class != topology.FailAuth && f.Class != topology.FailDatabase && f.Class != topology.FailTLS {
			return failingNow(w)
		}
		return "a login is tried again within a minute, and at once when the password's file changes"
	},
}

func failingNow(w why) string {
	if w.node.Failure == nil {
		return ""
	}
	return fmt.Sprintf("now %s for %s", w.node.Failure.Class, seconds(w.node.Failing))
}

// lagReturn: the limits for coming back are half of those for leaving.
func lagReturn(w why) string {
	limit := lagLimits(w.pool, 2)
	if limit == "" {
		return ""
	}
	return fmt.Sprintf("it returns after %s below %s; now %s", exactly(w.policy.LagReturnAfter), limit, lagText(w.node))
}

// lagLimits are a pool's limits divided by something, empty without any.
func lagLimits(p topology.Pool, by int) string {
	var parts []string
	soft := p.MaxLag
	if soft == 0 {
		soft = p.MaxLagHard
	}
	if soft > 0 {
		parts = append(parts, (soft / topology.Size(by)).Short())
	}
	if p.MaxLagTime > 0 {
		parts = append(parts, exactly(p.MaxLagTime/time.Duration(by)))
	}
	if by == 1 {
		return strings.Join(parts, " or ")
	}
	return strings.Join(parts, " and ")
}
