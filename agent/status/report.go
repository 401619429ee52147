package status

import (
	"cmp"
	"maps"
	"slices"
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
}

// Sink is the health of one sink.
type Sink struct {
	Name  string    `json:"name"`
	State string    `json:"state"` // ok, waiting, failing; of templates also applied, held, pending, rejected
	Error string    `json:"error,omitempty"`
	Since time.Time `json:"since,omitzero"`
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
	Nodes    []NodeReport       `json:"nodes"`
	Sources  []SourceReport     `json:"sources"`
}

// NodeReport is one node, its evidence and its verdicts.
type NodeReport struct {
	Name     string            `json:"name"`
	Address  topology.Address  `json:"address"`
	Tags     map[string]string `json:"tags,omitempty"`
	Role     string            `json:"role"` // primary, read-only primary, replica, unknown
	RoleAge  *float64          `json:"role_age_seconds,omitempty"`
	Timeline topology.Timeline `json:"timeline,omitempty"`
	WriteLSN string            `json:"write_lsn,omitempty"`
	Replay   string            `json:"replay_lsn,omitempty"`
	Receiver string            `json:"receiver,omitempty"` // streaming, none, unknown …
	LagBytes *int64            `json:"lag_bytes,omitempty"`
	LagTime  float64           `json:"lag_seconds,omitempty"`
	// Answered is the age of the last answer; nil: never.
	Answered *float64          `json:"answered_seconds_ago,omitempty"`
	Failing  float64           `json:"failing_seconds,omitempty"`
	Failure  *topology.Failure `json:"failure,omitempty"`
	Member   *topology.Member  `json:"member,omitempty"`
	Verdicts []PoolVerdict     `json:"verdicts"`
}

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

func clusterReport(name string, v *topology.View, now topology.Clock) ClusterReport {
	r := ClusterReport{Name: name, Nodes: []NodeReport{}, Sources: []SourceReport{}}
	if v == nil || v.Snapshot == nil {
		return r
	}
	r.Valid, r.Snapshot = v.Valid(now.Mono), v.Snapshot
	if v.Facts == nil {
		return r
	}
	r.Timeline, r.SystemID = v.Facts.Timeline, v.Facts.SystemID
	for _, n := range v.Snapshot.Nodes {
		r.Nodes = append(r.Nodes, nodeReport(n, v, now.Mono))
	}
	for _, s := range v.Facts.Sources {
		r.Sources = append(r.Sources, sourceReport(s, now.Mono))
	}
	return r
}

func nodeReport(n topology.Node, v *topology.View, now topology.Mono) NodeReport {
	f := v.Facts.Nodes[n.Name]
	r := NodeReport{
		Name: n.Name, Address: n.Address, Tags: n.Tags, Role: role(f),
		RoleAge: ago(now, f.RoleAt), Answered: ago(now, f.AnsweredAt),
		Failure: f.Failure, Member: f.Member,
	}
	if f.FailingAt != 0 {
		r.Failing = now.Sub(f.FailingAt).Seconds()
	}
	if p := f.Probe; p != nil {
		r.Timeline, r.Receiver = p.Timeline, receiver(p)
		r.WriteLSN, r.Replay = lsn(p.WriteLSN), lsn(p.ReplayLSN)
	}
	if f.Lag.Known == topology.Yes {
		b := int64(f.Lag.Bytes)
		r.LagBytes, r.LagTime = &b, f.Lag.Time.Seconds()
	}
	for _, p := range v.Snapshot.Pools {
		if nv, ok := p.Verdict(n.Name); ok {
			r.Verdicts = append(r.Verdicts, PoolVerdict{Pool: p.Pool, Mode: p.Mode, NodeVerdict: nv})
		}
	}
	return r
}

func sourceReport(s topology.SourceFacts, now topology.Mono) SourceReport {
	r := SourceReport{Source: s.Source.String(), State: "current", Age: ago(now, s.OKAt)}
	switch {
	case s.FailingAt != 0:
		r.State, r.Failing = "failing", now.Sub(s.FailingAt).Seconds()
	case s.OKAt == 0:
		r.State = "waiting"
	}
	if s.Failure != nil {
		r.Error = s.Failure.Text
	}
	return r
}

func role(f topology.NodeFacts) string {
	switch {
	case f.InRecovery == topology.Yes:
		return "replica"
	case f.InRecovery == topology.No && f.ReadOnly == topology.Yes:
		return "read-only primary"
	case f.InRecovery == topology.No:
		return "primary"
	}
	return "unknown"
}

func receiver(p *topology.Probe) string {
	switch {
	case p.InRecovery != topology.Yes:
		return ""
	case p.Receiver.Running == topology.Unknown:
		return "unknown"
	case p.Receiver.Running == topology.No:
		return "none"
	case p.Receiver.Streaming == topology.Yes:
		return "streaming"
	}
	return "starting"
}

func lsn(l topology.LSN) string {
	if l == 0 {
		return ""
	}
	return l.String()
}

func ago(now, at topology.Mono) *float64 {
	if at == 0 {
		return nil
	}
	s := now.Sub(at).Seconds()
	return &s
}

// report builds the whole report.
func (s *Server) report() Report {
	now := s.o.Now()
	r := Report{Agent: s.o.Agent(), Clusters: []ClusterReport{}, Sinks: append([]Sink{}, s.o.Sinks()...)}
	for _, name := range slices.Sorted(slices.Values(s.o.Clusters())) {
		r.Clusters = append(r.Clusters, clusterReport(name, s.o.Views.Get(name), now))
	}
	slices.SortFunc(r.Sinks, func(a, b Sink) int { return cmp.Compare(a.Name, b.Name) })
	return r
}

// sortedKeys is for output that must not change from one call to the next.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
