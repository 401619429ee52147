package engine

import (
	"sort"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// ringSize bounds the memory of the writer's positions: at one position a
// second, enough to measure a lag of several minutes in time.
const ringSize = 512

// receiverFresh: an idle healthy link shows message ages of up to 30 s
// (eligibility.md section 2), so a receiver is alive up to this age.
const receiverFresh = 45 * time.Second

// lsnRing remembers when the writer was first known to have passed a position,
// on our own clock. It needs no server's clock.
type lsnRing struct {
	timeline topology.Timeline
	entries  []position // ascending in both fields
	seenAt   topology.Mono
}

type position struct {
	lsn topology.LSN
	at  topology.Mono
}

// push notes that the writer had reached lsn at a moment.
func (g *lsnRing) push(lsn topology.LSN, at topology.Mono) {
	g.seenAt = max(g.seenAt, at)
	if n := len(g.entries); n > 0 && (lsn <= g.entries[n-1].lsn || at < g.entries[n-1].at) {
		return
	}
	if len(g.entries) == ringSize {
		g.entries = append(g.entries[:0], g.entries[ringSize/2:]...)
	}
	g.entries = append(g.entries, position{lsn, at})
}

func (g *lsnRing) newest() topology.LSN {
	if len(g.entries) == 0 {
		return 0
	}
	return g.entries[len(g.entries)-1].lsn
}

// at returns the newest position known to have been reached by a moment. A
// replay position is compared with it, and not with a later one: on a busy
// primary a second between two samples is hundreds of megabytes.
func (g *lsnRing) at(m topology.Mono) topology.LSN {
	i := sort.Search(len(g.entries), func(i int) bool { return g.entries[i].at > m })
	if i == 0 {
		return 0
	}
	return g.entries[i-1].lsn
}

// passed returns when the writer was first known to be beyond a position.
func (g *lsnRing) passed(lsn topology.LSN) (topology.Mono, bool) {
	i := sort.Search(len(g.entries), func(i int) bool { return g.entries[i].lsn > lsn })
	if i == len(g.entries) {
		return 0, false
	}
	return g.entries[i].at, true
}

// follow notes the writer's own position; a change of its timeline, also to a
// lower one after a restore in place, begins the memory anew.
func (g *lsnRing) follow(p *topology.Probe, at topology.Mono) {
	if p.InRecovery != topology.No || p.WriteLSN == 0 {
		return
	}
	if p.Timeline != 0 && p.Timeline != g.timeline {
		*g = lsnRing{timeline: p.Timeline}
	}
	g.push(p.WriteLSN, at)
}

// learnPosition notes what a full probe says of the writer's position. Only the
// writer's own word counts: a stray primary would set the pace of all replicas.
func (s *State) learnPosition(n *node, o topology.Observation) {
	rc := &o.Probe.Receiver
	switch {
	case n.Name == s.holder.name:
		s.ring.follow(o.Probe, o.At.Mono)
	case rc.LatestEnd != 0 && rc.Timeline == s.ring.timeline:
		s.ring.push(rc.LatestEnd, o.At.Mono)
	}
}

// learnOptime notes the position that Patroni's leader wrote down.
func (s *State) learnOptime(a *topology.Authority, at topology.Mono) {
	if a.Optime != 0 && s.ring.timeline != 0 && a.Timeline == s.ring.timeline {
		s.ring.push(a.Optime, at)
	}
}

// measure computes every standby's lag and the times since which it strays.
func (r *round) measure() {
	w := r.provenWriter()
	for _, n := range r.nodes {
		n.lag = topology.Lag{}
		if n.full == nil || n.full.InRecovery != topology.Yes || n.inRecovery != topology.Yes || w == nil {
			n.pausedAt, n.unstreamedAt, n.strayAt, n.brokenAt = 0, 0, 0, 0
			continue
		}
		n.lag = r.lagOf(n)
		p := n.full
		r.mark(&n.pausedAt, p.ReplayPaused == topology.Yes && n.lag.Bytes > 0)
		r.mark(&n.unstreamedAt, unstreamed(n))
		r.mark(&n.strayAt, p.Receiver.Timeline != 0 && w.timeline() != 0 && p.Receiver.Timeline != w.timeline())
		r.mark(&n.brokenAt, r.pathBroken(n))
	}
}

// unstreamed: it has no receiver. One that may not be seen is not missing (field
// report P3).
func unstreamed(n *node) bool { return n.full.Receiver.Running == topology.No }

// pathBroken: it streams from a standby of the cluster that receives nothing
// itself, directly or further up.
func (r *round) pathBroken(n *node) bool {
	for range r.nodes {
		up := r.upstream(n)
		if up == nil || up.full == nil || up.inRecovery != topology.Yes {
			return false
		}
		if unstreamed(up) {
			return true
		}
		n = up
	}
	return false
}

// upstream is the node that a standby receives from, as its receiver tells.
func (r *round) upstream(n *node) *node {
	rc := &n.full.Receiver
	if up := r.s.at[topology.Address{Host: rc.SenderHost, Port: rc.SenderPort}]; up != n {
		return up
	}
	return nil
}

// lagOf measures against the writer's own position, also for cascades.
func (r *round) lagOf(n *node) topology.Lag {
	g := &r.s.ring
	if len(g.entries) == 0 || n.full.ReplayLSN == 0 {
		return topology.Lag{}
	}
	lag := topology.Lag{Known: topology.Yes, Estimated: r.now.Mono.Sub(g.seenAt) > r.p.EvidenceMaxAge}
	// The sample's own moment is when it was answered; the ask came before.
	if p := g.at(n.fullAt); p > n.full.ReplayLSN {
		lag.Bytes = topology.Size(p - n.full.ReplayLSN)
		if at, ok := g.passed(n.full.ReplayLSN); ok {
			lag.Time = r.now.Mono.Sub(at)
		}
	}
	if lag.Estimated && r.since(g.seenAt, r.p.LagUnknownAfter) {
		lag.Known = topology.Unknown
	}
	return lag
}

// provenWriter is the holder when its word is fresh; without one, lag,
// streaming and timelines are not judged at all.
func (r *round) provenWriter() *node {
	n := r.s.nodes[r.s.holder.name]
	if n == nil || r.s.holder.restored || n.timeline() == 0 || r.since(n.roleAt, r.p.EvidenceMaxAge) {
		return nil
	}
	return n
}
