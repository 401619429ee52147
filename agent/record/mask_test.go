package record

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/simulate"
	"github.com/pgsteer/pgsteer/agent/tap"
	"github.com/pgsteer/pgsteer/agent/topology"
)

func mask(t *testing.T, s *Session) {
	t.Helper()
	if err := s.Mask(); err != nil {
		t.Fatal(err)
	}
}

// What is known as a name is masked wherever it stands; of the rest what looks like one.
func TestText(t *testing.T) {
	s := &Session{user: "pgsteer", database: "postgres"}
	s.Recording.Cluster = config.DefaultCluster("acme-prod")
	s.Recording.Cluster.Nodes = config.Nodes{{Name: "pg-db-1"}, {Name: "b"}}
	for _, tt := range []struct{ text, want string }{
		{"", ""},
		{"connect: connection refused; next attempt in 75 ms", "connect: connection refused; next attempt in 75 ms"},
		{"dial tcp 10.0.0.7:5432: connect: connection refused", "dial tcp 192.0.2.1:5432: connect: connection refused"},
		{"dial tcp [2a01:4f8::17]:5432: i/o timeout at 12:30:01", "dial tcp [2001:db8::1]:5432: i/o timeout at 12:30:01"},
		{"10.0.0.7 again, 2A01:04f8:0::17 too", "192.0.2.1 again, 2001:db8::1 too"},
		{"lookup dbhost on 127.0.0.53:53: no such host", "lookup 192.0.2.1 on 192.0.2.2:53: no such host"},
		{"lookup DBhost: x; dbhost", "lookup 192.0.2.1: x; 192.0.2.1"},
		{"db9.corp.example.: no answer for 1.5s, v1.2.3 e.g. 57P03", "192.0.2.1.: no answer for 1.5s, v1.2.3 e.g. 57P03"},
		{"of dbx:5432.", "of 192.0.2.1:5432."},
		{"pg-db-1 and PG-DB-1 and pg_db_1_slot, not b2", "n2 and n2 and n2_slot, not b2"},
		{"b: reading service/acme-prod/ failed", "n1: reading service/c1/ failed"},
		{`password authentication failed for user "alice" (SQLSTATE 28P01)`, `password authentication failed for user "user2" (SQLSTATE 28P01)`},
		{
			`no pg_hba.conf entry for host "10.0.0.9", user "pgsteer", database "shop", no encryption`,
			`no pg_hba.conf entry for host "192.0.2.1", user "user1", database "database2", no encryption`,
		},
		{`database "postgres"; role alice`, `database "database1"; role user2`},
		{"user=bob dbname=crm host=dbx hostaddr=10.0.0.1", "user=user2 dbname=database2 host=192.0.2.1 hostaddr=192.0.2.2"},
		{"»x« „y“ “z” 'w' \"\" can't, isn't", "»masked1« „masked2“ “masked3” 'masked4' \"\" can't, isn't"},
		{"http://consul-7:8500 with the token of /etc/tok: 500", "http://192.0.2.1:8500 with the token of /file1: 500"},
		{"http://bob:x@[2a01:4f8::17]:8008/patroni", "http://[2001:db8::1]:8008/patroni"},
		{"https://db9/v1/kv/acme?x=y and unix:///run/acme", "https://192.0.2.1/file1 and unix://masked1"},
		{"x509: certificate is valid for secret-host", "x509: (masked)"},
		{"mail bob@acme.example now", "mail masked1 now"},
		{"session 8A7B0000-1111-2222-3333-444455556666", "session session1"},
		{"2026-05-01T06:00:00Z 100% 16MB 0/3000060", "2026-05-01T06:00:00Z 100% 16MB 0/3000060"},
	} {
		if got := newMasker(s).text(tt.text); got != tt.want {
			t.Errorf("%s\n got %s\nwant %s", tt.text, got, tt.want)
		}
	}
}

// odd is a session in which names stand at every place that a user has for them.
func odd(t *testing.T) *Session {
	t.Helper()
	l := healthy()
	c := &l[0].Begin.Cluster
	c.Pools = append(c.Pools, config.Pool{Name: "reports", Mode: topology.ModeRead, Fallback: topology.FallbackNone, FallbackWeight: 100, PortCheck: topology.PortCheckNone, Port: 6432})
	c.Pools[2].Listen, c.Pools[2].Weights = "10.0.0.9:5001", config.Weights{"b": 50}
	if err := c.Pools[2].Select.UnmarshalText([]byte("zone in (b, eu-west-1), rack=r7.corp.example, home=metal")); err != nil {
		t.Fatal(err)
	}
	tags := map[string]string{"zone": "b", "replicatefrom": "a", "rack": "r7.corp.example", "home": "metal", "site.corp.example/x": "y"}
	l[0].Begin.Zone = "b" // as a node is called
	c.Nodes[1].Tags, l[1].Observation.Nodes.Nodes[1].Tags = tags, tags
	l[0].Begin.Saved = &topology.Saved{
		Version: 1, Cluster: "main", Writer: "a", SystemID: 7386112233445566778, Timeline: 3, Nodes: []topology.Node{{Name: "a", Address: a}},
		Lost: map[string]time.Time{"b": start.Wall.Add(-time.Minute)}, Verdicts: map[string]map[string]topology.Verdict{"primary": {"a": topology.Up}},
	}
	l[2].Observation.Probe.Standbys = []topology.Standby{{Name: "b", State: "streaming", SyncState: "sync"}, {Name: "pg_receivewal of acme", State: "streaming"}}
	o := full("b", 9, 2500*time.Millisecond)
	o.Probe, o.Failure = nil, &topology.Failure{
		Node: "b", Address: b, Class: topology.FailLocal, Asked: topology.ProbeFull, Text: "lookup metal: dial tcp 10.77.0.1: system 7386112233445566778 says db2.corp.example",
	}
	return read(t, append(l, seen(o), decided(2600*time.Millisecond, "="))...)
}

// TestMask: nothing of the originals is left, and the replay is the same.
func TestMask(t *testing.T) {
	s := odd(t)
	mask(t, s)
	var text bytes.Buffer
	if err := s.Encode(&text); err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"10.0.0", "10.77", "corp", "acme", "main", "metal", "7386112233445566778", "pgsteer", `\ba\b`, `\bb\b`, "receivewal"} {
		if at := regexp.MustCompile(".*" + word + ".*").FindString(text.String()); at != "" && !strings.Contains(at, "agent") {
			t.Errorf("%s is left: %s", word, at)
		}
	}
	if n, err := Check(text.Bytes()); err != nil || n != 0 {
		t.Errorf("%d expectations fail, %v\n%s", n, err, &text)
	}
	r, tags := s.Recording, s.Recording.Cluster.Nodes[1].Tags
	for _, tt := range []struct{ what, got, want string }{
		{"zone", r.Zone, "n2"},
		{"the zone's tag", tags["zone"], "n2"},
		{"replicatefrom", tags["replicatefrom"], "n1"},
		{"weights", fmt.Sprint(r.Cluster.Pools[2].Weights), "map[n2:50]"},
		{"select", r.Cluster.Pools[2].Select.String(), "zone in (n2, eu-west-1), rack=" + tags["rack"] + ", home=" + tags["home"]},
		{"saved writer", r.Saved.Writer, "n1"},
		{"a standby", r.Rounds[0].Observations[1].Probe.Standbys[0].Name, "n2"},
		{"another client", r.Rounds[0].Observations[1].Probe.Standbys[1].Name, "application1"},
		{"a sender", r.Rounds[0].Observations[2].Probe.Receiver.SenderHost, r.Cluster.Nodes[0].Address.Host},
		{"an address", r.Rounds[0].Observations[2].Probe.Address.String(), r.Cluster.Nodes[1].Address.String()},
		{"a port", fmt.Sprint(r.Cluster.Nodes[1].Address.Port), "5433"},
		{"the source of the list", r.Rounds[0].Observations[0].Source.String(), "file/config"},
		{"an identifier", fmt.Sprint(r.Rounds[0].Observations[1].Probe.SystemID, r.Saved.SystemID), "1 1"},
		{"the cluster", r.Cluster.Name + " " + r.Cluster.Patroni.Scope, "c1 c1"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s is %q, want %q", tt.what, tt.got, tt.want)
		}
	}
}

// TestMaskChangesNothingElse: what is no name stays as it was.
func TestMaskChangesNothingElse(t *testing.T) {
	before, after := odd(t), odd(t)
	mask(t, after)
	texts := cmp.FilterValues(func(a, b string) bool { return a != "" && b != "" }, cmp.Ignore())
	systems := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".SystemID" }, cmp.Ignore())
	named := cmp.FilterPath(func(p cmp.Path) bool { // by node
		last := p.Last().String()
		return slices.Contains([]string{".Weights", ".Lost", ".Verdicts", ".Tags", ".Select", ".Listen"}, last)
	}, cmp.Ignore())
	decisions := cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Decision" }, cmp.Ignore())
	if d := cmp.Diff(before.Recording, after.Recording, texts, systems, named, decisions); d != "" {
		t.Errorf("(-before +masked)\n%s", d)
	}
}

// The order of names decides ties, so masks have it too.
func TestManyNodesAndHosts(t *testing.T) {
	s := &Session{}
	s.Recording.Cluster = config.DefaultCluster("main")
	for i := range 300 {
		s.Recording.Cluster.Nodes = append(s.Recording.Cluster.Nodes, topology.Node{
			Name: fmt.Sprintf("db-%d", i), Address: topology.Address{Host: fmt.Sprintf("10.0.%d.%d", i/100, i%100+1), Port: 5432},
		})
	}
	slices.SortFunc(s.Recording.Cluster.Nodes, func(a, b topology.Node) int { return strings.Compare(a.Name, b.Name) })
	mask(t, s)
	names, hosts := make(map[string]bool), make(map[string]bool)
	last := ""
	for _, n := range s.Recording.Cluster.Nodes {
		if n.Name <= last {
			t.Errorf("%s follows %s", n.Name, last)
		}
		last = n.Name
		names[n.Name], hosts[n.Address.Host] = true, true
		if !strings.HasPrefix(n.Address.Host, "192.0.2.") && !strings.HasPrefix(n.Address.Host, "2001:db8::") {
			t.Errorf("%s is no address for documentation", n.Address.Host)
		}
		if err := n.Address.Check(); err != nil {
			t.Error(err)
		}
	}
	if len(names) != 300 || len(hosts) != 300 || !names["n001"] || !names["n300"] {
		t.Errorf("%d names, %d hosts", len(names), len(hosts))
	}
}

func TestASessionThatCannotBeMasked(t *testing.T) {
	s := read(t, healthy()...)
	s.Recording.Cluster.Nodes = append(s.Recording.Cluster.Nodes, topology.Node{Name: "in"})
	if err := s.Recording.Cluster.Pools[1].Select.UnmarshalText([]byte("zone in (x, y)")); err != nil {
		t.Fatal(err)
	}
	if err := s.Mask(); err == nil || !strings.Contains(err.Error(), "mask the recording of cluster main: select of pool replica: ") {
		t.Errorf("got %v", err)
	}
	if s.Recording.Cluster.Name != "main" {
		t.Error("it was changed all the same")
	}
}

func TestWhyItEndedIsMaskedToo(t *testing.T) {
	s := read(t, append(healthy(), tap.Line{Kind: tap.KindEnd, End: "read tcp 10.1.2.3:7433: reset"})...)
	mask(t, s)
	if strings.Contains(s.Ended, "10.1.2.3") || !strings.Contains(s.about(), "192.0.2.") {
		t.Errorf("it says %s", s.about())
	}
}

const canary = "canary.corp.example"

// poison sets every text below v to the canary.
func poison(t *testing.T, v reflect.Value) {
	t.Helper()
	switch x := v.Addr().Interface().(type) {
	case *config.ListenAddress:
		*x = canary + ":5000"
		return
	case *topology.Selector:
		*x, _ = topology.ParseSelector(canary + "=" + canary)
		return
	case *topology.SourceID:
		*x = topology.SourceID{Kind: topology.SourceConsul, Name: canary}
		return
	case *time.Time, *config.Secret:
		return
	}
	switch v.Kind() {
	case reflect.String:
		if v.Type() == reflect.TypeFor[string]() {
			v.SetString(canary)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		poison(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		poison(t, v.Index(0))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, element := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		poison(t, key)
		poison(t, element)
		v.SetMapIndex(key, element)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				poison(t, v.Field(i))
			}
		}
	default: // no text
	}
}

// canaries are the places below v where the canary sings.
func canaries(v reflect.Value, path string) []string {
	var out []string
	if s, ok := reflect.TypeAssert[fmt.Stringer](v); ok && v.Kind() == reflect.Struct && strings.Contains(s.String(), canary) {
		out = append(out, path)
	}
	switch v.Kind() {
	case reflect.String:
		if strings.Contains(v.String(), canary) {
			out = append(out, path)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			out = append(out, canaries(v.Elem(), path)...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = append(out, canaries(v.Index(i), path)...)
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			out = append(out, canaries(key, path+" key")...)
			out = append(out, canaries(v.MapIndex(key), path)...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				out = append(out, canaries(v.Field(i), path+"."+v.Type().Field(i).Name)...)
			}
		}
	default: // no text
	}
	return out
}

// TestEveryTextIsMasked: also one that observations and configurations get some
// day. What stays is listed.
func TestEveryTextIsMasked(t *testing.T) {
	var r simulate.Recording
	poison(t, reflect.ValueOf(&r).Elem())
	s := &Session{Recording: r, user: canary, database: canary}
	if len(canaries(reflect.ValueOf(s.Recording), "")) < 50 {
		t.Fatal("nothing was poisoned")
	}
	mask(t, s)
	stays := []string{".About", ".Cluster.Pools.Name", ".Rounds.Decision.Pools.Pool", ".Saved.Verdicts key"}
	if d := cmp.Diff(stays, slices.Compact(slices.Sorted(slices.Values(canaries(reflect.ValueOf(s.Recording), ""))))); d != "" {
		t.Errorf("what is not masked (-want +got)\n%s", d)
	}
}
