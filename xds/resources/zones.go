package resources

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// zones tells where each node stands, by the tag that the rules read too. Nodes
// without one are in no zone.
func zones(snap *topology.Snapshot) map[string]string {
	at := make(map[string]string)
	for _, n := range snap.Nodes {
		if z := n.Tags[topology.TagZone]; z != "" {
			at[n.Name] = z
		}
	}
	return at
}

// byZone makes the assignments of clients that say in which zone they are: its
// nodes first, all others at the next priority, which gets sessions only when none
// of the zone's takes any. A zone that has all or none of the members gets what
// every client gets, so that there is never a gap between priorities.
//
// A node stands where its zone puts it, whatever its verdict. In an Envoy it may move
// between the priorities, also when zones change: with another locality it would be a
// new host, and about the sessions of the one of before Envoy asks nobody any more. So
// both priorities have the same locality there, while gRPC is given two.
func byZone(name string, members []member) map[string]*endpointv3.ClusterLoadAssignment {
	all := make(map[string]*endpointv3.ClusterLoadAssignment)
	locality := func(zone string) string {
		if IsAPI(name) {
			return zone
		}
		return ""
	}
	for _, m := range members {
		if m.zone == "" || all[m.zone] != nil {
			continue
		}
		var near, far []member
		for _, other := range members {
			if other.zone == m.zone {
				near = append(near, other)
			} else {
				far = append(far, other)
			}
		}
		if len(far) == 0 {
			return nil
		}
		a := NoEndpoints(name)
		a.Endpoints = []*endpointv3.LocalityLbEndpoints{level(0, locality(m.zone), near), level(1, "", far)}
		all[m.zone] = a
	}
	return all
}

// level is the members of one priority. Clients in gRPC want a locality to be
// there and to have a weight.
func level(priority uint32, zone string, members []member) *endpointv3.LocalityLbEndpoints {
	l := &endpointv3.LocalityLbEndpoints{
		Locality:            &corev3.Locality{Zone: zone},
		Priority:            priority,
		LoadBalancingWeight: wrapperspb.UInt32(1), // gRPC ignores a locality without one
	}
	for _, m := range members {
		l.LbEndpoints = append(l.LbEndpoints, newEndpoint(m))
	}
	return l
}
