package resources

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	rawv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/raw_buffer/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// refuser is what the endpoint is called that tells clients why no node takes them.
const refuser = "pgsteer"

// refuseAt puts the address where clients are told why no node takes them behind all
// nodes of an assignment: the priority after the last one gets sessions only when no
// node of those before takes any.
func refuseAt(a *endpointv3.ClusterLoadAssignment, at topology.Address) {
	if at.IsZero() {
		return
	}
	l := level(uint32(len(a.GetEndpoints())), "", []member{{node: refuser, address: at, health: corev3.HealthStatus_HEALTHY, weight: 1}})
	only := l.GetLbEndpoints()[0]
	// It is no node: health checks would ask about one.
	only.GetEndpoint().HealthCheckConfig = &endpointv3.Endpoint_HealthCheckConfig{DisableActiveHealthCheck: true}
	only.Metadata.FilterMetadata["envoy.transport_socket_match"] = inClear()
	a.Endpoints = append(a.Endpoints, l)
}

// inClear marks what Envoy sends to this agent, which is no server with TLS.
func inClear() *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"ask": structpb.NewStringValue("pgsteer")}}
}

// agentInClear makes what goes to this agent go without the TLS of sessions.
func agentInClear(c *clusterv3.Cluster) error {
	if c.GetTransportSocket() == nil {
		return nil
	}
	s, err := transportSocket(clearSocket, new(rawv3.RawBuffer))
	c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{{Name: "agent", Match: inClear(), TransportSocket: s}}
	return err
}
