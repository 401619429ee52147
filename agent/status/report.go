package status

import (
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Report is everything an operator may ask of the agent, as /api/v1/status
// gives it. Times that have passed are durations in seconds, by the agent's own
// monotonic clock.
type Report struct {
	Agent    Agent           `json:"agent"`
	Clusters []ClusterReport `json:"clusters"` // by name
	Sinks    []Sink          `json:"sinks"`    // by name
}

// Agent is the agent about itself.
type Agent struct {
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	// ConfigError is the error of the last reload, "" when it was good; what ran
	// before goes on.
	ConfigError string            `json:"config_error,omitempty"`
	ConfigAt    time.Time         `json:"config_loaded_at"`
	Listeners   map[string]string `json:"listeners"` // name to address
	// EnteredAt is since when the agent itself is out, zero while it is not.
	EnteredAt   time.Time     `json:"maintenance_entered_at,omitzero"`
	Maintenance []Maintenance `json:"maintenance,omitempty"` // what operators took out, by target
}

// Maintenance is one record: of this agent without a cluster, of all pools and
// nodes where none is named.
type Maintenance struct {
	Cluster string    `json:"cluster,omitempty"`
	Pool    string    `json:"pool,omitempty"`
	Node    string    `json:"node,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Who     string    `json:"who,omitempty"`
	Since   time.Time `json:"since"`
	Until   time.Time `json:"until,omitzero"` // zero: until it is ended
	// DrainUntil is when balancers end the sessions that are still there, Drain is of a
	// node whose server is emptied; zero and nil: sessions there go on.
	DrainUntil time.Time `json:"drain_until,omitzero"`
	Drain      *Drain    `json:"drain,omitempty"`
}

// what names what is out, for people.
func (m Maintenance) what() string {
	what := "all that this agent steers"
	if m.Cluster != "" {
		what = strings.TrimSuffix(m.Cluster+"/"+m.Node, "/")
	}
	if m.Pool != "" {
		what += " in pool " + m.Pool
	}
	return what
}

// Sink is the health of one sink.
type Sink struct {
	Name  string    `json:"name"`
	State string    `json:"state"` // ok, waiting, failing; of templates also applied, held, pending, rejected
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since,omitzero"`
	// Detail is what it does while nothing is wrong, for people; "" when that is plain.
	Detail string `json:"detail,omitempty"`
	// Counters of the sink since its start, and how much of something it has now.
	Counters map[string]uint64 `json:"counters,omitempty"`
	Gauges   map[string]uint64 `json:"gauges,omitempty"`
}

// The states that most sinks know.
const (
	SinkOK      = "ok"
	SinkWaiting = "waiting" // for the first complete decision
	SinkFailing = "failing"
)

// ClusterReport is one cluster.
type ClusterReport struct {
	Name string `json:"name"`
	// Valid is false when the decision is too old to be believed; every answer is
	// then that of undecided.
	Valid    bool               `json:"valid"`
	Snapshot *topology.Snapshot `json:"snapshot"`
	Timeline topology.Timeline  `json:"highest_timeline"`
	SystemID uint64             `json:"system_id,string"`
	// Claims are the nodes whose newest word is that they are writable, however old.
	Claims []string `json:"writable"`
	// Authority is what the authority said last; nil before, and without one.
	Authority *AuthorityReport `json:"authority_word,omitempty"`
	Nodes     []NodeReport     `json:"nodes"`
	Sources   []SourceReport   `json:"sources"`
}

// AuthorityReport is the authority's last word on the cluster as a whole.
type AuthorityReport struct {
	Pause          topology.Tri `json:"pause"` // nobody fails over by himself
	Failsafe       topology.Tri `json:"failsafe"`
	StandbyCluster bool         `json:"standby_cluster,omitempty"`
	// LeaderGap is how long sessions outlive an absent leader key when leader_gap
	// is not set: loop_wait + retry_timeout; zero while these are not known.
	LeaderGap    float64  `json:"leader_gap_seconds,omitempty"`
	SyncMode     string   `json:"sync_mode,omitempty"` // sync, quorum
	SyncStandbys []string `json:"sync_standbys,omitempty"`
}

// NodeReport is one node, its evidence and its verdicts.
type NodeReport struct {
	Name     string            `json:"name"`
	Address  topology.Address  `json:"address"`
	HostName string            `json:"host_name,omitempty"` // by which Address was found
	Tags     map[string]string `json:"tags,omitempty"`
	Role     string            `json:"role"` // primary, read-only primary, replica, unknown
	RoleAge  *float64          `json:"role_age_seconds,omitempty"`
	Timeline topology.Timeline `json:"timeline,omitempty"`
	WriteLSN string            `json:"write_lsn,omitempty"`
	// SystemID is what the server says of itself, zero while it has not.
	SystemID uint64 `json:"system_id,string,omitempty"`

	// Of a standby.
	Replay       string          `json:"replay_lsn,omitempty"`
	ReplayPaused bool            `json:"replay_paused,omitempty"`
	ApplyDelay   float64         `json:"apply_delay_seconds,omitempty"`
	Receiver     string          `json:"receiver,omitempty"` // streaming, none, unknown …
	Upstream     *UpstreamReport `json:"upstream,omitempty"`
	LagBytes     *int64          `json:"lag_bytes,omitempty"` // nil: unknown
	LagTime      float64         `json:"lag_seconds,omitempty"`
	LagEstimated bool            `json:"lag_estimated,omitempty"` // by an old position of the writer
	// ListedBy are the nodes that list this one in pg_stat_replication.
	ListedBy []StandbyReport `json:"listed_by,omitempty"`

	// Of a primary, and of a standby with standbys of its own.
	Standbys    []StandbyReport `json:"standbys,omitempty"`
	SyncWaiters int             `json:"sync_waiters,omitempty"` // commits that wait for a standby

	// Answered is the age of the last answer; nil: never.
	Answered *float64          `json:"answered_seconds_ago,omitempty"`
	Failing  float64           `json:"failing_seconds,omitempty"`
	Failure  *topology.Failure `json:"failure,omitempty"`
	// LoginAge is the age of the last new login that succeeded; nil: never.
	LoginAge *float64 `json:"login_seconds_ago,omitempty"`
	// LoginFailure is why new logins fail although the kept session answers.
	LoginFailure *topology.Failure `json:"login_failure,omitempty"`
	// PrivilegesMissing: the probe's role may not see the WAL receiver.
	PrivilegesMissing bool         `json:"privileges_missing,omitempty"`
	SlotsExhausted    bool         `json:"slots_exhausted,omitempty"`
	Write             *WriteReport `json:"write_probe,omitempty"` // nil without write probes
	Ports             []PortReport `json:"ports,omitempty"`       // by number

	Member   *topology.Member `json:"member,omitempty"`
	Monitor  *MonitorReport   `json:"monitor,omitempty"` // with pg_auto_failover
	Verdicts []PoolVerdict    `json:"verdicts"`
}

// UpstreamReport is what a standby receives from.
type UpstreamReport struct {
	Address    string            `json:"address,omitempty"` // as the standby dials it
	Timeline   topology.Timeline `json:"timeline,omitempty"`
	MessageAge *float64          `json:"message_age_seconds,omitempty"` // nil: unknown
}

// StandbyReport is a row of pg_stat_replication.
type StandbyReport struct {
	Name      string `json:"name"` // the standby, or in ListedBy the node that lists it
	State     string `json:"state,omitempty"`
	SyncState string `json:"sync_state,omitempty"` // async, sync, quorum, potential
}

// WriteReport is how write probes fare.
type WriteReport struct {
	Age     *float64 `json:"age_seconds,omitempty"` // of the last that went through; nil: never
	Failing float64  `json:"failing_seconds,omitempty"`
}

// PortReport is one of the pools' own ports at a node.
type PortReport struct {
	Port    uint16            `json:"port"`
	Age     *float64          `json:"age_seconds,omitempty"` // of the last answer; nil: never
	Failing float64           `json:"failing_seconds,omitempty"`
	Failure *topology.Failure `json:"failure,omitempty"`
}

// up reports whether the port answered its last check.
func (p PortReport) up() bool { return p.Age != nil && p.Failure == nil && p.Failing == 0 }

// PoolVerdict is a node's verdict in one pool.
type PoolVerdict struct {
	Pool string        `json:"pool"`
	Mode topology.Mode `json:"mode"`
	topology.NodeVerdict
}

// SourceReport is the health of one source.
type SourceReport struct {
	Source  string   `json:"source"`
	State   string   `json:"state"` // current, failing, waiting
	Age     *float64 `json:"age_seconds,omitempty"`
	Failing float64  `json:"failing_seconds,omitempty"`
	Error   string   `json:"error,omitempty"`
}
