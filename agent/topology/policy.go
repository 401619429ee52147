package topology

import "time"

// AuthorityKind names who decides which node of a cluster is primary.
type AuthorityKind string

// The authorities. With AuthorityNone SQL evidence alone decides.
const (
	AuthorityNone    AuthorityKind = "none"
	AuthorityPatroni AuthorityKind = "patroni"
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

	// SilentAfter: a node that has not answered for this long takes no new session.
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
}

// Pool is a named routing target of a cluster.
type Pool struct {
	Name       string
	Mode       Mode
	MaxLag     Size // a replica further behind leaves; zero: no limit
	MaxLagHard Size // a replica further behind never serves, not even as the last one; zero: no limit
	// MinReplicas: lag never takes a pool below this many replicas, up to MaxLagHard.
	MinReplicas int
	Fallback    Fallback
}

// DefaultPolicy returns the defaults of design.md and eligibility.md section 3.
func DefaultPolicy() Policy {
	return Policy{
		Authority:       AuthorityNone,
		AuthorityLost:   LostHold,
		Pools:           DefaultPools(),
		SilentAfter:     2 * time.Second,
		KillAfter:       10 * time.Second,
		RefusedConfirm:  50 * time.Millisecond,
		EvidenceMaxAge:  3 * time.Second,
		AuthorityMaxAge: 25 * time.Second,
		MinDown:         time.Second,
		ReturnAfter:     2 * time.Second,
		PausedGrace:     5 * time.Second,
		StreamingGrace:  10 * time.Second,
		LagUnknownAfter: 30 * time.Second,
	}
}

// DefaultPools returns the pools primary (write) and replica (read).
func DefaultPools() []Pool {
	return []Pool{DefaultPool("primary", ModeWrite), DefaultPool("replica", ModeRead)}
}

// DefaultPool returns a pool with the defaults of its mode.
func DefaultPool(name string, mode Mode) Pool {
	if mode == ModeWrite {
		return Pool{Name: name, Mode: ModeWrite, Fallback: FallbackNone}
	}
	return Pool{
		Name: name, Mode: ModeRead,
		MaxLag: 64 << 20, MaxLagHard: 1 << 30, MinReplicas: 1, Fallback: FallbackPrimary,
	}
}
