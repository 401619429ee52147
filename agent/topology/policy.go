package topology

import "time"

// AuthorityKind names who decides which node of a cluster is primary.
type AuthorityKind string

// The authorities. With AuthorityNone SQL evidence alone decides.
const (
	AuthorityNone    AuthorityKind = "none"
	AuthorityPatroni AuthorityKind = "patroni"
	AuthorityMonitor AuthorityKind = "pg_auto_failover" // its monitor
)

// Mode of a pool.
type Mode string

// The modes.
const (
	ModeWrite Mode = "write"
	ModeRead  Mode = "read"
)

// Fallback says what a read pool offers when no replica is eligible.
type Fallback string

// The fallbacks.
const (
	FallbackNone    Fallback = "none"
	FallbackPrimary Fallback = "primary"
	// FallbackStale takes the replica that lags least, up to MaxLagHard; a dead one never.
	FallbackStale Fallback = "stale"
)

// Role narrows a pool to nodes with a role in replication.
type Role string

// The roles a read pool can be narrowed to. RoleAny is no narrowing.
const (
	RoleAny           Role = ""
	RoleSync          Role = "sync"           // synchronous standbys, by the authority and the writer's own view
	RoleAsync         Role = "async"          // standbys that no commit waits for
	RoleQuorum        Role = "quorum"         // standbys that commits wait for in quorum
	RoleStandbyLeader Role = "standby-leader" // the leader of a cluster that replicates from another
	RoleDelayed       Role = "delayed"        // standbys that delay replay on purpose
)

// PortCheck says how a pool's own port is checked.
type PortCheck string

// The port checks.
const (
	PortCheckNone      PortCheck = "none"      // the port is believed to work
	PortCheckConnect   PortCheck = "connect"   // something accepts connections there
	PortCheckPgBouncer PortCheck = "pgbouncer" // a query through it is answered by a server
)

// WriteStall says what a writer does whose write probe gets no answer.
type WriteStall string

// The choices for WriteStall.
const (
	StallAlarm WriteStall = "alarm" // it stays, and an alarm says so
	StallDrain WriteStall = "drain" // it takes no new session
)

// AuthorityLost says what happens while the authority cannot be reached.
type AuthorityLost string

// The choices for AuthorityLost.
const (
	LostHold    AuthorityLost = "hold"     // the present writer stays while SQL proves it; nobody enters
	LostSQLOnly AuthorityLost = "sql_only" // as with authority none
)

// Policy is what an operator may set about a cluster's decisions. All times are
// durations, so probing faster never makes a verdict hastier.
type Policy struct {
	Authority     AuthorityKind
	AuthorityLost AuthorityLost
	Pools         []Pool

	// SilentAfter: a node that has not answered for this long takes no new session
	// once balancers have been told, for which the default leaves 100 ms of 2 s.
	SilentAfter time.Duration
	// KillAfter: silent for this long ends the sessions too: of replicas, and
	// with authority none of the writer.
	KillAfter time.Duration
	// RefusedConfirm: a refused connection counts once a second attempt at least
	// this much later was refused as well.
	RefusedConfirm time.Duration
	// EvidenceMaxAge: a role seen longer ago than this admits nobody.
	EvidenceMaxAge time.Duration
	// AuthorityMaxAge: a leader confirmed longer ago than this admits nobody and
	// counts as lost authority.
	AuthorityMaxAge time.Duration
	// HoldMax: a writer is held for at most this long while the authority cannot be
	// reached; then its sessions end. Zero: for as long as SQL proves it.
	HoldMax time.Duration
	// LeaderGap: how long sessions outlive an absent leader key. Zero: loop_wait +
	// retry_timeout of the cluster's own configuration (20 s while that is unknown).
	LeaderGap time.Duration
	// MinDown: a writer that was lost stays down at least this long, so that no
	// poll of a balancer can miss it.
	MinDown time.Duration
	// ReturnAfter: a replica returns after this much good evidence.
	ReturnAfter time.Duration
	// PausedGrace: a standby with paused replay leaves after lagging this long.
	PausedGrace time.Duration
	// StreamingGrace: a standby without WAL receiver leaves after this long.
	StreamingGrace time.Duration
	// LagUnknownAfter: how long a lag may rest on an old position of the primary.
	LagUnknownAfter time.Duration
	// LagGrace: a replica leaves by lag after exceeding a limit for this long.
	LagGrace time.Duration
	// LagReturnAfter: it returns once it has been within half of the limits for this long.
	LagReturnAfter time.Duration
	// MinDwell: the least time between two changes of a replica by its soft lag.
	MinDwell time.Duration
	// Flap damps replicas that come and go.
	Flap Flap
	// SlowStart: a replica that returns, or whose server was restarted, takes 25 %,
	// 50 %, then its whole weight within this time. Zero: at once.
	SlowStart time.Duration
	// WritesStalledAfter: write probes in vain for this long are a stall.
	WritesStalledAfter time.Duration
	WriteStall         WriteStall
	// WritesBlockedAfter: commits that wait for a standby while the writer's
	// position stands still for this long are an alarm.
	WritesBlockedAfter time.Duration
}

// Flap damps replicas: more than Count departures within Within hold a replica
// out for HoldDown, then twice as long, up to HoldDownMax; after Calm without a
// departure all is forgotten. Count zero: no damping.
type Flap struct {
	Count       int
	Within      time.Duration
	HoldDown    time.Duration
	HoldDownMax time.Duration
	Calm        time.Duration
}

// Pool is a named routing target of a cluster.
type Pool struct {
	Name string
	Mode Mode
	// Select and Role narrow the pool; a node that is not selected takes no new session.
	Select Selector
	Role   Role // read pools only
	MaxLag Size // a replica further behind leaves; zero: no limit
	// MaxLagHard: a replica further behind never serves, not even as the last one; zero: no limit.
	MaxLagHard Size
	// MaxLagTime is MaxLag in time since the writer passed the replayed position; zero: no limit.
	MaxLagTime time.Duration
	// MinReplicas: lag never takes a pool below this many replicas, up to MaxLagHard.
	MinReplicas int
	Fallback    Fallback
	// FallbackWeight is the weight of the primary when it serves as fallback, in percent.
	FallbackWeight int
	// RequireStreaming: a replica without WAL receiver leaves after StreamingGrace.
	RequireStreaming bool
	// WeightByLag: from half of MaxLag on a replica's weight falls, to 10 % at MaxLag.
	WeightByLag bool
	// Weights in percent by node; a node that is not listed has 100.
	Weights map[string]int
	// Zone: nodes tagged with this zone are preferred; others take new sessions
	// only while fewer than MinReplicas of the zone are up. Empty: no preference.
	Zone string
	// Port where this pool's sessions go, when it is not PostgreSQL's own (a
	// PgBouncer in front of it); zero: the node's port.
	Port      uint16
	PortCheck PortCheck
	// Sessions says for a reason whether it ends sessions (Down) or lets them go on
	// (Drain), where it differs from the reason's own effect. Only reasons whose
	// CodeInfo says Choice can be listed.
	Sessions map[Code]Verdict
}

// FixedWeight is the weight that an operator gave a node, in percent.
func (p Pool) FixedWeight(node string) int {
	if w, ok := p.Weights[node]; ok {
		return w
	}
	return 100
}

// DefaultPolicy returns the defaults of design.md and eligibility.md section 3.
func DefaultPolicy() Policy {
	return Policy{
		Authority:       AuthorityNone,
		AuthorityLost:   LostHold,
		Pools:           DefaultPools(),
		SilentAfter:     1900 * time.Millisecond,
		KillAfter:       10 * time.Second,
		RefusedConfirm:  50 * time.Millisecond,
		EvidenceMaxAge:  3 * time.Second,
		AuthorityMaxAge: 25 * time.Second,
		MinDown:         time.Second,
		ReturnAfter:     2 * time.Second,
		PausedGrace:     5 * time.Second,
		StreamingGrace:  10 * time.Second,
		LagUnknownAfter: 30 * time.Second,
		LagGrace:        2 * time.Second,
		LagReturnAfter:  3 * time.Second,
		MinDwell:        10 * time.Second,
		Flap: Flap{
			Count: 4, Within: time.Minute, HoldDown: 30 * time.Second, HoldDownMax: 5 * time.Minute, Calm: 10 * time.Minute,
		},
		SlowStart:          30 * time.Second,
		WritesStalledAfter: 6 * time.Second,
		WriteStall:         StallAlarm,
		WritesBlockedAfter: 10 * time.Second,
	}
}

// DefaultPools returns the pools primary (write) and replica (read).
func DefaultPools() []Pool {
	return []Pool{DefaultPool("primary", ModeWrite), DefaultPool("replica", ModeRead)}
}

// DefaultPool returns a pool with the defaults of its mode.
func DefaultPool(name string, mode Mode) Pool {
	if mode == ModeWrite {
		return Pool{Name: name, Mode: ModeWrite, Fallback: FallbackNone, PortCheck: PortCheckConnect}
	}
	return Pool{
		Name: name, Mode: ModeRead, MaxLag: 64 << 20, MaxLagHard: 1 << 30, MinReplicas: 1,
		Fallback: FallbackPrimary, FallbackWeight: 100, RequireStreaming: true, WeightByLag: true, PortCheck: PortCheckConnect,
	}
}
