package engine

import (
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// defaultLeaderGap serves until the cluster's own loop_wait and retry_timeout
// are known; it is Patroni's default sum (10 s + 10 s).
const defaultLeaderGap = 20 * time.Second

// authorityState is the last picture of the authority.
type authorityState struct {
	source      topology.SourceID
	picture     *topology.Authority
	documents   *topology.Documents // no rule reads them
	at          topology.Mono       // when the picture was asked for
	absentSince topology.Mono       // the leader key is confirmed absent since
	optimeIndex uint64              // the last one that was told
}

func (s *State) observeAuthority(o topology.Observation, src *source) {
	a, old := o.Authority, s.authority.picture
	if old == nil || old.Leader != a.Leader {
		src.changedAt, s.hintAt = o.At.Mono, o.At.Mono
	}
	switch {
	case a.Leader != "":
		s.authority.absentSince = 0
	case s.authority.absentSince == 0:
		s.authority.absentSince = o.At.Mono
	}
	if h := &s.holder; h.name != "" && (a.Leader != "" && a.Leader != h.name || a.Withdrawn(h.name)) {
		h.superseded = true
	}
	if a.OptimeIndex > s.authority.optimeIndex {
		// The leader wrote its status some time after the picture before this
		// one, so the node was alive then, whatever our own link says.
		if n := s.nodes[a.Leader]; n != nil && old != nil && old.Leader == a.Leader {
			n.wordAt = max(n.wordAt, s.authority.at)
		}
	}
	if a.OptimeIndex != 0 { // zero is no word, and what a restored backup or a clock set back makes lower is no new one
		s.authority.optimeIndex = a.OptimeIndex
	}
	s.authority.source, s.authority.picture, s.authority.at = o.Source, a, o.AskedAt.Mono
	if s.systemID == 0 {
		s.systemID = a.SystemID
	}
	s.learnTimeline(s.systemID, a.Timeline)
	s.learnOptime(a, o.AskedAt.Mono)
	s.attachMembers()
}

// confirmIdentity takes another system identifier than the pinned one from the
// authority only when the server that it names has it too: then the cluster was
// built anew. A key that was damaged or written by hand takes nobody out.
func (r *round) confirmIdentity() {
	if !r.foreignKey() {
		return
	}
	n := r.s.nodes[r.named()]
	if n != nil && n.full != nil && n.full.SystemID == r.s.authority.picture.SystemID && !r.since(n.fullAt, r.p.EvidenceMaxAge) {
		r.s.systemID = n.full.SystemID
	}
}

// foreignKey: the authority's key and the pinned system identifier differ.
func (r *round) foreignKey() bool {
	a := r.s.authority.picture
	return a != nil && a.SystemID != 0 && r.s.systemID != 0 && a.SystemID != r.s.systemID
}

// authorityStatus tells what the authority's word is worth now.
func (r *round) authorityStatus() topology.AuthorityStatus {
	st := topology.AuthorityStatus{Kind: r.p.Authority}
	a := r.s.authority
	switch {
	case r.p.Authority == topology.AuthorityNone:
		st.State = topology.AuthorityStateNone
		return st
	case a.picture == nil:
		st.State = topology.AuthorityStateUnknown
		return st
	}
	st.State, st.Leader = topology.AuthorityStateCurrent, a.picture.Leader
	if r.s.sources[a.source].failingAt != 0 || r.since(a.at, r.p.AuthorityMaxAge) {
		st.State = topology.AuthorityStateLost
	}
	return st
}

// leaderGap is how long sessions outlive an absent leader key: a holder whose
// session blinked takes the key back within loop_wait + retry_timeout.
func (r *round) leaderGap() time.Duration {
	if r.p.LeaderGap > 0 {
		return r.p.LeaderGap
	}
	if a := r.s.authority.picture; a != nil && a.LoopWait > 0 && a.RetryTimeout > 0 {
		return a.LoopWait + a.RetryTimeout
	}
	return defaultLeaderGap
}

// holdsWithoutLeader: in Patroni's pause and failsafe mode the primary goes on
// without a leader key, so an absent key is no more than a lost authority.
func (r *round) holdsWithoutLeader() bool {
	a := r.s.authority.picture
	return a != nil && (a.Pause == topology.Yes || a.Failsafe == topology.Yes)
}

// byEvidence reports whether SQL evidence alone decides. A single failed read is
// no loss of the authority yet, so sql_only waits until its word is too old.
func (r *round) byEvidence() bool {
	return r.p.Authority == topology.AuthorityNone ||
		r.auth.State == topology.AuthorityStateLost && r.p.AuthorityLost == topology.LostSQLOnly &&
			r.since(r.s.authority.at, r.p.AuthorityMaxAge)
}

// named returns whom a current authority names.
func (r *round) named() string {
	if r.auth.State == topology.AuthorityStateCurrent {
		return r.auth.Leader
	}
	return ""
}

func (r *round) standbyCluster() bool {
	return r.p.Authority != topology.AuthorityNone && r.s.authority.picture != nil && r.s.authority.picture.StandbyCluster
}
