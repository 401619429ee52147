package resources

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// fetchTimeout is how long a new cluster waits for its endpoints before Envoy
// goes on with what it has. Its default of 15 s would hold up a start.
const fetchTimeout = 5 * time.Second

// newCluster makes the Envoy cluster of a pool; its endpoints have no name yet. Nothing in it depends on a
// verdict, so a cluster changes only with the settings or with pgsteer itself.
func newCluster(name string, mode topology.Mode, s Settings) (*clusterv3.Cluster, error) {
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig:     &clusterv3.Cluster_EdsClusterConfig{EdsConfig: overADS()},
		ConnectTimeout:       durationpb.New(s.ConnectTimeout),
		CommonLbConfig:       balancing(),
		CircuitBreakers:      breakers(s.MaxConnections),
		// Should an operator add active checks by other means, a node that left is
		// gone even while it still answers them.
		IgnoreHealthOnHostRemoval: true,
		UpstreamConnectionOptions: &clusterv3.UpstreamConnectionOptions{TcpKeepalive: keepalive()},
	}
	setPolicy(c, mode)
	return c, s.ServerTLS.add(c)
}

// nameEndpoints puts the content of a cluster into the name of its endpoints. A
// changed cluster then asks for another name and is answered at once; with the
// same name neither protocol would send them again.
func nameEndpoints(c *clusterv3.Cluster) error {
	c.EdsClusterConfig.ServiceName = ""
	version, err := hash(c)
	if err != nil {
		return err
	}
	c.EdsClusterConfig.ServiceName = c.GetName() + "@" + version
	return nil
}

// setPolicy spreads reads by open sessions and by the weights that are decided.
// Envoy's own slow start is left off: the decided weights have the ramp already,
// and two of them would multiply. A writer is alone in its pool, so the cheapest
// policy is right for it.
func setPolicy(c *clusterv3.Cluster, mode topology.Mode) {
	if mode == topology.ModeWrite {
		c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
		return
	}
	c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
}

func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		ResourceApiVersion:    corev3.ApiVersion_V3,
		InitialFetchTimeout:   durationpb.New(fetchTimeout),
	}
}

// balancing switches panic off twice: with it, Envoy sends to nodes that we
// called unhealthy as soon as half of them are (field report FR-31). The merge
// window would hold a changed verdict back for a second.
func balancing() *clusterv3.Cluster_CommonLbConfig {
	return &clusterv3.Cluster_CommonLbConfig{
		HealthyPanicThreshold: &typev3.Percent{Value: 0},
		UpdateMergeWindow:     durationpb.New(0),
		LocalityConfigSpecifier: &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig_{
			ZoneAwareLbConfig: &clusterv3.Cluster_CommonLbConfig_ZoneAwareLbConfig{FailTrafficOnPanic: true},
		},
	}
}

// breakers sets both limits, since for TCP the pending one counts sessions too.
func breakers(n uint32) *clusterv3.CircuitBreakers {
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		Priority:           corev3.RoutingPriority_DEFAULT,
		MaxConnections:     wrapperspb.UInt32(n),
		MaxPendingRequests: wrapperspb.UInt32(n),
	}}}
}

// keepalive finds a dead peer in about 25 s; nothing else in a TCP proxy does.
func keepalive() *corev3.TcpKeepalive {
	return &corev3.TcpKeepalive{
		KeepaliveTime:     wrapperspb.UInt32(10),
		KeepaliveInterval: wrapperspb.UInt32(5),
		KeepaliveProbes:   wrapperspb.UInt32(3),
	}
}

// hash identifies the content of a message by 12 hexadecimal digits.
func hash(m proto.Message) (string, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:6]), nil
}
