package engine

import (
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// decideWriter moves the writer role and finds every node's effects in write
// pools. At most one node gets Up: the holder, and there is one holder or none.
func (r *round) decideWriter() {
	r.dropHolder()
	r.admit()
	up := false
	if n := r.s.nodes[r.s.holder.name]; n != nil {
		r.writer[n.i] = r.holderEffects(r.writer[n.i][:0], n)
		up = harshest(r.writer[n.i]) == topology.Up
	}
	for _, n := range r.nodes {
		if n.Name == r.s.holder.name {
			continue
		}
		r.writer[n.i] = r.otherEffects(r.writer[n.i][:0], n)
		if up {
			// HAProxy keeps a silent server in its last state, so beside a writer
			// everybody else is told to be down.
			r.writer[n.i][0].verdict = topology.Down
		}
	}
}

// dropHolder takes the role away at the first contrary evidence.
func (r *round) dropHolder() {
	h := r.s.holder
	n := r.s.nodes[h.name]
	switch {
	case h.name == "":
	case n == nil && !r.s.complete(): // a list is missing; wait for the sources
	case n == nil || r.contrary(n):
		r.s.lost[h.name] = r.now
		r.s.holder = holder{}
	}
}

// contrary: evidence that the holder is not the writer any more.
func (r *round) contrary(n *node) bool {
	h := r.s.holder
	switch {
	case h.deposed, r.s.foreign(n), r.wasRefused(n), r.standbyCluster():
		return true
	case n.Address != h.address: // its sessions are at another server
		return true
	case h.superseded && r.p.Authority != topology.AuthorityNone:
		return true
	case r.leaderGapOver(), r.silentAndUnnamed(n):
		return true
	case r.byEvidence():
		return r.s.timelines[r.s.systemID] > r.heldTimeline(n) || r.rivalled(n) || n.killed
	case r.auth.State == topology.AuthorityStateLost && r.p.HoldMax > 0 && r.since(r.s.authority.at, r.p.HoldMax):
		return true
	case r.auth.State == topology.AuthorityStateUnknown && !r.since(max(r.s.start.Mono, r.s.resumedAt), r.p.SilentAfter):
		return false // a start gives the authority time to speak first, also after a standstill
	case r.auth.State != topology.AuthorityStateCurrent, r.auth.Leader == "" && r.holdsWithoutLeader():
		return r.rivalled(n)
	}
	return false
}

// leaderGapOver: the leader key has been absent for so long that its holder
// cannot be trusted to come back.
func (r *round) leaderGapOver() bool {
	a := r.s.authority
	return r.auth.State == topology.AuthorityStateCurrent && a.absentSince != 0 &&
		!r.holdsWithoutLeader() && r.since(a.absentSince, r.leaderGap())
}

// silentAndUnnamed: the node does not answer and its leader key is gone too, so
// there is no blink of a session to wait for (design.md 4, invariant 3).
func (r *round) silentAndUnnamed(n *node) bool {
	return r.auth.State == topology.AuthorityStateCurrent && r.s.authority.absentSince != 0 &&
		!r.holdsWithoutLeader() && n.silentAt != 0
}

// rivalled: another node is writable on an equal or higher timeline than the
// holder's. An equal one counts only once the holder itself has been asked, so
// that after a restart the order of the first answers decides nothing.
func (r *round) rivalled(n *node) bool {
	own := r.heldTimeline(n)
	heard := n.roleAt != 0 || n.silentAt != 0
	for _, o := range r.nodes {
		tl := o.timeline()
		if !same(o, n) && tl != 0 && r.claims(o) && (tl > own || tl == own && heard) {
			return true
		}
	}
	return false
}

// same: two names for one server, by a wrong DNS record or the word of an authority.
// A server is no rival of itself.
func same(a, b *node) bool { return a == b || a.Address == b.Address && !a.Address.IsZero() }

// heldTimeline is the timeline on which the holder writes, or on which the role
// was given to it while it has not told.
func (r *round) heldTimeline(n *node) topology.Timeline {
	if tl := n.timeline(); tl != 0 {
		return tl
	}
	return r.s.holder.timeline
}

// claims: the node's word that it is writable counts against others for as
// long as its sessions could still be writing.
func (r *round) claims(n *node) bool {
	// Times in which we could not ask do not make its word old.
	heard := max(n.roleAt, n.localAt, r.s.resumedAt)
	return n.writable() && !r.s.foreign(n) && !r.refused(n) && !r.since(heard, r.p.KillAfter)
}

// timeline is the timeline the node writes on; 0 when it is not known to write.
func (n *node) timeline() topology.Timeline {
	if n.full == nil || n.full.InRecovery != topology.No {
		return 0
	}
	return n.full.Timeline
}

// admit gives the role to the one node that may enter, if there is one.
func (r *round) admit() {
	h := &r.s.holder
	for _, n := range r.nodes {
		if h.name != "" && (!h.restored || h.name != n.Name) {
			continue
		}
		r.spare = r.barred(r.spare[:0], n)
		if len(r.spare) > 0 {
			continue
		}
		since := r.now
		if h.restored {
			since = h.since
		}
		*h = holder{name: n.Name, address: n.Address, since: since, timeline: n.timeline()}
		r.s.decided = true
		delete(r.s.lost, n.Name)
		if r.s.systemID == 0 {
			r.s.systemID = n.full.SystemID
		}
		r.s.ring.follow(n.full, n.answeredAt)
		return
	}
}

// barred adds to out, which is empty, what keeps a node from entering a write pool:
// nothing, or the ladder's first cause and a harsher one that holds beside it.
func (r *round) barred(out []effect, n *node) []effect {
	if e, ok := r.identity(n); ok {
		return append(out, e)
	}
	if e, ok := r.gone(n, false); ok {
		if r.cutSilent(n) {
			e.verdict = topology.Down
		}
		out = append(out, e)
	}
	if e, ok := r.unfit(n); ok && (len(out) == 0 || e.verdict > out[0].verdict) {
		out = append(out, e)
	}
	return out
}

// cutSilent: a node that cannot be talked to has no sessions to keep, unless
// they date from before this agent's start.
func (r *round) cutSilent(n *node) bool {
	return r.s.decided || r.named() != "" && r.named() != n.Name ||
		r.byEvidence() && n.killed
}

// unfit: the node's own word, or the lack of it, and then the other side's.
func (r *round) unfit(n *node) (effect, bool) {
	if r.standbyCluster() {
		return r.effect(topology.Down, topology.CodeStandbyCluster, 0, "standby cluster"), true
	}
	if e, bad := r.notWritable(n); bad {
		return e, true
	}
	if r.since(n.roleAt, r.p.EvidenceMaxAge) {
		return r.unproven(topology.CodeNoEvidence, n.roleAt, "role not proven lately"), true
	}
	if n.full == nil || n.full.SystemID == 0 {
		return r.unproven(topology.CodeNoEvidence, 0, "system identifier not read yet"), true
	}
	other := r.barredByAuthority
	if r.byEvidence() {
		other = r.barredByEvidence
	}
	if e, bad := other(n); bad {
		return e, true
	}
	lost, ok := r.s.lost[n.Name]
	return r.effect(topology.Down, topology.CodeMinDown, lost.Mono, "was lost as writer"), ok && !r.since(lost.Mono, r.p.MinDown)
}

// unproven: knowledge is missing. Before the first decision the node may be the
// writer, and a start must not cut its sessions.
func (r *round) unproven(code topology.Code, at topology.Mono, format string, args ...any) effect {
	v := topology.Down
	if !r.s.decided {
		v = topology.Undecided
	}
	return r.effect(v, code, at, format, args...)
}

// notWritable: the node's own word against writing.
func (r *round) notWritable(n *node) (effect, bool) {
	switch {
	case n.inRecovery == topology.Yes && r.named() == n.Name:
		return r.effect(topology.Down, topology.CodePromoting, n.roleAt, "named but still in recovery"), true
	case n.inRecovery == topology.Yes:
		return r.effect(topology.Down, topology.CodeWrongRole, n.roleAt, "in recovery"), true
	case n.readOnly == topology.Yes:
		return r.effect(topology.Down, topology.CodeReadOnly, n.roleAt, "transactions are read-only"), true
	case n.aliveAt != 0 && n.roleAt == 0:
		return r.unproven(topology.CodeRoleUnknown, n.aliveAt, "no word on its role: %s", n.failure.Class), true
	case !n.writable():
		return r.effect(topology.Undecided, topology.CodeNoEvidence, n.knownAt, unheard(n)), true
	}
	return effect{}, false
}

// unheard says why nothing is known of a node's role.
func unheard(n *node) string {
	if n.failingAt != 0 {
		return "no answer yet"
	}
	return "not asked yet"
}

func (r *round) barredByAuthority(n *node) (effect, bool) {
	a := r.s.authority
	switch {
	case r.auth.State == topology.AuthorityStateUnknown:
		return r.effect(topology.Undecided, topology.CodeAuthorityUnknown, r.s.start.Mono, "authority not heard yet"), true
	case r.auth.State == topology.AuthorityStateLost && !r.s.decided:
		return r.effect(topology.Undecided, topology.CodeAuthorityLost, a.at, "authority lost before a decision"), true
	case r.auth.State == topology.AuthorityStateLost:
		return r.effect(topology.Down, topology.CodeFenced, n.roleAt, "writable; authority lost and not the writer"), true
	}
	if e, bad := r.barredByGoal(n); bad {
		return e, true
	}
	switch {
	case a.picture.Leader == "":
		v := topology.Down
		if !r.s.decided && !r.leaderGapOver() {
			v = topology.Drain // it may have sessions from before this agent's start
		}
		return r.effect(v, topology.CodeNoLeader, a.absentSince, r.nobodyNamed(true)), true
	case a.picture.Leader != n.Name:
		return r.effect(topology.Down, topology.CodeFenced, n.roleAt, "writable but %s is named", a.picture.Leader), true
	case a.picture.SessionAgrees == topology.No:
		return r.unproven(topology.CodeSessionMismatch, a.at, "leader and member sessions differ"), true
	}
	return effect{}, false
}

// barredByEvidence is the rule without an authority: alone on the highest
// timeline ever seen, every other node heard or given up.
func (r *round) barredByEvidence(n *node) (effect, bool) {
	own, highest := n.timeline(), r.s.timelines[n.full.SystemID]
	switch {
	case n.HasTag(topology.TagNoFailover) || n.full.ApplyDelay > 0:
		return r.effect(topology.Down, topology.CodeNoFailover, n.roleAt, "never the writer without an authority"), true
	case own == 0:
		return r.unproven(topology.CodeNoEvidence, n.roleAt, "timeline not read yet"), true
	case own < highest:
		return r.effect(topology.Down, topology.CodeOldTimeline, n.roleAt, "timeline %d; highest seen %d", own, highest), true
	}
	for _, o := range r.nodes {
		switch {
		case o == n, r.newcomer(o) && r.s.holder.restored && r.s.holder.name == n.Name:
			// A node that is only just listed must not keep the writer that stands from
			// standing on; as soon as it is heard it counts like any other.
		case o.roleAt == 0 && o.silentAt == 0 && o.aliveAt == 0 && !r.refused(o):
			return r.effect(topology.Undecided, topology.CodeNoEvidence, o.knownAt, "waiting for word of %s", o.Name), true
		case max(o.answeredAt, o.failedAt) < r.s.resumedAt: // a standstill of ours: it may have been promoted meanwhile
			return r.unproven(topology.CodeNoEvidence, r.s.resumedAt, "waiting for word of %s", o.Name), true
		case r.s.systemID == 0 && o.full != nil && o.full.SystemID != n.full.SystemID:
			return r.effect(topology.Down, topology.CodeIdentity, n.fullAt, "%s has another system identifier", o.Name), true
		case !same(o, n) && r.claims(o) && (o.timeline() == 0 || o.timeline() >= own):
			// For entering, a writable node whose timeline is not read yet is a rival too.
			return r.effect(topology.Down, topology.CodeTwoWriters, n.roleAt, "%s is writable too", o.Name), true
		}
	}
	return effect{}, false
}

// newcomer: never heard, and unknown before the sources were exchanged.
func (r *round) newcomer(o *node) bool {
	return r.s.continues && o.roleAt == 0 && !slices.ContainsFunc(r.s.saved.Nodes, func(n topology.Node) bool {
		return n.Name == o.Name && n.Address == o.Address
	})
}

// holderEffects adds to out the causes that act on the node with the writer role.
func (r *round) holderEffects(out []effect, n *node) []effect {
	if e, ok := r.maintained(n); ok {
		out = append(out, e)
	}
	if e, ok := r.gone(n, false); ok {
		out = append(out, e)
	}
	if a := r.s.authority; a.absentSince != 0 && !r.byEvidence() && !r.holdsWithoutLeader() {
		out = append(out, r.effect(topology.Drain, topology.CodeNoLeader, a.absentSince, r.nobodyNamed(false)))
	}
	lost := r.auth.State == topology.AuthorityStateLost && !r.byEvidence()
	if len(out) == 0 && !r.s.holder.restored && (lost || r.byEvidence() && n.aliveAt != 0) && r.declareUnproven(n) {
		out = append(out, r.effect(topology.Drain, topology.CodeRoleUnknown, n.roleAt, "role not proven and no authority names it"))
	}
	if r.p.WriteStall == topology.StallDrain && r.stalled(n) {
		out = append(out, r.effect(topology.Drain, topology.CodeWritesStalled, n.writeFailAt, "write probes get no answer"))
	}
	if len(out) == 0 {
		out = append(out, r.standing(n))
	}
	if lost && out[0].code != topology.CodeAuthorityLost {
		out = append(out, r.effect(out[0].verdict, topology.CodeAuthorityLost, r.s.authority.at, "authority lost; held by SQL evidence"))
	}
	return out
}

// declareUnproven: nothing has proved for evidence_max_age that the node is
// writable, not counting times in which we could not ask. Once declared only a
// word of the node on its role ends it.
func (r *round) declareUnproven(n *node) bool {
	if n.unprovenAt == 0 && r.s.isolated != topology.Yes && r.since(max(n.roleAt, n.localAt, r.s.resumedAt), r.p.EvidenceMaxAge) {
		n.unprovenAt = r.now.Mono
	}
	return n.unprovenAt != 0
}

// standing is the holder's verdict when nothing speaks against it.
func (r *round) standing(n *node) effect {
	h := r.s.holder
	switch {
	case h.restored:
		r.spare = r.barred(r.spare[:0], n)
		e := r.spare[0]
		e.verdict = topology.Undecided
		return e
	case r.saturated(n):
		return r.effect(topology.Up, topology.CodeSaturated, n.slotsAt, "all connection slots are taken")
	case n.aliveAt != 0:
		return r.effect(topology.Up, topology.CodeRoleUnknown, n.aliveAt, "no word on its role: %s", n.failure.Class)
	case n.failingAt != 0 && r.since(n.answeredAt, r.p.SilentAfter):
		return r.effect(topology.Up, topology.CodeLinkCut, n.failingAt, "others hear from it")
	case r.byEvidence():
		return r.effect(topology.Up, topology.CodeWriter, h.since.Mono, "writable on the highest timeline")
	}
	if r.p.Authority == topology.AuthorityMonitor {
		return r.effect(topology.Up, topology.CodeWriter, h.since.Mono, "assigned to take writes and is writable")
	}
	return r.effect(topology.Up, topology.CodeWriter, h.since.Mono, "holds the leader key and is writable")
}

// otherEffects adds to out the causes that act on a node without the writer role.
func (r *round) otherEffects(out []effect, n *node) []effect {
	out = r.barred(out, n)
	if len(out) == 0 {
		// It may enter, but another node still holds the role.
		out = append(out, r.effect(topology.Down, topology.CodeFenced, n.roleAt, "writable but %s is the writer", r.s.holder.name))
	}
	if _, ok := r.s.lost[n.Name]; ok {
		out[0].verdict = topology.Down
	}
	if e, ok := r.maintained(n); ok {
		if r.s.decided {
			e.verdict = topology.Down
		}
		out = slices.Insert(out, 0, e)
	}
	return out
}
