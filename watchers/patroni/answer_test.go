package patroni

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
	"github.com/pgsteer/pgsteer/watchers/consul"
	"github.com/pgsteer/pgsteer/watchers/patronitest"
)

// Answers that are none. Each is given by every member; the class is told, and
// the picture before stays.
func TestUnusableAnswers(t *testing.T) {
	huge := strings.Repeat(" ", maxBody) + "{}"
	for _, c := range []struct {
		name string
		f    patronitest.Fault
		want string
		text string
	}{
		{"HTML with 200", patronitest.Fault{Body: "<html>hello</html>"}, "!content", "no whole JSON object: <html>"},
		{"HTML with 503", patronitest.Fault{Status: 503, Body: "<html>busy</html>"}, "!content", "no whole JSON object"},
		{"truncated", patronitest.Fault{Cut: 40}, "!content", "no whole JSON object"},
		{"empty", patronitest.Fault{Status: 200}, "!content", "no whole JSON object"},
		{"a list", patronitest.Fault{Body: "[]"}, "!content", "no whole JSON object"},
		{"null", patronitest.Fault{Body: "null"}, "!content", "no whole JSON object"},
		{"another program's JSON", patronitest.Fault{Body: `{"ok":true}`}, "!content", "names no scope"},
		{"another cluster's", patronitest.Fault{Body: `{"patroni":{"scope":"beta"}}`}, "!content", "of scope beta and not of alpha"},
		{"patroni is no object", patronitest.Fault{Body: `{"patroni":7}`}, "!content", "patroni cannot be read"},
		{"too large", patronitest.Fault{Body: huge}, "!content", "larger than 1MB"},
		{"redirect", patronitest.Fault{Status: 302, Location: "http://elsewhere.test/leader", Body: "x"}, "!content", `redirect to "http://elsewhere.test/leader"`},
		{"500", patronitest.Fault{Status: 500, Body: "trace"}, "!content", "status 500"},
		{"404", patronitest.Fault{Status: 404, Body: "no"}, "!content", "status 404"},
		{"401", patronitest.Fault{Status: 401, Body: "password?"}, "!denied", "status 401"},
		{"403", patronitest.Fault{Status: 403, Body: "no"}, "!denied", "status 403"},
	} {
		run(t, func(t *testing.T, cl *cluster, r *rig) {
			cl.Script(func(patronitest.Request) patronitest.Fault { return c.f })
			r.wait(5 * time.Second)
			if got := r.words(); got[len(got)-1] != c.want {
				t.Fatalf("%s: told %v, want %s", c.name, got, c.want)
			}
			if f := r.last().Failure; !strings.Contains(f.Text, c.text) || len(f.Text) > 2000 {
				t.Errorf("%s: %q does not say %q", c.name, f.Text, c.text)
			}
			for _, q := range cl.Requests() {
				if strings.Contains(q.URL, "elsewhere") {
					t.Errorf("%s: a redirect was followed", c.name)
				}
			}
		})
	}
}

// Lists that are none, while the words are good: the leader is still the leader,
// and no node is lost.
func TestUnusableLists(t *testing.T) {
	for name, body := range map[string]string{
		"empty":             `{"members":[]}`,
		"no members":        `{"scope":"alpha"}`,
		"members no list":   `{"members":{"a":1}}`,
		"two leaders":       `{"members":[{"name":"a","role":"leader"},{"name":"b","role":"leader"}]}`,
		"of another scope":  `{"scope":"beta","members":[{"name":"a","role":"leader"}]}`,
		"nothing but trash": `{"members":[7,"x",null,{"role":"leader"}]}`,
		"HTML":              `<html>`,
	} {
		run(t, func(t *testing.T, c *cluster, r *rig) {
			c.Script(func(q patronitest.Request) patronitest.Fault {
				if q.Path != pathView {
					return patronitest.Fault{}
				}
				return patronitest.Fault{Body: body}
			})
			r.wait(20 * time.Second)
			r.want("a of 3")
			for _, g := range r.all() {
				if g.o.Nodes != nil {
					t.Errorf("%s: nodes are told: %v", name, g.o.Nodes)
				}
			}
		})
	}
}

// What a member of the list lacks concerns that member alone.
func TestParseView(t *testing.T) {
	const rest = `{"name":"a","role":"leader","state":"running","api_url":"http://10.0.0.1:8008/patroni","host":"10.0.0.1","port":5433,"timeline":5}`
	for _, c := range []struct {
		name, member string
		want         *topology.Member // nil: left out
		faults       int
	}{
		{"whole", `{"name":"b","role":"sync_standby","state":"streaming","api_url":"u","host":"b.test","port":5432,"timeline":5,"lag":0,"lsn":"0/3000060","tags":{"zone":"x","weight":10,"nofailover":true,"none":null,"empty":""}}`, &topology.Member{
			Name: "b", Role: "replica", State: "streaming", APIURL: "u", Timeline: 5, LSN: 0x3000060,
			Address: topology.Address{Host: "b.test", Port: 5432}, Tags: map[string]string{"zone": "x", "weight": "10", "nofailover": "true", "empty": ""},
		}, 0},
		{"only its name", `{"name":"b","role":"replica"}`, &topology.Member{Name: "b", Role: "replica"}, 1},
		{"port left out", `{"name":"b","role":"replica","host":"b.test"}`, &topology.Member{Name: "b", Role: "replica", Address: topology.Address{Host: "b.test", Port: 5432}}, 0},
		{"IPv6", `{"name":"b","role":"replica","host":"2001:DB8::1","port":5432}`, &topology.Member{Name: "b", Role: "replica", Address: topology.Address{Host: "2001:db8::1", Port: 5432}}, 0},
		{"IPv6 in brackets", `{"name":"b","role":"replica","host":"[::ffff:10.0.0.2]","port":5432}`, &topology.Member{Name: "b", Role: "replica", Address: topology.Address{Host: "10.0.0.2", Port: 5432}}, 0},
		{"wrong host", `{"name":"b","role":"replica","host":"0.0.0.0","port":5432}`, &topology.Member{Name: "b", Role: "replica"}, 1},
		{"wrong port", `{"name":"b","role":"replica","host":"b.test","port":70000}`, &topology.Member{Name: "b", Role: "replica"}, 1},
		{"wrong forms", `{"name":"b","role":"replica","state":7,"timeline":"x","tags":[1],"lsn":9,"host":"b.test"}`, &topology.Member{Name: "b", Role: "replica", Address: topology.Address{Host: "b.test", Port: 5432}}, 0},
		{"unknown role", `{"name":"b","role":"observer","host":"b.test"}`, &topology.Member{Name: "b", Role: "replica", Address: topology.Address{Host: "b.test", Port: 5432}}, 1},
		{"a name for no balancer", `{"name":"b c","role":"replica","host":"b.test"}`, &topology.Member{Name: consul.LegalName("b c"), Role: "replica", Address: topology.Address{Host: "b.test", Port: 5432}}, 1},
		{"no name", `{"role":"replica"}`, nil, 1},
		{"no object", `"b"`, nil, 1},
		{"listed twice", `{"name":"a","role":"replica","host":"10.9.9.9"}`, nil, 1},
	} {
		v, tr := parseView(reply{status: 200, body: fmt.Appendf(nil, `{"members":[%s,%s]}`, rest, c.member)}, "alpha")
		if tr != nil {
			t.Errorf("%s: %v", c.name, tr.err)
			continue
		}
		want := []topology.Member{{
			Name: "a", Role: "primary", State: "running", APIURL: "http://10.0.0.1:8008/patroni", Timeline: 5,
			Address: topology.Address{Host: "10.0.0.1", Port: 5433},
		}}
		if c.want != nil {
			want = append(want, *c.want)
		}
		if diff := cmp.Diff(want, v.members); diff != "" || len(v.faults) != c.faults || v.leader != "a" {
			t.Errorf("%s: leader %s, faults %q, members (-want +got):\n%s", c.name, v.leader, v.faults, diff)
		}
	}
}

// Of names that differ by case only one stays, and always the same.
func TestDistinct(t *testing.T) {
	ms := func(names ...string) []topology.Member {
		out := make([]topology.Member, len(names))
		for i, n := range names {
			out[i] = topology.Member{Name: n}
		}
		return out
	}
	for _, c := range []struct {
		members, before []topology.Member
		leader, want    string
	}{
		{ms("A", "a", "b"), nil, "", "A b"},
		{ms("A", "a", "b"), ms("a"), "", "a b"},
		{ms("A", "a", "b"), ms("A"), "a", "a b"},
		{ms("a", "b"), nil, "b", "a b"},
	} {
		stay, out := watchers.Distinct(c.members, c.before, c.leader)
		if got := strings.Join(names(stay), " "); got != c.want || len(out) != len(c.members)-len(stay) {
			t.Errorf("of %v after %v with leader %q stay %s (%v), want %s", names(c.members), names(c.before), c.leader, got, out, c.want)
		}
	}
}

func TestParseWord(t *testing.T) {
	const by = `"patroni":{"version":"4.1.5","scope":"alpha","name":"a"}`
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   word
	}{
		{"leader", 200, `{"state":"running","role":"primary","timeline":6,"xlog":{"location":50331744},"database_system_identifier":"77",` + by + `}`, word{name: "a", holds: true, location: 50331744, timeline: 6, systemID: 77}},
		{"replica", 503, `{"state":"running","role":"replica","timeline":6,"xlog":{"received_location":5,"replayed_location":5},` + by + `}`, word{name: "a", timeline: 6}},
		{"its PostgreSQL does not answer", 200, `{"state":"unknown","role":"primary",` + by + `}`, word{name: "a", holds: true}},
		{"no store in sight", 200, `{"cluster_unlocked":true,` + by + `}`, word{name: "a", holds: true, blind: true}},
		{"as version 2 says it", 200, `{"cluster_unlocked":false,"patroni":{"scope":"alpha"}}`, word{holds: true}},
		{"a word that means nothing yet", 200, `{"cluster_unlocked":"perhaps",` + by + `}`, word{name: "a", holds: true, blind: true}},
		{"wrong forms", 200, `{"timeline":"x","xlog":[1],"database_system_identifier":{},"role":7,` + by + `}`, word{name: "a", holds: true}},
		{"timeline null", 503, `{"timeline":null,"xlog":null,` + by + `}`, word{name: "a"}},
	} {
		got, tr := parseWord(reply{status: c.status, body: []byte(c.body)}, "alpha")
		if tr != nil || got != c.want {
			t.Errorf("%s: %+v, %+v; want %+v", c.name, got, tr, c.want)
		}
	}
}

// The picture is the one that Patroni's keys in Consul give, but for what the
// interface does not say.
func TestPictureIsThatOfConsul(t *testing.T) {
	for _, version := range []string{patronitest.V3, patronitest.V4} {
		for name, config := range map[string]string{
			"plain":   `{"ttl":30,"loop_wait":10,"retry_timeout":10}`,
			"sync":    `{"ttl":20,"loop_wait":5,"retry_timeout":5,"synchronous_mode":true,"failsafe_mode":true}`,
			"quorum":  `{"ttl":20,"synchronous_mode":"quorum"}`,
			"standby": `{"ttl":20,"standby_cluster":{"host":"10.9.9.9"}}`,
			"pause":   `{"ttl":20,"pause":true}`,
		} {
			synctest.Test(t, func(t *testing.T) {
				c := patronitest.New("alpha", "a", "b", "c")
				var s store
				c.Member(func(m *member) { m.Version = version })
				c.Change(func(now *store) {
					now.Config, now.Pause = config, name == "pause"
					if name == "sync" || name == "quorum" {
						now.Sync = []string{"b"}
					}
					e := now.Members["b"]
					e.Tags = map[string]any{"zone": "x", "nofailover": true}
					now.Members["b"] = e
					s = *now
				})
				r := newRig(t, c, options(c))
				defer r.stop()
				r.wait(2 * time.Second)
				want := consulPicture(s)
				got := *r.last().Authority
				want.OptimeIndex, got.OptimeIndex = 0, 0
				for i := range got.Members {
					if w, g := &want.Members[i], &got.Members[i]; g.LSN == 0 {
						w.LSN = 0 // the leader's never, the others' not in version 3
					} else if g.Name == got.Leader {
						t.Errorf("%s %s: the leader's list has a position", version, name)
					}
					if version == patronitest.V4 && got.Members[i].State == "streaming" {
						got.Members[i].State = "running" // the list prefers the state of replication
					}
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s %s (-consul +rest):\n%s", version, name, diff)
				}
			})
		}
	}
}

// consulPicture is what a watcher of the keys would tell of the store.
func consulPicture(s store) topology.Authority {
	var pairs api.KVPairs
	put := func(key, value, session string) {
		pairs = append(pairs, &api.KVPair{Key: "p/" + key, Value: []byte(value), Session: session})
	}
	put("leader", s.Leader, s.Leader)
	put("config", s.Config, "")
	put("history", s.History, "")
	put("initialize", "7713754238407433424", "")
	put("status", fmt.Sprintf(`{"optime":%d}`, s.Optime), "")
	if s.Sync != nil {
		put("sync", fmt.Sprintf(`{"sync_standby":%q}`, strings.Join(s.Sync, ",")), "")
	}
	for name, e := range s.Members {
		role := "replica"
		switch {
		case name == s.Leader && strings.Contains(s.Config, "standby_cluster"):
			role = "standby_leader"
		case name == s.Leader:
			role = "primary"
		}
		tags := ""
		if e.Tags != nil {
			tags = `,"tags":{"zone":"x","nofailover":true}`
		}
		put("members/"+name, fmt.Sprintf(`{"conn_url":"postgres://%s:%d/postgres","api_url":%q,"state":%q,"role":%q,"xlog_location":%d,"timeline":%d%s}`,
			e.Host, e.Port, e.APIURL, e.State, role, e.LSN, e.Timeline, tags), name)
	}
	a, _, _ := consul.Picture("p/", pairs)
	return a
}

func FuzzParse(f *testing.F) {
	c := patronitest.New("alpha", "a", "b")
	for _, path := range []string{pathWord, pathView} {
		for _, v := range []string{patronitest.V3, patronitest.V4} {
			c.Member(func(m *member) { m.Version = v })
			_, body, err := c.Answer("a", path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(body)
		}
	}
	f.Add([]byte(`{"members":[{"name":"a","role":"leader","tags":{"a":[{}]}}],"scope":"alpha"}`))
	f.Add([]byte(`{"patroni":{"scope":"alpha","name":"\u0000"},"xlog":{"location":1e400}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, status := range []int{200, 503} {
			if w, tr := parseWord(reply{status: status, body: body}, "alpha"); tr == nil {
				if w.holds != (status == 200) || w.name != "" && topology.CheckName(w.name) != nil {
					t.Errorf("%q: %+v", body, w)
				}
				if !bytes.Contains(body, []byte("alpha")) && !bytes.Contains(body, []byte(`\u`)) {
					t.Errorf("%q is taken for scope alpha", body)
				}
			}
		}
		v, tr := parseView(reply{status: 200, body: body}, "alpha")
		if tr != nil {
			return
		}
		if len(v.members) == 0 {
			t.Errorf("%q: an empty list is taken", body)
		}
		if v.leader != "" && v.member(v.leader) == nil {
			t.Errorf("%q: leader %s is no member", body, v.leader)
		}
		for _, m := range v.members {
			if topology.CheckName(m.Name) != nil || !m.Address.IsZero() && m.Address.Check() != nil {
				t.Errorf("%q: member %+v", body, m)
			}
		}
	})
}

// Bodies that were recorded of real members.
func TestRecordedAnswers(t *testing.T) {
	for _, version := range []string{patronitest.V3, patronitest.V4} {
		read := func(name string) []byte {
			b, err := os.ReadFile(filepath.Join("..", "patronitest", "testdata", version, name+".json"))
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
		for name, want := range map[string]struct {
			status       int
			holds, blind bool
			located      bool
		}{
			"leader": {200, true, false, true}, "replica": {503, false, false, false}, "blind": {200, true, true, false},
		} {
			w, tr := parseWord(reply{status: want.status, body: read(name)}, "alpha")
			if tr != nil || w.holds != want.holds || w.blind != want.blind || (w.location != 0) != want.located || w.systemID == 0 {
				t.Errorf("%s of %s: %+v, %+v", name, version, w, tr)
			}
			if (w.name != "") != (version == patronitest.V4) {
				t.Errorf("%s of %s: its name is %q", name, version, w.name)
			}
		}
		v, tr := parseView(reply{status: 200, body: read("cluster")}, "alpha")
		if tr != nil || v.leader != "n1" || len(v.members) != 2 || len(v.faults) != 0 || len(v.sync) != 1 || v.members[1].Tags["weight"] != "10" {
			t.Errorf("list of %s: %+v, %+v", version, v, tr)
		}
	}
}
