package healthapi

import (
	"fmt"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// standby narrows replica to standbys with a part in commits.
func standby(parts ...topology.Role) func(*Server, *subject) answer {
	return func(s *Server, sub *subject) answer {
		if a := s.has(sub, parts); !a.ok {
			return a
		}
		return s.replica(sub)
	}
}

// readOnlyWith: the primary, or a standby with that part in commits.
func readOnlyWith(part topology.Role) func(*Server, *subject) answer {
	return func(s *Server, sub *subject) answer {
		if !sub.strict() && !sub.dcs() {
			return no(topology.CodeAuthorityLost, "the authority cannot be reached; Patroni then says no to everybody")
		}
		if a := s.writerOrLeader(sub); a.ok {
			return a
		}
		return standby(part)(s, sub)
	}
}

// has reports whether the node's part in commits is one of those.
func (s *Server) has(sub *subject, parts []topology.Role) answer {
	switch {
	case sub.unheard():
		return no(topology.CodeAuthorityUnknown, "the authority has not been heard yet, so the node's part in commits is not known")
	case !sub.strict() && !sub.dcs():
		return no(topology.CodeAuthorityLost, "the authority cannot be reached; Patroni then says no to everybody")
	}
	is := s.part(sub)
	if slices.Contains(parts, is) {
		return yes("", "")
	}
	return no(topology.CodeNotSelected, fmt.Sprintf("the node's part in commits is %s", is))
}

// defaultMaxLag is Patroni's default of maximum_lag_on_failover.
const defaultMaxLag topology.Size = 1 << 20

// readiness: the node does its work, whatever pools and tags say: it is the
// writer, or streams and is not far behind.
func (s *Server) readiness(sub *subject) answer {
	if out, is := s.withdrawn(sub); is {
		return out
	}
	if !sub.strict() {
		return s.patroniReadiness(sub)
	}
	switch a := s.writerOrLeader(sub); {
	case a.ok:
		return a
	case !sub.decided():
		return s.savedHealth(sub)
	}
	if a := s.health(sub); !a.ok {
		return a
	}
	return s.caughtUp(sub)
}

// caughtUp: it streams and is within the limit.
func (s *Server) caughtUp(sub *subject) answer {
	switch {
	case sub.facts.InRecovery != topology.Yes:
		return no(topology.CodeWrongRole, "the node is neither the writer nor in recovery")
	case sub.replicationState() != "streaming":
		return no(topology.CodeNotStreaming, "the node does not stream")
	}
	if sub.query.bytes == nil && sub.query.time == nil {
		limit := defaultMaxLag
		if d := sub.documents(); d != nil && d.MaxLag != nil {
			limit = *d.MaxLag
		}
		sub.query.bytes = &limit
	}
	return sub.withinLag()
}

// liveness: whether the node's Patroni is alive, which has nothing to do with
// PostgreSQL. Its session in the store ends when its loop stands still, and the
// member's key with it. A check that restarts containers fails on contrary
// evidence alone, never for want of knowledge.
func (s *Server) liveness(sub *subject) answer {
	a := sub.authority()
	switch {
	case sub.snapshot == nil || sub.snapshot.Authority.State != topology.AuthorityStateCurrent:
		return yes("", "nothing speaks against it: no authority tells")
	case a.Pause == topology.Yes:
		return yes("", "Patroni is paused")
	}
	for _, m := range a.Members {
		if m.Name == sub.ref.Node {
			return yes("", "Patroni keeps the member's key")
		}
	}
	return no(topology.CodeSilent, "the member's key is gone")
}

// lag is how far the node is behind, and whether that is known. While no writer
// is proven, nobody writes as far as is known, and the last known position of the
// writer is what counts: a failover must not empty the pools of readers. A time
// that cannot be told is negative.
func (sub *subject) lag() topology.Lag {
	l, p, end := sub.facts.Lag, sub.facts.Probe, sub.leaderEnd()
	switch {
	case l.Known == topology.Yes:
	case p == nil || p.ReplayLSN == 0 || end == 0 || sub.strict() && sub.writer() != nil:
		return topology.Lag{}
	default:
		l = topology.Lag{Known: topology.Yes, Bytes: topology.Size(end) - topology.Size(p.ReplayLSN), Time: -1}
	}
	if sub.query.write && p != nil && p.ReceiveLSN > p.ReplayLSN {
		l.Bytes, l.Time = l.Bytes-topology.Size(p.ReceiveLSN-p.ReplayLSN), -1
	}
	if l.Bytes <= 0 {
		l.Time = 0
	}
	return l
}

// leaderEnd is the newest known position of the leader: its own word, that of the
// authority, or what the node's receiver heard from its upstream.
func (sub *subject) leaderEnd() topology.LSN {
	end := max(sub.cluster.WriteLSN, sub.authority().Optime)
	if p := sub.facts.Probe; p != nil {
		end = max(end, p.Receiver.LatestEnd)
	}
	return end
}

// withinLag compares with the query's limits. As at Patroni a lag equal to the
// limit is good.
func (sub *subject) withinLag() answer {
	l, q := sub.lag(), sub.query
	switch {
	case l.Known != topology.Yes && !sub.strict() && q.time == nil:
		return yes(topology.CodeLagUnknown, "the lag is not known; Patroni then applies no limit")
	case l.Known != topology.Yes, q.time != nil && l.Time < 0:
		return no(topology.CodeLagUnknown, "the lag is not known")
	case q.bytes != nil && l.Bytes > *q.bytes:
		return no(topology.CodeLag, fmt.Sprintf("lag %s > %s", l.Bytes.Short(), q.bytes.Short()))
	case q.time != nil && l.Time > *q.time:
		return no(topology.CodeLag, fmt.Sprintf("lag %s > %s", l.Time, *q.time))
	}
	return yes(topology.CodeReplica, fmt.Sprintf("lag %s", l.Bytes.Short()))
}
