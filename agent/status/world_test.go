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

// ago is a moment on the monotonic clock.
func before(d time.Duration) topology.Mono { return now.Add(-d) }

// world is what a server is asked about.
type world struct {
	views    latest.Map[string, topology.View]
	clusters []string
	agent    Agent
	sinks    []Sink
}

func (w *world) server() *Server {
	return New(Options{
		Views: &w.views, Now: func() topology.Clock { return topology.Clock{Mono: now, Wall: wall} },
		Clusters: func() []string { return w.clusters },
		Policy:   func(string) topology.Policy { return topology.DefaultPolicy() },
		Agent:    func() Agent { return w.agent }, Sinks: func() []Sink { return w.sinks },
	})
}

func newWorld(views ...*topology.View) *world {
	w := &world{agent: Agent{
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
		Pools:     []topology.PoolVerdicts{{Pool: "primary", Mode: topology.ModeWrite}, {Pool: "replica", Mode: topology.ModeRead}},
	}
	f := &topology.Facts{Timeline: 3, SystemID: 7, Nodes: make(map[string]topology.NodeFacts)}
	f.Sources = []topology.SourceFacts{{Source: topology.SourceID{Kind: topology.SourceConsul, Name: cluster}, OKAt: before(4 * time.Second)}}
	for i, name := range []string{"n1", "n2", "n3"} {
		at := topology.Address{Host: "10.0.0." + name[1:], Port: 5432}
		s.Nodes = append(s.Nodes, topology.Node{Name: name, Address: at})
		f.Nodes[name] = answering(i == 0)
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
				n.Verdict = v
				n.Reasons = append([]topology.Reason{{Code: code, Text: text, Since: wall.Add(-90 * time.Second)}}, more...)
			}
		}
	}
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

// worlds are the typical states.
var worlds = map[string]func() *world{
	"up": func() *world { return newWorld(view("main", nil)) },
	"undecided": func() *world {
		w := newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			s.Writer, s.Held, s.Complete = "", "n1", false
			s.Authority.State, s.Authority.Leader = topology.AuthorityStateUnknown, ""
			f.Timeline, f.SystemID = 0, 0
			for _, n := range s.Nodes {
				f.Nodes[n.Name] = topology.NodeFacts{}
				set(s, "primary", n.Name, topology.Undecided, topology.CodeAuthorityUnknown, "authority not heard yet")
				set(s, "replica", n.Name, topology.Undecided, topology.CodeNoEvidence, "not asked yet")
			}
			f.Sources = f.Sources[:1]
			f.Sources[0].OKAt, f.Sources[0].FailingAt = 0, before(12*time.Second)
			f.Sources[0].Failure = &topology.Failure{Class: topology.FailRefused, Text: "read of service/main from Consul at 127.0.0.1:8500: connection refused; tried again in 2s"}
		}))
		w.clusters = append(w.clusters, "later")
		w.sinks = []Sink{
			{Name: "xds", State: SinkWaiting, Error: "no Envoy is answered before these clusters are decided: later main", Gauges: map[string]uint64{"streams": 0}},
			{Name: "state", State: SinkOK, Since: wall},
		}
		return w
	},
	"drain": func() *world {
		return newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			n2 := f.Nodes["n2"]
			n2.Lag = topology.Lag{Known: topology.Yes, Bytes: 200 << 20, Time: 31 * time.Second}
			f.Nodes["n2"] = n2
			set(s, "replica", "n2", topology.Drain, topology.CodeLag, "lag 200MB > 64MB")
			f.Nodes["n3"] = failing(f.Nodes["n3"], topology.FailTimeout, "login to 10.0.0.3:5432 as pgsteer: no answer within 800ms")
			set(s, "primary", "n3", topology.Down, topology.CodeWrongRole, "in recovery",
				topology.Reason{Code: topology.CodeSilent, Text: "no answer since 11:59:55", Since: wall.Add(-3 * time.Second)})
			set(s, "replica", "n3", topology.Drain, topology.CodeSilent, "no answer since 11:59:55")
			s.Pools[1].Fallback = true
			set(s, "replica", "n1", topology.Up, topology.CodeFallback, "no eligible replica")
		}))
	},
	"lost": func() *world {
		return newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			s.Authority.State = topology.AuthorityStateLost
			s.Alarms = []topology.Reason{{Code: topology.CodeAuthorityLost, Text: "last word at 11:59:30", Since: wall.Add(-30 * time.Second)}}
			set(s, "primary", "n1", topology.Up, topology.CodeWriter, "holds the leader key and is writable",
				topology.Reason{Code: topology.CodeAuthorityLost, Text: "authority lost; held by SQL evidence", Since: wall.Add(-30 * time.Second)})
			f.Sources[0].OKAt, f.Sources[0].FailingAt = before(30*time.Second), before(20*time.Second)
			f.Sources[0].Failure = &topology.Failure{Class: topology.FailTimeout, Text: "read of service/main from Consul at 127.0.0.1:8500: no answer within 3s; tried again in 5s"}
		}))
	},
	"stale": func() *world {
		v := view("main", nil)
		v.ValidUntil = before(time.Second)
		return newWorld(v)
	},
	"refused": func() *world {
		w := newWorld(view("main", nil), view("none", func(s *topology.Snapshot, _ *topology.Facts) {
			s.Authority = topology.AuthorityStatus{Kind: topology.AuthorityNone, State: topology.AuthorityStateNone}
			s.Writer = ""
			for _, n := range s.Nodes {
				set(s, "primary", n.Name, topology.Down, topology.CodeTwoWriters, "n3 is writable too")
			}
			s.Alarms = []topology.Reason{{Code: topology.CodeTwoWriters, Text: "writable: [n1 n3]", Since: wall}}
		}))
		w.agent.ConfigError = "pgsteer.yaml:3:1: unknown key polcy, did you mean policy?\npgsteer.yaml:9:5: 5 has no unit"
		w.sinks = []Sink{
			{Name: "runtimeapi /run/haproxy.sock", State: SinkFailing, Error: "connection refused", Since: wall.Add(-time.Minute), Counters: map[string]uint64{"pushes": 3}},
			{Name: "agentcheck", State: SinkOK, Counters: map[string]uint64{"up": 10, "down": 2}},
			{Name: "xds", State: SinkOK, Counters: map[string]uint64{"refused_cds": 0}, Gauges: map[string]uint64{"streams": 2}},
		}
		return w
	},
	"roleless": func() *world { // a wrong password
		return newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			s.Authority = topology.AuthorityStatus{Kind: topology.AuthorityNone, State: topology.AuthorityStateNone}
			s.Writer = ""
			for _, n := range s.Nodes {
				f.Nodes[n.Name] = topology.NodeFacts{FailingAt: before(9 * time.Second), Failure: &topology.Failure{
					Class: topology.FailAuth, Text: `login to 10.0.0.1:5432 as pgsteer: password authentication failed for user "pgsteer" (SQLSTATE 28P01)`,
				}}
				set(s, "primary", n.Name, topology.Undecided, topology.CodeRoleUnknown, "role unknown: auth")
				set(s, "replica", n.Name, topology.Undecided, topology.CodeRoleUnknown, "role unknown: auth")
			}
		}))
	},
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
