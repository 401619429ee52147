package mesh

import (
	"os"
	"path/filepath"
	"testing"
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
