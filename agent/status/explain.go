package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Explanation is the answer to "why": a node's evidence and the rules on it.
type Explanation struct {
	Node NodeReport `json:"node"`
	Text string     `json:"text"` // what `pgsteer explain` prints
	// By pool: what would change the verdict, and the keys that bound it.
	Next   map[string]string  `json:"what_would_change_it"`
	Limits map[string][]Limit `json:"limits"`
}

// explanation says why a node has its verdicts, by which evidence and of what
// age, against which thresholds, and what would change them.
func explanation(base why) Explanation {
	c, n := base.cluster, base.node
	e := Explanation{Node: n, Next: make(map[string]string), Limits: make(map[string][]Limit)}
	if base.policy.LeaderGap == 0 {
		base.policy.LeaderGap = leaderGap(c)
	}
	var b strings.Builder
	at := n.Address.String()
	if n.HostName != "" {
		at += ", found by the name " + n.HostName
	}
	fmt.Fprintf(&b, "%s/%s at %s\n\n", c.Name, n.Name, at)
	if !c.Valid {
		fmt.Fprintf(&b, "%s\n\n", tooOld)
	}
	for _, v := range n.Verdicts {
		w := base
		w.verdict, w.pool = v, poolOf(base.policy, v.Pool)
		e.Limits[v.Pool] = limitsOf(v.Reasons, w.policy, w.pool)
		e.Next[v.Pool] = writeVerdict(&b, w, e.Limits[v.Pool])
	}
	writeAlarms(&b, base)
	writeEvidence(&b, c, n)
	e.Text = b.String()
	return e
}

// defaultLeaderGap is the sum of Patroni's default loop_wait and retry_timeout,
// by which the rules go until the cluster's own are known.
const defaultLeaderGap = 20 * time.Second

func leaderGap(c ClusterReport) time.Duration {
	if c.Authority == nil || c.Authority.LeaderGap == 0 {
		return defaultLeaderGap
	}
	return time.Duration(c.Authority.LeaderGap * float64(time.Second))
}

// poolOf is a pool as it is configured now, the zero value when it is not.
func poolOf(p topology.Policy, name string) topology.Pool {
	for _, pool := range p.Pools {
		if pool.Name == name {
			return pool
		}
	}
	return topology.Pool{}
}

// writeVerdict prints a verdict and returns what would change it.
func writeVerdict(b *strings.Builder, w why, keys []Limit) (next string) {
	v := w.verdict
	fmt.Fprintf(b, "pool %s (%s): %s\n", v.Pool, v.Mode, v.Verdict)
	if v.Verdict == topology.Up {
		fmt.Fprintf(b, "  weight  %s\n", w.weight())
	}
	if v.Address != w.node.Address {
		fmt.Fprintf(b, "  offered at %s\n", v.Address)
	}
	var changes []string
	for i, r := range v.Reasons {
		w.reason = r
		mark := "rule"
		if i > 0 {
			mark = "also"
		}
		writeReason(b, w, mark)
		changes = append(changes, w.until())
	}
	if v.Mode == topology.ModeWrite && v.Verdict == topology.Down {
		changes = append(changes, w.entry())
	}
	if len(keys) > 0 {
		fmt.Fprintf(b, "  limits  %s\n", limitsText(keys))
	}
	fmt.Fprintf(b, "  change  %s\n\n", strings.Join(changes, "\n          "))
	return strings.Join(changes, "; ")
}

// writeReason prints a reason, its age and the manual's sentence.
func writeReason(b *strings.Builder, w why, mark string) {
	r := w.reason
	text := said(r)
	if text == string(r.Code) {
		text += ":"
	} else {
		text += ","
	}
	fmt.Fprintf(b, "  %s    %s since %s (%s)\n", mark, text, r.Since.Format(time.RFC3339), span(w.age()))
	fmt.Fprintf(b, "          %s\n", w.sentence())
	if todo := advice[r.Code]; todo != "" && w.verdict.Verdict != topology.Up {
		fmt.Fprintf(b, "  do      %s\n", todo)
	}
}

func limitsText(keys []Limit) string {
	var parts []string
	for _, l := range keys {
		parts = append(parts, l.Key+" "+l.Value)
	}
	return strings.Join(parts, ", ")
}

// writeAlarms prints the cluster's troubles, which every verdict stands under.
func writeAlarms(b *strings.Builder, w why) {
	alarms := w.cluster.Snapshot.Alarms
	if len(alarms) == 0 {
		return
	}
	fmt.Fprintf(b, "alarms of cluster %s\n", w.cluster.Name)
	for _, a := range alarms {
		w.reason = a
		writeReason(b, w, "!   ")
		if keys := limitsOf([]topology.Reason{a}, w.policy, topology.Pool{Name: w.cluster.Name}); len(keys) > 0 {
			fmt.Fprintf(b, "  limits  %s\n", limitsText(keys))
		}
		fmt.Fprintf(b, "  change  %s\n\n", w.until())
	}
}
