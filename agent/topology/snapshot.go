package topology

import (
	"slices"
	"strings"
	"time"
)

// Snapshot is all that was decided for one cluster. It is immutable.
type Snapshot struct {
	Cluster string `json:"cluster"`
	// Generation counts decisions that differ. It changes only when a verdict, a
	// weight, an address, a reason code or the words of a maintenance do; lags and
	// ages do not move it.
	Generation uint64 `json:"generation"`
	// Urgent is the generation of the last change that sinks must not settle: a
	// writer gained or lost, a node down, maintenance.
	Urgent uint64 `json:"urgent_generation"`
	// Hash of the decision without generation and times: equal on every agent
	// that sees the same.
	Hash      string    `json:"hash"`
	DecidedAt time.Time `json:"decided_at"`

	Authority AuthorityStatus `json:"authority"`
	// Writer is the node that is up in the write pools, or "".
	Writer string `json:"writer"`
	// Held is the writer as it stands at the balancers while nothing is decided
	// (from the saved state); xDS serves it, nothing else does.
	Held string `json:"held_writer,omitempty"`
	// Complete: every source of nodes has delivered at least once, so a name that
	// is not listed does not exist.
	Complete bool           `json:"complete"`
	Nodes    []Node         `json:"nodes"` // by name
	Pools    []PoolVerdicts `json:"pools"` // in the policy's order
	Alarms   []Reason       `json:"alarms,omitempty"`
}

// AuthorityStatus is what the decision made of the authority.
type AuthorityStatus struct {
	Kind   AuthorityKind `json:"kind"`
	State  string        `json:"state"` // none, unknown, current, lost
	Leader string        `json:"leader"`
}

// The states of an authority.
const (
	AuthorityStateNone    = "none"    // no authority configured
	AuthorityStateUnknown = "unknown" // never heard since the start
	AuthorityStateCurrent = "current"
	AuthorityStateLost    = "lost" // cannot be reached, or its word is too old
)

// PoolVerdicts is the set of verdicts of one pool.
type PoolVerdicts struct {
	Pool     string `json:"pool"`
	Mode     Mode   `json:"mode"`
	Fallback bool   `json:"fallback"` // the primary, or a stale replica, serves for want of replicas
	// ChangedAt is when a verdict, a weight, an address or a leading reason in it changed last.
	ChangedAt time.Time     `json:"changed_at"`
	Nodes     []NodeVerdict `json:"nodes"` // by name
}

// NodeVerdict is the verdict on one node in one pool.
type NodeVerdict struct {
	Node    string  `json:"node"`
	Address Address `json:"address"`
	Verdict Verdict `json:"verdict"`
	// Weight in percent, 1 to 100; meaningful when up.
	Weight int `json:"weight"`
	// Reasons: the first is the ladder's, the others also hold.
	Reasons []Reason `json:"reasons"`
}

// Reason returns the first reason.
func (v NodeVerdict) Reason() Reason {
	if len(v.Reasons) == 0 {
		return Reason{Code: CodeNoEvidence}
	}
	return v.Reasons[0]
}

// Pool returns the verdicts of a pool.
func (s *Snapshot) Pool(name string) (PoolVerdicts, bool) {
	for _, p := range s.Pools {
		if p.Pool == name {
			return p, true
		}
	}
	return PoolVerdicts{}, false
}

// Node returns a node of the cluster.
func (s *Snapshot) Node(name string) (Node, bool) {
	i, ok := slices.BinarySearchFunc(s.Nodes, name, func(n Node, name string) int { return strings.Compare(n.Name, name) })
	if !ok {
		return Node{}, false
	}
	return s.Nodes[i], true
}

// Verdict returns the verdict on a node.
func (p PoolVerdicts) Verdict(node string) (NodeVerdict, bool) {
	i, ok := slices.BinarySearchFunc(p.Nodes, node, func(n NodeVerdict, name string) int { return strings.Compare(n.Node, name) })
	if !ok {
		return NodeVerdict{}, false
	}
	return p.Nodes[i], true
}

// Up returns the nodes that are up, by name.
func (p PoolVerdicts) Up() []NodeVerdict {
	var up []NodeVerdict
	for _, n := range p.Nodes {
		if n.Verdict == Up {
			up = append(up, n)
		}
	}
	return up
}

// Undecided reports whether any node of the pool is undecided.
func (p PoolVerdicts) Undecided() bool {
	return slices.ContainsFunc(p.Nodes, func(n NodeVerdict) bool { return n.Verdict == Undecided })
}

// Guard is the verdict on a pool's guard, a server that carries no traffic and by
// which balancers refuse connections while it is up: down while a node of the pool
// is up, else up once the whole pool is decided. After a start the node that a
// balancer serves from may not be known yet, and what stands is held.
func (s *Snapshot) Guard(p PoolVerdicts) Verdict {
	switch {
	case len(p.Up()) > 0:
		return Down
	case !s.Complete || p.Undecided():
		return Undecided
	default:
		return Up
	}
}

// Facts is what is known beside the decision. It changes with every probe and
// wakes nobody. It is immutable.
type Facts struct {
	At        Clock
	Timeline  Timeline // highest timeline ever seen
	SystemID  uint64
	WriteLSN  LSN      // newest known position of the writer
	Claims    []string // nodes whose newest word is that they are writable, by name
	Nodes     map[string]NodeFacts
	Sources   []SourceFacts // by kind and name
	Authority *Authority    // last picture, nil before the first
	// AuthoritySource is who gave it, and Documents what came beside it, nil before
	// the first.
	AuthoritySource SourceID
	Documents       *Documents
}

// NodeFacts is what is known of one node.
type NodeFacts struct {
	Probe      *Probe // last full probe for the present address, nil before the first
	InRecovery Tri    // newest role evidence, whatever its age
	ReadOnly   Tri
	RoleAt     Mono // when that was asked
	AnsweredAt Mono // last answer of any kind
	FailingAt  Mono // first failure since the last answer; zero while it answers
	Failure    *Failure
	LoginAt    Mono // last good fresh login
	Lag        Lag
	Member     *Member // Patroni's word on it
	// WriteAt is the last write probe that went through, WriteFailingAt the first
	// failed one since; both zero without write probes.
	WriteAt, WriteFailingAt Mono
	// Ports are the pools' own ports at this node, as checked.
	Ports map[uint16]PortFacts
}

// PortFacts is what is known of one port of a node.
type PortFacts struct {
	OKAt      Mono
	FailingAt Mono // zero while it answers
	Failure   *Failure
}

// Lag is how far a standby's replay is behind the writer.
type Lag struct {
	Known     Tri // Unknown: not measured, or no standby
	Bytes     Size
	Time      time.Duration // since the writer first passed the replayed position
	Estimated bool          // by a position of the writer that is no longer fresh
}

// SourceFacts is the health of one source.
type SourceFacts struct {
	Source    SourceID
	OKAt      Mono // last good answer
	ChangedAt Mono // last answer that differed
	FailingAt Mono // zero while it delivers
	Failure   *Failure
}

// View is what sinks read of a cluster: the decision, the facts, and until when
// both may be believed. After ValidUntil answers are those of undecided.
type View struct {
	Snapshot   *Snapshot
	Facts      *Facts
	ValidUntil Mono
	// Maintenance is what operators had taken out when it was decided, At by the wall
	// clock.
	Maintenance Maintenance
	At          time.Time
}

// Valid reports whether the view may be believed at a moment.
func (v *View) Valid(now Mono) bool {
	return v != nil && v.Snapshot != nil && now <= v.ValidUntil
}

// Demand is what a decision asks of the watchers.
type Demand struct {
	// Burst: nodes whose role is asked every 50 ms until the picture is settled.
	Burst []string
	// Confirm: the authority should be read again now.
	Confirm bool
	// BackOff: nodes that refuse our login or are starting: fewer attempts.
	BackOff []string
}

// Maintenance is an operator's word on nodes of one cluster.
type Maintenance struct {
	Records []MaintenanceRecord
}

// MaintenanceRecord takes something out.
type MaintenanceRecord struct {
	Pool   string // empty: every pool
	Node   string // empty: every node
	Agent  bool   // of the agent that decides, and of no other
	Reason string
	Who    string
	Since  time.Time
	Until  time.Time // zero: until ended
	// DrainUntil is when sessions end that are still there; zero: they are kept.
	DrainUntil time.Time
}

// Alone reports whether the agent that decides is itself out at a moment: what it then
// decides is no word on the nodes for others.
func (m Maintenance) Alone(now time.Time) bool {
	return slices.ContainsFunc(m.Records, func(r MaintenanceRecord) bool { return r.Agent && (r.Until.IsZero() || now.Before(r.Until)) })
}

// Active returns the record that takes a node out of every pool at a moment: the
// first of those whose sessions end by then, else the first of all.
func (m Maintenance) Active(node string, now time.Time) (MaintenanceRecord, bool) {
	return m.ActiveIn("", node, now)
}

// ActiveIn is Active for those records that are about one pool alone.
func (m Maintenance) ActiveIn(pool, node string, now time.Time) (found MaintenanceRecord, ok bool) {
	for _, r := range m.Records {
		switch {
		case r.Pool != pool, r.Node != "" && r.Node != node, !r.Until.IsZero() && !now.Before(r.Until):
		case !ok, r.Drained(now) && !found.Drained(now):
			found, ok = r, true
		}
	}
	return found, ok
}

// Drained reports whether the time that sessions were given is over.
func (r MaintenanceRecord) Drained(now time.Time) bool {
	return !r.DrainUntil.IsZero() && !now.Before(r.DrainUntil)
}

// Saved is what outlives a restart of the agent.
type Saved struct {
	Version  int       `json:"version"`
	Cluster  string    `json:"cluster"`
	Writer   string    `json:"writer"` // who was up in the write pools last
	SystemID uint64    `json:"system_id,string"`
	Timeline Timeline  `json:"timeline"` // highest ever seen
	Nodes    []Node    `json:"nodes"`
	SavedAt  time.Time `json:"saved_at"`
	// Verdicts by pool and node, for those who repeat the saved verdict while undecided.
	Verdicts map[string]map[string]Verdict `json:"verdicts"`
	// Lost says when a node lost the writer role, until it has it again.
	Lost map[string]time.Time `json:"lost,omitempty"`
}
