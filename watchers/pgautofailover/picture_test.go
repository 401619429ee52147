package pgautofailover

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestVersions: the rows of 2.0 are those of a real monitor; 2.1 and 2.2 have the
// same tables, and 2.3 has the columns that its source adds.
func TestVersions(t *testing.T) {
	files, err := filepath.Glob("testdata/2.*.json")
	if err != nil || len(files) != 4 {
		t.Fatalf("files %v: %v", files, err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		a, err := Parse(b)
		if err != nil {
			t.Fatal(err)
		}
		got, nodes, faults := Picture(a, nil, nil)
		us := func(n int) time.Duration { return time.Duration(n) * time.Microsecond }
		member := func(name, role, state, app string, port uint16, report, health, change int) topology.Member {
			return topology.Member{
				Name: name, Role: role, State: state, Timeline: 1, Address: topology.Address{Host: "127.0.0.1", Port: port}, Application: app,
				Assigned: &topology.Assignment{
					Goal: state, Reported: state, Writes: topology.Bool(role == "primary"), Reads: topology.Up, Running: topology.Yes, Health: topology.Yes,
					ReportAge: us(report), HealthAge: us(health), ChangeAge: us(change), Priority: 50, Quorum: true,
				},
			}
		}
		want := topology.Authority{
			Leader: "n1", SystemID: 7713917085823415224, Timeline: 1, OptimeIndex: 1796036437575638, SyncMode: "quorum", SyncStandbys: []string{"n2"},
			Members: []topology.Member{
				member("n1", "primary", "primary", "pgautofailover_standby_1", 26001, 997863, 3471360, 152171942),
				member("n2", "replica", "secondary", "pgautofailover_standby_2", 26002, 561177, 3469148, 152386656),
			},
			Monitor: &topology.Monitor{
				Version: strings.TrimSuffix(filepath.Base(file), ".json"), Uptime: us(158600139), UnhealthyAfter: 20 * time.Second, StartupGrace: 10 * time.Second,
				Check: topology.HealthCheck{Period: 5 * time.Second, Timeout: 5 * time.Second, MaxRetries: 2, RetryDelay: 2 * time.Second},
			},
		}
		if d := cmp.Diff(want, got); d != "" || len(faults) > 0 {
			t.Errorf("%s (-want +got), faults %v\n%s", file, faults, d)
		}
		if len(nodes) != 2 || nodes[0].Name != "n1" || nodes[1].Address.Port != 26002 || nodes[0].Tags != nil {
			t.Errorf("nodes %v", nodes)
		}
	}
}

// TestStates: what each state means for writes and reads, as the monitor's FSM has
// it; written down here a second time, by group.
func TestStates(t *testing.T) {
	for group, want := range map[string]struct {
		writes topology.Tri
		reads  topology.Verdict
		more   string // promoting, stale, operator
	}{
		"single wait_primary primary join_primary apply_settings": {topology.Yes, topology.Up, ""},
		"secondary":                                     {topology.No, topology.Up, ""},
		"prepare_promotion stop_replication":            {topology.No, topology.Drain, "promoting"},
		"draining demote_timeout demoted":               {topology.No, topology.Down, ""},
		"prepare_maintenance":                           {topology.No, topology.Down, "operator"},
		"maintenance wait_maintenance dropped":          {topology.No, topology.Drain, "operator"},
		"catchingup report_lsn":                         {topology.No, topology.Drain, "stale"},
		"fast_forward join_secondary wait_standby init": {topology.No, topology.Drain, ""},
		"unknown something_new":                         {topology.Unknown, topology.Drain, ""},
	} {
		for goal := range strings.FieldsSeq(group) {
			got, _, faults := Picture(Answer{Nodes: []Row{row(1, goal, goal)}}, nil, nil)
			a := got.Assignment("n1")
			var more []string
			for word, is := range map[string]bool{"promoting": a.Promoting, "stale": a.Stale, "operator": a.Operator} {
				if is {
					more = append(more, word)
				}
			}
			if a.Writes != want.writes || a.Reads != want.reads || strings.Join(more, " ") != want.more {
				t.Errorf("%s: got %+v, want %+v", goal, a, want)
			}
			if names := got.Leader == "n1"; names != (want.writes == topology.Yes) {
				t.Errorf("%s: leader is %q", goal, got.Leader)
			}
			if known := len(faults) == 0; known != (want.writes != topology.Unknown) {
				t.Errorf("%s: faults %v", goal, faults)
			}
			if got.Withdrawn("n1") != (want.writes == topology.No) {
				t.Errorf("%s: withdrawn is %t", goal, got.Withdrawn("n1"))
			}
		}
	}
	if len(states) != 21 {
		t.Errorf("%d states are known; the groups above have 21", len(states))
	}
}

// row is a healthy row that was reported a moment ago.
func row(id int64, goal, reported string) Row {
	yes, good, priority, system, age, main := true, 1, 50, int64(7), 0.5, "default"
	return Row{
		ID: id, Name: "n" + string(rune('0'+id)), Host: "192.0.2." + string(rune('0'+id)), Port: 5432, SystemID: &system, Goal: goal, Reported: reported,
		Running: &yes, Timeline: 3, Health: &good, Priority: &priority, Quorum: &yes, NodeCluster: &main, ReportAge: &age, HealthAge: &age,
	}
}

func TestPicture(t *testing.T) {
	bad, no, zero, reports, silent, word := 0, false, 0, "reports", 5.0, int64(77)
	with := func(r Row, change func(*Row)) Row {
		change(&r)
		return r
	}
	for _, c := range []struct {
		name  string
		rows  []Row
		check func(a topology.Authority, nodes []topology.Node) bool
		fault string
	}{
		{"two goals that take writes name nobody", []Row{row(1, "primary", "primary"), row(2, "wait_primary", "secondary")}, func(a topology.Authority, _ []topology.Node) bool {
			return a.Leader == "" && cmp.Equal(a.Monitor.Claimants, []string{"n1", "n2"}) && a.Withdrawn("n1") && a.OptimeIndex == 0 && a.SyncMode == ""
		}, "several nodes have a goal"},
		{"a goal that is not confirmed", []Row{row(1, "primary", "primary"), row(2, "secondary", "catchingup")}, func(a topology.Authority, _ []topology.Node) bool {
			return a.Assignment("n2").Reads == topology.Drain && a.Assignment("n2").Why != "" && len(a.SyncStandbys) == 0
		}, ""},
		{"commits wait for nobody in wait_primary", []Row{row(1, "wait_primary", "wait_primary"), row(2, "secondary", "secondary")}, func(a topology.Authority, _ []topology.Node) bool {
			return a.Leader == "n1" && a.SyncMode == ""
		}, ""},
		{"a standby outside of the quorum", []Row{row(1, "primary", "primary"), with(row(2, "secondary", "secondary"), func(r *Row) { r.Quorum = &no })}, func(a topology.Authority, _ []topology.Node) bool {
			return a.SyncRole("n2") == topology.RoleAsync
		}, ""},
		{"bad health alone", []Row{row(1, "primary", "primary"), with(row(2, "secondary", "secondary"), func(r *Row) { r.Health = &bad })}, func(a topology.Authority, _ []topology.Node) bool {
			return a.Assignment("n2").Reads == topology.Up && a.Assignment("n2").Health == topology.No
		}, ""},
		{"silence alone", []Row{row(1, "primary", "primary"), with(row(2, "secondary", "secondary"), func(r *Row) { r.ReportAge = &silent })}, func(a topology.Authority, _ []topology.Node) bool {
			return a.Assignment("n2").Reads == topology.Up
		}, ""},
		{"bad health and silence", []Row{row(1, "primary", "primary"), with(row(2, "secondary", "secondary"), func(r *Row) { r.Health, r.ReportAge = &bad, &silent })}, func(a topology.Authority, _ []topology.Node) bool {
			return a.Assignment("n2").Reads == topology.Drain
		}, ""},
		{"a monitor that hears nobody", []Row{with(row(1, "primary", "primary"), func(r *Row) { r.ReportAge = &silent }), with(row(2, "secondary", "secondary"), func(r *Row) { r.Health, r.ReportAge = &bad, &silent })}, func(a topology.Authority, _ []topology.Node) bool {
			return a.Assignment("n2").Reads == topology.Up
		}, ""},
		{"a keeper's word on its server", []Row{with(row(1, "primary", "primary"), func(r *Row) { r.Word = &word })}, func(a topology.Authority, _ []topology.Node) bool { return a.OptimeIndex == 77 }, ""},
		{"of one that does not run", []Row{with(row(1, "primary", "primary"), func(r *Row) { r.Word, r.Running = &word, &no })}, func(a topology.Authority, _ []topology.Node) bool {
			return a.OptimeIndex == 0 && a.Assignment("n1").Running == topology.No
		}, ""},
		{"tags", []Row{row(1, "single", "single"), with(row(2, "secondary", "secondary"), func(r *Row) { r.Priority, r.NodeCluster = &zero, &reports })}, func(_ topology.Authority, nodes []topology.Node) bool {
			return nodes[0].Tags == nil && nodes[1].HasTag(topology.TagNoFailover) && nodes[1].Tags[topology.TagNodeCluster] == "reports"
		}, ""},
		{"positions are never used", []Row{row(1, "single", "single")}, func(a topology.Authority, _ []topology.Node) bool {
			return a.Optime == 0 && a.Members[0].LSN == 0 && a.Timeline == 3
		}, ""},
		{"an address of a client", []Row{with(row(1, "single", "single"), func(r *Row) { r.Host = "10.0.0.1" })}, func(_ topology.Authority, nodes []topology.Node) bool {
			return nodes[0].Address == topology.Address{Host: "db.example", Port: 6432}
		}, ""},
		{"an address that cannot be used", []Row{with(row(1, "single", "single"), func(r *Row) { r.Host = "a b" })}, func(a topology.Authority, nodes []topology.Node) bool {
			return a.Leader == "n1" && nodes[0].Address.IsZero()
		}, "neither an IP address nor a DNS name"},
		{"a name for no balancer", []Row{with(row(1, "single", "single"), func(r *Row) { r.Name = "a b" })}, func(a topology.Authority, nodes []topology.Node) bool {
			return a.Leader == nodes[0].Name && topology.CheckName(a.Leader) == nil
		}, "cannot be used in balancers"},
		{"no name", []Row{with(row(1, "single", "single"), func(r *Row) { r.Name = "" })}, func(a topology.Authority, _ []topology.Node) bool { return a.Leader == "node_1" }, "it is called node_1"},
		{"names that differ by case only", []Row{with(row(1, "secondary", "secondary"), func(r *Row) { r.Name = "A" }), with(row(2, "primary", "primary"), func(r *Row) { r.Name = "a" })}, func(a topology.Authority, nodes []topology.Node) bool {
			return a.Leader == "a" && len(nodes) == 1 && len(a.Members) == 1
		}, "by case only"},
		{"no system identifier yet", []Row{with(row(1, "wait_standby", "init"), func(r *Row) { r.SystemID = nil }), row(2, "wait_primary", "single")}, func(a topology.Authority, _ []topology.Node) bool { return a.SystemID == 7 }, ""},
	} {
		a, nodes, faults := Picture(Answer{Nodes: c.rows}, Addresses{{Host: "10.0.0.1", Port: 5432}: {Host: "db.example", Port: 6432}}, nil)
		text := strings.Join(faults, "; ")
		if !c.check(a, nodes) || (c.fault == "") != (text == "") || !strings.Contains(text, c.fault) {
			b, _ := json.Marshal(a)
			t.Errorf("%s: got %s, nodes %v, faults %q", c.name, b, nodes, text)
		}
	}
}

// TestSettings: those of the monitor, or its defaults when one of them is missing, which
// is told.
func TestSettings(t *testing.T) {
	told := func(seconds float64) *float64 { return &seconds }
	retries := 7
	whole := Answer{Unhealthy: told(3), Grace: told(0.5), Check: Check{Period: told(1), Timeout: told(2), MaxRetries: &retries, RetryDelay: told(0.1)}}
	want := topology.Monitor{
		UnhealthyAfter: 3 * time.Second, StartupGrace: 500 * time.Millisecond,
		Check: topology.HealthCheck{Period: time.Second, Timeout: 2 * time.Second, MaxRetries: 7, RetryDelay: 100 * time.Millisecond},
	}
	var got topology.Monitor
	whole.settings(&got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	want = topology.Monitor{
		UnhealthyAfter: 20 * time.Second, StartupGrace: 10 * time.Second, Assumed: true,
		Check: topology.HealthCheck{Period: 5 * time.Second, Timeout: 5 * time.Second, MaxRetries: 2, RetryDelay: 2 * time.Second},
	}
	for name, lack := range map[string]func(*Answer){
		"unhealthy_after": func(a *Answer) { a.Unhealthy = nil }, "startup_grace": func(a *Answer) { a.Grace = nil },
		"period": func(a *Answer) { a.Check.Period = nil }, "timeout": func(a *Answer) { a.Check.Timeout = nil },
		"max_retries": func(a *Answer) { a.Check.MaxRetries = nil }, "retry_delay": func(a *Answer) { a.Check.RetryDelay = nil },
	} {
		a, got := whole, topology.Monitor{}
		lack(&a)
		a.settings(&got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("without %s (-want +got)\n%s", name, d)
		}
	}
}

func FuzzParse(f *testing.F) {
	b, err := os.ReadFile("testdata/2.0.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"nodes": [{}, {"nodename": "A", "goalstate": "single"}, {"nodename": "a", "nodehost": "::1"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := Parse(b)
		if err != nil {
			return
		}
		said, nodes, _ := Picture(a, nil, nil)
		if said.Leader != "" && len(said.Monitor.Claimants) > 0 || len(nodes) != len(said.Members) {
			t.Errorf("got %+v, %v", said, nodes)
		}
		for _, n := range nodes {
			if topology.CheckName(n.Name) != nil {
				t.Errorf("name %q", n.Name)
			}
		}
	})
}

// TestManual: the manual has the recipe as it is, and every state.
func TestManual(t *testing.T) {
	b, err := os.ReadFile("../../docs/pg_auto_failover.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), "```sql\n"+Recipe+"```") {
		t.Error("the manual's recipe is not that of recipe.sql")
	}
	for s := range states {
		if !strings.Contains(string(b), "`"+s+"`") {
			t.Errorf("the manual does not name the state %s", s)
		}
	}
}
