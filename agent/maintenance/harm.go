package maintenance

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Harm says what is wrong with taking a target of a cluster out, one sentence
// each; none: nothing is. A target that is the agent harms by its very meaning,
// and is not for this function.
func Harm(snap *topology.Snapshot, pools []topology.Pool, t Target) []string {
	if snap == nil || !snap.Complete {
		return []string{fmt.Sprintf("nothing complete is known of cluster %s yet: what this would take out cannot be told", t.Cluster)}
	}
	var out []string
	writer := cmp.Or(snap.Writer, snap.Held, snap.Authority.Leader)
	for _, p := range pools {
		v, ok := snap.Pool(p.Name)
		if !ok || t.Pool != "" && t.Pool != p.Name {
			continue
		}
		if p.Mode == topology.ModeWrite {
			if writer != "" && t.takes(writer) {
				out = append(out, fmt.Sprintf("%s is the primary: pool %s takes no new session until the maintenance ends or another node is primary, which pgsteer never brings about", writer, p.Name))
			}
			continue
		}
		if up, left := t.remaining(v); up > 0 && left == 0 && !t.fallsBack(p, snap) {
			out = append(out, fmt.Sprintf("pool %s is left without a node that takes new sessions", p.Name))
		}
	}
	return out
}

func (t Target) takes(node string) bool { return t.Node == "" || t.Node == node }

// remaining counts the nodes that are up, and those that would still be.
func (t Target) remaining(v topology.PoolVerdicts) (up, left int) {
	for _, n := range v.Nodes {
		if n.Verdict == topology.Up {
			up++
			if !t.takes(n.Node) {
				left++
			}
		}
	}
	return up, left
}

// fallsBack: the primary serves the read pool in the same decision.
func (t Target) fallsBack(p topology.Pool, snap *topology.Snapshot) bool {
	return p.Fallback == topology.FallbackPrimary && snap.Writer != "" && !t.takes(snap.Writer)
}

// Refusal is the text for a change that was refused because of its harm.
func Refusal(t Target, harm []string) string {
	return fmt.Sprintf("%s was not taken out: %s. Nothing was changed; with force it is taken out all the same", t, strings.Join(harm, "; "))
}
