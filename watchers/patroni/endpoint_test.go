package patroni

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/patronitest"
)

func TestParseBase(t *testing.T) {
	for s, want := range map[string]string{
		"http://10.0.0.1:8008/patroni":  "http://10.0.0.1:8008",
		"https://DB1.Example:8008":      "https://db1.example:8008",
		"https://[2001:db8::1]:8008/":   "https://[2001:db8::1]:8008",
		"http://db1":                    "http://db1:80",
		"https://db1/patroni?x=1#f":     "https://db1:443",
		"":                              "",
		"10.0.0.1:8008":                 "",
		"ftp://db1":                     "",
		"http://":                       "",
		"http://:8008":                  "",
		"http://user:secret@db1:8008":   "",
		"http://db1:port":               "",
		"postgres://10.0.0.1:5432/main": "",
	} {
		got, err := parseBase(s)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v; want %q", s, got, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error shows a password: %v", s, err)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	good := options(patronitest.New("alpha", "a"))
	for name, spoil := range map[string]func(*Options){
		"no clock":       func(o *Options) { o.Now = nil },
		"no cluster":     func(o *Options) { o.Cluster = "" },
		"no scope":       func(o *Options) { o.Scope = "" },
		"no endpoint":    func(o *Options) { o.Endpoints = nil },
		"wrong endpoint": func(o *Options) { o.Endpoints = []string{"a:8008"} },
	} {
		o := good
		spoil(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	good.Endpoints = append(good.Endpoints, good.Endpoints[0]+"/patroni")
	w, err := New(good)
	if err != nil || len(w.bases) != 1 {
		t.Errorf("the same endpoint twice: %v, %v", w, err)
	}
}

// reached starts a rig that knows only some addresses, of a cluster whose
// members say that they are elsewhere.
func reached(t *testing.T, version string, addresses map[string]string, f func(c *cluster, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := patronitest.New("alpha", "a", "b", "c")
		c.Member(func(m *member) { m.Version = version })
		var endpoints []string
		for address, name := range addresses {
			c.Move(address, name)
			endpoints = append(endpoints, "http://"+address)
		}
		for _, name := range []string{"a", "b", "c"} {
			c.Move(name+".test:8008", "") // nobody is there
		}
		r := newRig(t, c, options(c, endpoints...))
		defer r.stop()
		r.wait(10 * time.Second)
		f(c, r)
	})
}

// Behind a translation of addresses the configured endpoints do, since Patroni
// tells who answers.
func TestOnlyConfiguredEndpointsAreReached(t *testing.T) {
	reached(t, patronitest.V4, map[string]string{"nat.test:1": "a", "nat.test:2": "b", "nat.test:3": "c"}, func(c *cluster, r *rig) {
		if got := r.words(); got[len(got)-1] != "a of 3" {
			t.Fatalf("told %v", got)
		}
		begin := time.Now()
		r.since()
		r.wait(time.Minute)
		r.want("a of 3")
		if n := r.requests(begin, "b", ""); n > 70 {
			t.Errorf("a replica was asked %d times a minute", n)
		}
		c.Lead("b")
		c.Member(func(m *member) { m.Down = true }, "b")
		r.since()
		r.wait(10 * time.Second)
		r.want("b? of 3")
	})
}

// Before 3.2 it does not, and the text says why.
func TestConfiguredEndpointsWithoutName(t *testing.T) {
	reached(t, patronitest.V3, map[string]string{"nat.test:1": "a", "nat.test:2": "b", "nat.test:3": "c"}, func(_ *cluster, r *rig) {
		r.want("!content")
		if f := r.last().Failure; f == nil || !strings.Contains(f.Text, "since 3.2") {
			t.Errorf("the failure does not say why: %+v", f)
		}
	})
}

// What is told through a balancer may be anybody's: it helps to find the
// members, and has no vote.
func TestBalancerHasNoVote(t *testing.T) {
	reached(t, patronitest.V4, map[string]string{"lb.test:80": "a"}, func(c *cluster, r *rig) {
		// All that is known of the others comes through a itself.
		r.want("a of 3")
		var turn atomic.Int64
		c.Script(func(q patronitest.Request) patronitest.Fault {
			if q.Path == pathWord && strings.Contains(q.URL, "lb") {
				c.Move("lb.test:80", []string{"a", "b"}[turn.Add(1)%2])
			}
			return patronitest.Fault{}
		})
		r.wait(20 * time.Second)
		r.since()
		r.wait(20 * time.Second)
		r.want("!content")
	})
}

// A balancer that is configured beside reachable members is left alone once
// they are known.
func TestBalancerFindsTheMembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := patronitest.New("alpha", "a", "b", "c")
		c.Member(func(m *member) { m.Version = patronitest.V3 })
		c.Move("lb.test:80", "c")
		r := newRig(t, c, options(c, "http://lb.test:80"))
		defer r.stop()
		r.wait(time.Minute)
		r.want("a of 3")
		n := 0
		for _, q := range c.Requests() {
			if strings.Contains(q.URL, "lb") {
				n++
			}
		}
		if n > 2 {
			t.Errorf("the balancer was asked %d times", n)
		}
		for _, m := range []string{"a", "b"} { // the third has the balancer alone
			c.Member(func(m *member) { m.Down = true }, m)
		}
		r.wait(5 * time.Second)
		c.Member(func(m *member) { m.Down = false })
		c.Lead("c")
		r.wait(10 * time.Second)
		if got := r.words(); got[len(got)-1] != "c of 3" {
			t.Errorf("told %v", got)
		}
	})
}

// A configured endpoint is asked for nothing while its member answers at its own
// address.
func TestConfiguredEndpointIsSpare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := patronitest.New("alpha", "a", "b", "c")
		c.Move("front.test:1", "b")
		r := newRig(t, c, options(c, "http://front.test:1"))
		defer r.stop()
		r.wait(time.Minute)
		r.want("a of 3")
		n := 0
		for _, q := range c.Requests() {
			if strings.Contains(q.URL, "front") {
				n++
			}
		}
		if n > 3 {
			t.Errorf("the configured endpoint was asked %d times", n)
		}
	})
}

// A configured endpoint stays, whatever becomes of its member.
func TestConfiguredEndpointStays(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) { // a's is the configured one
		c.Lead("b")
		c.Change(func(s *store) { delete(s.Members, "a") })
		r.wait(10 * time.Second)
		c.Member(func(m *member) { m.Down = true }, "b", "c")
		r.wait(10 * time.Second)
		c.Change(func(s *store) {
			s.Members = map[string]patronitest.Entry{"a": {APIURL: patronitest.URL("a") + "/patroni", Host: "192.0.2.11", Port: 5432}}
		})
		c.Lead("a")
		r.wait(10 * time.Second)
		if got := r.words(); got[len(got)-1] != "a of 1" {
			t.Errorf("told %v", got)
		}
	})
}

// An address that was given to another host says nothing about its old member.
func TestAddressOfAnother(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		c.Move("b.test:8008", "a")
		r.wait(10 * time.Second)
		r.want("a of 3")
		c.Member(func(m *member) { m.Down = true }, "c")
		c.Move("a.test:8008", "") // a answers at b's address alone
		r.since()
		r.wait(20 * time.Second)
		if got := r.words(); got[len(got)-1] != "!content" || !strings.Contains(r.last().Failure.Text, "member a answers there") {
			t.Errorf("told %v, %+v", got, r.last().Failure)
		}
	})
}

// A member joins, changes its addresses, and leaves.
func TestMembersComeAndGo(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		at := func(name string) (found topology.Address) {
			for _, g := range r.all() {
				if g.o.Nodes == nil {
					continue
				}
				found = topology.Address{}
				for _, n := range g.o.Nodes.Nodes {
					if n.Name == name {
						found = n.Address
					}
				}
			}
			return found
		}
		c.Move("new.test:8008", "c")
		c.Change(func(s *store) {
			e := s.Members["c"]
			e.APIURL, e.Host = "http://new.test:8008/patroni", "192.0.2.99"
			s.Members["c"] = e
			s.Members["d"] = patronitest.Entry{APIURL: "http://d.test:8008/patroni", Host: "192.0.2.14", State: "running"}
		})
		c.Move("c.test:8008", "")
		r.wait(7 * time.Second)
		r.want("a of 3", "a of 4")
		if got := at("c").String(); got != "192.0.2.99:5432" {
			t.Errorf("c is at %s", got)
		}
		c.Lead("c")
		r.wait(5 * time.Second)
		begin := time.Now()
		c.Change(func(s *store) { delete(s.Members, "d") })
		r.since()
		r.wait(10 * time.Second)
		if got := r.words(); got[len(got)-1] != "c of 3" {
			t.Errorf("told %v", got)
		}
		if got := at("d"); !got.IsZero() {
			t.Errorf("d is still at %s", got)
		}
		for _, q := range c.Requests() {
			if q.At.Sub(begin) > 7*time.Second && (strings.Contains(q.URL, "//c.test") || strings.Contains(q.URL, "//d.test")) {
				t.Errorf("%s is still asked", q.URL)
			}
		}
	})
}

// Two members with one api_url: nobody knows whose word it is.
func TestSameAddressTwice(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		c.Member(func(m *member) { m.Version = patronitest.V3 })
		c.Change(func(s *store) {
			e := s.Members["b"]
			e.APIURL = s.Members["a"].APIURL
			s.Members["b"] = e
		})
		r.wait(20 * time.Second)
		if got := r.words(); got[len(got)-1] != "!store" || r.log.Count("same api_url") != 1 {
			t.Errorf("told %v, warned %d times", got, r.log.Count("same api_url"))
		}
		c.Change(func(s *store) {
			e := s.Members["b"]
			e.APIURL = patronitest.URL("b") + "/patroni"
			s.Members["b"] = e
		})
		r.wait(15 * time.Second)
		if got := r.words(); got[len(got)-1] != "a of 3" {
			t.Errorf("after its end: told %v", got)
		}
	})
}
