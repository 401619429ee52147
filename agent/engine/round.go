package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// maxSleep bounds the time between two decisions, so that Facts stay young and
// a View's validity can be short.
const maxSleep = time.Second

// maxText bounds a reason's text, as topology.Reason promises.
const maxText = 80

// round is one evaluation of the rules.
type round struct {
	p     topology.Policy
	now   topology.Clock
	s     *State
	m     topology.Maintenance
	nodes []*node // by name
	auth  topology.AuthorityStatus
	wake  topology.Mono
}

// effect is what one rule says of a node.
type effect struct {
	verdict topology.Verdict
	reason  topology.Reason
}

// Decide applies the rules to what was observed. It returns the snapshot (the
// same pointer as before when nothing was decided differently), what the
// watchers should look at more closely, and when to decide again at the latest.
func Decide(p topology.Policy, now topology.Clock, s *State, m topology.Maintenance) (*topology.Snapshot, topology.Demand, topology.Mono) {
	r := &round{p: p, now: now, s: s, m: m, wake: now.Mono.Add(maxSleep)}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		r.nodes = append(r.nodes, s.nodes[name])
	}
	r.noticeStandstill()
	r.auth = r.authorityStatus()
	r.declareSilence()
	writer := r.decideWriter()
	r.measure()
	next := r.compose(writer)
	d := r.demand()
	s.planned = r.wake
	for _, n := range r.nodes {
		n.refusedFor, n.refusedSeen = 0, n.refusedTo
	}
	return r.keepOrReplace(next), d, r.wake
}

// noticeStandstill: when the agent itself did not run (a stopped process, a
// suspended machine), nobody could be asked meanwhile, so silence is counted
// from the end of the standstill.
func (r *round) noticeStandstill() {
	if r.s.planned != 0 && r.now.Mono.Sub(r.s.planned) > maxSleep {
		r.s.resumedAt = r.now.Mono
	}
}

// since reports whether d has passed since m, and asks to be woken then.
func (r *round) since(m topology.Mono, d time.Duration) bool {
	due := m.Add(d)
	if r.now.Mono >= due {
		return true
	}
	r.wake = min(r.wake, due)
	return false
}

func (r *round) reason(code topology.Code, at topology.Mono, format string, args ...any) topology.Reason {
	if at == 0 {
		at = r.now.Mono
	}
	return topology.Reason{Code: code, Text: printable(fmt.Sprintf(format, args...)), Since: r.now.WallAt(at)}
}

// printable makes a text safe for every sink: names and an operator's words
// come from outside, and HAProxy's agent line knows no comma and no line break.
func printable(s string) string {
	s = strings.Map(func(c rune) rune {
		switch {
		case c == ',':
			return ';'
		case c < ' ' || c > '~':
			return ' '
		}
		return c
	}, s)
	return s[:min(len(s), maxText)]
}

func (r *round) effect(v topology.Verdict, code topology.Code, at topology.Mono, format string, args ...any) effect {
	return effect{v, r.reason(code, at, format, args...)}
}

// compose builds the snapshot of this round.
func (r *round) compose(writer map[string][]effect) *topology.Snapshot {
	snap := &topology.Snapshot{
		Cluster: r.s.cluster, DecidedAt: r.now.Wall, Authority: r.auth,
		Complete: r.s.complete(), Nodes: r.s.Nodes(), Alarms: r.alarms(),
	}
	if h := r.s.holder; h.restored {
		snap.Held = h.name
	}
	if h := r.s.holder.name; harshest(writer[h]) == topology.Up {
		snap.Writer = h
	}
	for _, pool := range r.p.Pools {
		pv := topology.PoolVerdicts{Pool: pool.Name, Mode: pool.Mode}
		effects := writer
		if pool.Mode == topology.ModeRead {
			effects, pv.Fallback = r.readPool(pool, snap.Writer)
		}
		for _, n := range r.nodes {
			pv.Nodes = append(pv.Nodes, nodeVerdict(n, effects[n.Name]))
		}
		snap.Pools = append(snap.Pools, pv)
	}
	snap.Hash = hash(snap)
	return snap
}

// nodeVerdict: the first effect's reason leads; the harshest session effect of
// all that hold wins.
func nodeVerdict(n *node, effects []effect) topology.NodeVerdict {
	v := topology.NodeVerdict{Node: n.Name, Address: n.Address, Verdict: harshest(effects), Weight: 100}
	for _, e := range effects {
		v.Reasons = append(v.Reasons, e.reason)
	}
	return v
}

// harshest orders up < drain < down; undecided counts only alone.
func harshest(effects []effect) topology.Verdict {
	v := topology.Undecided
	for _, e := range effects {
		v = max(v, e.verdict)
	}
	return v
}

// keepOrReplace keeps the previous snapshot when nothing was decided
// differently, so that generations move with decisions only.
func (r *round) keepOrReplace(next *topology.Snapshot) *topology.Snapshot {
	last := r.s.last
	switch {
	case last == nil:
		next.Generation, next.Urgent = r.s.generation+1, r.s.generation+1
	case last.Hash == next.Hash && last.Held == next.Held && last.Complete == next.Complete:
		return last
	default:
		next.Generation, next.Urgent = last.Generation+1, last.Urgent
		if urgent(last, next) {
			next.Urgent = next.Generation
		}
		keepSince(last, next)
	}
	r.s.last = next
	return next
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

// keepSince carries over since when a reason holds.
func keepSince(last, next *topology.Snapshot) {
	for _, p := range next.Pools {
		old, _ := last.Pool(p.Pool)
		for _, n := range p.Nodes {
			was, _ := old.Verdict(n.Node)
			for i := range n.Reasons {
				for _, w := range was.Reasons {
					if w.Code == n.Reasons[i].Code && w.Since.Before(n.Reasons[i].Since) {
						n.Reasons[i].Since = w.Since
					}
				}
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

// alarms are the cluster-wide troubles, by code.
func (r *round) alarms() []topology.Reason {
	var out []topology.Reason
	if r.auth.State == topology.AuthorityStateLost {
		out = append(out, r.reason(topology.CodeAuthorityLost, r.s.authority.at, "last word at %s", clock(r.now, r.s.authority.at)))
	}
	if r.s.isolated == topology.Yes {
		out = append(out, r.reason(topology.CodeIsolated, 0, "every cluster is silent"))
	}
	var claims []string
	for _, n := range r.nodes {
		if r.claims(n) {
			claims = append(claims, n.Name)
		}
	}
	if len(claims) > 1 {
		out = append(out, r.reason(topology.CodeTwoWriters, 0, "writable: %v", claims))
	}
	return out
}
