package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// keepOrReplace keeps the previous snapshot when nothing was decided
// differently, so that generations move with decisions only.
func (r *round) keepOrReplace() *topology.Snapshot {
	last := r.s.last
	if last != nil && r.same(last) {
		return last
	}
	next := r.compose()
	if last == nil {
		next.Generation, next.Urgent = r.s.generation+1, r.s.generation+1
	} else {
		next.Generation, next.Urgent = last.Generation+1, last.Urgent
		if urgent(last, next) {
			next.Urgent = next.Generation
		}
		keepSince(last, next)
	}
	r.s.last = next
	return next
}

// same reports whether this round comes to what a snapshot says already; texts but
// for those of maintenance, times, and what Facts tell make no difference.
func (r *round) same(s *topology.Snapshot) bool {
	if s.Authority != r.auth || s.Writer != r.writerUp() || s.Held != r.held() || s.Complete != r.s.complete() ||
		len(s.Nodes) != len(r.nodes) || len(s.Pools) != len(r.p.Pools) {
		return false
	}
	for i, n := range r.nodes {
		if o := s.Nodes[i]; o.Name != n.Name || o.Address != n.Address || !maps.Equal(o.Tags, n.Tags) {
			return false
		}
	}
	for i, pool := range r.p.Pools {
		if !r.samePool(s.Pools[i], pool, &r.pools[i]) {
			return false
		}
	}
	return sameReasons(s.Alarms, r.alarms)
}

func (r *round) samePool(s topology.PoolVerdicts, pool topology.Pool, pr *poolRound) bool {
	if s.Pool != pool.Name || s.Mode != pool.Mode || s.Fallback != pr.fallback {
		return false
	}
	for i, n := range r.nodes {
		v, e := s.Nodes[i], pr.effects[i]
		if v.Node != n.Name || v.Address != offered(pool, n) || v.Weight != pr.weights[i] || v.Verdict != harshest(e) || !sameReasons(v.Reasons, e) {
			return false
		}
	}
	return true
}

func sameReasons(reasons []topology.Reason, effects []effect) bool {
	if len(reasons) != len(effects) {
		return false
	}
	for i := range effects {
		if reasons[i].Code != effects[i].code || effects[i].code == topology.CodeMaintenance && reasons[i].Text != effects[i].text {
			return false
		}
	}
	return true
}

// writerUp is the node that is up by the writer role, or "".
func (r *round) writerUp() string {
	if n := r.s.nodes[r.s.holder.name]; n != nil && harshest(r.writer[n.i]) == topology.Up {
		return n.Name
	}
	return ""
}

// held is the writer that stands from before this start, or "".
func (r *round) held() string {
	if r.s.holder.restored {
		return r.s.holder.name
	}
	return ""
}

// compose builds the snapshot of this round.
func (r *round) compose() *topology.Snapshot {
	snap := &topology.Snapshot{
		Cluster: r.s.cluster, DecidedAt: r.now.Wall, Authority: r.auth, Writer: r.writerUp(), Held: r.held(),
		Complete: r.s.complete(), Nodes: r.s.Nodes(),
	}
	for i, pool := range r.p.Pools {
		pr := &r.pools[i]
		pv := topology.PoolVerdicts{Pool: pool.Name, Mode: pool.Mode, Fallback: pr.fallback, ChangedAt: r.now.Wall}
		for j, n := range r.nodes {
			pv.Nodes = append(pv.Nodes, topology.NodeVerdict{
				Node: n.Name, Address: offered(pool, n), Verdict: harshest(pr.effects[j]), Weight: pr.weights[j], Reasons: r.reasons(pr.effects[j]),
			})
		}
		snap.Pools = append(snap.Pools, pv)
	}
	snap.Alarms = r.reasons(r.alarms)
	snap.Hash = hash(snap)
	return snap
}

// reasons: the first effect's reason leads, the others hold too.
func (r *round) reasons(effects []effect) []topology.Reason {
	var out []topology.Reason
	for _, e := range effects {
		out = append(out, r.reason(e))
	}
	return out
}

// offered is where a pool's sessions at a node go.
func offered(pool topology.Pool, n *node) topology.Address {
	a := n.Address
	if pool.Port != 0 && !a.IsZero() {
		a.Port = pool.Port
	}
	return a
}

// urgent: a writer gained, lost or drained, a node down, maintenance.
func urgent(last, next *topology.Snapshot) bool {
	if last.Writer != next.Writer || last.Held != next.Held {
		return true
	}
	for _, p := range next.Pools {
		old, _ := last.Pool(p.Pool)
		for _, n := range p.Nodes {
			was, known := old.Verdict(n.Node)
			if known && was.Verdict == n.Verdict {
				continue
			}
			if p.Mode == topology.ModeWrite || n.Verdict == topology.Down || n.Reason().Code == topology.CodeMaintenance || was.Reason().Code == topology.CodeMaintenance {
				return true
			}
		}
	}
	return false
}

// keepSince carries over since when a reason holds and a pool is as it is.
func keepSince(last, next *topology.Snapshot) {
	for i := range next.Pools {
		p := &next.Pools[i]
		old, _ := last.Pool(p.Pool)
		same := len(old.Nodes) == len(p.Nodes)
		for _, n := range p.Nodes {
			was, _ := old.Verdict(n.Node)
			same = same && was.Verdict == n.Verdict && was.Weight == n.Weight && was.Address == n.Address && was.Reason().Code == n.Reason().Code
			keepOldest(was.Reasons, n.Reasons)
		}
		if same {
			p.ChangedAt = old.ChangedAt
		}
	}
	keepOldest(last.Alarms, next.Alarms)
}

func keepOldest(was, is []topology.Reason) {
	for i := range is {
		for _, w := range was {
			if w.Code == is[i].Code && w.Since.Before(is[i].Since) {
				is[i].Since = w.Since
			}
		}
	}
}

// hash identifies the decision without its generation, times and texts.
func hash(s *topology.Snapshot) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s|%s|%s|%s|%s\n", s.Cluster, s.Authority.Kind, s.Authority.State, s.Authority.Leader, s.Writer)
	for _, n := range s.Nodes {
		fmt.Fprintf(h, "n|%s|%s", n.Name, n.Address)
		for _, k := range slices.Sorted(maps.Keys(n.Tags)) {
			fmt.Fprintf(h, "|%q=%q", k, n.Tags[k])
		}
		fmt.Fprintln(h)
	}
	for _, p := range s.Pools {
		fmt.Fprintf(h, "p|%s|%s|%t\n", p.Pool, p.Mode, p.Fallback)
		for _, n := range p.Nodes {
			fmt.Fprintf(h, "v|%s|%s|%s|%d", n.Node, n.Address, n.Verdict, n.Weight)
			for _, why := range n.Reasons {
				fmt.Fprintf(h, "|%s", why.Code)
			}
			fmt.Fprintln(h)
		}
	}
	for _, a := range s.Alarms {
		fmt.Fprintf(h, "a|%s\n", a.Code)
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
