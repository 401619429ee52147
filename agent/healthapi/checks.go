package healthapi

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// CodeUnknown is the reason's code for a cluster, pool or node that nobody knows.
// It is not a reason of a decision, so topology.Codes does not list it.
const CodeUnknown topology.Code = "unknown"

// subject is a node as one request sees it.
type subject struct {
	ref      NodeRef
	snapshot *topology.Snapshot      // nil while nothing may be believed
	pools    []topology.PoolVerdicts // also of a view past its end, for their names
	facts    topology.NodeFacts
	cluster  *topology.Facts // never nil
	node     topology.Node
	known    bool // the snapshot lists the node
	now      topology.Clock
	limit    *topology.Size // of lag=, nil without
}

// answer is the outcome of a check.
type answer struct {
	ok     bool
	reason topology.Reason
}

func yes(r topology.Reason) answer { return answer{ok: true, reason: r} }

func no(code topology.Code, text string) answer {
	return answer{reason: topology.Reason{Code: code, Text: text}}
}

// look collects what is known of a node now.
func (s *Server) look(ref NodeRef) *subject {
	sub := &subject{ref: ref, now: s.opts.Now(), cluster: &topology.Facts{}}
	v := s.opts.Views.Get(ref.Cluster)
	if v != nil && v.Snapshot != nil {
		sub.pools = v.Snapshot.Pools
	}
	if !v.Valid(sub.now.Mono) {
		return sub
	}
	sub.snapshot = v.Snapshot
	sub.node, sub.known = v.Snapshot.Node(ref.Node)
	if v.Facts != nil {
		sub.cluster = v.Facts
		sub.facts = v.Facts.Nodes[ref.Node]
	}
	return sub
}

func (s *Server) serveCheck(w http.ResponseWriter, r *http.Request, ref NodeRef, c check) {
	sub := s.look(ref)
	var err error
	if sub.limit, err = lagLimit(r.URL.RawQuery); err != nil {
		s.refuse(w, r, http.StatusBadRequest, err.Error())
		return
	}
	a, absent := s.absent(sub)
	if !absent {
		a = c(s, sub)
	}
	status := http.StatusServiceUnavailable
	if a.ok {
		status = http.StatusOK
	}
	s.reply(w, r, status, a.reason, s.nodeBody(sub, a))
}

// lagLimit reads lag= the way Patroni picks it (the first one counts, a blank one
// is none) but refuses what it cannot read: Patroni drops such a limit in
// silence, and "1mb" would let every replica through.
func lagLimit(query string) (*topology.Size, error) {
	if query == "" {
		return nil, nil
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, fmt.Errorf("query cannot be read: %w", err)
	}
	for _, text := range q["lag"] {
		if text == "" {
			continue
		}
		limit, err := topology.ParseSize(text)
		if err != nil {
			return nil, fmt.Errorf("lag: %w", err)
		}
		return &limit, nil
	}
	return nil, nil
}

// absent reports whether the cluster's complete snapshot does not list the node.
func (s *Server) absent(sub *subject) (answer, bool) {
	if sub.snapshot == nil || sub.known || !sub.snapshot.Complete {
		return answer{}, false
	}
	return no(CodeUnknown, fmt.Sprintf("cluster %s has no node %s", sub.ref.Cluster, sub.ref.Node)), true
}

// verdict is the node's verdict in the first pool of a mode; undecided ones are
// replaced by the saved verdict. The pool's name is "" when there is none.
func (s *Server) verdict(sub *subject, mode topology.Mode) (topology.NodeVerdict, string) {
	undecided := topology.NodeVerdict{Node: sub.ref.Node}
	for _, p := range sub.pools {
		if p.Mode != mode {
			continue
		}
		v, ok := p.Verdict(sub.ref.Node)
		if !ok || sub.snapshot == nil {
			v = undecided
		}
		if v.Verdict == topology.Undecided {
			v = s.saved(sub, p.Pool, v)
		}
		return v, p.Pool
	}
	if sub.snapshot != nil {
		return undecided, ""
	}
	// Before the first view the names of the default pools are the best guess.
	pool := "replica"
	if mode == topology.ModeWrite {
		pool = "primary"
	}
	return s.saved(sub, pool, undecided), pool
}

func (s *Server) saved(sub *subject, pool string, v topology.NodeVerdict) topology.NodeVerdict {
	v.Verdict = s.opts.Saved(sub.ref.Cluster, pool, sub.ref.Node)
	text := "nothing is decided yet and no verdict is saved"
	if v.Verdict != topology.Undecided {
		text = fmt.Sprintf("nothing is decided yet; the saved verdict in pool %s is %s", pool, v.Verdict)
	}
	v.Reasons = []topology.Reason{{Code: topology.CodeNoEvidence, Text: text}}
	return v
}

// decided reports whether there is evidence to judge the node by.
func (sub *subject) decided() bool {
	return sub.snapshot != nil && sub.facts.AnsweredAt != 0
}

// primary: up in the first write pool.
func (s *Server) primary(sub *subject) answer {
	v, pool := s.verdict(sub, topology.ModeWrite)
	if pool == "" {
		return no(topology.CodeNoEvidence, "the cluster has no write pool")
	}
	return answer{ok: v.Verdict == topology.Up, reason: v.Reason()}
}

// leader: the writer, or who holds the leader key and answers over SQL.
func (s *Server) leader(sub *subject) answer {
	if a := s.primary(sub); a.ok || sub.snapshot == nil {
		return a
	}
	auth := sub.snapshot.Authority
	if auth.State != topology.AuthorityStateCurrent || auth.Leader != sub.ref.Node {
		return no(topology.CodeNotNamed, "the node is neither the writer nor named by the authority")
	}
	if a := s.health(sub); !a.ok {
		return a
	}
	return yes(topology.Reason{Code: topology.CodePromoting, Text: "the authority names the node; it is not proven to take writes"})
}

// standbyLeader: the leader of a standby cluster, in recovery as it should be.
func (s *Server) standbyLeader(sub *subject) answer {
	auth := sub.cluster.Authority
	if auth == nil || !auth.StandbyCluster || auth.Leader != sub.ref.Node {
		return no(topology.CodeNotNamed, "the node does not lead a standby cluster")
	}
	if sub.facts.InRecovery != topology.Yes {
		return no(topology.CodeWrongRole, "the node is not known to be in recovery")
	}
	return s.health(sub)
}

// readOnly: primary or replica.
func (s *Server) readOnly(sub *subject) answer {
	if a := s.primary(sub); a.ok {
		return a
	}
	return s.replica(sub)
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
	if age := sub.now.Mono.Sub(f.AnsweredAt); age > s.opts.AnsweredWithin {
		return no(topology.CodeSilent, fmt.Sprintf("last SQL answer %s ago", age.Round(100*time.Millisecond)))
	}
	return yes(topology.Reason{Text: "the node answers over SQL"})
}

func (s *Server) savedHealth(sub *subject) answer {
	for _, mode := range []topology.Mode{topology.ModeWrite, topology.ModeRead} {
		if v, _ := s.verdict(sub, mode); v.Verdict == topology.Up {
			return yes(v.Reason())
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

// replica: in recovery, answering, not noloadbalance, in the read pool, and no
// further behind than lag= allows.
func (s *Server) replica(sub *subject) answer {
	v, pool := s.verdict(sub, topology.ModeRead)
	if !sub.decided() {
		return answer{ok: v.Verdict == topology.Up, reason: v.Reason()}
	}
	if a := s.health(sub); !a.ok {
		return a
	}
	if sub.facts.InRecovery != topology.Yes {
		return no(topology.CodeWrongRole, "the node is not in recovery")
	}
	if sub.node.HasTag(topology.TagNoLoadBalance) {
		return no(topology.CodeNoLoadBalance, "tagged noloadbalance")
	}
	if pool != "" && v.Verdict != topology.Up && (sub.limit == nil || !lagAlone(v)) {
		return answer{reason: v.Reason()}
	}
	if sub.limit != nil {
		return withinLag(sub.facts.Lag, *sub.limit)
	}
	return yes(topology.Reason{Code: topology.CodeReplica, Text: v.Reason().Text})
}

// lagAlone reports whether lag is all that keeps a node out of its pool; the
// caller's own limit then counts instead of the pool's.
func lagAlone(v topology.NodeVerdict) bool {
	lag := []topology.Code{topology.CodeLag, topology.CodeLagHard, topology.CodeLagUnknown, topology.CodeLagOverride, topology.CodeReplica}
	return v.Verdict != topology.Undecided && len(v.Reasons) > 0 &&
		!slices.ContainsFunc(v.Reasons, func(r topology.Reason) bool { return !slices.Contains(lag, r.Code) })
}

// withinLag compares with lag=. As at Patroni a lag equal to the limit is good.
func withinLag(l topology.Lag, limit topology.Size) answer {
	switch {
	case l.Known != topology.Yes:
		return no(topology.CodeLagUnknown, "the lag is not known")
	case l.Bytes > limit:
		return no(topology.CodeLag, fmt.Sprintf("lag %s > %s", l.Bytes.Short(), limit.Short()))
	}
	return yes(topology.Reason{Code: topology.CodeReplica, Text: fmt.Sprintf("lag %s", l.Bytes.Short())})
}
