package render

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func snapshot(cluster string, nodes ...topology.Node) *topology.Snapshot {
	s := &topology.Snapshot{Cluster: cluster, Nodes: nodes, Complete: true}
	for _, p := range topology.DefaultPools() {
		s.Pools = append(s.Pools, topology.PoolVerdicts{Pool: p.Name, Mode: p.Mode})
	}
	return s
}

func node(name, address string, tags map[string]string) topology.Node {
	a, err := topology.ParseAddress(address)
	if err != nil {
		panic(err)
	}
	return topology.Node{Name: name, Address: a, Tags: tags}
}

func mainView() View {
	return ViewOf([]*topology.Snapshot{snapshot("main",
		node("n2", "10.0.0.2:5432", map[string]string{"zone": "b"}),
		node("n1", "10.0.0.1:5432", map[string]string{"zone": "a"}),
		node("n3", "db3:5432", nil),
	)}, Settings{Vars: map[string]string{"b": "2", "a": "1"}})
}

// servers wraps a text so that it is rendered for each server of main/primary.
func servers(text string) string {
	return `{{ range (index (index .Clusters 0).Pools 0).Servers }}` + text + `{{ end }}`
}

func TestRender(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"servers are sorted", servers("{{ .Name }} "), "n1 n2 n3 "},
		{"zones", servers("{{ .Zone }}|"), "a|b||"},
		{"a missing tag by index", servers(`{{ index .Tags "x" }}|`), "|||"},
		{"hosts", servers("{{ .Host }}:{{ .Port }} "), "10.0.0.1:5432 10.0.0.2:5432 db3:5432 "},
		{"pools are sorted", "{{ range .Clusters }}{{ range .Pools }}{{ .ID }} {{ .Mode }} {{ .IsWrite }},{{ end }}{{ end }}", "main_primary write true,main_replica read false,"},
		{"keys and values", `{{ keys .Vars }} {{ values .Vars }} {{ keys (dict "z" 1 "y" 2) }} {{ values (dict "z" 1 "y" 2) }}`, "[a b] [1 2] [y z] [2 1]"},
		{"defaults", "{{ haproxyTime .Options.AgentInterval }} {{ haproxyTime .Options.HardStopAfter }} {{ .Options.Fall }}", "500ms 30m 5"},
		{"include", `{{ define "x" }}a{{ . }}{{ end }}{{ include "x" 1 | upper | indent 2 }}`, "  A1"},
		{"tags", `{{ range withTag "zone" "a" (index (index .Clusters 0).Pools 0).Servers }}{{ .Name }}{{ end }} {{ range withoutTag "zone" "a" (index (index .Clusters 0).Pools 0).Servers }}{{ .Name }}{{ end }}`, "n1 n2n3"},
		{"hostport of parts", `{{ hostport "2001:db8::1" 5432 }} {{ hostport "10.0.0.1:1" }}`, "[2001:db8::1]:5432 10.0.0.1:1"},
		{"quotes", `{{ haproxyQuote "it's $HOME # \\" }} {{ pgbouncerQuote "it's" }} {{ pgDSN "host" "a b" "port" 1 }}`, `'it'"'"'s $HOME # \' 'it''s' host='a b' port='1'`},
		{"agent-send", `{{ agentSend "main" "primary" "!guard" }}`, `"main primary !guard\n"`},
		{"until", "{{ until 3 }}{{ until -2 }}{{ untilStep 1 6 2 }}{{ untilStep 1 1 1 }}", "[0 1 2][0 -1][1 3 5][]"},
		{"a dict of its own may be changed", `{{ $d := dict "a" 1 }}{{ $_ := set $d "b" 2 }}{{ $d }}`, "map[a:1 b:2]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Render(Template{Name: "t", Text: c.text}, mainView())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestErrors(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"syntax", "a\nb {{ if }}", "template t:2:3: missing value for if"},
		{"unknown function", "a\n{{ .Agent | haproxyQuot }}", `template t:2:13: function "haproxyQuot" not defined, did you mean haproxyQuote?`},
		{"not offered", "{{ randInt 1 2 }}", "not offered: it is no pure function"},
		{"missing key", "x\n  {{ .Vars.nope }}", `template t:2:11: executing "t" at <.Vars.nope>: map has no entry for key "nope"`},
		{"missing field", "{{ .Nope }}", "template t:1:4: "},
		{"missing tag", servers("{{ .Tags.zone }}"), `map has no entry for key "zone"`},
		{"no value", `{{ first (list) }}`, "<no value>"},
		{"host name", servers("{{ hostport . }}"), `"node main/n3 at db3": no literal IP address is known`},
		{"fail", `{{ fail "pool %s" "x" }}`, "pool x"},
		{"nul", "a\x00", "NUL byte (line 1"},
		{"empty", "{{/* nothing */}} \n", "the text is empty"},
		{"too long", `{{ range until 200 }}{{ repeat 60000 "x" }}{{ end }}`, "longer than 8 MiB"},
		{"too long at once", `{{ repeat 9000000 "x" }}`, "more than 8388608 bytes"},
		{"too many", `{{ until 2000000 }}`, "more than 1048576 numbers"},
		{"endless include", `{{ define "x" }}{{ include "x" 1 }}{{ end }}{{ include "x" 1 }}`, "nested more than 64 deep"},
		{"seq", "{{ seq 1 2 }}", "use until"},
		{"any-interface", `{{ hostport "0.0.0.0" 1 }}`, "client's own destination"},
		{"port 0", `{{ hostport "10.0.0.1" 0 }}`, "port 0"},
		{"zone", `{{ hostport "fe80::1%eth0" 1 }}`, "has a zone"},
		{"line break", `{{ haproxyQuote "a\nb" }}`, "control character"},
		{"socket", `{{ haproxySocket "/run/$x" }}`, "no path for a socket"},
		{"agent-send", `{{ agentSend "main" "a b" "c" }}`, "agent-send: name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Render(Template{Name: "t", Text: c.text}, mainView())
			var e *Error
			if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("text %.40q, error %v, want %q", got, err, c.want)
			}
		})
	}
}

func TestErrorInPartial(t *testing.T) {
	_, err := Render(Template{Name: "t", Text: `{{ include "p" . }}`, Partials: []Template{{Name: "p", Text: "\n{{ .Vars.x }}"}}}, mainView())
	if err == nil || !strings.Contains(err.Error(), "p:2:8") {
		t.Errorf("error %v does not say where", err)
	}
	err = Check(Template{Name: "t", Text: "x", Partials: []Template{{Name: "p", Text: "\n\n {{ nope }}"}}})
	if err == nil || !strings.Contains(err.Error(), "template p:3:5:") {
		t.Errorf("error %v does not say where", err)
	}
}

func TestDelimiters(t *testing.T) {
	got, err := Render(Template{Name: "t", Text: "[[ .Vars.a ]] {{ }}", LeftDelim: "[[", RightDelim: "]]"}, mainView())
	if err != nil || string(got) != "1 {{ }}" {
		t.Errorf("%q, %v", got, err)
	}
}

// Whatever a template may call is a pure function.
func TestNothingImpureIsOffered(t *testing.T) {
	offered := strings.Join(Functions(), " ") + " "
	for _, name := range []string{
		"now ", "date ", "ago ", "rand", "uuidv4 ", "env ", "expandenv ", "getHostByName ", "shuffle ", "gen",
		"bcrypt ", "htpasswd ", "encryptAES ", "decryptAES ", "derivePassword ", "hello ", "toDate ", "DateModify ", "buildCustomCert ",
	} {
		if strings.Contains(" "+offered, " "+name) {
			t.Errorf("%q is offered", name)
		}
	}
}

// The order in which snapshots and nodes come does not matter, and a rendering
// changes nothing of what it was made from.
func TestViewIsSortedAndFresh(t *testing.T) {
	nodes := []topology.Node{
		node("n1", "10.0.0.1:1", map[string]string{"a": "1"}), node("n2", "10.0.0.2:1", nil), node("n3", "[::1]:1", nil),
	}
	settings := Settings{Listen: map[PoolID][]netip.AddrPort{
		{"b", "primary"}: {netip.MustParseAddrPort("[::]:2"), netip.MustParseAddrPort("0.0.0.0:1")},
	}, Vars: map[string]string{"x": "y"}}
	want := ViewOf([]*topology.Snapshot{snapshot("a"), snapshot("b", nodes...)}, settings)
	for range 20 {
		rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		got := ViewOf([]*topology.Snapshot{snapshot("b", nodes...), snapshot("a")}, settings)
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
			t.Fatal(diff)
		}
	}
	got := ViewOf([]*topology.Snapshot{snapshot("b", nodes...)}, settings)
	got.Clusters[0].Pools[0].Servers[0].Tags["a"] = "changed"
	got.Vars["x"] = "changed"
	got.Clusters[0].Pools[0].Listen[0] = netip.AddrPort{}
	if again := ViewOf([]*topology.Snapshot{snapshot("a"), snapshot("b", nodes...)}, settings); !cmp.Equal(want, again, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })) {
		t.Error("a view shares memory with what it was made from")
	}
}

func TestViewCheck(t *testing.T) {
	server := func(change func(*Server)) func(*View) {
		return func(v *View) { change(&v.Clusters[0].Pools[0].Servers[0]) }
	}
	for _, c := range []struct {
		name   string
		change func(*View)
		want   string // "" is no error
	}{
		{"good", func(*View) {}, ""},
		{"no nodes", func(v *View) { v.Clusters[0].Pools[0].Servers = nil }, ""},
		{"names that differ by case", server(func(s *Server) { s.Name = "N2" }), ""},
		{"illegal cluster", func(v *View) { v.Clusters[0].Name = "a/9" }, `cluster: name "a/9"`},
		{"illegal node", server(func(s *Server) { s.Name = "n 1" }), `node of "a/primary": name "n 1"`},
		{"one node twice", server(func(s *Server) { s.Name = "n2" }), `node "a/primary/n2" is there twice`},
		{"one cluster twice", func(v *View) { v.Clusters = append(v.Clusters, Cluster{Name: "A"}) }, "cannot be told apart"},
		{"no address", server(func(s *Server) { s.Port = 0 }), `node "a/primary/n1": port 0`},
		{"any-interface", server(func(s *Server) { s.Host = "0.0.0.0" }), "every interface"},
		{"line break in a tag", server(func(s *Server) { s.Tags["k"] = "a\nb" }), `tag "k"`},
		{"control in a tag's name", server(func(s *Server) { s.Tags["k\r"] = "" }), `tag "k\r"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := ViewOf([]*topology.Snapshot{snapshot("a", node("n1", "10.0.0.1:1", nil), node("n2", "10.0.0.2:1", nil))}, Settings{})
			c.change(&v)
			err := v.Check()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// What no file can hold is left out and said; everything else is rendered, in
// this cluster and in others (field reports FR-28, FR-37).
func TestLeftOut(t *testing.T) {
	const all = "n0 n2 "
	for _, c := range []struct {
		name string
		bad  topology.Node
		want string // of the servers' names
		says string // in each sentence
	}{
		{"nothing", node("n1", "10.0.0.1:1", map[string]string{"k": "a b"}), "n0 n1 n2 ", ""},
		{"illegal name", node("n 1", "10.0.0.1:1", nil), all, `node "main/n 1" is left out: name "n 1"`},
		{"name with syntax", node("n1\n bind :1", "10.0.0.1:1", nil), all, `node "main/n1\n bind :1" is left out`},
		{"long name", node(strings.Repeat("x", 64), "10.0.0.1:1", nil), all, "64 characters"},
		{"no address", topology.Node{Name: "n1"}, all, `node "main/n1" of pool`},
		{"any-interface", topology.Node{Name: "n1", Address: topology.Address{Host: "0.0.0.0", Port: 1}}, all, "every interface"},
		{"name that nobody resolved", node("n1", "db1:1", nil), "n0 n1 n2 ", `node "main/n1" has no address yet, since its name "db1"`},
		{"line break in a tag", node("n1", "10.0.0.1:1", map[string]string{"k": "a\nb"}), "n0 n1 n2 ", `tag "k" of node "main/n1" is left out`},
		{"control in a tag's name", node("n1", "10.0.0.1:1", map[string]string{"k\r": ""}), "n0 n1 n2 ", `tag "k\r" of node`},
		{"differs from another by case only", node("N2", "10.0.0.1:1", nil), "N2 n0 n2 ", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := ViewOf([]*topology.Snapshot{
				snapshot("main", node("n2", "10.0.0.2:1", nil), c.bad, node("n0", "10.0.0.3:1", nil)), snapshot("other", node("n1", "10.0.1.1:1", nil)),
			}, Settings{})
			got, err := Render(Template{Name: "t", Text: servers("{{ .Name }} ") + `{{ with index .Clusters 1 }}{{ .Name }}{{ end }}`}, v)
			if want := c.want + "other"; err != nil || string(got) != want {
				t.Errorf("rendered %q, %v, want %q", got, err, want)
			}
			if (len(v.LeftOut) > 0) != (c.says != "") || slices.ContainsFunc(v.LeftOut, func(s string) bool { return !strings.Contains(s, c.says) }) {
				t.Errorf("left out %q, want %q", v.LeftOut, c.says)
			}
		})
	}
}

// A tag that is left out leaves the node its other tags.
func TestOtherTagsStay(t *testing.T) {
	n := node("n1", "10.0.0.1:1", map[string]string{"zone": "a", "note": "1\n2", TagZone + "\x00": "b"})
	v := ViewOf([]*topology.Snapshot{snapshot("main", n)}, Settings{})
	s := v.Clusters[0].Pools[0].Servers[0]
	if diff := cmp.Diff(map[string]string{"zone": "a"}, s.Tags); diff != "" || s.Zone != "a" || len(v.LeftOut) != 2 {
		t.Errorf("zone %q, left out %q, tags (-want +got):\n%s", s.Zone, v.LeftOut, diff)
	}
	if len(n.Tags) != 3 {
		t.Errorf("the snapshot's own tags were changed: %q", n.Tags)
	}
}

// A server's address is that of the pool's verdict; the node's own stands in
// while there is none.
func TestAddressOfThePool(t *testing.T) {
	snap := snapshot("main", node("n1", "10.0.0.1:5432", nil), node("n2", "[2001:db8::2]:5433", nil), node("n3", "db3:5432", nil))
	bouncer := topology.PoolVerdicts{Pool: "bouncer", Mode: topology.ModeRead}
	for _, n := range snap.Nodes {
		n.Address.Port = 6432
		bouncer.Nodes = append(bouncer.Nodes, topology.NodeVerdict{Node: n.Name, Address: n.Address, Verdict: topology.Down})
	}
	bouncer.Nodes = bouncer.Nodes[:2] // n3 has no verdict
	snap.Pools = append(snap.Pools, bouncer)
	text := "{{ range .Clusters }}{{ range .Pools }}{{ range .Servers }}{{ .Pool }}/{{ .Name }}={{ .Host }}:{{ .Port }}|{{ .Address }} {{ end }}{{ end }}{{ end }}"
	got, err := Render(Template{Name: "t", Text: text}, ViewOf([]*topology.Snapshot{snap}, Settings{}))
	if err != nil {
		t.Fatal(err)
	}
	want := "bouncer/n1=10.0.0.1:6432|10.0.0.1:6432 bouncer/n2=2001:db8::2:6432|[2001:db8::2]:6432 bouncer/n3=db3:5432|invalid AddrPort "
	for _, pool := range []string{"primary", "replica"} {
		want += pool + "/n1=10.0.0.1:5432|10.0.0.1:5432 " + pool + "/n2=2001:db8::2:5433|[2001:db8::2]:5433 " + pool + "/n3=db3:5432|invalid AddrPort "
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
}

// Two pools whose joined names are the same would be one backend.
func TestJoinedNamesCollide(t *testing.T) {
	a, b := snapshot("a_b"), snapshot("a")
	a.Pools[0].Pool, b.Pools[0].Pool = "c", "b_c"
	err := ViewOf([]*topology.Snapshot{a, b}, Settings{}).Check()
	if err == nil || !strings.Contains(err.Error(), "a_b_c") {
		t.Errorf("error %v", err)
	}
}
