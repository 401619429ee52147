package resources

import (
	"errors"
	"fmt"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Settings is what an operator may choose. Every difference in a setting
// changes bytes, and a changed listener cuts sessions.
type Settings struct {
	// Listen gives the address on which Envoy shall accept sessions for a pool,
	// and false for a pool without listener. Its host is a literal IP; 0.0.0.0 and
	// :: are allowed. Nil: no listeners, clusters and endpoints only.
	Listen func(cluster, pool string) (topology.Address, bool)
	// Standing tells who the writer of a write pool is as it stands at Envoy, ""
	// for none, and false when that is not known. It is asked while no node is up:
	// of several nodes that drain, only that one has sessions to keep. Nil: not
	// known; the saved writer of the snapshot counts first anyway.
	Standing func(cluster, pool string) (writer string, known bool)
	// Saved tells the verdict on a node of a read pool from before the start, Undecided
	// for none. It counts for nodes of which nothing is decided yet, where nobody else
	// is up: a start empties no pool. Nil: none.
	Saved func(cluster, pool, node string) topology.Verdict
	// Sessions says what becomes of sessions when their node leaves a pool. Nil, and
	// "" from it: SessionsDrain for write pools, SessionsKeep for read pools.
	Sessions func(cluster, pool string) Sessions
	// Check is where Envoy asks about nodes, for pools with SessionsHealthCheck.
	Check Check
	// Leaving tells which nodes of a pool with SessionsHealthCheck are gone, but must
	// be listed until Envoy has asked about them. Nil: none.
	Leaving func(cluster, pool string) []Host
	// AnyZone tells which read pools take no account of the zone that a client says
	// it is in. Nil: none. Write pools never do.
	AnyZone func(cluster, pool string) bool
	// Refuse says where a pool's clients are told why no node takes them; zero:
	// nowhere, and their connections are closed. Nil: none.
	Refuse func(cluster, pool string) topology.Address
	// ServerTLS of the sessions that Envoy opens to nodes. Zero: bytes pass as they are.
	ServerTLS ServerTLS
	// ConnectTimeout bounds one attempt of Envoy to reach a node. Zero: 1 s.
	ConnectTimeout time.Duration
	// MaxConnections bounds the sessions of one pool through one Envoy. Zero:
	// 100,000, which leaves the limit to PostgreSQL; Envoy's own default is 1,024.
	MaxConnections uint32
}

func (s Settings) withDefaults() Settings {
	if s.Listen == nil {
		s.Listen = func(string, string) (topology.Address, bool) { return topology.Address{}, false }
	}
	if s.Standing == nil {
		s.Standing = func(string, string) (string, bool) { return "", false }
	}
	if s.Saved == nil {
		s.Saved = func(string, string, string) topology.Verdict { return topology.Undecided }
	}
	if s.Refuse == nil {
		s.Refuse = func(string, string) topology.Address { return topology.Address{} }
	}
	if s.AnyZone == nil {
		s.AnyZone = func(string, string) bool { return false }
	}
	if s.Leaving == nil {
		s.Leaving = func(string, string) []Host { return nil }
	}
	if s.Check.Interval == 0 {
		s.Check.Interval = DefaultCheckInterval
	}
	if s.ConnectTimeout == 0 {
		s.ConnectTimeout = time.Second
	}
	if s.MaxConnections == 0 {
		s.MaxConnections = 100_000
	}
	return s
}

// Set is everything Envoy needs for one cluster, each list in the order of the
// cluster's pools.
type Set struct {
	Clusters  []*clusterv3.Cluster
	Endpoints []Assignment
	Listeners []*listenerv3.Listener
	// APIs are for clients in gRPC. Envoy must never get them unless it asks by name.
	APIs []API
	// Writers has the writer of each write pool of the set by its [Name], "" where
	// there is none.
	Writers map[string]string
	// Checked has the nodes of each pool with SessionsHealthCheck by its [Name].
	Checked map[string][]Host
	// Withheld names the pools (as [Name] does) of which nothing is known yet.
	// They have no resources in the set, and that absence must not be read as a
	// removal: what stands at Envoy stays.
	Withheld []string
	// Unsure names the read pools in which nobody is up while nothing is known of a node.
	// What stands at an Envoy may be better, so it is nothing to begin with.
	Unsure []string
	// Warnings say what was left out and why, for the log.
	Warnings []string
}

// Name is the name of a pool's Envoy cluster and listener.
func Name(cluster, pool string) string { return cluster + "/" + pool }

// Build makes the resources of one decision. An error means that the decision
// cannot be expressed; nothing of it may be published then.
func Build(snap *topology.Snapshot, settings Settings) (Set, error) {
	if snap == nil {
		return Set{}, errors.New("building Envoy resources: there is no snapshot")
	}
	settings = settings.withDefaults()
	set := Set{Writers: make(map[string]string), Checked: make(map[string][]Host)}
	for _, p := range snap.Pools {
		if err := set.add(snap, p, settings); err != nil {
			return Set{}, fmt.Errorf("building Envoy resources of %s: %w", Name(snap.Cluster, p.Pool), err)
		}
	}
	return set, nil
}

func (set *Set) add(snap *topology.Snapshot, p topology.PoolVerdicts, settings Settings) error {
	name := Name(snap.Cluster, p.Pool)
	offer, known := choose(snap, p, settings)
	if !known {
		set.Withheld = append(set.Withheld, name)
		return nil
	}
	if offer.unsure {
		set.Unsure = append(set.Unsure, name)
	}
	offer.zoned = p.Mode == topology.ModeRead && !settings.AnyZone(snap.Cluster, p.Pool)
	if writer, ok := writerOf(offer.chain); ok {
		set.Writers[name] = writer
	}
	api, err := newAPI(snap.Cluster, p, offer, settings)
	if err != nil {
		return err
	}
	set.APIs = append(set.APIs, api)
	sessions := settings.sessions(snap.Cluster, p)
	if sessions == SessionsHealthCheck {
		set.Checked[name] = Hosts(snap, p)
		offer = offer.checked(set.Checked[name], settings.Leaving(snap.Cluster, p.Pool), settings.Check.Address)
	} else if sessions == SessionsKeep && p.Mode == topology.ModeWrite {
		offer.chain = chainKept
	}
	offer.refuse = settings.Refuse(snap.Cluster, p.Pool)
	c, err := newCluster(name, p.Mode, settings)
	if err == nil && sessions == SessionsHealthCheck {
		err = settings.Check.add(c, snap.Cluster, p.Pool)
	}
	if err == nil && (sessions == SessionsHealthCheck || !offer.refuse.IsZero()) {
		err = agentInClear(c)
	}
	if err == nil {
		err = nameEndpoints(c)
	}
	if err != nil {
		return err
	}
	e, warnings := newAssignment(c, offer)
	set.Warnings = append(set.Warnings, warnings...)
	set.Clusters = append(set.Clusters, c)
	set.Endpoints = append(set.Endpoints, e)
	if err := errors.Join(c.ValidateAll(), e.validate()); err != nil {
		return err
	}
	return set.listen(snap.Cluster, p.Pool, offer, settings)
}

func (set *Set) listen(cluster, pool string, offer offer, settings Settings) error {
	addr, ok := settings.Listen(cluster, pool)
	if !ok {
		return nil
	}
	name := Name(cluster, pool)
	if _, literal := addr.IP(); !literal || addr.Port == 0 {
		set.Warnings = append(set.Warnings,
			fmt.Sprintf("%s: listen address %q is not a literal IP and a port; the pool gets no listener", name, addr))
		return nil
	}
	l, err := newListener(name, addr, offer)
	if err != nil {
		return err
	}
	set.Listeners = append(set.Listeners, l)
	return l.ValidateAll()
}
