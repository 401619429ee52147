package tap

import (
	"encoding/json"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Path is where an agent's status listener serves the stream; a cluster's name follows.
const Path = "/api/v1/observations/"

// Kind says what a line of the stream is.
type Kind string

// The kinds of lines. The stream begins with one KindBegin and the observations
// that make up what the agent knows then; a reader skips kinds it does not know.
const (
	KindBegin       Kind = "begin"
	KindObservation Kind = "observation"
	KindDecision    Kind = "decision" // the rules have decided on everything before it
	KindLost        Kind = "lost"
	KindEnd         Kind = "end" // the last line, unless the connection is cut
)

// Line is one line of the stream, a JSON object. Beside Kind the field of that
// name is set.
type Line struct {
	Kind        Kind         `json:"kind"`
	Begin       *Begin       `json:"begin,omitempty"`
	Observation *Observation `json:"observation,omitempty"`
	Decision    *Decision    `json:"decision,omitempty"`
	// Lost counts lines that came too fast for this reader and are missing here.
	Lost uint64 `json:"lost,omitempty"`
	// End says why nothing more comes.
	End string `json:"end,omitempty"`
}

// Begin is what does not change while a stream lasts.
type Begin struct {
	Version string         `json:"version"` // the agent's
	At      topology.Clock `json:"at"`
	Cluster Cluster        `json:"cluster"`
	Zone    string         `json:"zone,omitempty"` // the agent's
	// Saved is what the agent knows as it would after a restart; nil before the
	// first decision.
	Saved *topology.Saved `json:"saved,omitempty"`
	// User and Database are what the agent logs in with; texts name them.
	User     string `json:"user,omitempty"`
	Database string `json:"database,omitempty"`
}

// Decision is an evaluation of the rules.
type Decision struct {
	At topology.Clock `json:"at"`
	// Snapshot is what was decided; nil: what the line before said.
	Snapshot *topology.Snapshot `json:"snapshot,omitempty"`
}

// Observation is a topology.Observation whose JSON form leaves nothing out.
type Observation topology.Observation

// wire adds what topology's own form of a member leaves to others.
type wire struct {
	topology.Observation
	MemberLSNs []topology.LSN `json:",omitempty"`
}

// MarshalJSON writes every field.
func (o Observation) MarshalJSON() ([]byte, error) {
	w := wire{Observation: topology.Observation(o)}
	if o.Authority != nil {
		for _, m := range o.Authority.Members {
			w.MemberLSNs = append(w.MemberLSNs, m.LSN)
		}
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (o *Observation) UnmarshalJSON(b []byte) error {
	var w wire
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	for i, l := range w.MemberLSNs {
		if w.Authority != nil && i < len(w.Authority.Members) {
			w.Authority.Members[i].LSN = l
		}
	}
	*o = Observation(w.Observation)
	return nil
}

// Cluster is what the rules know of a cluster's configuration: nothing of how
// anybody is reached or how the agent logs in.
type Cluster struct {
	config.Cluster
	Postgres Paces // instead of the embedded one
	Monitor  Group // so too
}

// Group says which group of pg_auto_failover the cluster is.
type Group struct {
	Formation string
	Group     int
}

// Paces say how often and how patiently a node is asked.
type Paces struct{ Interval, ConnectTimeout, QueryTimeout, LoginEvery time.Duration }

// ruled takes what is listed here; whatever else a configuration may get stays out.
func ruled(c config.Cluster) Cluster {
	out := config.DefaultCluster(c.Name)
	out.Authority, out.Nodes, out.Inventory, out.Policy, out.Pools = c.Authority, c.Nodes, c.Inventory, c.Policy, c.Pools
	out.Patroni.Scope, out.Patroni.Namespace = c.Patroni.Scope, c.Patroni.Namespace
	out.Postgres, out.Monitor = config.Postgres{}, config.Monitor{}
	p := c.Postgres
	return Cluster{out, Paces{p.Interval, p.ConnectTimeout, p.QueryTimeout, p.LoginEvery}, Group{c.Monitor.Formation, c.Monitor.Group}}
}

// Config is the configuration; what was left out has its default, or is zero.
func (c Cluster) Config() config.Cluster {
	out := c.Cluster
	out.Monitor = config.DefaultCluster(c.Name).Monitor
	out.Monitor.Formation, out.Monitor.Group = c.Monitor.Formation, c.Monitor.Group
	out.Postgres = config.Postgres{
		Interval: c.Postgres.Interval, ConnectTimeout: c.Postgres.ConnectTimeout, QueryTimeout: c.Postgres.QueryTimeout, LoginEvery: c.Postgres.LoginEvery,
	}
	return out
}

// begin is the first line for a reader that comes now.
func (s Source) begin(version string, at topology.Clock, now present) *Begin {
	b := &Begin{
		Version: version, At: at, Cluster: ruled(s.Cluster), Zone: s.Zone, User: s.Cluster.Postgres.User, Database: s.Cluster.Postgres.Database,
	}
	if now.decided.Snapshot != nil {
		b.Saved = &now.decided.Saved
	}
	return b
}
