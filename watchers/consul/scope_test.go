package consul

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// keys makes the pairs of a scope; a key may carry a session after a bar.
func keys(prefix string, keysAndValues ...string) api.KVPairs {
	var out api.KVPairs
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		key, session, _ := strings.Cut(keysAndValues[i], "|")
		out = append(out, &api.KVPair{
			Key: prefix + key, Value: []byte(keysAndValues[i+1]), Session: session, ModifyIndex: uint64(100 + i),
		})
	}
	return out
}

func TestParseScopePatroni4(t *testing.T) {
	got := parseScope("service/main/", keys("service/main/",
		"leader|s1", `n1`,
		"members/n1|s1", `{"conn_url":"postgres://127.0.0.1:15432/postgres","api_url":"http://127.0.0.1:18008/patroni","state":"running","role":"primary","version":"4.1.4","tags":{"zone":"az-1","weight":10},"xlog_location":50331744,"timeline":1}`,
		"members/n2|s2", `{"conn_url":"postgres://127.0.0.1:15433/postgres","api_url":"http://127.0.0.1:18009/patroni","state":"running","role":"replica","version":"4.1.4","tags":{"nofailover":true,"noloadbalance":false,"cost":1.0,"gone":null},"replay_lsn":50331744,"receive_lsn":50331744,"replication_state":"streaming","xlog_location":50331744,"timeline":1}`,
		"config", `{"ttl":20,"loop_wait":2,"retry_timeout":4,"maximum_lag_on_failover":1048576,"postgresql":{"use_pg_rewind":true},"synchronous_mode":"quorum","failsafe_mode":true,"pause":true,"standby_cluster":{"host":"198.51.100.7","port":5432}}`,
		"status", `{"optime":50331744,"slots":{"n2":50331744,"n1":50331744},"retain_slots":["n1","n2"]}`,
		"sync", `{"leader":"n1","quorum":0,"sync_standby":"N2"}`,
		"failover", `{}`,
		"history", `[[1,50332040,"no recovery target specified","2026-11-30T00:27:32.102684+00:00","n2"],[2,50333000,"no recovery target specified"]]`,
		"initialize", `7713754238407433424`,
		"failsafe", `{"n1":"http://127.0.0.1:18008/patroni"}`,
		"members/n1/deeper", `{"role":"primary"}`,
	))
	got.documents = topology.Documents{} // documents_test.go has these
	a1 := topology.Address{Host: "127.0.0.1", Port: 15432}
	a2 := topology.Address{Host: "127.0.0.1", Port: 15433}
	n2tags := map[string]string{"nofailover": "true", "noloadbalance": "false", "cost": "1.0"}
	n1tags := map[string]string{"zone": "az-1", "weight": "10"}
	want := scopeState{
		keys:      11,
		leaderKey: leaderKey{Holder: "n1", Session: "s1", ModifyIndex: 100},
		nodes:     []topology.Node{{Name: "n1", Address: a1, Tags: n1tags}, {Name: "n2", Address: a2, Tags: n2tags}},
		authority: topology.Authority{
			Leader: "n1", SessionAgrees: topology.Yes, Pause: topology.Yes, Failsafe: topology.Yes, StandbyCluster: true,
			TTL: 20 * time.Second, LoopWait: 2 * time.Second, RetryTimeout: 4 * time.Second,
			SystemID: 7713754238407433424, Timeline: 3, Optime: 50331744, OptimeIndex: 108,
			SyncStandbys: []string{"n2"}, // in a standby cluster Patroni has no synchronous mode
			Members: []topology.Member{
				{Name: "n1", Role: "primary", State: "running", Timeline: 1, LSN: 50331744, Address: a1, APIURL: "http://127.0.0.1:18008/patroni", Tags: n1tags},
				{Name: "n2", Role: "replica", State: "running", Timeline: 1, LSN: 50331744, Address: a2, APIURL: "http://127.0.0.1:18009/patroni", Tags: n2tags},
			},
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(scopeState{}, fault{})); diff != "" {
		t.Errorf("scope (-want +got):\n%s", diff)
	}
}

func TestParseScopePatroni3(t *testing.T) {
	got := parseScope("service/main/", keys("service/main/",
		"leader|s1", `a`,
		"members/a|s9", `{"conn_url":"postgres://192.0.2.11:5432/postgres","api_url":"http://192.0.2.11:8008/patroni","state":"running","role":"master","version":"3.0.2","xlog_location":50000000,"timeline":5}`,
		"members/b|s2", `postgres://192.0.2.12:5432/postgres?application_name=http://192.0.2.12:8008/patroni`,
		"config", `{"ttl":30,"loop_wait":10,"retry_timeout":10,"synchronous_mode":true}`,
		"optime/leader", `4496294792`,
		"initialize", ``,
		"sync", `{"leader":"a","sync_standby":null}`,
	)).authority
	want := topology.Authority{
		Leader: "a", SessionAgrees: topology.No, Pause: topology.No, Failsafe: topology.No,
		TTL: 30 * time.Second, LoopWait: 10 * time.Second, RetryTimeout: 10 * time.Second,
		Timeline: 5, Optime: 4496294792, OptimeIndex: 108, SyncMode: "sync",
		Members: []topology.Member{
			{Name: "a", Role: "primary", State: "running", Timeline: 5, LSN: 50000000, Address: topology.Address{Host: "192.0.2.11", Port: 5432}, APIURL: "http://192.0.2.11:8008/patroni"},
			{Name: "b", Address: topology.Address{Host: "192.0.2.12", Port: 5432}, APIURL: "http://192.0.2.12:8008/patroni"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("authority (-want +got):\n%s", diff)
	}
}

func TestParseScopeStatus(t *testing.T) {
	for value, want := range map[string]topology.LSN{
		`{"optime":50331744}`:   50331744,
		`{"optime":"50331744"}`: 50331744,
		`50331744`:              50331744,
		` 50331744 `:            50331744,
		`{"optime":null}`:       0,
		`{"slots":{"n1":1}}`:    0,
		`{"optime":7,"slots":"{\"n1\":1}","retain_slots":"[]"}`: 7,
		`nonsense`: 0,
		``:         0,
	} {
		got := parseScope("p/", keys("p/", "status", value, "optime/leader", "999")).authority
		if got.Optime != want || got.OptimeIndex != 100 {
			t.Errorf("status %q: optime %d index %d, want %d and 100", value, got.Optime, got.OptimeIndex, want)
		}
	}
}

// What cannot be read is one fault of its own key; all else is as without it.
func TestParseScopeFaults(t *testing.T) {
	cases := []struct{ key, value, fault string }{
		{"members/c", `{"conn_url":"postgres://2001:db8::13:5432/postgres"}`, "IPv6"},
		{"members/c", `{"conn_url":17}`, "conn_url is no string"},
		{"members/c", `not json`, "no JSON object"},
		{"members/c", `[1]`, "no JSON object"},
		{"members/c", ``, "no JSON object"},
		{"members/c", `{"timeline":-1}`, "timeline is no whole number"},
		{"members/c", `{"tags":[1]}`, "tags are no JSON object"},
		{"members/c", `{"conn_kwargs":"host=db"}`, "conn_kwargs is no JSON object"},
		{"members/c", `{"conn_kwargs":{"port":5432}}`, "neither an IP address nor a DNS name"},
		{"members/c", `{"role":"emperor"}`, `unknown role "emperor"`},
		{"members/c", `{"state":"asleep"}`, `unknown state "asleep"`},
		{"members/10.0.0.1:5432", `{}`, "cannot be used in balancers"},
		{"history", `{}`, "no list"},
		{"history", `[["x"]]`, "is no timeline"},
		{"history", `[[4294967295]]`, "is no timeline"},
		{"initialize", `abc`, "no system identifier"},
		{"sync", `nonsense`, "cannot be read"},
		{"config", `nonsense`, "no JSON object"},
		{"config", `{"ttl":"long"}`, "ttl is no number"},
		{"status", `{"optime":"x"}`, "no whole number"},
	}
	good := []string{"leader|s", "a", "members/a|s", `{"conn_url":"postgres://192.0.2.11/","role":"primary","state":"running"}`}
	for _, c := range cases {
		got := parseScope("p/", keys("p/", append([]string{c.key, c.value}, good...)...))
		if len(got.faults) != 1 || got.faults[0].key != "p/"+c.key || !strings.Contains(got.faults[0].err, c.fault) {
			t.Errorf("%s = %s: faults %v, want one with %q", c.key, c.value, got.faults, c.fault)
		}
		if len(got.nodes) != 1 || got.nodes[0].Name != "a" || got.authority.SessionAgrees != topology.Yes {
			t.Errorf("%s = %s: nodes %v, sessions %v, want a alone and agreeing", c.key, c.value, got.nodes, got.authority.SessionAgrees)
		}
	}
}

// Of members whose names differ by case only one is left, and the others are as
// without it (field report FR-37).
func TestParseScopeNamesThatDifferByCase(t *testing.T) {
	member := func(host string) string {
		return `{"conn_url":"postgres://192.0.2.` + host + `/","role":"replica","state":"running"}`
	}
	all := []string{"members/a", member("1"), "members/pg1", member("2"), "members/PG1", member("3"), "members/Pg1", member("4"), "members/z", member("5")}
	for _, c := range []struct {
		name, leader string
		before       []string
		stays        string
	}{
		{"the first by name", "a", nil, "PG1"},
		{"the one that was there", "a", []string{"a", "pg1"}, "pg1"},
		{"the first by name of two that were there", "a", []string{"pg1", "Pg1"}, "Pg1"},
		{"the leader, though another was there", "Pg1", []string{"pg1"}, "Pg1"},
		{"the leader, first seen", "pg1", nil, "pg1"},
		{"a leader without a key of its own is no member", "pG1", nil, "PG1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before []topology.Member
			for _, b := range c.before {
				before = append(before, topology.Member{Name: b})
			}
			got := parseScope("p/", keys("p/", append([]string{"leader", c.leader, "sync", `{"sync_standby":"pG1,z"}`}, all...)...), before...)
			var nodes, members, faults []string
			for _, n := range got.nodes {
				nodes = append(nodes, n.Name)
			}
			for _, m := range got.authority.Members {
				members = append(members, m.Name)
			}
			for _, f := range got.faults {
				faults = append(faults, strings.TrimPrefix(f.key, "p/members/"))
				if !strings.Contains(f.err, "that of "+c.stays+" by case only") {
					t.Errorf("fault %q does not name %s", f.err, c.stays)
				}
			}
			slices.Sort(faults)
			want := []string{"a", c.stays, "z"}
			slices.Sort(want)
			out := slices.DeleteFunc([]string{"PG1", "Pg1", "pg1"}, func(s string) bool { return s == c.stays })
			for what, diff := range map[string]string{
				"nodes": cmp.Diff(want, nodes), "members": cmp.Diff(want, members), "faults": cmp.Diff(out, faults),
				"synchronous standbys": cmp.Diff([]string{c.stays, "z"}, got.authority.SyncStandbys), "leader": cmp.Diff(c.leader, got.authority.Leader),
			} {
				if diff != "" {
					t.Errorf("%s (-want +got):\n%s", what, diff)
				}
			}
		})
	}
}

func TestSessionAgreement(t *testing.T) {
	cases := []struct {
		leader, member string
		want           topology.Tri
	}{
		{"leader|s1", "members/a|s1", topology.Yes},
		{"leader|s1", "members/a|s2", topology.No},
		{"leader|s1", "members/a", topology.No},
		{"leader", "members/a", topology.No}, // written by hand
		{"leader|s1", "members/b|s1", topology.Unknown},
		{"nothing", "members/a|s1", topology.Unknown},
	}
	for _, c := range cases {
		got := parseScope("p/", keys("p/", c.leader, "a", c.member, "{}")).authority.SessionAgrees
		if got != c.want {
			t.Errorf("%s and %s: %v, want %v", c.leader, c.member, got, c.want)
		}
	}
}

func TestParseConnURL(t *testing.T) {
	cases := []struct{ in, want, fault string }{
		{"postgres://192.0.2.11:5432/postgres", "192.0.2.11:5432", ""},
		{"postgresql://db-1.example.net:6432", "db-1.example.net:6432", ""},
		{"postgres://192.0.2.11/postgres", "192.0.2.11:5432", ""},
		{"postgres://[2001:db8::12]:5433/postgres", "[2001:db8::12]:5433", ""},
		{"postgres://[2001:DB8:0::12]/postgres", "[2001:db8::12]:5432", ""},
		{"postgres://[::ffff:192.0.2.1]:5432/", "192.0.2.1:5432", ""},
		{"postgres://u:p@192.0.2.11:5432/d?x=y#z", "192.0.2.11:5432", ""},
		{"postgres://2001:db8::13:5432/postgres", "", "brackets"},
		{"postgres://[fe80::1%25eth0]:5432/", "", "zone"},
		{"postgres://[::ffff:0.0.0.0]:5432/", "", "every interface"},
		{"postgres://0.0.0.0:5432/", "", "every interface"},
		{"postgres://a:0/", "", "port"},
		{"postgres://a:70000/", "", "port"},
		{"postgres://a:/", "", "port"},
		{"postgres:///d", "", "host:port"},
		{"postgres://a,b/", "", "several"},
		{"postgres://a b/", "", "DNS name"},
		{"http://a:5432", "", "postgres://"},
		{"postgres", "", "postgres://"},
		{"postgres://u:secret@a b/", "", "DNS name"},
		{"postgres://u:secret/x@a:5432/d", "", "unescaped"},
		{"postgres://a:5432/d?options=x@y", "a:5432", ""},
	}
	for _, c := range cases {
		got, err := parseConnURL(c.in)
		if got.String() != c.want || (err == nil) != (c.fault == "") {
			t.Errorf("%s: %q, %v; want %q, fault %q", c.in, got, err, c.want, c.fault)
		}
		if err != nil && (!strings.Contains(err.Error(), c.fault) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: error %q, want it to tell %q and no password", c.in, err, c.fault)
		}
	}
}

func TestLegalName(t *testing.T) {
	seen := map[string]string{}
	for _, in := range []string{"n1", "pg-1.example_x", "10.0.0.1:5432", "10.0.0.1/5432", ":", "::", "-x", strings.Repeat("n", 64), strings.Repeat("n", 65), "ü"} {
		got := LegalName(in)
		if err := topology.CheckName(got); err != nil {
			t.Errorf("%q became %q: %v", in, got, err)
		}
		if topology.CheckName(in) == nil && got != in {
			t.Errorf("%q became %q though it was legal", in, got)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%q and %q both became %q", in, other, got)
		}
		seen[got] = in
	}
}

func FuzzParseMember(f *testing.F) {
	f.Add("n1", `{"conn_url":"postgres://127.0.0.1:15432/postgres","role":"master","tags":{"a":true},"timeline":1}`)
	f.Add("n2", `postgres://192.0.2.12:5432/postgres?application_name=http://192.0.2.12:8008/patroni`)
	f.Add("n3", `{"conn_url":"postgres://2001:db8::13:5432/postgres"}`)
	f.Add("n4", `{"tags":null,"xlog_location":"12"}`)
	f.Fuzz(func(t *testing.T, name, value string) {
		m, errs := parseMember(name, []byte(value))
		if m.Name != name {
			t.Errorf("name %q became %q", name, m.Name)
		}
		if !m.Address.IsZero() {
			if err := m.Address.Check(); err != nil {
				t.Errorf("address %v is let through: %v", m.Address, err)
			}
			if back, err := topology.ParseAddress(m.Address.String()); err != nil || back != m.Address {
				t.Errorf("address %v reads back as %v, %v", m.Address, back, err)
			}
		}
		for _, err := range errs {
			if strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 2000 {
				t.Errorf("error is no short line: %q", err)
			}
		}
		s := parseScope("p/", keys("p/", "members/"+name, value, "leader", name))
		for _, n := range s.nodes {
			if err := topology.CheckName(n.Name); err != nil {
				t.Errorf("node name let through: %v", err)
			}
		}
	})
}
