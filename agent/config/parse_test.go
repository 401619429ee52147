package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

var sameSelectors = cmp.Comparer(func(a, b topology.Selector) bool { return a.String() == b.String() })

func compare(t *testing.T, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, sameSelectors); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
}

func TestParseMinimal(t *testing.T) {
	text, err := os.ReadFile("testdata/good/minimal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse("pgsteer.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	c := defaultCluster("main", want.Postgres)
	c.Nodes = Nodes{{Name: "n1", Address: topology.Address{Host: "10.0.0.1", Port: 5432}}}
	want.Clusters = Clusters{c}
	compare(t, want, got)

	policy := topology.DefaultPolicy()
	compare(t, policy, got.Policy("main"))
	compare(t, policy, got.Policy("nobody"))
	if got.UsesConsul() {
		t.Error("a cluster without authority uses Consul")
	}
}

func parseFull(t *testing.T) *Config {
	t.Helper()
	text, err := os.ReadFile("testdata/good/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse("/etc/pgsteer/pgsteer.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParseFullSections(t *testing.T) {
	got := parseFull(t)
	want := Default()
	want.StateDir = "/etc/pgsteer/state"
	want.Log = Log{Level: LevelDebug, Format: FormatJSON}
	want.Listen = Listen{AgentCheck: "0.0.0.0:7431", Health: ":7432", Status: "[::1]:7433", SocketMode: 0o666}
	want.Local, want.Zone = NodeRef{Cluster: "main", Node: "n1"}, "a"
	want.Consul = Consul{
		Address: "https://consul.example:8501", TokenFile: "/etc/pgsteer/consul.token", Datacenter: "dc1",
		CAFile: "/etc/pgsteer/ca.pem", CertFile: "/etc/pgsteer/client.pem", KeyFile: "/etc/pgsteer/client.key",
		ServerName: "consul",
	}
	want.Postgres.User, want.Postgres.PasswordFile = "probe", "/etc/pgsteer/probe.password"
	want.Postgres.QueryTimeout = 500 * time.Millisecond
	want.HAProxy = HAProxy{Sockets: []string{"/etc/pgsteer/run/admin.sock", "127.0.0.1:9999"}, MasterSockets: []string{"/etc/pgsteer/run/master.sock"}, Timeout: 2 * time.Second, File: HAProxyFile{
		MaxConn: 4000, ServerMaxConn: 90, StatsListen: "127.0.0.1:8404",
		BindCertificate: "/etc/pgsteer/bind.pem", ServerCAFile: "/etc/pgsteer/ca.pem",
		Timeouts: HAProxyTimeouts{
			Connect: time.Second, Client: time.Hour, Server: 2 * time.Hour,
			Check: 500 * time.Millisecond, Queue: 3 * time.Second, TCPUser: 20 * time.Second,
		},
		CheckInterval: 5 * time.Second, Fall: 3, Rise: 2, AgentInterval: 250 * time.Millisecond,
		HardStopAfter: 10 * time.Minute, MaxReloads: 10,
	}}
	want.Envoy = Envoy{
		ListenHost: "0.0.0.0", ConnectTimeout: time.Second, CheckAddress: "10.0.0.9:7432", CheckInterval: time.Second,
		Release: "after the upgrade", ServerCAFile: "/etc/pgsteer/ca.pem", ServerName: "db.example.org",
		TLS: EnvoyTLS{CertFile: "/etc/pgsteer/a.pem", KeyFile: "/etc/pgsteer/a.key", ClientCAFile: "/etc/pgsteer/ca.pem", NodeIdentity: IdentityAny},
	}
	want.Templates = []Template{{
		Name: "haproxy", Clusters: []string{"main"}, Timeout: 30 * time.Second, ReloadInterval: 2 * time.Second, Runtime: true, Preflight: true,
		Files:  []File{{Builtin: BuiltinHAProxy, Destination: "/etc/haproxy/haproxy.cfg", Mode: 0o600}},
		Check:  []string{"haproxy", "-c", "-f", "{{.Staged}}"},
		Reload: []string{"systemctl", "reload", "haproxy"},
	}, {
		Name: "pools", Timeout: 30 * time.Second, ReloadInterval: 10 * time.Second,
		Files: []File{
			{Source: "/etc/pgsteer/db.tmpl", Destination: "/etc/pgsteer/db.ini", Mode: 0o640},
			{Source: "/etc/pgsteer/hosts.tmpl", Destination: "/etc/hosts.pg", Mode: 0o640},
		},
		Check:        []string{"test", "-s", "{{.Staged}}", "-a", "{{ .Staged 2 }}"},
		Reload:       []string{"sh", "-c", "echo {{.Destination}}\ntrue"},
		MasterSocket: "/run/master.sock",
	}}
	want.Clusters = got.Clusters // the next test's
	compare(t, want, got)
	if !got.UsesConsul() || !got.Templates[0].Covers("main") || got.Templates[0].Covers("other") || !got.Templates[1].Covers("other") {
		t.Error("UsesConsul or Covers is wrong")
	}
}

// fullMain is the cluster main of testdata/good/full.yaml.
func fullMain(t *testing.T, pg Postgres) Cluster {
	t.Helper()
	main := defaultCluster("main", pg)
	main.Authority = topology.AuthorityPatroni
	main.Patroni = Patroni{Source: SourceConsul, Scope: "prod", Namespace: "/db/"}
	main.Policy.SilentAfter, main.Policy.LeaderGap = 3*time.Second, 15*time.Second
	main.Policy.AuthorityLost = topology.LostSQLOnly
	main.Policy.LagGrace, main.Policy.LagReturnAfter, main.Policy.MinDwell = time.Second, 4*time.Second, 5*time.Second
	main.Policy.Flap = Flap{Count: 2, Within: 30 * time.Second, HoldDown: 10 * time.Second, HoldDownMax: time.Minute, Calm: 2 * time.Minute}
	main.Policy.SlowStart, main.Policy.WritesBlockedAfter = 0, 20*time.Second
	main.Policy.WritesStalledAfter, main.Policy.WriteStall = 3*time.Second, topology.StallDrain
	main.Postgres.SSLMode, main.Postgres.Interval = SSLVerifyFull, 500*time.Millisecond
	main.Postgres.WriteProbe = "pgsteer.heartbeat"
	rw := defaultPool("rw", topology.ModeWrite)
	rw.Listen, rw.Port, rw.PortCheck = "127.0.0.1:5000", 6432, topology.PortCheckPgBouncer
	rw.Sessions = Sessions{topology.CodePort: topology.Drain}
	replica := defaultPool("replica", topology.ModeRead)
	replica.Listen, replica.MaxLag = "127.0.0.1:5001", 16<<20
	reports := defaultPool("reports", topology.ModeRead)
	reports.Listen, reports.Fallback = "127.0.0.1:5002", topology.FallbackNone
	reports.MaxLag, reports.MaxLagHard, reports.MinReplicas = 0, 0, 0
	near := defaultPool("near", topology.ModeRead)
	near.Select, near.Role = selector(t, "zone in (a, b), !archive"), topology.RoleSync
	near.MaxLagTime, near.Fallback = 5*time.Second, topology.FallbackStale
	near.RequireStreaming, near.WeightByLag, near.PreferZone = false, false, true
	near.Weights = Weights{"n1": 100, "n2": 1}
	near.Sessions = Sessions{topology.CodeLag: topology.Down, topology.CodeTimeline: topology.Drain}
	half := defaultPool("half", topology.ModeRead)
	half.FallbackWeight, half.PreferZone, half.EnvoySessions = 50, false, EnvoyHealthCheck
	main.Pools = Pools{rw, replica, reports, near, half}
	return main
}

func TestParseFullClusters(t *testing.T) {
	c := parseFull(t)
	compare(t, []string{"main", "other", "third", "fourth", "fifth", "sixth"}, c.ClusterNames())

	main := fullMain(t, c.Postgres)
	compare(t, main, c.Clusters[0])
	compare(t, "db/prod/", main.Patroni.KeyPrefix())
	compare(t, ListenAddress("0.0.0.0:5000"), c.EnvoyListen(main.Pools[0]))
	compare(t, ListenAddress(""), c.EnvoyListen(Pool{}))

	other := defaultCluster("other", c.Postgres)
	other.Policy.KillAfter, other.Policy.HoldMax = 30*time.Second, 25*time.Second
	other.Nodes = Nodes{
		{Name: "n2", Address: topology.Address{Host: "fd00::2", Port: 5432}, Tags: map[string]string{"zone": "a", "nofailover": "true", "build": "012"}},
		{Name: "n1", Address: topology.Address{Host: "db1.example", Port: 5433}},
	}
	compare(t, other, c.Clusters[1])

	third := other
	third.Name, third.Patroni.Scope, third.Policy.MinDown = "third", "third", 2*time.Second
	compare(t, third, c.Clusters[2])
	compare(t, "/etc/pgsteer/nodes/fourth.yaml", c.Clusters[3].Inventory)
	if c.Clusters[3].Postgres.User != "probe" {
		t.Error("a cluster did not begin with the shared postgres section, which stands after the clusters")
	}

	sixth := defaultCluster("sixth", c.Postgres)
	sixth.Authority = topology.AuthorityMonitor
	sixth.Monitor.Monitors = []topology.Address{{Host: "10.0.6.9", Port: 5432}, {Host: "monitor.example", Port: 5432}}
	sixth.Monitor.Formation, sixth.Monitor.Group, sixth.Monitor.PasswordFile = "shop", 2, "/etc/pgsteer/probe.password"
	sixth.Monitor.SSLMode, sixth.Monitor.Interval = SSLVerifyFull, time.Second
	sixth.Monitor.Addresses = Addresses{{Host: "10.1.0.5", Port: 5432}: {Host: "db1.example", Port: 5432}}
	compare(t, sixth, c.Clusters[5])
}

func TestByteOrderMark(t *testing.T) {
	if _, err := Parse("x", []byte("\ufeffclusters: {main: {authority: patroni}}")); err != nil {
		t.Error(err)
	}
	_, err := Parse("x", []byte("\ufeff{lgo: {}, clusters: {main: {authority: patroni}}}"))
	var faults *Faults
	if !errors.As(err, &faults) {
		t.Fatal(err)
	}
	compare(t, []Fault{{File: "x", Line: 1, Column: 2, Text: "unknown key `lgo`, did you mean `log`?", Source: "{lgo: {}, clusters: {main: {authority: patroni}}}"}}, faults.List)
}

// TestMergedNames: a map's own names win over merged ones, and a map that
// merges itself adds nothing.
func TestMergedNames(t *testing.T) {
	c, err := Parse("x", []byte(`
clusters:
  a: {nodes: &n {n1: 10.0.0.1:5432, n2: 10.0.0.2:5432}}
  b: {nodes: &b {<<: [*n, *b, *n], n1: 10.0.0.9:5432}}
`))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, Nodes{
		{Name: "n1", Address: topology.Address{Host: "10.0.0.9", Port: 5432}},
		{Name: "n2", Address: topology.Address{Host: "10.0.0.2", Port: 5432}},
	}, c.Clusters[1].Nodes)
}

// TestBoundaries: values that are just right.
func TestBoundaries(t *testing.T) {
	_, err := Parse("x", []byte(`
postgres: {interval: 1200ms, query_timeout: 800ms}
clusters:
  main:
    nodes: {n1: 10.0.0.1:5432}
    policy: {silent_after: 2s, evidence_max_age: 2s, kill_after: 2s, min_down: 100ms}
    pools: {replica: {max_lag: 1GB, max_lag_hard: 1GB, prefer_zone: false}}
`))
	if err != nil {
		t.Error(err)
	}
}

// TestAnchorsCannotMultiply: work is bounded whatever a text repeats.
func TestAnchorsCannotMultiply(t *testing.T) {
	var b strings.Builder
	b.WriteString("clusters:\n  c: &c\n    nodes:\n")
	for i := range 50 {
		fmt.Fprintf(&b, "      n%d: 10.0.0.%d:5432\n", i, i)
	}
	for i := range 50 {
		fmt.Fprintf(&b, "  d%d: *c\n", i)
	}
	for budget, fault := range map[int]bool{3000: true, 30_000: false} {
		d := newDecoder("x", []byte(b.String()))
		d.budget = budget
		_, err := d.config([]byte(b.String()))
		if got := err != nil && strings.Contains(err.Error(), "too large once its anchors are followed"); got != fault {
			t.Errorf("with a budget of %d: %.200v", budget, err)
		}
	}
}

// TestThousandClusters: the budget does not bite where it should not.
func TestThousandClusters(t *testing.T) {
	var b strings.Builder
	b.WriteString("clusters:\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "  c%d: {nodes: {a: 10.0.%d.1:5432, b: 10.0.%d.2:5432, c: 10.0.%d.3:5432}, policy: {kill_after: 20s}}\n", i, i%250, i%250, i%250)
	}
	c, err := Parse("x", []byte(b.String()))
	if err != nil || len(c.Clusters) != 1000 {
		t.Errorf("%.200v", err)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	_, err := Parse("x", []byte(strings.Repeat("clusters: {}\n", 5*maxFaults)))
	var faults *Faults
	if !errors.As(err, &faults) || len(faults.List) != maxFaults {
		t.Fatalf("got %.200v", err)
	}
	if last := faults.List[maxFaults-1].Text; !strings.Contains(last, "more than 1000 faults") {
		t.Errorf("nothing says that there are more: %s", last)
	}
}

func TestTooLong(t *testing.T) {
	_, err := Parse("x", append([]byte("#\n"), make([]byte, maxText)...))
	if err == nil || !strings.HasPrefix(err.Error(), "x:1:1: the file has ") {
		t.Errorf("got %v", err)
	}
}

func TestFromNodes(t *testing.T) {
	c, err := FromNodes([]string{"a=10.0.0.1:5432", "b=[fd00::1]:5433"})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, Nodes{
		{Name: "a", Address: topology.Address{Host: "10.0.0.1", Port: 5432}},
		{Name: "b", Address: topology.Address{Host: "fd00::1", Port: 5433}},
	}, c.Clusters[0].Nodes)
	if err := c.Validate(); err != nil {
		t.Errorf("what FromNodes made is not valid: %v", err)
	}
	for _, tt := range []struct {
		nodes []string
		want  string
	}{
		{nil, "--node: no node is given, name at least one: --node a=10.0.0.1:5432"},
		{
			[]string{"a", "=10.0.0.1:5432", "a b=10.0.0.1:5432", "c=10.0.0.1"},
			"--node a: not name=host:port, such as a=10.0.0.1:5432: \"\" is not host:port (an IPv6 address needs brackets)\n" +
				"--node =10.0.0.1:5432: not name=host:port, such as a=10.0.0.1:5432: a name is empty\n" +
				"--node a b=10.0.0.1:5432: not name=host:port, such as a=10.0.0.1:5432: name \"a b\": only letters, digits, '.', '_' and '-' are allowed, the first a letter or digit\n" +
				"--node c=10.0.0.1: not name=host:port, such as a=10.0.0.1:5432: \"10.0.0.1\" is not host:port (an IPv6 address needs brackets)",
		},
		{
			[]string{"a=10.0.0.1:5432", "a=10.0.0.2:5432", "B=10.0.0.1:5432", "b=10.0.0.4:5432"},
			"--node a=10.0.0.2:5432: node a is given already\n" +
				"--node: nodes.B: node B has the address of node a, 10.0.0.1:5432: one server cannot be two nodes\n" +
				"--node: nodes.b: node b differs from B by case only, which Consul and DNS cannot tell apart",
		},
	} {
		_, err := FromNodes(tt.nodes)
		var faults *Faults
		if !errors.As(err, &faults) {
			t.Errorf("%q: got %v, want *Faults", tt.nodes, err)
			continue
		}
		compare(t, tt.want, err.Error())
		for _, f := range faults.List {
			if f.Line != 0 || f.Excerpt() != "" {
				t.Errorf("a flag has no position: %+v", f)
			}
		}
	}
}

func TestParseInventory(t *testing.T) {
	got, err := ParseInventory("nodes.yaml", []byte("n2: 10.0.0.2:5432\nn1: {address: 10.0.0.1:5432, tags: {zone: a}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, []topology.Node{
		{Name: "n2", Address: topology.Address{Host: "10.0.0.2", Port: 5432}},
		{Name: "n1", Address: topology.Address{Host: "10.0.0.1", Port: 5432}, Tags: map[string]string{"zone": "a"}},
	}, got)
	if got, err := ParseInventory("nodes.yaml", []byte("{}\n")); err != nil || len(got) != 0 {
		t.Errorf("an empty map: got %v, %v", got, err)
	}
	for _, tt := range []struct{ text, want string }{
		{"", "nodes.yaml:1:1: the file says nothing"},
		{"nodes: {n1: 10.0.0.1:5432}\n", "nodes.yaml:1:9: unknown key `n1`, known here: address, tags"},
		{"n1: 10.0.0.1:5432\nn1: 10.0.0.2:5432\nN2: 10.0.0.1:5432\n", "nodes.yaml:2:1: key `n1` is repeated, it stands in line 1 already\nnodes.yaml:3:1: node N2 has the address of node n1, 10.0.0.1:5432: one server cannot be two nodes"},
		{"- n1\n", "nodes.yaml:1:1: the file is a map of keys and values, not a list"},
	} {
		_, err := ParseInventory("nodes.yaml", []byte(tt.text))
		if err == nil {
			t.Errorf("%q: no fault", tt.text)
			continue
		}
		compare(t, tt.want, err.Error())
	}
}

func TestValidateNamesKeys(t *testing.T) {
	c, err := FromNodes([]string{"a=10.0.0.1:5432"})
	if err != nil {
		t.Fatal(err)
	}
	c.Clusters[0].Policy.MinDown = 0
	c.Listen.Health = c.Listen.Status
	compare(t, "configuration: listen.status: 127.0.0.1:7433 is taken by listen.health already (127.0.0.1:7433)\n"+
		"configuration: clusters.main.policy.min_down: min_down 0s is below 100ms: no balancer would see that the writer was lost",
		c.Validate().Error())
}

// TestValidateMinDown: without lines every cluster is told.
func TestValidateMinDown(t *testing.T) {
	c, err := Parse("x", []byte("clusters: {a: {nodes: {n1: 10.0.0.1:5432}}, b: {nodes: {n1: 10.0.0.2:5432}}}\n"+
		"templates: [{name: h, files: [{builtin: haproxy, destination: d}], check: [haproxy, -f, \"{{.Staged}}\"]}]"))
	if err != nil {
		t.Fatal(err)
	}
	c.HAProxy.File.AgentInterval = 501 * time.Millisecond
	const text = "is below twice agent_interval 501ms: HAProxy may ask before and after, and keep the sessions of a writer that was lost; write min_down 1.002s or more, or agent_interval 500ms or less below haproxy.file"
	compare(t, "configuration: clusters.a.policy.min_down: min_down 1s of cluster a "+text+"\nconfiguration: clusters.b.policy.min_down: min_down 1s of cluster b "+text,
		c.Validate().Error())
}

func TestStateFolder(t *testing.T) {
	for _, tt := range []struct {
		set  string
		env  map[string]string
		want string
	}{
		{"/x", map[string]string{"STATE_DIRECTORY": "/y"}, "/x"},
		{"", map[string]string{"STATE_DIRECTORY": "/y:/z", "HOME": "/root"}, "/y"},
		{"", map[string]string{"XDG_STATE_HOME": "/s", "HOME": "/home/a"}, "/s/pgsteer"},
		{"", map[string]string{"XDG_STATE_HOME": "s", "HOME": "/home/a"}, "/home/a/.local/state/pgsteer"},
		{"", nil, "/var/lib/pgsteer"},
	} {
		c := &Config{StateDir: tt.set}
		if got := c.StateFolder(func(k string) string { return tt.env[k] }); got != tt.want {
			t.Errorf("StateFolder(%q, %v) = %q, want %q", tt.set, tt.env, got, tt.want)
		}
	}
}
