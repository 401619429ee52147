package resources

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// overprovisioning is so large that load leaves a priority only when none of
// its nodes is left; with Envoy's 140 % it leaves below 72 %.
const overprovisioning = 100_000

// newAssignment makes the endpoints of a pool under the name its cluster asks
// for. A pool without members gets an assignment without endpoints: a missing
// one means "no news" to Envoy, which would keep the old hosts.
//
// What clients of a zone get instead is told too, where it is something else.
func newAssignment(c *clusterv3.Cluster, o offer) (Assignment, []string) {
	name := c.GetEdsClusterConfig().GetServiceName()
	a := Assignment{ClusterLoadAssignment: NoEndpoints(name)}
	var all []member
	var warnings []string
	seen := make(map[topology.Address]string, len(o.members))
	for _, m := range o.members {
		if why := unusable(m, seen); why != "" {
			warnings = append(warnings, fmt.Sprintf("%s: node %s is left out: %s", c.GetName(), m.node, why))
			continue
		}
		seen[m.address] = m.node
		all = append(all, m)
	}
	if len(all) > 0 {
		a.Endpoints = []*endpointv3.LocalityLbEndpoints{level(0, "", all)}
	}
	if o.zoned {
		a.Zones = byZone(name, all)
	}
	refuseAt(a.ClusterLoadAssignment, o.refuse)
	for _, z := range a.Zones {
		refuseAt(z, o.refuse)
	}
	return a, warnings
}

// Assignment is the endpoints of a pool for clients anywhere.
type Assignment struct {
	*endpointv3.ClusterLoadAssignment
	// Zones has what clients of a zone get instead, by zone; the others get the same.
	Zones map[string]*endpointv3.ClusterLoadAssignment
}

// Rename gives the assignments another name.
func (a Assignment) Rename(name string) {
	a.ClusterName = name
	for _, z := range a.Zones {
		z.ClusterName = name
	}
}

// CheckAt gives the nodes another address at which Envoy asks about them.
func (a Assignment) CheckAt(at topology.Address) {
	for _, all := range append(slices.Collect(maps.Values(a.Zones)), a.ClusterLoadAssignment) {
		for _, l := range all.GetEndpoints() {
			for _, e := range l.GetLbEndpoints() {
				if c := e.GetEndpoint().GetHealthCheckConfig(); c.GetAddress() != nil {
					c.Address = socketAddress(at)
				}
			}
		}
	}
}

func (a Assignment) validate() error {
	err := a.ValidateAll()
	for _, z := range a.Zones {
		err = errors.Join(err, z.ValidateAll())
	}
	return err
}

// NoEndpoints is the assignment of a name that has no endpoints.
func NoEndpoints(name string) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: name,
		Policy: &endpointv3.ClusterLoadAssignment_Policy{
			OverprovisioningFactor: wrapperspb.UInt32(overprovisioning),
		},
	}
}

// unusable says why a member cannot be an endpoint: endpoints are literal
// addresses, and an address may occur once (Envoy drops the second in silence).
func unusable(m member, seen map[topology.Address]string) string {
	if _, ok := m.address.IP(); !ok {
		return fmt.Sprintf("Envoy's endpoints need a literal IP address, %q is none", m.address.Host)
	}
	if m.address.Port == 0 {
		return "its address has no port"
	}
	if other, ok := seen[m.address]; ok {
		return fmt.Sprintf("node %s has the same address %s", other, m.address)
	}
	return ""
}

// newEndpoint leaves the host name unset: a change of it recreates the host,
// which drains its sessions. The node's name goes where only people read it.
func newEndpoint(m member) *endpointv3.LbEndpoint {
	e := &endpointv3.Endpoint{Address: socketAddress(m.address), ObservabilityName: m.node}
	if m.checkAt != (topology.Address{}) {
		e.HealthCheckConfig = &endpointv3.Endpoint_HealthCheckConfig{Hostname: m.node, Address: socketAddress(m.checkAt)}
	}
	return &endpointv3.LbEndpoint{
		HostIdentifier:      &endpointv3.LbEndpoint_Endpoint{Endpoint: e},
		HealthStatus:        m.health,
		LoadBalancingWeight: wrapperspb.UInt32(m.weight),
		Metadata: &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
			"envoy.lb": {Fields: map[string]*structpb.Value{"node": structpb.NewStringValue(m.node)}},
		}},
	}
}

// socketAddress writes an IPv6 address bare, as Envoy wants it.
func socketAddress(a topology.Address) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Protocol:      corev3.SocketAddress_TCP,
		Address:       a.Host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port)},
	}}}
}
