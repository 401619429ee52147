package resources

import (
	"errors"
	"net/url"
	"slices"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Sessions says what becomes of the sessions that a pool has through Envoy when
// their node leaves it. A change of endpoints alone ends none of them, whatever
// its flags (measured with Envoy 1.40).
type Sessions string

const (
	// SessionsDrain names the listener's filter chain after the writer. A change of
	// writer ends every session of the listener, at once in an Envoy that was started
	// with --drain-time-s 0. For write pools.
	SessionsDrain Sessions = "drain"
	// SessionsHealthCheck lets Envoy ask this agent about every node, and end the
	// sessions of one that is down. Envoy needs to reach the agent: without a first
	// answer it lets nobody in.
	SessionsHealthCheck Sessions = "health-check"
	// SessionsKeep ends nothing.
	SessionsKeep Sessions = "keep"
)

// sessions is how a pool is served; what has no meaning for its mode is the
// mode's default.
func (s Settings) sessions(cluster string, p topology.PoolVerdicts) Sessions {
	var asked Sessions
	if s.Sessions != nil {
		asked = s.Sessions(cluster, p.Pool)
	}
	switch {
	case asked == SessionsHealthCheck || asked == SessionsKeep:
		return asked
	case p.Mode == topology.ModeWrite:
		return SessionsDrain
	default:
		return SessionsKeep
	}
}

// DefaultCheckInterval is how often Envoy asks about a node.
const DefaultCheckInterval = 200 * time.Millisecond

// Check says where and how often Envoy asks about nodes.
type Check struct {
	// Address of this agent's health listener as Envoy reaches it, a literal IP.
	Address topology.Address
	// Interval between two questions. Zero: DefaultCheckInterval.
	Interval time.Duration
}

const (
	// checkTimeout bounds one question. It is no verdict: see silence.
	checkTimeout = 500 * time.Millisecond
	// silence is how many questions in a row may stay without an answer, two days at
	// the default interval: an agent that is away must cut nobody. A bad status counts
	// at once, whatever this is.
	silence = 1_000_000
)

// add makes Envoy ask this agent about a pool's nodes: 200 for those that keep
// their sessions, 503 for those that lose them. Which node is meant is told by the
// Host header of each endpoint. Without traffic Envoy would ask every 60 s only.
func (k Check) add(c *clusterv3.Cluster, cluster, pool string) error {
	if _, literal := k.Address.IP(); !literal || k.Address.Port == 0 {
		return errors.New("sessions health-check: the address at which Envoy asks this agent is not a literal IP and a port")
	}
	c.CloseConnectionsOnHostHealthFailure = true
	c.HealthChecks = []*corev3.HealthCheck{{
		Timeout:            durationpb.New(checkTimeout),
		Interval:           durationpb.New(k.Interval),
		NoTrafficInterval:  durationpb.New(k.Interval),
		UnhealthyThreshold: wrapperspb.UInt32(silence),
		HealthyThreshold:   wrapperspb.UInt32(1),
		HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{
			Path: "/clusters/" + url.PathEscape(cluster) + "/pools/" + url.PathEscape(pool) + "/check",
		}},
	}}
	if c.GetTransportSocket() != nil {
		c.HealthChecks[0].TransportSocketMatchCriteria = inClear()
	}
	return nil
}

// Host is a node at an address.
type Host struct {
	Node    string
	Address topology.Address
	Zone    string
}

// Hosts are the nodes of a pool.
func Hosts(snap *topology.Snapshot, p topology.PoolVerdicts) []Host {
	at := zones(snap)
	all := make([]Host, len(p.Nodes))
	for i, v := range p.Nodes {
		all[i] = Host{v.Node, v.Address, at[v.Node]}
	}
	return all
}

// checked lists every node of the pool and those that are leaving it. Whoever the
// pool does not offer is unhealthy, so that a session needs the word of the
// endpoints and that of the check. A new host lets nobody in before its first
// check, so each is there before it is needed; and Envoy ends sessions only of
// hosts that it still asks about.
func (o offer) checked(hosts, leaving []Host, at topology.Address) offer {
	offered := make(map[Host]member, len(o.members))
	for _, m := range o.members {
		offered[Host{m.node, m.address, m.zone}] = m
	}
	all := offer{chain: chainChecked, zoned: o.zoned}
	for _, h := range slices.Concat(hosts, leaving) {
		m, ok := offered[h]
		if !ok {
			m = member{node: h.Node, address: h.Address, health: corev3.HealthStatus_UNHEALTHY, weight: fullWeight, zone: h.Zone}
		}
		m.checkAt = at
		all.members = append(all.members, m)
	}
	return all
}
