package engine

import (
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Observe folds one observation, once. One whose sequence number is not above
// the last of its source is dropped, unless it was asked after that one was
// there: then the watcher is a new one and counts from 1 again. Evidence about
// another address than the node's present one is dropped too.
func Observe(s *State, o topology.Observation) {
	src := s.sources[o.Source]
	if src == nil {
		src = &source{}
		s.sources[o.Source] = src
	}
	if o.Seq <= src.seq && o.AskedAt.Mono <= src.at {
		return
	}
	src.seq, src.at = o.Seq, o.At.Mono
	if o.Failure != nil {
		s.observeFailure(o, src)
		return
	}
	if o.Port == nil && (o.Probe == nil || telling(o.Probe.Kind)) {
		src.okAt, src.failingAt, src.failure = o.At.Mono, 0, nil
	}
	if o.Nodes != nil && (len(o.Nodes.Nodes) > 0 || o.Nodes.ConfirmedEmpty) {
		s.listed(o.Source, o.Nodes.Nodes, o.At.Mono)
	}
	if o.Authority != nil {
		s.observeAuthority(o, src)
	}
	if o.Documents != nil {
		s.authority.documents = o.Documents
	}
	if o.Probe != nil {
		s.observeProbe(o)
	}
	if o.Port != nil {
		s.observePort(o)
	}
	if o.Local != nil {
		if s.isolated == topology.Yes {
			s.resumedAt = o.At.Mono
		}
		s.isolated = o.Local.Isolated
	}
}

// telling: by this way of asking the source tells about the node; the others
// prove one thing each, and say nothing of the source's health.
func telling(k topology.ProbeKind) bool { return k == topology.ProbeFull || k == topology.ProbeRole }

func (s *State) observeProbe(o topology.Observation) {
	p := o.Probe
	n := s.nodes[p.Node]
	if n == nil || n.Address != p.Address {
		return
	}
	if p.Kind == topology.ProbeLogin {
		// It proves the postmaster and no more: a server that lets us in and then
		// answers no question is silent all the same.
		n.loginAt, n.loginFail, n.loginFailure, n.slotsAt = o.At.Mono, 0, nil, 0
		return
	}
	if p.Kind == topology.ProbeWrite {
		n.writeAt, n.writeFailAt = o.At.Mono, 0
		return
	}
	told := p.InRecovery == topology.Yes || p.InRecovery == topology.No && p.ReadOnly != topology.Unknown
	if !told || o.AskedAt.Mono < n.roleAt {
		return
	}
	if o.AskedAt.Mono >= n.refusedTo { // else a refusal is the newer word
		n.answered(o.At.Mono)
	}
	s.heard(o.At.Mono)
	if n.inRecovery != p.InRecovery || n.readOnly != p.ReadOnly {
		s.hintAt = o.At.Mono
	}
	n.inRecovery, n.readOnly, n.roleAt = p.InRecovery, p.ReadOnly, o.AskedAt.Mono
	if p.Kind == topology.ProbeFull {
		if n.full != nil && !n.full.StartedAt.IsZero() && p.StartedAt.After(n.full.StartedAt) {
			n.restartedAt = o.At.Mono
		}
		n.learnWaiters(p, o.At.Mono)
		n.full, n.fullAt = p, o.AskedAt.Mono
		s.learnTimeline(p.SystemID, p.Timeline, p.Receiver.Timeline)
		s.learnPosition(n, o)
	}
	if s.holder.name == n.Name && (!n.writable() || s.foreign(n)) {
		s.holder.deposed = true
	}
}

// heard notes that we can hear at all.
func (s *State) heard(at topology.Mono) {
	if s.heardAt == 0 {
		s.heardAt = at
	}
}

// answered ends every failure that an answer disproves.
func (n *node) answered(at topology.Mono) {
	if n.refusedTo > n.refusedSeen {
		n.refusedFor = max(n.refusedFor, n.refusedSpan())
	}
	n.answeredAt, n.failure, n.unprovenAt = at, nil, 0
	n.failingAt, n.failedAt, n.refusedAt, n.refusedTo, n.refusedPast = 0, 0, 0, 0, 0
	n.refusedOnce, n.startingAt, n.silentAt, n.killed, n.aliveAt = 0, 0, 0, false, 0
}

// refusedSpan is the longest time between refusals with no sign of life between.
func (n *node) refusedSpan() time.Duration {
	if n.refusedAt == 0 {
		return n.refusedPast
	}
	return max(n.refusedPast, n.refusedTo.Sub(n.refusedAt))
}

// foreign: another cluster's server answers at the node's address.
func (s *State) foreign(n *node) bool {
	return n.full != nil && n.full.SystemID != 0 && s.systemID != 0 && n.full.SystemID != s.systemID
}

// learnTimeline keeps the highest timeline ever seen. Before the cluster's
// identifier is known nobody can tell whose it is, so every server counts apart.
func (s *State) learnTimeline(id uint64, timelines ...topology.Timeline) {
	if id != 0 {
		s.timelines[id] = max(s.timelines[id], slices.Max(timelines))
	}
}

// observeFailure folds a failure. Whatever it proves, it only adds: what an
// earlier failure proved stands until an answer ends it.
func (s *State) observeFailure(o topology.Observation, src *source) {
	f, at, first := o.Failure, o.At.Mono, src.failingAt == 0
	if f.Asked == "" || telling(f.Asked) {
		src.failure = f
		if first {
			src.failingAt = at
		}
	}
	if o.Source.Kind != topology.SourcePostgres {
		if first {
			s.hintAt = at
		}
		return
	}
	n := s.nodes[f.Node]
	switch {
	case n == nil || n.Address != f.Address:
	case f.Class == topology.FailLocal:
		n.localAt = at
	case f.Asked == topology.ProbeLogin:
		n.loginFailed(f, at)
	case f.Asked == topology.ProbeWrite:
		n.writeFailed(f.Class, at)
	case f.Asked == topology.ProbePort:
		n.port(f.Port).failed(f, at)
	default:
		if n.failingAt == 0 {
			n.failingAt, s.hintAt = at, at
		}
		n.failure, n.failedAt = f, at
		n.classify(f.Class, at)
		if n.aliveAt == at || n.refusedTo == at {
			s.heard(at)
		}
	}
}

// learnSlots notes a login that found no slot; any other word ends that.
func (n *node) learnSlots(c topology.FailureClass, at topology.Mono) {
	n.slotsAt = 0
	if c == topology.FailSlots {
		n.slotsAt = at
	}
}

// loginFailed folds a fresh login that failed beside the kept session. A server
// that refuses it by word (no slot, bad password) has a working postmaster.
func (n *node) loginFailed(f *topology.Failure, at topology.Mono) {
	n.loginFailure = f
	n.learnSlots(f.Class, at)
	if f.Class == topology.FailName {
		return // a name server's trouble; the kept session says more of the node
	}
	if !alive(f.Class) && n.loginFail == 0 {
		n.loginFail = at
	}
}

// writeFailed folds a write probe in vain. Only silence is a stall: a server
// that refuses the write by word has working storage, for all we know.
func (n *node) writeFailed(c topology.FailureClass, at topology.Mono) {
	if (c == topology.FailTimeout || c == topology.FailLost) && n.writeFailAt == 0 {
		n.writeFailAt = at
	}
}

func (n *node) classify(c topology.FailureClass, at topology.Mono) {
	switch {
	case c == topology.FailRefused || c == topology.FailReset:
		if n.refusedAt == 0 {
			n.refusedAt = at
		}
		if n.refusedOnce == 0 {
			n.refusedOnce = at
		}
		n.refusedTo = at
	case c == topology.FailStarting || alive(c):
		n.aliveAt = at
		// Refusals are confirmed by refusals alone: after a sign of life the next one
		// is the first again. A span that was long enough stays until an answer.
		n.refusedPast, n.refusedAt = n.refusedSpan(), 0
	}
	n.learnSlots(c, at)
	if c == topology.FailStarting && n.startingAt == 0 {
		// 57P01 is no such evidence: it also ends a single session on a healthy
		// server. A server that shuts down answers the next attempt with 57P03.
		n.startingAt = at
	}
}

// alive: somebody answered, so the server lives, and its role is unknown.
func alive(c topology.FailureClass) bool {
	switch c {
	case topology.FailAuth, topology.FailDatabase, topology.FailSlots, topology.FailTLS, topology.FailProtocol:
		return true
	default:
		return false
	}
}
