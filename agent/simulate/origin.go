package simulate

import (
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
	"github.com/pgsteer/pgsteer/watchers/pgautofailover"
)

// origin is where an authority's word is read, and how.
type origin struct {
	id      topology.SourceID
	what    string         // is read, for texts
	timeout time.Duration  // of a read that gets no answer
	outcome func() outcome // of a read now
	// picture is what a read brings now; false: nothing that can be used.
	picture func() (topology.Observation, bool)
}

// origin is nil for a cluster without an authority.
func (r *run) origin() *origin {
	switch {
	case r.world.keys != nil:
		return &origin{
			id:      topology.SourceID{Kind: topology.SourceConsul, Name: strings.Trim(r.s.cluster.Patroni.Scope, "/")},
			what:    "keys " + r.world.keys.prefix + " from Consul",
			timeout: readTimeout, outcome: func() outcome { return r.world.consul }, picture: r.keysPicture,
		}
	case r.world.monitor != nil:
		m := r.s.cluster.Monitor
		return &origin{
			id: pgautofailover.SourceID(m.Formation, m.Group), what: "the monitor of pg_auto_failover",
			timeout: m.Timeout, outcome: func() outcome { return r.world.monitor.fails }, picture: r.monitorPicture,
		}
	}
	return nil
}

func (r *run) keysPicture() (topology.Observation, bool) {
	pairs := r.world.keys.pairs(&r.world)
	authority, nodes, _ := consul.Picture(r.world.keys.prefix, pairs)
	documents := consul.Documents(r.world.keys.prefix, pairs)
	return topology.Observation{
		Authority: &authority, Documents: &documents,
		Nodes: &topology.NodeList{Nodes: nodes, ConfirmedEmpty: len(authority.Members) == 0},
	}, true
}

func (r *run) monitorPicture() (topology.Observation, bool) {
	a := r.world.monitor.answer(&r.world)
	if len(a.Nodes) == 0 { // as its watcher does
		return topology.Observation{}, false
	}
	authority, nodes, _ := pgautofailover.Picture(a, pgautofailover.Addresses(r.s.cluster.Monitor.Addresses), nil)
	return topology.Observation{Authority: &authority, Nodes: &topology.NodeList{Nodes: nodes}}, true
}
