package healthapi

import (
	"fmt"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// CodeUnknown is the reason's code for a cluster, pool or node that nobody knows.
// It is not a reason of a decision, so topology.Codes does not list it.
const CodeUnknown topology.Code = "unknown"

// subject is a node as one request sees it.
type subject struct {
	ref      NodeRef
	settings *Settings
	query    query
	view     *topology.View
	snapshot *topology.Snapshot      // nil while nothing may be believed
	pools    []topology.PoolVerdicts // also of a view past its end, for their names
	facts    topology.NodeFacts
	cluster  *topology.Facts // never nil
	node     topology.Node
	known    bool // the snapshot lists the node
	now      topology.Clock

	// until is the moment after which time alone may change the answer, zero when
	// it rests on more than the view.
	until topology.Mono
}

// look collects what is known of a node now.
func (s *Server) look(ref NodeRef, set *Settings) *subject {
	v := s.opts.Views.Get(ref.Cluster)
	sub := &subject{ref: ref, settings: set, view: v, now: s.opts.Now(), cluster: &topology.Facts{}}
	if v != nil && v.Snapshot != nil {
		sub.pools = v.Snapshot.Pools
	}
	if !v.Valid(sub.now.Mono) {
		return sub
	}
	sub.until = v.ValidUntil
	sub.snapshot = v.Snapshot
	sub.node, sub.known = v.Snapshot.Node(ref.Node)
	if v.Facts != nil {
		sub.cluster = v.Facts
		sub.facts = v.Facts.Nodes[ref.Node]
	}
	return sub
}

func (sub *subject) strict() bool { return sub.settings.Compat == Strict }

// old: the answers are those of Patroni 3.
func (sub *subject) old() bool { return sub.settings.Compat == Patroni3 }

// within reports whether no more than d has passed since a moment.
func (sub *subject) within(at topology.Mono, d time.Duration) bool {
	end := at.Add(d)
	if at == 0 || sub.now.Mono > end {
		return false
	}
	sub.until = min(sub.until, end)
	return true
}

// decided reports whether there is evidence to judge the node by.
func (sub *subject) decided() bool {
	return sub.snapshot != nil && sub.facts.AnsweredAt != 0
}

// absent reports whether the cluster's complete snapshot does not list the node.
func (sub *subject) absent() (answer, bool) {
	if sub.snapshot == nil || sub.known || !sub.snapshot.Complete {
		return answer{}, false
	}
	return no(CodeUnknown, fmt.Sprintf("cluster %s has no node %s", sub.ref.Cluster, sub.ref.Node)), true
}

// authority is the last picture of the authority. One without any word stands for
// a cluster that has none, or whose has not been heard yet.
func (sub *subject) authority() topology.Authority {
	if sub.snapshot == nil || sub.snapshot.Authority.Kind == topology.AuthorityNone || sub.cluster.Authority == nil {
		return topology.Authority{}
	}
	return *sub.cluster.Authority
}

// unheard: there is an authority, and no word of it.
func (sub *subject) unheard() bool {
	return sub.snapshot == nil || sub.snapshot.Authority.State == topology.AuthorityStateUnknown
}

// leads reports whether the authority named the node last.
func (sub *subject) leads() bool {
	return sub.snapshot != nil && sub.snapshot.Authority.Leader != "" && sub.snapshot.Authority.Leader == sub.ref.Node
}

// standbyLeader reports whether the node was named last in a cluster that
// replicates from another.
func (sub *subject) standbyLeader() bool { return sub.leads() && sub.authority().StandbyCluster }

// writer is the node that takes writes, nil while there is none.
func (sub *subject) writer() *topology.NodeFacts {
	if sub.snapshot == nil || sub.snapshot.Writer == "" {
		return nil
	}
	f, ok := sub.cluster.Nodes[sub.snapshot.Writer]
	if !ok {
		return nil
	}
	return &f
}

// authoritySeen is when the authority answered last, whichever source it is of;
// zero for never.
func (sub *subject) authoritySeen() topology.Mono {
	for _, src := range sub.cluster.Sources {
		if src.Source == sub.cluster.AuthoritySource {
			return src.OKAt
		}
	}
	return 0
}

// part is a standby's part in commits: RoleSync, RoleQuorum or RoleAsync. Patroni
// asks its own key alone, and old releases know no quorum.
func (s *Server) part(sub *subject) topology.Role {
	authority := sub.authority()
	said := authority.SyncRole(sub.ref.Node)
	if sub.old() && said == topology.RoleQuorum {
		return topology.RoleAsync
	}
	if said != topology.RoleAny && !sub.strict() {
		return said
	}
	var seen *topology.Probe // while the writer's view is fresh
	if w := sub.writer(); w != nil && sub.within(w.AnsweredAt, s.opts.AnsweredWithin) {
		seen = w.Probe
	}
	return topology.AgreedRole(said, seen.SyncRole(authority.Application(sub.ref.Node)))
}

// replicationState is Patroni's word for how a standby gets its WAL, "" when it
// gets none, or when that cannot be seen.
func (sub *subject) replicationState() string {
	const archive = "in archive recovery"
	p := sub.facts.Probe
	switch {
	case p == nil || sub.facts.InRecovery != topology.Yes:
		return ""
	case p.Receiver.Streaming == topology.Yes:
		return "streaming"
	case sub.node.Tags[topology.TagSource] == "archive", sub.paper().Replication == archive:
		return archive
	}
	return ""
}
