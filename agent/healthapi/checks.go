package healthapi

import (
	"fmt"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// answer is the outcome of a check.
type answer struct {
	ok     bool
	reason topology.Reason
}

func yes(code topology.Code, text string) answer {
	return answer{ok: true, reason: topology.Reason{Code: code, Text: text}}
}

func no(code topology.Code, text string) answer {
	return answer{reason: topology.Reason{Code: code, Text: text}}
}

// defaultPool is the pool of a mode that a check without a pool follows: the name
// that a cluster without pools of its own has.
func defaultPool(mode topology.Mode) string {
	if mode == topology.ModeWrite {
		return "primary"
	}
	return "replica"
}

// followed are the pools of a mode in the order in which a check without a pool
// follows them: the default one, then the others as they are configured.
func (sub *subject) followed(mode topology.Mode) []topology.PoolVerdicts {
	pools := slices.DeleteFunc(slices.Clone(sub.pools), func(p topology.PoolVerdicts) bool { return p.Mode != mode })
	own := slices.IndexFunc(pools, func(p topology.PoolVerdicts) bool { return p.Pool == defaultPool(mode) })
	if own > 0 {
		p := pools[own]
		pools = slices.Insert(slices.Delete(pools, own, own+1), 0, p)
	}
	return pools
}

// verdict is the node's verdict in the first pool of a mode, as followed lists them,
// that selects it; undecided ones are replaced by the saved verdict. The pool's name
// is "" when there is none.
func (s *Server) verdict(sub *subject, mode topology.Mode) (topology.NodeVerdict, string) {
	first, pool := topology.NodeVerdict{Node: sub.ref.Node}, ""
	for _, p := range sub.followed(mode) {
		v, ok := p.Verdict(sub.ref.Node)
		if !ok || sub.snapshot == nil {
			v = topology.NodeVerdict{Node: sub.ref.Node}
		}
		if v.Verdict == topology.Undecided {
			v = s.saved(sub, p.Pool, v)
		}
		if v.Reason().Code != topology.CodeNotSelected {
			return v, p.Pool
		}
		if pool == "" {
			first, pool = v, p.Pool
		}
	}
	if sub.snapshot != nil || pool != "" {
		return first, pool
	}
	// Before the first view the default pools are the best guess.
	pool = defaultPool(mode)
	return s.saved(sub, pool, first), pool
}

func (s *Server) saved(sub *subject, pool string, v topology.NodeVerdict) topology.NodeVerdict {
	sub.until = 0
	v.Verdict = s.opts.Saved(sub.ref.Cluster, pool, sub.ref.Node)
	text := "nothing is decided yet and no verdict is saved"
	if v.Verdict != topology.Undecided {
		text = fmt.Sprintf("nothing is decided yet; the saved verdict in pool %s is %s", pool, v.Verdict)
	}
	v.Reasons = []topology.Reason{{Code: topology.CodeNoEvidence, Text: text}}
	return v
}

// withdrawn reports whether an operator has taken the node out, whether
// pg_auto_failover's monitor has other plans for it, or whether another cluster's
// server answers at its address. Patroni knows nothing of that; it counts whoever's
// answers are given.
func (s *Server) withdrawn(sub *subject) (answer, bool) {
	for _, p := range sub.pools {
		v, ok := p.Verdict(sub.ref.Node)
		if !ok || sub.snapshot == nil {
			continue
		}
		for _, r := range v.Reasons {
			switch r.Code {
			case topology.CodeMaintenance, topology.CodeAssigned, topology.CodeIdentity:
				return answer{reason: r}, true
			default:
			}
		}
	}
	return answer{}, false
}

// primary: up in the write pool.
func (s *Server) primary(sub *subject) answer {
	v, pool := s.verdict(sub, topology.ModeWrite)
	a := answer{ok: v.Verdict == topology.Up, reason: v.Reason()}
	switch {
	case pool == "":
		return no(topology.CodeNoEvidence, "the cluster has no write pool")
	case a.ok || sub.strict() || sub.snapshot == nil:
		return a
	}
	if out, is := s.withdrawn(sub); is {
		return out
	}
	if out, is := s.hung(sub); is {
		return out
	}
	return sub.lockedPrimary(a)
}

// leader: the writer, or who holds the leader key and answers over SQL.
func (s *Server) leader(sub *subject) answer {
	a := s.primary(sub)
	switch {
	case a.ok || sub.snapshot == nil:
		return a
	case !sub.strict():
		if out, is := s.hung(sub); is {
			return out
		}
		return sub.lockedLeader()
	case sub.standbyLeader():
		return s.standbyLeader(sub)
	case sub.snapshot.Authority.State != topology.AuthorityStateCurrent || !sub.leads():
		return no(topology.CodeNotNamed, "the node is neither the writer nor named by the authority")
	}
	if a := s.health(sub); !a.ok {
		return a
	}
	return yes(topology.CodePromoting, "the authority names the node; it is not proven to take writes")
}

// standbyLeader: the leader of a standby cluster, in recovery as it should be.
func (s *Server) standbyLeader(sub *subject) answer {
	out, is := s.withdrawn(sub)
	switch {
	case is:
		return out
	case !sub.strict():
		if out, is := s.hung(sub); is {
			return out
		}
		return sub.lockedStandbyLeader()
	case !sub.standbyLeader():
		return no(topology.CodeNotNamed, "the node does not lead a standby cluster")
	case sub.facts.InRecovery != topology.Yes:
		return no(topology.CodeWrongRole, "the node is not known to be in recovery")
	}
	return s.health(sub)
}

// replica: in recovery, answering, not noloadbalance, in the read pool, and no
// further behind than the query allows.
func (s *Server) replica(sub *subject) answer {
	v, pool := s.verdict(sub, topology.ModeRead)
	limits := sub.query.bytes != nil || sub.query.time != nil
	switch {
	case !sub.decided():
		return answer{ok: v.Verdict == topology.Up, reason: v.Reason()}
	case sub.facts.InRecovery != topology.Yes:
		return no(topology.CodeWrongRole, "the node is not in recovery")
	case sub.standbyLeader():
		return no(topology.CodeWrongRole, "the node leads the standby cluster")
	case sub.node.HasTag(topology.TagNoLoadBalance):
		return no(topology.CodeNoLoadBalance, "tagged noloadbalance")
	case sub.strict() && pool != "" && v.Verdict != topology.Up && (!limits || !lagAlone(v)):
		return answer{reason: v.Reason()}
	}
	if !sub.strict() || pool == "" || v.Verdict != topology.Up { // who is up may be silent to us alone
		if a := s.health(sub); !a.ok {
			return a
		}
	}
	if !sub.strict() {
		if out, is := s.withdrawn(sub); is {
			return out
		}
	}
	if a := sub.rightState(); !a.ok {
		return a
	}
	if limits {
		return sub.withinLag()
	}
	if v.Verdict == topology.Up {
		return answer{ok: true, reason: v.Reason()}
	}
	return yes(topology.CodeReplica, "the node is in recovery and answers over SQL")
}

// lagAlone reports whether lag is all that keeps a node out of its pool; the
// caller's own limit then counts instead of the pool's.
func lagAlone(v topology.NodeVerdict) bool {
	lag := []topology.Code{topology.CodeLag, topology.CodeLagHard, topology.CodeLagUnknown, topology.CodeLagOverride, topology.CodeReplica}
	return v.Verdict != topology.Undecided && len(v.Reasons) > 0 &&
		!slices.ContainsFunc(v.Reasons, func(r topology.Reason) bool { return !slices.Contains(lag, r.Code) })
}

// rightState compares with replication_state=.
func (sub *subject) rightState() answer {
	want, is := sub.query.state, sub.replicationState()
	if want == nil || *want == is {
		return yes("", "")
	}
	if is == "" {
		is = "unknown"
	}
	return no(topology.CodeNotStreaming, fmt.Sprintf("replication_state is %s and not %s", is, *want))
}

// readOnly: primary or replica.
func (s *Server) readOnly(sub *subject) answer {
	if a := s.writerOrLeader(sub); a.ok {
		return a
	}
	return s.replica(sub)
}

// writerOrLeader: the primary, or the leader of a standby cluster.
func (s *Server) writerOrLeader(sub *subject) answer {
	if a := s.primary(sub); a.ok {
		return a
	}
	return s.standbyLeader(sub)
}

// health: answered over SQL a short while ago, whatever its role.
func (s *Server) health(sub *subject) answer {
	if !sub.decided() {
		return s.savedHealth(sub)
	}
	f := sub.facts
	if f.FailingAt != 0 && f.Failure != nil {
		if code := deathCode(f.Failure.Class); code != "" {
			return no(code, f.Failure.Text)
		}
	}
	if !sub.within(f.AnsweredAt, s.opts.AnsweredWithin) {
		return no(topology.CodeSilent, "no SQL answer since "+sub.now.WallAt(f.AnsweredAt).UTC().Format(time.TimeOnly))
	}
	return yes("", "the node answers over SQL")
}

func (s *Server) savedHealth(sub *subject) answer {
	for _, mode := range []topology.Mode{topology.ModeWrite, topology.ModeRead} {
		if v, _ := s.verdict(sub, mode); v.Verdict == topology.Up {
			return answer{ok: true, reason: v.Reason()}
		}
	}
	return no(topology.CodeNoEvidence, "the node has not answered over SQL yet")
}

// deathCode names failures that count before the last answer is too old: the
// server itself says that it takes nobody. Other failures are silence.
func deathCode(c topology.FailureClass) topology.Code {
	switch c {
	case topology.FailRefused, topology.FailReset:
		return topology.CodeRefused
	case topology.FailStarting, topology.FailShutdown:
		return topology.CodeStarting
	default:
		return ""
	}
}
