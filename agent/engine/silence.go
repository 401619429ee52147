package engine

import (
	"cmp"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// unasked bounds how long a node may go without being asked at all before that
// counts as silence: a watcher that died is no proof of health.
const unasked = 3

// lastWord is the last sign of life of a node, from whomever, or the moment
// from which its silence may be counted.
func (r *round) lastWord(n *node) topology.Mono {
	if r.s.isolated == topology.Yes {
		return r.now.Mono
	}
	return max(n.answeredAt, n.aliveAt, n.wordAt, n.heardAt, n.knownAt,
		r.s.heardAt, r.s.resumedAt, n.localAt) // times in which we could not ask, for reasons of our own
}

// hear notes for each node the last message that a standby got from it, and keeps
// it when the standby has no receiver any more. Only the direct upstream counts; a
// cascade's leaf hears from somebody else.
func (r *round) hear() {
	for _, o := range r.nodes {
		if o.full == nil {
			continue
		}
		rc := &o.full.Receiver
		if up := r.upstream(o); up != nil && rc.Streaming == topology.Yes && rc.MessageAge >= 0 {
			up.heardAt = max(up.heardAt, o.fullAt.Add(-rc.MessageAge))
		}
	}
}

// declareSilence marks nodes that have not answered for silent_after, and for
// kill_after. Only an answer of the node, or a fresh word of it from elsewhere,
// ends a declared silence. As long as no node at all has been heard since the start,
// the silence may as well be ours, and a start cuts nobody.
func (r *round) declareSilence() {
	if r.s.heardAt == 0 {
		return
	}
	for _, n := range r.nodes {
		word := r.lastWord(n)
		patience := r.p.SilentAfter
		if n.failingAt == 0 || n.aliveAt == n.failedAt {
			patience *= unasked
		}
		switch {
		case n.silentAt != 0 && max(n.wordAt, n.heardAt) > n.silentAt && !r.since(max(n.wordAt, n.heardAt), r.p.SilentAfter):
			n.silentAt, n.killed = 0, false
		case n.silentAt == 0 && r.since(word, patience):
			n.silentAt = r.now.Mono
		}
		n.killed = n.killed || n.silentAt != 0 && r.since(word, r.p.KillAfter)
	}
}

// refused: nobody listens, confirmed by a second attempt.
func (r *round) refused(n *node) bool {
	return n.refusedOnce != 0 && n.refusedSpan() >= r.p.RefusedConfirm
}

// wasRefused: it was so between the last decision and this one.
func (r *round) wasRefused(n *node) bool {
	return r.refused(n) || n.refusedFor > 0 && n.refusedFor >= r.p.RefusedConfirm
}

// writable is the node's own newest word on its role, whatever its age.
func (n *node) writable() bool {
	return n.inRecovery == topology.No && n.readOnly == topology.No
}

// gone are the rules about a node that cannot be talked to; they are the same
// in every pool. killSilent says whether silence may end sessions by itself.
func (r *round) gone(n *node, killSilent bool) (effect, bool) {
	switch word := r.lastWord(n); {
	case r.wasRefused(n):
		return r.effect(topology.Down, topology.CodeRefused, n.refusedOnce, "connection refused"), true
	case n.refusedOnce != 0 && n.silentAt == 0 && !killSilent:
		// Not confirmed, so nobody is cut. But a server that is restarted as a
		// standby listens again within milliseconds, and must not be let in on.
		return r.effect(topology.Drain, topology.CodeRefused, n.refusedOnce, "connection refused once"), true
	case n.silentAt != 0:
		v := topology.Drain
		if killSilent && n.killed {
			v = topology.Down
		}
		return r.effect(v, topology.CodeSilent, word, "no answer since %s", clock(r.now, word)), true
	case n.startingAt != 0:
		return r.effect(topology.Drain, topology.CodeStarting, n.startingAt, "starting up or shutting down"), true
	case n.loginFail != 0 && r.since(n.loginFail, r.p.SilentAfter):
		return r.effect(topology.Drain, topology.CodeSilent, n.loginFail, "new logins get no answer"), true
	}
	return effect{}, false
}

// clock prints a moment as wall time of day, in UTC.
func clock(now topology.Clock, m topology.Mono) string {
	return now.WallAt(m).UTC().Format("15:04:05")
}

// identity: another cluster's server answers at the node's address.
func (r *round) identity(n *node) (effect, bool) {
	if !r.s.foreign(n) {
		return effect{}, false
	}
	return r.effect(topology.Down, topology.CodeIdentity, n.fullAt, "system identifier %d is not %d", n.full.SystemID, r.s.systemID), true
}

// timeMaintenance asks to be woken at every end and deadline of a record, also of
// one that another record covers until then.
func (r *round) timeMaintenance() {
	for _, rec := range r.m.Records {
		for _, at := range []time.Time{rec.Until, rec.DrainUntil} {
			if at.After(r.now.Wall) {
				r.since(r.now.Mono, at.Sub(r.now.Wall))
			}
		}
	}
}

// maintained: an operator has taken the node out of every pool.
func (r *round) maintained(n *node) (effect, bool) {
	if e, ok := r.maintainedIn("", n); ok {
		return e, true
	}
	return r.ordered(n)
}

// maintainedIn: an operator has taken the node out of this pool.
func (r *round) maintainedIn(pool string, n *node) (effect, bool) {
	rec, ok := r.m.ActiveIn(pool, n.Name, r.now.Wall)
	if !ok {
		return effect{}, false
	}
	verdict := topology.Drain
	if rec.Drained(r.now.Wall) {
		verdict = topology.Down
	}
	var since topology.Mono
	if !rec.Since.IsZero() {
		since = r.now.Mono.Add(rec.Since.Sub(r.now.Wall))
	}
	return r.effect(verdict, topology.CodeMaintenance, since, "%s", cmp.Or(rec.Reason, "no reason given")), true
}
