package maintenance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Trial is what a change is judged by.
type Trial struct {
	// View is the newest decision on the cluster; nil: there is none that may be believed.
	View  *topology.View
	Pools []topology.Pool // of the cluster
	// Records are those that hold without the change. What they take out is gone, also
	// where the decision does not show it yet.
	Records Set
	Now     time.Time
}

// Worsens reports whether a record takes more away than the one before it: a change of
// words alone, or an earlier end, does not.
func (r Record) Worsens(before Record, now time.Time) bool {
	return !before.Active(now) ||
		earlier(r.DrainUntil, before.DrainUntil) || earlier(before.Until, r.Until) ||
		r.Sessions.Ends() && r.Sessions != before.Sessions
}

// earlier compares two times of which zero is never.
func earlier(a, b time.Time) bool { return !a.IsZero() && (b.IsZero() || a.Before(b)) }

// Harm says what is wrong with a record of a cluster, one sentence each; none: nothing
// is. A target that is out already is judged as if it were not: it may have become what
// it was not when it was taken out. One that is the agent harms by its very meaning, and
// is not for this function.
func (c Trial) Harm(r Record) []string {
	t := r.Target
	if c.View == nil || c.View.Snapshot == nil || !c.View.Snapshot.Complete {
		return []string{fmt.Sprintf("nothing complete is known of cluster %s yet: what this would take out cannot be told", t.Cluster)}
	}
	var out []string
	primaries := slices.DeleteFunc(c.primaries(), func(node string) bool { return !t.takes(node) })
	steered := false // as primaries
	for _, p := range c.Pools {
		v, ok := c.View.Snapshot.Pool(p.Name)
		if !ok || t.Pool != "" && t.Pool != p.Name {
			continue
		}
		if p.Mode == topology.ModeWrite {
			steered = true
			for _, node := range primaries {
				out = append(out, fmt.Sprintf("%s is the primary: pool %s takes no new session until the maintenance ends or another node is primary, which pgsteer never brings about", node, p.Name))
			}
			continue
		}
		if all, left := c.remaining(v, t); all > 0 && left == 0 && !c.fallsBack(p, t) {
			out = append(out, fmt.Sprintf("pool %s is left without a node that takes new sessions", p.Name))
		}
	}
	if !steered && r.Sessions.Ends() {
		for _, node := range primaries {
			out = append(out, node+" is the primary: sessions at its server would end")
		}
	}
	return out
}

func (t Target) takes(node string) bool { return t.Node == "" || t.Node == node }

// primaries are the nodes that anybody takes for the primary: the decision, what stood
// before it, the authority. A primary that is out may be named by none of them; then
// every node counts whose own newest word is that it is no standby, however old.
func (c Trial) primaries() []string {
	snap := c.View.Snapshot
	var out []string
	for _, name := range []string{snap.Writer, snap.Held, snap.Authority.Leader} {
		if name != "" && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	if len(out) > 0 || c.View.Facts == nil {
		return out
	}
	for name, n := range c.View.Facts.Nodes {
		if n.InRecovery == topology.No {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// remaining counts the nodes that serve in a pool but for the target, and those that
// would still serve with it.
func (c Trial) remaining(v topology.PoolVerdicts, t Target) (all, left int) {
	for _, n := range v.Nodes {
		if c.serves(v.Pool, n, t) {
			all++
			if !t.takes(n.Node) {
				left++
			}
		}
	}
	return all, left
}

// serves: nothing but the target keeps a node out, as far as is known. What this agent
// alone is kept from by its own record counts as serving: others serve it.
func (c Trial) serves(pool string, n topology.NodeVerdict, t Target) bool {
	own, others := c.out(pool, n.Node, t)
	return !others && (n.Verdict == topology.Up || own && maintainedAlone(n))
}

// out tells who keeps a node out of a pool: the target's own record or this agent's, and
// any other one.
func (c Trial) out(pool, node string, t Target) (own, others bool) {
	for _, r := range c.Records.Active(c.Now) {
		switch {
		case r.Target == Agent:
			own = true
		case r.Cluster != t.Cluster || r.Pool != "" && r.Pool != pool || !r.takes(node):
		case r.Target == t:
			own = true
		default:
			others = true
		}
	}
	return own, others
}

// maintainedAlone: nothing but an operator's word is against a node.
func maintainedAlone(n topology.NodeVerdict) bool {
	return len(n.Reasons) > 0 && !slices.ContainsFunc(n.Reasons, func(r topology.Reason) bool { return r.Code != topology.CodeMaintenance })
}

// fallsBack: the primary serves the read pool in the same decision.
func (c Trial) fallsBack(p topology.Pool, t Target) bool {
	if p.Fallback != topology.FallbackPrimary {
		return false
	}
	return slices.ContainsFunc(c.primaries(), func(node string) bool {
		_, gone := c.out(p.Name, node, t)
		return !t.takes(node) && !gone && c.writes(node, t)
	})
}

// writes: a node is the writer, or is kept from it by this agent's own record alone.
func (c Trial) writes(node string, t Target) bool {
	snap := c.View.Snapshot
	return node == snap.Writer || slices.ContainsFunc(snap.Pools, func(v topology.PoolVerdicts) bool {
		n, ok := v.Verdict(node)
		own, gone := c.out(v.Pool, node, t)
		return ok && v.Mode == topology.ModeWrite && own && !gone && maintainedAlone(n)
	})
}

// Refusal is the text for a change that was refused because of its harm. before is the
// record of the target, if it has one.
func (c Trial) Refusal(r, before Record, harm []string) string {
	why := strings.Join(harm, "; ")
	if !before.Active(c.Now) {
		return fmt.Sprintf("%s was not taken out: %s. Nothing was changed; with force it is taken out all the same", r.Target, why)
	}
	return fmt.Sprintf("%s stays out as it is, and what was asked for beside that was not done: %s. Nothing was changed; with force it is done all the same", r.Target, why)
}
