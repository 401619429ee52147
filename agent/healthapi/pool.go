package healthapi

import (
	"fmt"
	"net/http"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// poolRef names a node in a pool.
type poolRef struct {
	NodeRef
	pool string
}

// servePool answers with a pool's verdict on a node. An undecided one is no
// answer at all: the balancer counts that as a failed attempt and not as a no.
func (s *Server) servePool(w http.ResponseWriter, r *http.Request, t target, set *Settings) {
	view := s.opts.Views.Get(t.ref.Cluster)
	v := s.poolVerdict(poolRef{t.ref, t.pool}, view)
	status := http.StatusServiceUnavailable
	switch v.Verdict {
	case topology.Up:
		status = http.StatusOK
	case topology.Drain:
		status = set.DrainStatus
		if t.envoy {
			status = http.StatusOK
		}
	case topology.Down:
	case topology.Undecided:
		s.counters.Unanswered.Add(1)
		// The server's way to close a connection without an answer; it is not logged.
		panic(http.ErrAbortHandler)
	}
	rep := newReply(status, v.Reason(), poolBody{
		Cluster: t.ref.Cluster, Pool: t.pool, Node: t.ref.Node,
		Verdict: v.Verdict, Weight: v.Weight, Reason: newReasonBody(v.Reason()),
	})
	if !t.envoy { // whose answer is not a matter of the path alone
		s.remember(r, rep, basis{cluster: t.ref.Cluster, view: view, settings: set, until: view.ValidUntil})
	}
	s.send(w, r, rep)
}

// poolVerdict is down with CodeUnknown for names that are certainly nobody's.
func (s *Server) poolVerdict(ref poolRef, view *topology.View) topology.NodeVerdict {
	if !view.Valid(s.opts.Now().Mono) {
		return topology.NodeVerdict{}
	}
	p, ok := view.Snapshot.Pool(ref.pool)
	if ok {
		if v, ok := p.Verdict(ref.Node); ok {
			return v
		}
	}
	if !view.Snapshot.Complete {
		return topology.NodeVerdict{}
	}
	text := fmt.Sprintf("cluster %s has no pool %s", ref.Cluster, ref.pool)
	if ok {
		text = fmt.Sprintf("pool %s of cluster %s has no node %s", ref.pool, ref.Cluster, ref.Node)
	}
	return topology.NodeVerdict{
		Node: ref.Node, Verdict: topology.Down,
		Reasons: []topology.Reason{{Code: CodeUnknown, Text: text}},
	}
}
