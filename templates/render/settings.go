package render

import (
	"net/netip"
	"time"
)

// Settings is what an operator decides about the files, as opposed to what is
// known of the clusters. ViewOf copies it.
type Settings struct {
	// Agent is where the balancer asks for verdicts: the agent-check listener.
	Agent netip.AddrPort
	// Listen says where a balancer offers a pool. A pool without an entry gets no
	// listener; its servers are rendered all the same.
	Listen map[PoolID][]netip.AddrPort
	// Refuse says where a pool's clients are told why no node takes them. A pool
	// without an entry closes their connections.
	Refuse map[PoolID]netip.AddrPort
	// Options are the balancer's own settings.
	Options Options
	// Roles has the view name who serves each pool. Before is whom the file names now,
	// by node: who still serves stays.
	Roles  bool
	Before map[PoolID]string
	// Databases are those of the PgBouncer that reads the file.
	Databases []Database
	// Vars are the operator's own values for the operator's own templates.
	Vars map[string]string
}

// PoolID names a pool of a cluster.
type PoolID struct{ Cluster, Pool string }

// Options are a balancer's timeouts, intervals and sockets. A zero value stands
// for the default given with the field; the defaults are those of the reference
// configuration that was measured against HAProxy 2.2 to 3.4.
type Options struct {
	// StatsSocket is the path of the runtime API's socket. Empty: none.
	StatsSocket string
	// StatsListen is where HAProxy's statistics page is served. Zero: nowhere.
	StatsListen netip.AddrPort

	MaxConn       int // connections of the whole process; zero: HAProxy's own limit
	ServerMaxConn int // connections to one server; zero: no limit

	// BindCertificate is a PEM file with certificate and key: listeners speak TLS
	// from the first byte. Empty: bytes pass as they are.
	BindCertificate string
	// ServerCAFile has the certificates that a node's must be signed by: HAProxy
	// speaks TLS to it from the first byte. Empty: bytes pass as they are.
	ServerCAFile string

	ConnectTimeout time.Duration // 2 s
	ClientTimeout  time.Duration // 30 min; must exceed the idle time of any pool in front
	ServerTimeout  time.Duration // 30 min
	CheckTimeout   time.Duration // 1 s
	QueueTimeout   time.Duration // 1 s
	// TCPUserTimeout is how long sent bytes may stay unacknowledged, and how long a
	// peer without traffic may be away before keepalives are sent: 30 s.
	TCPUserTimeout time.Duration

	CheckInterval time.Duration // of the TCP check: 2 s
	Fall          int           // failed TCP checks until down: 5
	Rise          int           // good TCP checks until up: 1
	AgentInterval time.Duration // of the agent-check: 500 ms

	// MaxSpreadChecks is the time within which all first checks are made after a
	// start: 10 ms. It closes most of the window in which every server counts as
	// up (field report FR-19).
	MaxSpreadChecks time.Duration
	// HardStopAfter ends a worker that a reload replaced, with its sessions:
	// 30 min (field report FR-20).
	HardStopAfter time.Duration
	// MaxReloads ends workers that are older than this many reloads: 50.
	MaxReloads int
}

// withDefaults fills the fields that are zero.
func (o Options) withDefaults() Options {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.ConnectTimeout, 2 * time.Second},
		{&o.ClientTimeout, 30 * time.Minute},
		{&o.ServerTimeout, 30 * time.Minute},
		{&o.CheckTimeout, time.Second},
		{&o.QueueTimeout, time.Second},
		{&o.TCPUserTimeout, 30 * time.Second},
		{&o.CheckInterval, 2 * time.Second},
		{&o.AgentInterval, 500 * time.Millisecond},
		{&o.MaxSpreadChecks, 10 * time.Millisecond},
		{&o.HardStopAfter, 30 * time.Minute},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	for field, value := range map[*int]int{&o.Fall: 5, &o.Rise: 1, &o.MaxReloads: 50} {
		if *field == 0 {
			*field = value
		}
	}
	return o
}
