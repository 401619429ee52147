package status

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

var update = flag.Bool("update", false, "write the golden files and the generated pages of the manual anew")

// wall is now, by everybody's clock.
var wall = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const now = topology.Mono(100 * time.Second)

// before is a moment on the monotonic clock.
func before(d time.Duration) topology.Mono { return now.Add(-d) }

// world is what a server is asked about.
type world struct {
	views    latest.Map[string, topology.View]
	clusters []string
	policy   topology.Policy
	agent    Agent
	sinks    []Sink
	at       topology.Clock
}

func (w *world) server() *Server {
	return New(Options{
		Views: &w.views, Now: func() topology.Clock { return w.at },
		Clusters: func() []string { return w.clusters },
		Policy:   func(string) topology.Policy { return w.policy },
		Agent:    func() Agent { return w.agent }, Sinks: func() []Sink { return w.sinks },
	})
}

func newWorld(views ...*topology.View) *world {
	w := &world{policy: topology.DefaultPolicy(), at: topology.Clock{Mono: now, Wall: wall}, agent: Agent{
		Version: "1.2.3", StartedAt: wall.Add(-time.Hour), ConfigAt: wall.Add(-time.Minute),
		Listeners: map[string]string{"status": "127.0.0.1:7433"},
	}}
	for _, v := range views {
		w.clusters = append(w.clusters, v.Snapshot.Cluster)
		w.views.Set(v.Snapshot.Cluster, v)
	}
	return w
}

// view is a decision on the nodes n1 to n3 in the pools primary and replica.
func view(cluster string, change func(*topology.Snapshot, *topology.Facts)) *topology.View {
	s := &topology.Snapshot{
		Cluster: cluster, Generation: 7, Urgent: 5, Hash: "0123456789abcdef", DecidedAt: wall.Add(-time.Minute), Complete: true,
		Authority: topology.AuthorityStatus{Kind: topology.AuthorityPatroni, State: topology.AuthorityStateCurrent, Leader: "n1"},
		Writer:    "n1",
		Pools:     []topology.PoolVerdicts{{Pool: "primary", Mode: topology.ModeWrite}, {Pool: "replica", Mode: topology.ModeRead, ChangedAt: wall.Add(-1200 * time.Millisecond)}},
	}
	f := &topology.Facts{Timeline: 3, SystemID: 7, Nodes: make(map[string]topology.NodeFacts)}
	f.Sources = []topology.SourceFacts{{Source: topology.SourceID{Kind: topology.SourceConsul, Name: cluster}, OKAt: before(4 * time.Second)}}
	for i, name := range []string{"n1", "n2", "n3"} {
		at := topology.Address{Host: "10.0.0." + name[1:], Port: 5432}
		s.Nodes = append(s.Nodes, topology.Node{Name: name, Address: at})
		f.Nodes[name] = answering(i == 0)
		if i == 0 {
			f.Claims = []string{name}
		}
		f.Sources = append(f.Sources, topology.SourceFacts{Source: topology.SourceID{Kind: topology.SourcePostgres, Name: name}, OKAt: before(300 * time.Millisecond)})
		for j := range s.Pools {
			s.Pools[j].Nodes = append(s.Pools[j].Nodes, topology.NodeVerdict{Node: name, Address: at, Weight: 100})
		}
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		if n == "n1" {
			set(s, "primary", n, topology.Up, topology.CodeWriter, "holds the leader key and is writable")
			set(s, "replica", n, topology.Drain, topology.CodeWrongRole, "primary")
		} else {
			set(s, "primary", n, topology.Down, topology.CodeWrongRole, "in recovery")
			set(s, "replica", n, topology.Up, topology.CodeReplica, "replica")
		}
	}
	if change != nil {
		change(s, f)
	}
	return &topology.View{Snapshot: s, Facts: f, ValidUntil: now.Add(5 * time.Second)}
}

// set gives a verdict its reasons; codes and texts alternate.
func set(s *topology.Snapshot, pool, node string, v topology.Verdict, code topology.Code, text string, more ...topology.Reason) {
	for i := range s.Pools {
		for j := range s.Pools[i].Nodes {
			if n := &s.Pools[i].Nodes[j]; s.Pools[i].Pool == pool && n.Node == node {
				n.Verdict, n.Weight = v, 100
				n.Reasons = append([]topology.Reason{{Code: code, Text: text, Since: wall.Add(-90 * time.Second)}}, more...)
			}
		}
	}
}

// weigh gives a node its weight in the read pool.
func weigh(s *topology.Snapshot, node string, percent int) {
	for i := range s.Pools[1].Nodes {
		if n := &s.Pools[1].Nodes[i]; n.Node == node {
			n.Weight = percent
		}
	}
}

// change edits the facts of one node.
func change(f *topology.Facts, node string, edit func(*topology.NodeFacts)) {
	n := f.Nodes[node]
	p := *n.Probe
	n.Probe = &p
	edit(&n)
	f.Nodes[node] = n
}

// answering are the facts of a node that answers well.
func answering(primary bool) topology.NodeFacts {
	p := &topology.Probe{Kind: topology.ProbeFull, SystemID: 7, Timeline: 3, ServerVersion: 170001}
	f := topology.NodeFacts{Probe: p, RoleAt: before(300 * time.Millisecond), AnsweredAt: before(290 * time.Millisecond), LoginAt: before(3 * time.Second)}
	if primary {
		p.InRecovery, p.ReadOnly, p.WriteLSN = topology.No, topology.No, 0x3000060
	} else {
		p.InRecovery, p.ReadOnly, p.ReplayLSN = topology.Yes, topology.Yes, 0x3000000
		p.Receiver = topology.Receiver{Running: topology.Yes, Streaming: topology.Yes}
		f.Lag = topology.Lag{Known: topology.Yes, Bytes: 96, Time: 20 * time.Millisecond}
	}
	f.InRecovery, f.ReadOnly = p.InRecovery, p.ReadOnly
	return f
}

// failing turns a node's facts into those of one that is silent.
func failing(f topology.NodeFacts, class topology.FailureClass, text string) topology.NodeFacts {
	f.FailingAt, f.RoleAt, f.AnsweredAt = before(4*time.Second), before(5*time.Second), before(5*time.Second)
	f.Failure = &topology.Failure{Class: class, Text: text}
	return f
}

// golden compares with a file of testdata, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test ./agent/status -update writes it", err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s (-want +got); go test ./agent/status -update takes it over\n%s", path, d)
	}
}
