package e2e

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	typePrefix   = "type.googleapis.com/envoy.config."
	clusterType  = typePrefix + "cluster.v3.Cluster"
	endpointType = typePrefix + "endpoint.v3.ClusterLoadAssignment"
	listenerType = typePrefix + "listener.v3.Listener"
)

// adsClient is a subscriber that says what it was told last. It accepts everything.
type adsClient struct {
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient

	mu        sync.Mutex        // guards everything below
	names     map[string]string // Envoy's cluster to the name of its endpoints
	endpoints map[string][]string
	chains    map[string]string // listener to the name of its filter chain
}

// subscribe opens an ADS stream to the agent that ends with the test.
func (r *rig) subscribe() *adsClient {
	r.t.Helper()
	conn, err := grpc.NewClient(r.xds, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	c := &adsClient{stream: stream, endpoints: make(map[string][]string), chains: make(map[string]string)}
	done := make(chan struct{})
	r.t.Cleanup(func() { cancel(); <-done; _ = conn.Close() })
	r.do(stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, Node: &corev3.Node{Id: "test", Cluster: "test"}}))
	r.do(stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: listenerType}))
	go func() { defer close(done); c.receive(r.t) }()
	return c
}

// receive takes and acknowledges every response until the stream ends.
func (c *adsClient) receive(tb testing.TB) {
	tb.Helper()
	for {
		m, err := c.stream.Recv()
		if err != nil {
			return
		}
		asked := c.take(tb, m)
		ack := &discoveryv3.DiscoveryRequest{TypeUrl: m.GetTypeUrl(), VersionInfo: m.GetVersionInfo(), ResponseNonce: m.GetNonce()}
		if m.GetTypeUrl() == endpointType {
			ack.ResourceNames = c.wanted()
		}
		if err := c.stream.Send(ack); err != nil {
			return
		}
		if asked {
			if err := c.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResourceNames: c.wanted()}); err != nil {
				return
			}
		}
	}
}

// take keeps a response and reports whether endpoints are to be asked for anew.
func (c *adsClient) take(tb testing.TB, m *discoveryv3.DiscoveryResponse) bool {
	tb.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.GetTypeUrl() {
	case clusterType:
		before := c.names
		c.names = make(map[string]string)
		for _, x := range m.GetResources() {
			var cl clusterv3.Cluster
			unpack(tb, x, &cl)
			c.names[cl.GetName()] = cl.GetEdsClusterConfig().GetServiceName()
		}
		return !maps.Equal(before, c.names)
	case listenerType:
		clear(c.chains)
		for _, x := range m.GetResources() {
			var l listenerv3.Listener
			unpack(tb, x, &l)
			c.chains[l.GetName()] = l.GetFilterChains()[0].GetName()
		}
	case endpointType:
		for _, x := range m.GetResources() {
			var a endpointv3.ClusterLoadAssignment
			unpack(tb, x, &a)
			c.endpoints[a.GetClusterName()] = healthy(&a)
		}
	}
	return false
}

func unpack(tb testing.TB, x *anypb.Any, m proto.Message) {
	tb.Helper()
	if err := x.UnmarshalTo(m); err != nil {
		tb.Errorf("a resource that cannot be read: %v", err)
	}
}

// healthy are the nodes of an assignment that take new sessions.
func healthy(a *endpointv3.ClusterLoadAssignment) []string {
	names := []string{}
	for _, l := range a.GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			if e.GetHealthStatus() == corev3.HealthStatus_HEALTHY {
				names = append(names, e.GetEndpoint().GetObservabilityName())
			}
		}
	}
	slices.Sort(names)
	return names
}

func (c *adsClient) wanted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Values(c.names))
}

// pool are the nodes that a pool offers for new sessions.
func (c *adsClient) pool(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.endpoints[c.names[name]], " ")
}

// chain is the name of a listener's filter chain; "" without the listener.
func (c *adsClient) chain(listener string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.chains[listener]
}
