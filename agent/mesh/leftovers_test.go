package mesh

import (
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// forEver publishes as the node on this host, with checks that outlive pgsteer.
func forEver(node string) func(*Options) {
	return func(o *Options) {
		o.External = false
		o.Clusters = map[string]Settings{"main": {Service: "main", Node: node, Sidecar: true, TTL: Never, PrimaryTTL: Never}}
	}
}

// renamed is a change of a cluster's name that keeps its service.
func renamed(o *Options) {
	o.Clusters = map[string]Settings{"new": o.Clusters["main"]}
}

// seeAs gives an agent a view of a cluster of another name.
func (a *agent) seeAs(cluster, text string) {
	a.see(text, func(v *topology.View) {
		v.Snapshot.Cluster = cluster
		a.views.Set(cluster, v)
	})
}

// The node on this host has another name after a change of the configuration: its old
// instance, sidecar and all, is critical at once and goes.
func TestLocalRenamed(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", forEver("n2"))
		a.see(n2Leads)
		r.within(time.Second, "n2 primary passing")
		a.stop()
		a = r.start("a", forEver("db2"))
		r.stays(5*time.Second, "n2 primary passing")
		a.see("db2 down/wrong_role up/replica yes\nn1 up/writer down/wrong_role no")
		r.within(3*time.Second, "db2 replica async passing, n2 critical") // with the next read
		if tags := r.consul.Published("main-sidecar-proxy")["pgsteer:main:n2-sidecar-proxy"].ServiceTags; len(tags) != 0 {
			t.Errorf("the old one's sidecar has the tags %v", tags)
		}
		r.stays(29*time.Second, "db2 replica async passing, n2 critical")
		r.within(3*time.Second, "db2 replica async passing")
		if n := len(r.consul.Published("main-sidecar-proxy")); n != 1 {
			t.Errorf("%d sidecars stand", n)
		}
		if s := a.status(); s.Err != nil || s.Repairs != 0 || s.Instances != 1 {
			t.Errorf("status %+v", s)
		}
	})
}

// A cluster has another name and the service of before.
func TestClusterRenamed(t *testing.T) {
	for name, c := range map[string]struct {
		options           func(*Options)
		before, then, end string
	}{
		"external": {func(*Options) {}, second, "n1 critical, n2 critical, n1 primary passing, n2 replica async passing", first},
		"local":    {forEver("n2"), "n2 primary passing", "n2 critical, n2 replica async passing", "n2 replica async passing"},
	} {
		t.Run(name, func(t *testing.T) {
			world(t, func(r *rig) {
				a := r.start("a", c.options)
				a.see(n2Leads)
				r.within(2*time.Second, c.before)
				a.stop()
				a = r.start("a", func(o *Options) { c.options(o); renamed(o) })
				a.seeAs("new", n1Leads)
				r.until(2*time.Second, "the new ones", func() bool { return r.is() == c.then })
				r.stays(29*time.Second, c.then)
				r.within(3*time.Second, c.end)
				r.until(time.Second, "no trouble", func() bool { return a.status().Err == nil })
			})
		})
	}
}

// Publishers that share a Consul agent leave each other alone; what a dead one says
// against what is decided counts as long as the TTL of a primary is by default.
func TestLocalShared(t *testing.T) {
	world(t, func(r *rig) {
		a, b := r.start("a", forEver("n1")), r.start("b", forEver("n2"))
		a.see(n1Leads)
		b.see(n1Leads)
		r.within(time.Second, first)
		r.stays(2*time.Minute, first)
		a.stop()
		b.see(n2Leads)
		const both, one = "n1 primary passing, n2 primary passing", "n2 primary passing"
		r.within(time.Second, both)
		r.stays(29*time.Second, both)
		r.within(4*time.Second, "n1 critical, "+one)
		r.within(34*time.Second, one)
		a = r.start("a", forEver("n1"))
		a.see(n2Leads)
		r.within(time.Second, second)
		r.stays(2*time.Minute, second)
	})
}

// owned publishes as the node on this host for an owner.
func owned(node, owner string) func(*Options) {
	return func(o *Options) { forEver(node)(o); o.Owner = owner }
}

// This host has another node of the cluster after a change of the configuration, and the
// cluster still has the former one: once the new one stands the former one's instance
// here, sidecar and all, is critical and goes; that of its own host stays.
func TestLocalMoved(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", owned("n2", "db1"))
		a.see(n1Leads)
		r.within(time.Second, "n2 replica async passing")
		a.stop()
		elsewhere := consultest.Service{Node: "db2", ServiceID: "pgsteer:main:n2", ServiceName: "main", ServiceMeta: map[string]string{metaPublisher: ownerMark("db1")}}
		r.consul.Register(elsewhere)
		here := func() (out string) {
			for _, s := range r.consul.Everywhere("main") {
				if s.Node == consultest.AgentNode {
					out += s.ServiceID + " " + strings.Join(s.ServiceTags, ",") + "; "
				}
			}
			return out
		}
		stays := func(d time.Duration, want string) {
			t.Helper()
			for range int(d / time.Second) {
				if time.Sleep(time.Second); here() != want {
					t.Fatalf("there is %s, want %s to stay", here(), want)
				}
			}
		}
		a = r.start("a", owned("n1", "db1"))
		a.see("n1 undecided/authority_unknown undecided/authority_unknown no\nn2 down/wrong_role up/replica yes")
		stays(time.Minute, "pgsteer:main:n2 replica,async; ") // n1 does not stand yet
		a.see(n1Leads)
		const ended = "pgsteer:main:n1 primary; pgsteer:main:n2 ; "
		r.until(3*time.Second, "the end of n2", func() bool { return here() == ended })
		stays(28*time.Second, ended)
		r.until(4*time.Second, "n1 alone", func() bool { return here() == "pgsteer:main:n1 primary; " })
		if n := len(r.consul.Published("main-sidecar-proxy")); n != 1 || len(r.consul.Everywhere("main")) != 2 {
			t.Errorf("%d sidecars and %d instances stand", n, len(r.consul.Everywhere("main")))
		}
		if s := a.status(); s.Err != nil || s.Repairs != 0 || s.Instances != 1 {
			t.Errorf("status %+v", s)
		}
	})
}

// What another publisher registered at the same Consul agent stays, be that one dead, and
// so does what has no mark of an owner.
func TestLocalMovedOthers(t *testing.T) {
	for name, owners := range map[string][2]string{"another's": {"db2", "db1"}, "nobody's": {"", "db1"}, "without an owner": {"", ""}} {
		t.Run(name, func(t *testing.T) {
			world(t, func(r *rig) {
				b := r.start("b", owned("n2", owners[0]))
				b.see(n1Leads)
				r.within(time.Second, "n2 replica async passing")
				b.stop()
				a := r.start("a", owned("n1", owners[1]))
				a.see(n1Leads)
				r.within(time.Second, first)
				r.stays(2*time.Minute, first)
			})
		})
	}
}

// Two hosts that are copies of each other have one owner's mark: neither takes away for
// long what the other one looks after.
func TestLocalCopied(t *testing.T) {
	world(t, func(r *rig) {
		a, b := r.start("a", owned("n1", "db")), r.start("b", owned("n2", "db"))
		a.see(n1Leads)
		b.see(n1Leads)
		time.Sleep(20 * time.Second)
		r.stays(2*time.Minute, first)
	})
}

// Only the check of the own node is fed: that of another, or of its name of before,
// turns critical when nobody feeds it, also while nothing is decided.
func TestLocalFeedsItsOwn(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", on("n2"))
		a.see(n2Leads)
		r.within(time.Second, "n2 primary passing")
		a.stop()
		a = r.start("a", on("n3"))
		a.see("n1 undecided/authority_unknown down/wrong_role no\nn3 undecided/authority_unknown undecided/authority_unknown yes")
		r.stays(15*time.Second, "n2 primary passing")
		r.within(16*time.Second, "n2 primary critical")
	})
}

// What mode external has left is told and goes, unless somebody looks after it.
func TestExternalToLocal(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.see(n2Leads)
		r.within(2*time.Second, second)
		a.stop()
		a = r.start("a", forEver("n1"))
		r.stays(time.Minute, second) // nothing is decided
		a.see(n1Leads)
		r.until(time.Second, "the warning", func() bool {
			e := a.status().Err
			return e != nil && strings.Contains(e.Error(), "pgsteer:main:n1 stands at the node pgsteer-main, left by the other mode")
		})
		on := func() string {
			var nodes []string
			for _, s := range r.consul.Everywhere("main") {
				nodes = append(nodes, s.Node+" "+s.ServiceID)
			}
			return strings.Join(nodes, ", ")
		}
		const all = "fake pgsteer:main:n1, pgsteer-main pgsteer:main:n1, pgsteer-main pgsteer:main:n2"
		time.Sleep(28 * time.Second)
		if on() != all {
			t.Errorf("there is %s", on())
		}
		r.until(13*time.Second, "the end of what is left", func() bool { return on() == "fake pgsteer:main:n1" })
		r.until(11*time.Second, "the end of the warning", func() bool { return a.status().Err == nil })
		r.within(0, "n1 primary passing")
	})
}

// A token that may not remove it, or not even see it.
func TestExternalToLocalDenied(t *testing.T) {
	for path, told := range map[string]string{
		"/catalog/deregister": `cannot be removed: Unexpected response code: 403 (Permission denied); do it by hand: curl -X PUT -d '{"Node":"pgsteer-main"}'`,
		"/catalog/node-s":     `the token needs node "pgsteer-main" { policy = "read" }`,
	} {
		world(t, func(r *rig) {
			a := r.start("a", nil)
			a.see(n2Leads)
			r.within(2*time.Second, second)
			a.stop()
			a = r.start("a", forEver("n1"))
			a.see(n1Leads)
			r.consul.Script(func(q consultest.Request) consultest.Fault {
				if strings.HasPrefix(q.Path, path) {
					return consultest.Fault{Status: 403, Text: "Permission denied"}
				}
				return consultest.Fault{}
			})
			r.until(42*time.Second, told, func() bool { e := a.status().Err; return e != nil && strings.Contains(e.Error(), told) })
			r.consul.Script(nil)
			r.until(52*time.Second, "the end of the trouble", func() bool { return a.status().Err == nil && r.is() == "n1 primary passing" })
		})
	}
}

// What mode local has left at the Consul agent here goes, also when another agent has
// the lock; what is left elsewhere is told.
func TestLocalToExternal(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", forEver("n1"))
		a.see(n1Leads)
		r.within(time.Second, "n1 primary passing")
		a.stop()
		r.consul.Register(consultest.Service{Node: "db2", ServiceID: "pgsteer:main:n2", ServiceName: "main", ServiceTags: []string{"primary"}})
		a = r.start("a", func(o *Options) { o.Clusters["main"] = Settings{Service: "main"} })
		a.see(n2Leads)
		r.until(3*time.Second, "the warning", func() bool {
			e := a.status().Err
			return e != nil && strings.Contains(e.Error(), "pgsteer:main:n1 on fake, pgsteer:main:n2 on db2; let every pgsteer have the same mode, or on the host: consul services deregister -id=pgsteer:main:n1")
		})
		r.until(42*time.Second, "the end of what is left here", func() bool {
			return len(r.consul.Everywhere("main")) == 3 && len(r.consul.Published("main-sidecar-proxy")) == 0
		})
		r.consul.Deregister("db2", "")
		r.until(11*time.Second, "the end of the warning", func() bool { return a.status().Err == nil && r.is() == second })
	})
}

// A Consul node that only has the name of the external one is left alone.
func TestForeignNode(t *testing.T) {
	world(t, func(r *rig) {
		r.consul.RegisterNode(consultest.Node{Node: "pgsteer-main", Address: "10.9.9.9"})
		r.consul.Register(consultest.Service{Node: "pgsteer-main", Address: "10.9.9.9", ServiceID: "pgsteer:main:n1", ServiceName: "main", ServiceTags: []string{"x"}})
		a := r.start("a", nil)
		a.see(n1Leads)
		r.until(3*time.Second, "the refusal", func() bool {
			e := a.status().Err
			return e != nil && strings.Contains(e.Error(), "node pgsteer-main with address 10.9.9.9 is not one of pgsteer's external nodes, so nothing is written")
		})
		r.stays(time.Minute, "n1 x ")
		if n, _ := r.consul.NodeOf("pgsteer-main"); n.Address != "10.9.9.9" || r.asked("/txn") != 0 {
			t.Errorf("it is %+v after %d transactions", n, r.asked("/txn"))
		}
		r.consul.Deregister("pgsteer-main", "")
		r.within(3*time.Second, first)
		if n, _ := r.consul.NodeOf("pgsteer-main"); n.Address != nodeAddress || n.Meta["external-node"] != "true" {
			t.Errorf("it is %+v", n)
		}
	})
}

// What an operator has said with consul maint outlives every registration.
func TestLocalKeepsMaintenance(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", forEver("n1"))
		a.see(n1Leads)
		r.within(time.Second, "n1 primary passing")
		api := a.p.o.Client.API().Agent()
		if err := api.EnableServiceMaintenance("pgsteer:main:n1", "disk"); err != nil {
			t.Fatal(err)
		}
		a.see(n2Leads)
		r.within(time.Second, "n1 replica async passing")
		checks, err := api.Checks()
		if err != nil || checks["_service_maintenance:pgsteer:main:n1"] == nil || len(checks) != 2 {
			t.Errorf("checks %v, %v", checks, err)
		}
	})
}

// Patroni registers at the same Consul agent, under the same name.
func TestLocalForeign(t *testing.T) {
	world(t, func(r *rig) {
		r.consul.Register(consultest.Service{Node: consultest.AgentNode, ServiceID: "main/n1", ServiceName: "main", ServiceTags: []string{"master"}})
		a := r.start("a", forEver("n1"))
		a.see(n1Leads)
		r.until(3*time.Second, "the warning", func() bool {
			e := a.status().Err
			return e != nil && strings.Contains(e.Error(), "main/n1 at this Consul agent")
		})
		r.within(0, "main/n1 master , n1 primary passing")
	})
}
