package topology

import "time"

// SourceKind says which kind of watcher an observation comes from.
type SourceKind string

// The kinds of sources.
const (
	SourcePostgres SourceKind = "postgres" // direct SQL probe of one node; Name is the node
	SourceConsul   SourceKind = "consul"   // Patroni's keys in Consul; Name is the scope
	SourceMonitor  SourceKind = "monitor"  // pg_auto_failover's monitor; Name is formation/group
	SourceFile     SourceKind = "file"     // nodes of the config or an inventory file; Name is the file
	SourceLocal    SourceKind = "local"    // the agent about itself
)

// SourceID identifies one source of one cluster.
type SourceID struct {
	Kind SourceKind
	Name string
}

func (s SourceID) String() string { return string(s.Kind) + "/" + s.Name }

// Observation is what one source saw of one cluster at one moment, or why it
// saw nothing. Each is folded exactly once by engine.Observe.
//
// Failure and content exclude each other: with Failure set the other fields say
// nothing, and an absent field (nil) means "not looked at", never "none".
type Observation struct {
	Cluster string
	Source  SourceID
	// Seq counts a source's observations from 1; one that is not above the last
	// folded is dropped, so an observation can never count twice.
	Seq uint64
	// AskedAt is when the question was put, At when the answer (or the failure)
	// was there. Evidence is as old as AskedAt.
	AskedAt, At Clock

	Failure   *Failure
	Probe     *Probe     // SourcePostgres
	Nodes     *NodeList  // sources of nodes
	Authority *Authority // SourceConsul and other authorities
	// Documents come beside an Authority. No rule reads them and they may be large,
	// so no recording has them.
	Documents *Documents `json:"-"`
	Local     *Local     // SourceLocal
	Port      *PortOpen  // SourcePostgres: a pool's own port works
}

// Failure is why a source saw nothing.
type Failure struct {
	Class FailureClass `json:"class"`
	Text  string       `json:"text"` // for people: what was tried on what, and the error; no secrets
	// Node and Address say which server was asked; empty for other sources.
	Node    string  `json:"node,omitempty"`
	Address Address `json:"address,omitzero"`
	// Asked tells which of the probe's ways failed (only SourcePostgres).
	Asked ProbeKind `json:"asked,omitempty"`
	// Port is the pool's port that was asked with ProbePort.
	Port uint16 `json:"port,omitempty"`
}

// FailureClass sorts failures by what they prove.
type FailureClass string

// The classes of failures. The comments say what each one proves of a server.
const (
	FailRefused     FailureClass = "refused"       // nobody listens: the server is down, once confirmed
	FailReset       FailureClass = "reset"         // connection refused by reset: as refused, once confirmed
	FailLost        FailureClass = "session_lost"  // the kept session ended: ask again at once, proves nothing yet
	FailTimeout     FailureClass = "timeout"       // no answer within the deadline: silence
	FailUnreachable FailureClass = "unreachable"   // no route: silence
	FailName        FailureClass = "name"          // the host name did not resolve: silence
	FailTLS         FailureClass = "tls"           // TLS could not be agreed: alive, role unknown
	FailAuth        FailureClass = "auth"          // SQLSTATE 28xxx: alive, role unknown
	FailDatabase    FailureClass = "database"      // SQLSTATE 3D000: alive, role unknown
	FailSlots       FailureClass = "slots"         // SQLSTATE 53300: alive, all slots taken, role unknown
	FailShutdown    FailureClass = "shutting_down" // SQLSTATE 57P01, 57P02: shutting down, or our session was ended
	FailStarting    FailureClass = "starting"      // SQLSTATE 57P03: cannot take connections now
	FailProtocol    FailureClass = "protocol"      // what answers is not PostgreSQL, or an unexpected SQL error
	FailLocal       FailureClass = "local"         // our own trouble, such as no file descriptors: proves nothing
	FailDenied      FailureClass = "denied"        // a store refused our token, or filtered the answer by it
	FailStore       FailureClass = "store"         // a store answered with an error or without a leader
	FailContent     FailureClass = "content"       // an answer or file that cannot be read
)

// ProbeKind says how a node was asked.
type ProbeKind string

// The ways a node is asked.
const (
	ProbeFull  ProbeKind = "full"  // the prepared statement on the kept session: every field
	ProbeRole  ProbeKind = "role"  // the empty query: InRecovery and ReadOnly only
	ProbeLogin ProbeKind = "login" // a fresh login on a connection of its own: proves the postmaster, no field
	ProbeWrite ProbeKind = "write" // a small write on a connection of its own: proves that writes go through, no field
	ProbePort  ProbeKind = "port"  // a pool's own port, with Failure.Port or Observation.Port
)

// PortOpen says that a pool's own port at a node answered its check.
type PortOpen struct {
	Node    string
	Address Address // the node's own address, as in Probe
	Port    uint16
}

// Probe is what a node said about itself over SQL.
type Probe struct {
	Node    string
	Address Address // where it was asked; evidence for this address only
	Kind    ProbeKind

	InRecovery Tri
	ReadOnly   Tri // default_transaction_read_only, or hot standby

	// Only ProbeFull sets the rest.
	SystemID      uint64
	Timeline      Timeline // primary: from the name of the current WAL file; standby: receiver's, else of the last checkpoint
	WriteLSN      LSN      // primary: pg_current_wal_lsn
	ReceiveLSN    LSN      // standby: what its receiver has written, else what was ever received
	ReplayLSN     LSN      // standby; frozen and meaningless on a primary
	ReplayedAt    time.Time
	ReplayPaused  Tri // standby
	ApplyDelay    time.Duration
	Upstream      Tri // primary_conninfo is set
	Receiver      Receiver
	StartedAt     time.Time // postmaster
	ServerVersion int       // 150018
	Standbys      []Standby // rows of pg_stat_replication, on any node
	// SyncWaiters counts sessions whose commit waits for a standby (wait event
	// SyncRep); negative when unknown.
	SyncWaiters int
}

// Receiver is the state of a standby's WAL receiver.
type Receiver struct {
	// Running is No when pg_stat_wal_receiver has no row and Unknown when the
	// probe role may not see it (a row of NULLs, field report P3).
	Running   Tri
	Streaming Tri
	Timeline  Timeline
	LatestEnd LSN // the upstream's position as it last told
	// SenderHost and SenderPort say who the upstream is, as the standby dials it.
	SenderHost string
	SenderPort uint16
	// MessageAge is the time since the upstream's last message, by the
	// standby's own clock; negative when unknown. An idle healthy link reaches 30 s.
	MessageAge time.Duration
}

// Standby is one row of pg_stat_replication.
type Standby struct {
	Name      string // application_name
	State     string // streaming, catchup …
	SyncState string // async, sync, quorum, potential
	ReplayLSN LSN
}

// NodeList is the whole set of a cluster's nodes, as one source knows it. It
// replaces what that source said before.
type NodeList struct {
	Nodes []Node
	// ConfirmedEmpty marks an empty list that was read twice, the second time
	// consistently. An unconfirmed empty list changes nothing.
	ConfirmedEmpty bool
}

// Node is a server of a cluster, by configuration or as an authority lists it.
type Node struct {
	Name    string  `json:"name"`
	Address Address `json:"address"`
	// HostName is the DNS name that Address was found by; empty: it was given so.
	HostName string            `json:"host_name,omitempty"`
	Tags     map[string]string `json:"tags"`
}

// Tag names with a meaning of their own (Patroni's).
const (
	TagNoLoadBalance = "noloadbalance"
	TagNoFailover    = "nofailover"
	TagReplicateFrom = "replicatefrom" // the node's upstream
)

// TagNodeCluster names the read-replica cluster of pg_auto_failover that a node
// belongs to, when it is not the main one.
const TagNodeCluster = "nodecluster"

// Tags of our own.
const (
	TagZone   = "zone"   // where the node stands; see Pool.Zone
	TagSource = "source" // "archive": the replica restores archived WAL and never streams
)

// HasTag reports whether a tag is set and not false. Booleans and their texts
// are the same; Patroni treats every other non-empty value as true.
func (n Node) HasTag(name string) bool {
	switch n.Tags[name] {
	case "", "false", "False", "FALSE", "0", "no", "off":
		return false
	}
	return true
}

// Authority is what the cluster's authority says in one consistent picture.
type Authority struct {
	// Leader is who holds the leader key; empty: the key is absent, and a second,
	// consistent read said so too.
	Leader string
	// SessionAgrees compares the session of the leader key with that of the
	// holder's member key. No bars a node from entering, nothing more.
	SessionAgrees Tri

	Pause, Failsafe Tri // of the dynamic configuration
	StandbyCluster  bool
	TTL, LoopWait   time.Duration // zero: not known
	RetryTimeout    time.Duration
	SystemID        uint64   // the initialize key
	Timeline        Timeline // highest of history and members
	Optime          LSN      // the status key
	OptimeIndex     uint64   // grows whenever the leader wrote the status key; zero: no word of it
	SyncMode        string   // "", "sync", "quorum"
	SyncStandbys    []string
	Members         []Member
	// Monitor is set by authorities that assign a state to each node.
	Monitor *Monitor
}

// Member is a node as Patroni describes it.
type Member struct {
	Name     string            `json:"name"`
	Role     string            `json:"role"` // Patroni's word, master folded into primary
	State    string            `json:"state"`
	Timeline Timeline          `json:"timeline,omitempty"`
	LSN      LSN               `json:"-"`
	Address  Address           `json:"address"`
	APIURL   string            `json:"api_url,omitempty"`
	Tags     map[string]string `json:"tags,omitempty"`
	// Application is the application_name by which its upstream knows it; empty: Name.
	Application string      `json:"application,omitempty"`
	Assigned    *Assignment `json:"assigned,omitempty"` // by a Monitor
}

// Local is what the agent found out about itself.
type Local struct {
	// Isolated: every cluster fell silent at the same moment, so the trouble is
	// on our side.
	Isolated Tri
}
