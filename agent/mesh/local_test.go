package mesh

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// Only the own node is registered; its check is fed while pgsteer lives, also while
// nothing is decided, and turns critical when it is dead.
func TestLocal(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", on("n1"))
		a.see(n1Leads)
		const mine = "n1 primary passing"
		r.within(time.Second, mine)
		r.stays(5*time.Minute, mine)
		if n := r.asked("/agent/service/register"); n != 1 {
			t.Errorf("%d registrations, want 1", n)
		}
		a.see(nobody)
		r.stays(5*time.Minute, mine)
		a.see(n1Leads, func(v *topology.View) { v.ValidUntil = 1 }) // its goroutine stands still
		r.stays(15*time.Second, mine)
		r.within(16*time.Second, "n1 primary critical")
		a.see(n1Leads)
		r.within(time.Second, mine)
		a.see(n2Leads)
		r.within(100*time.Millisecond, "n1 replica async passing")
		a.stop()
		r.stays(2*time.Minute, "n1 replica async passing")
		r.within(time.Minute+time.Second, "n1 replica async critical")
		a = r.start("a", on("n1"))
		a.see(n2Leads)
		r.within(time.Second, "n1 replica async passing")
		if s := r.consul.Published("main")["pgsteer:main:n1"]; s.Check.Output != "replica: as it is" || s.Node != consultest.AgentNode {
			t.Errorf("it is %+v", s)
		}
	})
}

// A Consul agent that has lost everything, or a part, gets it back.
func TestLocalRepairs(t *testing.T) {
	for name, harm := range map[string]func(*rig){
		"everything": func(r *rig) { r.consul.Forget() },
		"the sidecar": func(r *rig) {
			r.consul.Deregister(consultest.AgentNode, "pgsteer:main:n1-sidecar-proxy")
		},
		"the tags": func(r *rig) {
			r.consul.SetService(consultest.AgentNode, "pgsteer:main:n1", func(s *consultest.Service) { s.ServiceTags = nil })
		},
		"it is away for two minutes": func(r *rig) {
			r.consul.Stop()
			time.Sleep(2 * time.Minute)
			r.consul.Forget()
			r.consul.Start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(r *rig) {
				a := r.start("a", withSidecar)
				a.see(n1Leads)
				const mine = "n1 primary passing"
				whole := func() bool { return r.is() == mine && len(r.consul.Published("main-sidecar-proxy")) == 1 }
				r.until(time.Second, "all", whole)
				harm(r)
				r.until(5*time.Second, "all again", whole)
				r.until(5*time.Second, "no trouble", func() bool { return a.status().Err == nil })
			})
		})
	}
}

// A host whose node has left the cluster takes its instance away, after a while.
func TestLocalDeparted(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", on("n2"))
		a.see(n1Leads)
		r.within(time.Second, "n2 replica async passing")
		r.stays(5*time.Second, "n2 replica async passing")
		a.see("n1 up/writer down/wrong_role no")
		r.within(100*time.Millisecond, "n2 critical")
		r.stays(29*time.Second, "n2 critical")
		r.within(3*time.Second, "")
	})
}

// The agent has an instance's token from its registration, so a rotated one needs
// another registration.
func TestLocalTokenRotates(t *testing.T) {
	world(t, func(r *rig) {
		r.token = filepath.Join(t.TempDir(), "token")
		rotate := func(to string) {
			t.Helper()
			if err := os.WriteFile(r.token, []byte(to), 0o600); err != nil {
				t.Fatal(err)
			}
			r.consul.RequireToken(to)
		}
		rotate("one")
		a := r.start("a", on("n1"))
		a.see(n1Leads)
		r.within(time.Second, "n1 primary passing")
		r.stays(10*time.Second, "n1 primary passing")
		if n := r.asked("/agent/service/register"); n != 1 {
			t.Errorf("%d registrations, want 1", n)
		}
		rotate("another")
		r.until(5*time.Second, "another registration", func() bool { return r.asked("/agent/service/register") == 2 })
		r.stays(10*time.Second, "n1 primary passing")
		if s := a.status(); s.Err != nil || s.Repairs != 0 || r.asked("/agent/service/register") != 2 {
			t.Errorf("status %+v", s)
		}
	})
}

// A restart takes no instance out, however late in the check's TTL it comes: it is fed as
// it stands at once, be it undecided, and no longer than its TTL by one that never decides.
func TestLocalRestart(t *testing.T) {
	const mine = "n1 primary passing"
	for name, c := range map[string]struct {
		first string
		stays time.Duration
	}{"decided": {n1Leads, 5 * time.Minute}, "undecided": {nobody, 3 * time.Minute}} {
		t.Run(name, func(t *testing.T) {
			world(t, func(r *rig) {
				a := r.start("a", on("n1"))
				a.see(n1Leads)
				r.within(time.Second, mine)
				a.stop()
				r.stays(27*time.Second, mine)
				r.now = topology.NewTicker(time.Now) // another process
				a = r.start("a", on("n1"))
				a.see(c.first)
				r.stays(c.stays, mine)
				if name == "decided" {
					return
				}
				r.within(time.Minute, "n1 primary critical")
				a.see(n1Leads)
				r.within(time.Second, mine)
			})
		})
	}
}

// What stands is fed while it leads nobody astray, although it cannot be written as it
// should be; what leads astray ends with its TTL.
func TestLocalUnwritable(t *testing.T) {
	deny := func(q consultest.Request) consultest.Fault {
		if q.Path == "/agent/service/register" {
			return consultest.Fault{Status: 403, Text: "Permission denied: token lacks permission 'service:write' on \"main-sidecar-proxy\""}
		}
		return consultest.Fault{}
	}
	const mine = "n1 primary passing"
	for name, next := range map[string]string{
		"another role":    n2Leads,
		"another status":  "n1 drain/maintenance drain/maintenance no\nn2 down/wrong_role up/replica yes",
		"another address": n1Leads,
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(r *rig) {
				a := r.start("a", on("n1"))
				a.see(n1Leads)
				r.within(time.Second, mine)
				a.stop()
				r.consul.Script(deny)
				a = r.start("a", withSidecar)
				a.see(n1Leads)
				r.stays(5*time.Minute, mine)
				if s := a.status(); s.Err == nil || !strings.Contains(s.Err.Error(), "main-sidecar-proxy") {
					t.Errorf("status %+v", s)
				}
				a.see(next, func(v *topology.View) {
					if name == "another address" {
						v.Snapshot.Pools[0].Nodes[0].Address.Port++
					}
				})
				r.stays(15*time.Second, mine)
				r.within(20*time.Second, "n1 primary critical")
				a.see(n1Leads)
				r.consul.Script(nil)
				r.within(3*time.Second, mine)
				r.until(time.Second, "no trouble", func() bool { return a.status().Err == nil })
			})
		})
	}
}

// What somebody else changes again and again is undone rarely, and fed all the same.
func TestLocalRepairsFeed(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", func(o *Options) {
			on("n1")(o)
			s := o.Clusters["main"]
			s.TTL, s.PrimaryTTL = 5*time.Second, 5*time.Second
			o.Clusters["main"] = s
		})
		a.see(n1Leads)
		r.within(time.Second, "n1 primary passing")
		for i := range 600 {
			if i%20 == 0 {
				r.consul.SetService(consultest.AgentNode, "pgsteer:main:n1", func(s *consultest.Service) { s.ServiceTags = []string{"primary", "x"} })
			}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			if is := r.is(); !strings.HasSuffix(is, "passing") {
				t.Fatalf("%s after %d tenths of a second", is, i)
			}
		}
		if s := a.status(); !errors.Is(s.Err, errRepairs) {
			t.Errorf("status %+v", s)
		}
	})
}

// With Consul Enterprise a host's instance is registered, read, fed and taken away in the
// client's namespace and partition, and what mode external has left is looked for there.
func TestLocalNamespace(t *testing.T) {
	world(t, func(r *rig) {
		r.tenant = [2]string{"team", "part"}
		r.consul.RegisterNode(consultest.Node{Node: "pgsteer-main", Address: nodeAddress, Meta: nodeMeta()})
		r.consul.Register(consultest.Service{Node: "pgsteer-main", ServiceID: "pgsteer:main:n9", ServiceName: "main"})
		a := r.start("a", withSidecar)
		a.see(n1Leads)
		r.until(2*time.Second, "its instance", func() bool { return strings.HasPrefix(r.is(), "n1 primary passing") })
		a.see("n2 up/writer down/wrong_role no")
		r.until(2*time.Minute, "nothing", func() bool { return r.is() == "" })
		r.wantTenant()
		for _, path := range []string{"/agent/service/register", "/agent/service/deregister/", "/agent/check/update/", "/agent/service/pgsteer:", "/agent/services", "/agent/checks", "/catalog/node-services/", "/catalog/deregister"} {
			if r.asked(path) == 0 {
				t.Errorf("%s was not asked", path)
			}
		}
	})
}
