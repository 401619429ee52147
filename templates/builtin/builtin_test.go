package builtin_test

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/templates/builtin"
	"github.com/pgsteer/pgsteer/templates/render"
)

var update = flag.Bool("update", false, "write the golden files and delete those without a case")

// snapshot makes a cluster with nodes n1 to nN at 10.0.0.x, of which writer is up.
func snapshot(cluster string, nodes int, writer string) *topology.Snapshot {
	var list []topology.Node
	for i := range nodes {
		list = append(list, topology.Node{
			Name:    fmt.Sprintf("n%d", i+1),
			Address: topology.Address{Host: fmt.Sprintf("10.0.0.%d", i+1), Port: 5432},
		})
	}
	return snapshotOf(cluster, list, writer)
}

// snapshotOf makes a cluster with the default pools; nodes are sorted by name.
func snapshotOf(cluster string, nodes []topology.Node, writer string) *topology.Snapshot {
	s := &topology.Snapshot{Cluster: cluster, Nodes: nodes, Writer: writer, Complete: true}
	for _, p := range topology.DefaultPools() {
		pool := topology.PoolVerdicts{Pool: p.Name, Mode: p.Mode}
		for _, n := range s.Nodes {
			v := topology.NodeVerdict{Node: n.Name, Address: n.Address, Verdict: topology.Down}
			if (n.Name == writer) == (p.Mode == topology.ModeWrite) {
				v.Verdict, v.Weight = topology.Up, 100
			}
			pool.Nodes = append(pool.Nodes, v)
		}
		s.Pools = append(s.Pools, pool)
	}
	return s
}

func settings(clusters ...string) render.Settings {
	s := render.Settings{
		Agent:  netip.MustParseAddrPort("127.0.0.1:8007"),
		Listen: map[render.PoolID][]netip.AddrPort{},
	}
	for i, c := range clusters {
		s.Listen[render.PoolID{Cluster: c, Pool: "primary"}] = []netip.AddrPort{
			netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(5000+10*i)),
		}
		s.Listen[render.PoolID{Cluster: c, Pool: "replica"}] = []netip.AddrPort{
			netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(5001+10*i)),
			netip.AddrPortFrom(netip.IPv6Loopback(), uint16(5001+10*i)),
		}
	}
	return s
}

func template(tb testing.TB) render.Template {
	tb.Helper()
	text, ok := builtin.Text(builtin.HAProxy)
	if !ok {
		tb.Fatalf("there is no template %q among %q", builtin.HAProxy, builtin.Names())
	}
	return render.Template{Name: builtin.HAProxy, Text: text}
}

func mustRender(tb testing.TB, v render.View) []byte {
	tb.Helper()
	text, err := render.Render(template(tb), v)
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

type golden struct {
	name string
	view render.View
}

func goldens() []golden {
	plain := settings("main")
	full := settings("main")
	full.Agent = netip.MustParseAddrPort("[::1]:8007")
	full.Options = render.Options{
		StatsSocket: "/tmp/pgsteer-test.sock", StatsListen: netip.MustParseAddrPort("127.0.0.1:8404"),
		MaxConn: 4000, ServerMaxConn: 90, MaxSpreadChecks: 1500000, AgentInterval: 250000000,
	}
	full.Refuse = map[render.PoolID]netip.AddrPort{
		{Cluster: "main", Pool: "primary"}: netip.MustParseAddrPort("127.0.0.1:7441"),
		{Cluster: "main", Pool: "replica"}: netip.MustParseAddrPort("[::1]:7442"),
	}
	six := snapshot("main", 2, "").Nodes
	six[0].Address.Host = "2001:db8::1"
	return []golden{
		{"plain", render.ViewOf([]*topology.Snapshot{snapshot("main", 3, "n1")}, plain)},
		{"every-option-and-ipv6", render.ViewOf([]*topology.Snapshot{snapshotOf("main", six, "n1")}, full)},
		{"pools-of-every-kind", render.ViewOf([]*topology.Snapshot{wide()}, wideSettings())},
		{"two-clusters-one-empty", render.ViewOf([]*topology.Snapshot{snapshot("main", 2, "n2"), snapshot("aux", 0, "")}, settings("main", "aux"))},
	}
}

func TestGolden(t *testing.T) {
	var want []string
	for _, c := range goldens() {
		want = append(want, c.name+".cfg")
		t.Run(c.name, func(t *testing.T) {
			got := mustRender(t, c.view)
			path := filepath.Join("testdata", c.name+".cfg")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			old, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(old), string(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", path, diff)
			}
		})
	}
	files, _ := filepath.Glob("testdata/*.cfg")
	for _, f := range files {
		if slices.Contains(want, filepath.Base(f)) {
			continue
		}
		t.Errorf("%s belongs to no case", f)
		if *update {
			os.Remove(f)
		}
	}
}

// A role change must change no byte (design.md section 4, rule 9).
func TestRoleChangeChangesNothing(t *testing.T) {
	s := settings("main")
	want := mustRender(t, render.ViewOf([]*topology.Snapshot{snapshot("main", 3, "n1")}, s))
	for _, writer := range []string{"n2", "n3", ""} {
		snap := snapshot("main", 3, writer)
		snap.Generation, snap.Urgent, snap.Hash = 17, 17, "other"
		got := mustRender(t, render.ViewOf([]*topology.Snapshot{snap}, s))
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("writer %q (-n1 +now):\n%s", writer, diff)
		}
	}
	undecided := snapshot("main", 3, "")
	for _, p := range undecided.Pools {
		for i := range p.Nodes {
			p.Nodes[i].Verdict = topology.Undecided
		}
	}
	if diff := cmp.Diff(string(want), string(mustRender(t, render.ViewOf([]*topology.Snapshot{undecided}, s)))); diff != "" {
		t.Errorf("undecided (-n1 +now):\n%s", diff)
	}
}

// haproxy returns the program, or skips; a run that must be complete fails.
func haproxy(t *testing.T) string {
	t.Helper()
	labtest.Need(t, lab.NeedHAProxy)
	path, err := lab.HAProxyProgram()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Exit code 0 without a warning: HAProxy says the rest only in its exit code
// (2 means that it would not start).
func TestHAProxyAccepts(t *testing.T) {
	bin := haproxy(t)
	for _, c := range goldens() {
		t.Run(c.name, func(t *testing.T) {
			cfg := filepath.Join(t.TempDir(), "haproxy.cfg")
			if err := os.WriteFile(cfg, mustRender(t, c.view), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.Command(bin, "-c", "-dW", "-f", cfg).CombinedOutput()
			if err != nil {
				t.Errorf("haproxy -c -dW: %v\n%s", err, out)
			}
		})
	}
}

// Whatever comes from outside leaves every line what it was, up to the words that
// carry the value itself. A node that cannot be written, or whose name nobody
// resolved, is left out.
func FuzzOutsideText(f *testing.F) {
	for _, s := range []string{"n1", "n\n1", "n\r1", "n\x001", "n#1", `n"1`, "n'1", "n$1", "n{1", `n\1`, "n%1", "n 1", "é", "n1\nlisten x\n bind :1", "${HOME}", "::1", "10.0.0.1", "{{.}}", "<no value>", "a.b-c_d", strings.Repeat("n", 10_000)} {
		f.Add(s, s, s, s)
	}
	want, _ := shape(mustRender(f, render.ViewOf([]*topology.Snapshot{snapshot("main", 2, "n1")}, settings("main"))))
	tmpl := template(f)
	f.Fuzz(func(t *testing.T, name, host, tag, value string) {
		nodes := snapshot("main", 2, "").Nodes
		n := &nodes[0]
		n.Name, n.Address.Host, n.Tags = name, host, map[string]string{tag: value}
		_, isIP := n.Address.IP()
		servers := 4 // two nodes in two pools
		if topology.CheckName(name) != nil || n.Address.Check() != nil {
			servers = 2
		} else if name == "n2" { // one node twice
			servers = 0
		} else if !isIP {
			servers = 2
		}
		got, err := render.Render(tmpl, render.ViewOf([]*topology.Snapshot{snapshotOf("main", nodes, "n2")}, settings("main")))
		if (err != nil) != (servers == 0) {
			t.Fatalf("name %q host %q tag %q=%q: %v", name, host, tag, value, err)
		}
		if err != nil {
			return
		}
		rest, found := shape(got)
		if diff := cmp.Diff(want, rest); diff != "" || len(found) != servers {
			t.Fatalf("name %q host %q tag %q=%q: servers %q, want %d; the rest (-want +got):\n%s", name, host, tag, value, found, servers, diff)
		}
	})
}

// shape takes a text apart: its lines without those of servers, and of each
// server the backend, the name and the address.
func shape(text []byte) (lines, servers []string) {
	backend := ""
	for l := range strings.Lines(string(text)) {
		w := strings.Fields(l)
		switch {
		case len(w) == 8 && w[0] == "server" && w[3] == "agent-send" && topology.CheckName(w[1]) == nil:
			servers = append(servers, backend+" "+w[1]+" "+w[2])
			continue
		case len(w) == 2 && w[0] == "backend":
			backend = w[1]
		}
		lines = append(lines, l)
	}
	return lines, servers
}
