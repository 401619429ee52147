package engine

import (
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// readEffects adds to out the causes that act on a node in a read pool: the
// ladder's first, and harsher ones that hold beside it.
func (r *round) readEffects(out []effect, s seat) []effect {
	if e, ok := r.identity(s.n); ok {
		return r.withMaintenance(s, append(out, e))
	}
	if e, ok := r.gone(s.n, true); ok {
		if s.was.Verdict == topology.Down {
			e.verdict = topology.Down // it has no sessions left to keep
		}
		out = append(out, e)
	}
	port, bad := r.portEffect(s.pool, s.n)
	if bad && port.verdict != topology.Undecided && (len(out) == 0 || port.verdict > out[0].verdict) {
		out = append(out, port)
	}
	if e := r.replicaEffect(s); len(out) == 0 || e.verdict > out[0].verdict {
		out = append(out, e)
	}
	if bad && port.verdict == topology.Undecided && harshest(out) == topology.Up {
		out = append(out[:0], port) // the node is well, and nobody knows of its port
	}
	return r.withMaintenance(s, r.returning(s, out))
}

// withMaintenance adds an operator's word to what else holds against a node.
func (r *round) withMaintenance(s seat, out []effect) []effect {
	m, ok := r.maintained(s.n)
	if own, bad := r.maintainedIn(s.pool.Name, s.n); bad && (!ok || own.verdict > m.verdict) {
		m, ok = own, true
	}
	switch {
	case !ok:
		return out
	case out[0].verdict == topology.Up || out[0].verdict == topology.Undecided:
		return append(out[:0], m)
	case out[0].code == topology.CodeIdentity:
		return append(out, m)
	}
	return slices.Insert(out, 0, m)
}

// replicaEffect are the rules for a node that can be talked to.
func (r *round) replicaEffect(s seat) effect {
	h, n := r.s.holder, s.n
	if n.inRecovery == topology.No || n.inRecovery == topology.Unknown && h.restored && h.name == n.Name {
		return r.primaryInReadPool(n)
	}
	e := r.replicationEffect(s) // which also follows the lag of those that are assigned elsewhere
	if goal, bad := r.unassigned(s); bad {
		return goal
	}
	old := n.aliveAt != 0 && r.since(max(n.roleAt, n.knownAt), r.p.EvidenceMaxAge)
	switch {
	case e.verdict == topology.Down:
		return e
	case n.aliveAt != 0 && n.roleAt == 0 && r.s.saved != nil && r.s.saved.Verdicts[s.pool.Name][n.Name] == topology.Up:
		// It served before the restart; that we may not ask it is no word against it.
		return r.effect(topology.Undecided, topology.CodeRoleUnknown, n.aliveAt, "no word on its role: %s", n.failure.Class)
	case old && (n.inRecovery != topology.Yes || !r.saturated(n)):
		return r.effect(topology.Drain, topology.CodeRoleUnknown, n.aliveAt, "no word on its role: %s", n.failure.Class)
	case n.inRecovery == topology.Unknown:
		return r.effect(topology.Undecided, topology.CodeNoEvidence, n.knownAt, unheard(n))
	}
	if e, bad := r.excluded(s); bad {
		return e
	}
	return e
}

// excluded are the rules by which a replica is meant for other work.
func (r *round) excluded(s seat) (effect, bool) {
	if e, bad := r.notSelected(s.pool, s.n); bad {
		return e, true
	}
	if group := s.n.Tags[topology.TagNodeCluster]; group != "" && !s.pool.Select.Names(topology.TagNodeCluster) {
		return r.effect(topology.Drain, topology.CodeNotSelected, 0, "of the read-replica cluster %s; select it by its tag", group), true
	}
	switch {
	case s.pool.Role == topology.RoleDelayed: // who asks for delayed replicas gets them, tagged or not
	case s.n.HasTag(topology.TagNoLoadBalance):
		return r.effect(topology.Drain, topology.CodeNoLoadBalance, 0, "tagged noloadbalance"), true
	case s.n.full != nil && s.n.full.ApplyDelay > 0:
		return r.effect(topology.Drain, topology.CodeDelayed, 0, "delays replay by %s", s.n.full.ApplyDelay), true
	}
	return effect{}, false
}

// primaryInReadPool: a primary serves reads only as a fallback, so it drains;
// a writable node that is not the writer is fenced. One that left recovery a
// moment ago and has not told its timeline may be the writer's successor: the
// sessions of its readers wait for that word.
func (r *round) primaryInReadPool(n *node) effect {
	if e, bad := r.fencedByGoal(n); bad {
		return e
	}
	h := r.s.holder
	switch {
	case h.name == n.Name && h.restored:
		return r.effect(topology.Undecided, topology.CodeNoEvidence, r.s.start.Mono, "held as writer")
	case n.writable() && n.timeline() != 0 && h.name != n.Name && (h.name != "" && !h.restored || r.named() != "" && r.named() != n.Name):
		return r.effect(topology.Down, topology.CodeFenced, n.roleAt, "writable but not the writer")
	}
	return r.effect(topology.Drain, topology.CodeWrongRole, n.roleAt, "primary")
}

// replicationEffect are the rules that need a proven writer to compare with.
// Without one nobody is taken out, and who is out stays out: that the writer is
// gone makes no replica fresher.
func (r *round) replicationEffect(s seat) effect {
	if s.n.full == nil {
		return r.serving(s)
	}
	if r.provenWriter() == nil {
		return r.unjudged(s)
	}
	r.judgeLag(s)
	if e, bad := r.trouble(s, r.since); bad {
		return e
	}
	e := r.lagEffect(s)
	out := s.was.Verdict == topology.Drain || s.was.Verdict == topology.Down
	if code := s.was.Reason().Code; out && (e.verdict == topology.Up || code != topology.CodeLag && code != topology.CodeLagHard) {
		// The grace is for those who serve: who is out returns when it is over.
		if e, bad := r.trouble(s, atOnce); bad {
			e.verdict = s.was.Verdict
			return e
		}
	}
	return e
}

// unjudged repeats what a proven writer's positions said last.
func (r *round) unjudged(s seat) effect {
	if s.t.out {
		return r.effect(topology.Drain, topology.CodeLag, s.t.outAt, "lagged by %s; no proven writer to compare with", s.t.lag.Bytes.Short())
	}
	was, code := s.was.Verdict, s.was.Reason().Code
	if (was == topology.Drain || was == topology.Down) && slices.Contains(remembered, code) {
		return r.effect(was, code, 0, "as before; no proven writer to compare with")
	}
	return r.serving(s)
}

// remembered are the causes that outlive the writer that they were found by.
var remembered = []topology.Code{
	topology.CodeNotStreaming, topology.CodePathBroken, topology.CodePaused, topology.CodeTimeline, topology.CodeLagUnknown,
}

// serving is the verdict on a replica that nothing speaks against.
func (r *round) serving(s seat) effect {
	switch {
	case r.saturated(s.n):
		return r.effect(topology.Up, topology.CodeSaturated, s.n.slotsAt, "all connection slots are taken")
	case r.ramping(s):
		return r.effect(topology.Up, topology.CodeRamping, max(s.t.roseAt, s.n.restartedAt), "returned lately; its weight grows")
	}
	return r.effect(topology.Up, topology.CodeReplica, 0, "replica")
}

// saturatedFor is how long a server counts as saturated after a login that found
// no slot, when no other login has told more since.
const saturatedFor = 30 * time.Second

// saturated: all connection slots were taken lately (SQLSTATE 53300).
func (r *round) saturated(n *node) bool {
	return n.slotsAt != 0 && !r.since(n.slotsAt, saturatedFor)
}

// trouble are the faults of replication that are given a grace.
func (r *round) trouble(s seat, over func(topology.Mono, time.Duration) bool) (effect, bool) {
	n := s.n
	streams := s.pool.RequireStreaming && n.Tags[topology.TagSource] != "archive" // which must be declared
	switch {
	case streams && n.unstreamedAt != 0 && over(n.unstreamedAt, r.p.StreamingGrace):
		return r.effect(topology.Drain, topology.CodeNotStreaming, n.unstreamedAt, r.noReceiver(n)), true
	case n.strayAt != 0 && over(n.strayAt, r.p.StreamingGrace):
		return r.effect(topology.Down, topology.CodeTimeline, n.strayAt, "follows timeline %d", n.full.Receiver.Timeline), true
	case streams && n.brokenAt != 0 && over(n.brokenAt, r.p.StreamingGrace):
		return r.effect(topology.Drain, topology.CodePathBroken, n.brokenAt, "its upstream receives nothing"), true
	case n.pausedAt != 0 && over(n.pausedAt, r.p.PausedGrace):
		return r.effect(topology.Drain, topology.CodePaused, n.pausedAt, "replay paused; lag %s", n.lag.Bytes.Short()), true
	}
	return effect{}, false
}

// atOnce is a grace that is over.
func atOnce(topology.Mono, time.Duration) bool { return true }

// noReceiver tells a standby whose upstream is down from one that lost it.
func (r *round) noReceiver(n *node) string {
	up := r.s.nodes[n.Tags[topology.TagReplicateFrom]]
	if up != nil && (up.silentAt != 0 || r.refused(up)) {
		return printable(strings.Join([]string{"no WAL receiver; upstream", up.Name, "is down"}, " "))
	}
	if n.full.Upstream == topology.No {
		return "no WAL receiver and no primary_conninfo; not tagged source: archive"
	}
	return "no WAL receiver"
}

// receives: the WAL receiver is alive, so a lag that cannot be told is no doubt.
func receives(n *node) bool {
	rc := &n.full.Receiver
	return rc.Streaming == topology.Yes && rc.MessageAge >= 0 && rc.MessageAge <= receiverFresh
}

// returning holds a replica that was out until it has been good for a while;
// what never was out (the first verdict) enters at once, and so does a demoted
// primary, which has nothing to recover from. One that came and went too often
// is held longer.
func (r *round) returning(s seat, out []effect) []effect {
	if harshest(out) != topology.Up {
		s.t.goodAt = 0
		return out
	}
	if s.t.goodAt == 0 {
		s.t.goodAt = r.now.Mono
	}
	switch {
	case s.t.heldTo != 0 && !r.since(s.t.heldTo, 0): // also when it serves for want of others
		return append(out[:0], r.effect(topology.Drain, topology.CodeDamped, s.t.leftAt, "came and went too often; held for %s", s.t.hold))
	case s.was.Verdict == topology.Up || s.was.Verdict == topology.Undecided || s.was.Reason().Code == topology.CodeWrongRole:
		return out
	case s.n.failingAt == 0 && r.since(s.t.goodAt, r.p.ReturnAfter):
		return out
	}
	return append(out[:0], r.effect(s.was.Verdict, topology.CodeReturning, s.t.goodAt, "good again; returns soon"))
}
