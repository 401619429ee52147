package consul

import (
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

func TestFleetOutages(t *testing.T) {
	for _, c := range outages() {
		t.Run(c.name, func(t *testing.T) {
			sail(t, 130, func(t *testing.T, r *fleetRig) {
				at, mark := time.Since(r.began), r.mark()
				c.begin(r.agent)
				r.wait(45 * time.Second)
				r.want("!"+string(c.class), nil)
				if n := r.since(mark).all(); n > 45*8 {
					t.Errorf("%d requests in 45 s of outage", n)
				}
				limit := lookEvery + lookTimeout + defaultReadTimeout + departEvery
				if c.class == topology.FailDenied { // looks do not fail
					limit = defaultReadEvery + 2*departEvery
				}
				for _, s := range r.ships {
					if d := lag(t, s, at, "!"+string(c.class)); d > limit {
						t.Fatalf("%s noticed it after %v", s.name, d)
					}
					if s == r.ships[0] {
						checkTold(t, s, at)
					}
				}
				ended := time.Since(r.began)
				c.end(r.agent)
				r.wait(35 * time.Second)
				r.want("a", nil)
				if c.class == topology.FailDenied {
					return
				}
				for _, s := range r.ships {
					if d := lag(t, s, ended, "a"); d > 6*time.Second {
						t.Fatalf("%s was good again after %v", s.name, d)
					}
				}
			})
		})
	}
}

// checkTold checks that a lasting failure is told every few seconds.
func checkTold(t *testing.T, s *shipRig, since time.Duration) {
	t.Helper()
	last := since + defaultReadEvery
	for _, g := range s.all() {
		if g.at < since || g.o.Failure == nil {
			continue
		}
		if gap := g.at - last; gap > defaultReadTimeout+departEvery+5*time.Second {
			t.Errorf("%s was silent for %v", s.name, gap)
		}
		last = g.at
	}
}

// One cluster whose keys the token may not read spoils no other's answers.
func TestFleetSetsHiddenClustersApart(t *testing.T) {
	cases := []struct{ name, hide string }{
		{"the whole scope", "service/" + scopeOf(70) + "/"},
		{"the leader key alone", "service/" + scopeOf(70) + "/leader"},
		{"a member", "service/" + scopeOf(70) + "/members/b"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			sail(t, 130, func(t *testing.T, r *fleetRig) {
				r.agent.Hide(c.hide)
				r.wait(3 * time.Second)
				denied := map[string]string{scopeOf(70): "!denied"}
				if c.name != "a member" { // which looks do not see
					r.want("a", denied)
				}
				r.wait(37 * time.Second)
				r.want("a", denied)
				at := r.mark()
				r.wait(40 * time.Second)
				if q := r.since(at); q.sure+q.plain+q.blocking > 20 {
					t.Errorf("requests: %+v, want the hidden cluster asked for a few times", q)
				}
				for _, s := range r.ships {
					for _, g := range s.all() {
						if w := short(g.o); s.name != scopeOf(70) && w != "a" {
							t.Fatalf("%s told %s", s.name, w)
						}
						if g.o.Nodes != nil && len(g.o.Nodes.Nodes) != 2 {
							t.Fatalf("%s told %d nodes of 2", s.name, len(g.o.Nodes.Nodes))
						}
					}
				}
				switchOver(r.agent, scopeOf(71), "b")
				r.agent.Hide()
				r.wait(31 * time.Second)
				r.want("a", map[string]string{scopeOf(71): "b"})
				since := time.Since(r.began)
				switchOver(r.agent, scopeOf(70), "b")
				r.wait(2 * time.Second)
				if d := lag(t, r.ships[70], since, "b"); d > lookEvery+2*gatherFor {
					t.Errorf("the cluster that was hidden told a change after %v, want a second", d)
				}
			})
		})
	}
}

func TestFleetOfHiddenClusters(t *testing.T) {
	sail(t, 150, func(t *testing.T, r *fleetRig) {
		r.agent.Hide("service/")
		r.wait(time.Minute)
		r.want("!denied", nil)
		at := r.mark()
		r.wait(time.Minute)
		if n := r.since(at).all(); n > 60*(txnRate+1) {
			t.Errorf("%d requests in a minute", n)
		}
		r.agent.Hide()
		r.wait(45 * time.Second)
		r.want("a", nil)
	})
}

// However many watchers begin at once, connections stay below Consul's limit.
func TestFleetBoundsConnections(t *testing.T) {
	a := consultest.New()
	a.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{Delay: 300 * time.Millisecond} })
	var open, most atomic.Int64
	srv := httptest.NewUnstartedServer(a)
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		switch s { //nolint:exhaustive // only these change the number
		case http.StateNew:
			most.Store(max(most.Load(), open.Add(1)))
		case http.StateClosed:
			open.Add(-1)
		}
	}
	srv.Start()
	defer srv.Close()
	r := &fleetRig{t: t, agent: a, c: newClient(t, ClientOptions{Address: srv.URL}), began: time.Now()}
	for i := range crowd {
		settle(a, scopeOf(i), "a")
		r.launch(scopeOf(i))
	}
	r.untilAll(20*time.Second, "all are known", map[string]int{"a": crowd})
	r.end()
	// A server learns of an end a little after the client has another connection.
	if n := most.Load(); n >= 200 || n < crowd {
		t.Errorf("%d connections at once, want %d and less than Consul's limit of 200", n, crowd)
	}
}
