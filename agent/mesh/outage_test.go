package mesh

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
)

// outages are the ways in which a whole Consul goes away and comes back, with all of its
// data and sessions.
var outages = map[string]struct{ harm, mend func(*rig) }{
	"away":   {func(r *rig) { r.consul.Stop() }, func(r *rig) { r.consul.Start() }},
	"denied": {func(r *rig) { r.consul.RequireToken("x") }, func(r *rig) { r.consul.RequireToken("") }},
	"frozen": {func(r *rig) { r.consul.Freeze() }, func(r *rig) { r.consul.Thaw() }},
}

// An outage of Consul is nobody's fault: whoever has the lock and its session goes on, with
// the decision of by then, and each agent tells when it begins and when it ends.
func TestOutageKeepsTheLock(t *testing.T) {
	for name, c := range outages {
		for _, long := range []bool{true, false} { // two minutes, and less than is between two renewals of a long session
			t.Run(fmt.Sprintf("%s/%t", name, long), func(t *testing.T) {
				for shift := range 8 { // of the outage's end against the agents' tries
					world(t, func(r *rig) {
						var logs [2]logtest.Log
						logged := func(i int) func(*Options) {
							return func(o *Options) {
								o.Logger = slog.New(slog.NewTextHandler(&logs[i], nil))
								if !long {
									o.SessionTTL = time.Minute
								}
							}
						}
						a := r.start("a", logged(0))
						a.see(n1Leads)
						r.within(2*time.Second, first)
						b := r.start("b", logged(1))
						b.see(n1Leads)
						r.until(2*time.Second, "b's knowledge", func() bool { return b.status().Publisher == "a" })
						away := 2 * time.Minute
						if !long {
							away = 15 * time.Second
						}
						c.harm(r)
						time.Sleep(away / 4)
						a.see(n2Leads)
						b.see(n2Leads)
						r.stays(away*3/4+time.Duration(shift)*170*time.Millisecond, first)
						c.mend(r)
						r.within(5*time.Second, second)
						r.stays(10*time.Second, second)
						if s, o := a.status(), b.status(); !s.Publishing || s.Err != nil || o.Writes != 0 || o.Err != nil || o.Publisher != "a" {
							t.Errorf("a is %+v, b is %+v", s, o)
						}
						for i := range logs {
							if n := logs[i].Count("\n"); n > 12 || logs[i].Count("leaves") > 0 {
								t.Errorf("%d lines:\n%s", n, logs[i].String())
							}
						}
					})
				}
			})
		}
	}
}

// What is taken away after it has been seen for a while is not taken away because nobody
// could look for longer.
func TestOutageIsNoWhile(t *testing.T) {
	const alone, without = "n1 up/writer down/wrong_role no", "n1 primary passing, n2 critical"
	outage := func(r *rig) {
		time.Sleep(2 * time.Second)
		r.consul.Stop()
		time.Sleep(2 * time.Minute)
		r.consul.Start()
	}
	t.Run("a node that has left", func(t *testing.T) {
		world(t, func(r *rig) {
			a := r.start("a", nil)
			a.see(n1Leads)
			r.within(2*time.Second, first)
			a.see(alone)
			r.within(2*time.Second, without)
			outage(r)
			r.stays(29*time.Second, without)
			r.within(6*time.Second, "n1 primary passing")
		})
	})
	t.Run("what the other mode has left", func(t *testing.T) {
		world(t, func(r *rig) {
			r.start("local", on("n2")).see(n2Leads)
			r.within(time.Second, "n2 primary passing")
			a := r.start("a", nil)
			a.see(n2Leads)
			r.until(20*time.Second, "the warning", func() bool {
				e := a.status().Err
				return e != nil && strings.Contains(e.Error(), "left by the other mode")
			})
			before := r.asked("/agent/service/deregister")
			outage(r)
			time.Sleep(25 * time.Second)
			if n := r.asked("/agent/service/deregister"); n != before {
				t.Errorf("%d deregistrations", n-before)
			}
		})
	})
	t.Run("another publisher's word", func(t *testing.T) {
		world(t, func(r *rig) {
			other, a := r.start("other", on("n1")), r.start("a", on("n2"))
			other.see(n1Leads)
			a.see(n1Leads)
			r.within(time.Second, first)
			a.see(n2Leads) // the other one sees it only after the outage
			r.within(time.Second, "n1 primary passing, n2 primary passing")
			outage(r)
			r.within(time.Second, "n1 primary passing, n2 primary passing") // the TTL of both ran out
			r.stays(5*time.Second, "n1 primary passing, n2 primary passing")
			other.see(n2Leads)
			r.within(time.Second, second)
		})
	})
}

// A Consul agent that comes back says critical of a check whose TTL ran out, until it is fed.
func TestOutageOutlastsTheTTL(t *testing.T) {
	world(t, func(r *rig) {
		var log logtest.Log
		a := r.start("a", func(o *Options) {
			withSidecar(o)
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		})
		a.see(n1Leads)
		r.within(time.Second, "n1 primary passing")
		for range 5 {
			r.consul.Stop()
			time.Sleep(2 * time.Minute)
			r.consul.Start()
			r.within(600*time.Millisecond, "n1 primary passing")
			r.stays(10*time.Second, "n1 primary passing")
		}
		if n := log.Count("\n"); n > 5*6 {
			t.Errorf("%d lines:\n%s", n, log.String())
		}
	})
}

// The check of a sidecar is looked at every second from its port on, also after somebody
// else's registration of it, and nothing is written again after that.
func TestSidecarChecks(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", withSidecar)
		notes := func() string {
			checks, err := a.p.o.Client.API().Agent().Checks()
			if err != nil {
				t.Fatal(err)
			}
			if c := checks["service:pgsteer:main:n1-sidecar-proxy:1"]; c != nil {
				return c.Notes
			}
			return ""
		}
		a.see(n1Leads)
		const want = "written by pgsteer; connects to 10.0.0.1:5432 every 1s" // the fake's port
		r.until(5*time.Second, want, func() bool { return notes() == want })
		registrations := r.asked("/agent/service/register")
		r.stays(time.Minute, "n1 primary passing")
		if n := r.asked("/agent/service/register"); n != registrations || n > 2 {
			t.Errorf("%d registrations, then %d", registrations, n)
		}
		a.see(n2Leads)
		r.within(time.Second, "n1 replica async passing")
		r.consul.Forget()
		r.until(10*time.Second, want, func() bool { return notes() == want })
		if s := a.status(); s.Err != nil || s.Repairs != 1 {
			t.Errorf("status %+v", s)
		}
	})
}

// The publisher of many clusters asks no more during an outage than it may at other times,
// and after it leaves none of them to another one while they wait for their turn. A change
// of roles of that time does not wait.
func TestOutageOfMany(t *testing.T) {
	const n = 200
	world(t, func(r *rig) {
		views := new(latest.Map[string, topology.View])
		for i := range n {
			views.Set(fleetName(i), quiet(fleetName(i), r.now().Mono))
		}
		a := r.startFleet("a", n, views)
		r.counted(time.Minute, func(time.Duration) bool { return a.whole() })
		b := r.startFleet("b", n, views)
		r.counted(time.Minute, func(d time.Duration) bool { return d > 10*time.Second })
		r.consul.RequireToken("x")
		kept := func(time.Duration) bool { return a.p.locks.holds() == n && b.p.locks.holds() == 0 }
		_, all, one, ten := r.counted(time.Minute, func(d time.Duration) bool { return d > 40*time.Second || !kept(d) })
		t.Logf("%d requests without a token, at most %d in a second and %d in ten", all, one, ten)
		r.bounded(n, ten)
		views.Set(fleetName(7), swapped(fleetName(7), r.now().Mono))
		time.Sleep(5 * time.Second)
		r.consul.RequireToken("")
		r.changed(5*time.Second, 7)
		took, all, one, ten := r.counted(time.Minute, func(d time.Duration) bool { return a.whole() || !kept(d) })
		t.Logf("all whole %s later, after %d requests, at most %d in a second and %d in ten", took, all, one, ten)
		r.bounded(n, ten)
		if !kept(0) {
			t.Errorf("%d locks are held by the one and %d by the other", a.p.locks.holds(), b.p.locks.holds())
		}
		for i, s := range a.p.Status() {
			if s.Writes != 1 && i != 7 {
				t.Fatalf("what stands was written again: %+v", s)
			}
		}
	})
}

// A token that is revoked for longer than Consul keeps the session costs the lock, and
// nothing else: with the token back somebody publishes at once what is decided by then.
func TestRevokedForLong(t *testing.T) {
	world(t, func(r *rig) {
		a, b := r.start("a", nil), r.start("b", nil)
		a.see(n1Leads)
		b.see(n1Leads)
		r.within(2*time.Second, first)
		r.consul.RequireToken("x")
		lock, _ := r.consul.Get("pgsteer/mesh/main")
		r.stays(15*time.Second, first)
		r.consul.EndSession(lock.Session)
		a.see(n2Leads)
		b.see(n2Leads)
		r.stays(time.Minute, first)
		r.consul.RequireToken("")
		r.within(5*time.Second, second)
		r.stays(10*time.Second, second)
		r.until(3*time.Second, "one publisher, no trouble", func() bool {
			s, o := a.status(), b.status()
			return s.Publishing != o.Publishing && s.Err == nil && o.Err == nil
		})
	})
}
