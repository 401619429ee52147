package mesh

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// One transaction with a check of the lock writes all; what stands is not written
// again, whatever facts move; a switchover is one transaction too.
func TestExternal(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		r.stays(3*time.Second, "")
		a.see(n1Leads)
		r.within(2*time.Second, first)
		if n := r.asked("/txn"); n != 1 {
			t.Errorf("%d transactions for the first publication", n)
		}
		node := r.consul.Published("main")["pgsteer:main:n1"].Node
		if node != "pgsteer-main" {
			t.Errorf("it is on node %q", node)
		}
		for range 60 {
			a.see(n1Leads, func(v *topology.View) { v.Snapshot.Pools[0].Nodes[0].Reasons[0].Text = time.Now().String() })
			r.stays(time.Second, first)
		}
		if n := r.asked("/txn"); n != 1 {
			t.Errorf("%d transactions, although nothing changed", n)
		}
		begin := time.Now()
		a.see(n2Leads)
		r.within(100*time.Millisecond, second)
		if n := r.asked("/txn"); n != 2 {
			t.Errorf("%d transactions after a switchover, want 2", n)
		}
		for _, q := range r.consul.Requests() {
			if q.Path == "/txn" && !strings.HasPrefix(string(q.Body), `[{"KV":{"Verb":"check-session","Key":"pgsteer/mesh/main"`) {
				t.Errorf("a transaction without the lock's check: %s", q.Body)
			}
		}
		if s := a.status(); s.Err != nil || !s.Publishing || s.Writes != 2 || s.Instances != 2 || s.Passing != 2 || s.WrittenAt.Before(begin) {
			t.Errorf("status %+v", s)
		}
	})
}

// Changes that are not urgent are settled; facts are looked at each second.
func TestSettles(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(2*time.Second, first)
		a.see("n1 up/writer down/wrong_role no\nn2 down/wrong_role drain/lag yes", func(v *topology.View) { v.Snapshot.Urgent = 1 })
		r.stays(150*time.Millisecond, first)
		r.within(100*time.Millisecond, "n1 primary passing, n2 replica async critical")
		v := *a.views.Get("main")
		facts := *v.Facts
		facts.Authority = &topology.Authority{Leader: "n1", SyncMode: "sync", SyncStandbys: []string{"n2"}}
		facts.Nodes["n1"].Probe.Standbys = []topology.Standby{{Name: "n2", State: "streaming", SyncState: "sync"}}
		v.Facts = &facts
		a.views.Refresh("main", &v)
		r.within(time.Second+20*time.Millisecond, "n1 primary passing, n2 replica sync critical")
	})
}

// What is not decided leaves what stands: at a start, with a view that is too old,
// without nodes, and cut off.
func TestHolds(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(2*time.Second, first)
		a.stop()
		b := r.start("b", nil)
		r.stays(5*time.Second, first)
		for why, change := range map[string]func(*topology.View){
			whyStale:   func(v *topology.View) { v.ValidUntil = 1 },
			whyPartial: func(v *topology.View) { v.Snapshot.Complete = false },
			whyEmpty: func(v *topology.View) {
				v.Snapshot.Nodes = nil
				for i := range v.Snapshot.Pools {
					v.Snapshot.Pools[i].Nodes = nil
				}
			},
			whyCut: func(v *topology.View) { v.Snapshot.Alarms = []topology.Reason{{Code: topology.CodeIsolated}} },
		} {
			b.see(n2Leads, change)
			r.stays(40*time.Second, first)
			if s := b.status(); s.Waiting != why || s.Publishing {
				t.Errorf("status %+v, want to be waiting because %s", s, why)
			}
		}
		b.see(nobody)
		r.stays(40*time.Second, first)
		b.see(n2Leads)
		r.within(2*time.Second, second)
	})
}

// A write whose answer was lost may have been done: what stands is read first.
func TestAnswerIsLost(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.deaf.Store(true)
		a.see(n1Leads)
		r.within(time.Second, first)
		a.deaf.Store(false)
		r.until(4*time.Second, "the end of the trouble", func() bool { return a.status().Err == nil && a.status().Instances == 2 })
		if n := r.asked("/txn"); n != 1 {
			t.Errorf("%d transactions, want the one that was done", n)
		}
	})
}

// What somebody else changes is undone, not more often than three times at once
// and every ten seconds; a switchover is written all the same.
func TestRepairs(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(2*time.Second, first)
		spoil := func() {
			r.consul.SetService("pgsteer-main", "pgsteer:main:n2", func(s *consultest.Service) { s.ServiceTags = []string{"primary"} })
		}
		spoil()
		r.within(3*time.Second, first)
		r.consul.Deregister("pgsteer-main", "pgsteer:main:n1")
		r.within(3*time.Second, first)
		r.consul.Deregister("pgsteer-main", "") // the whole node
		r.within(3*time.Second, first)
		spoil()
		r.until(4*time.Second, "the limit", func() bool { return a.status().Err != nil })
		r.within(11*time.Second, first)
		if s := a.status(); s.Repairs != 4 || s.Err != nil {
			t.Errorf("status %+v, want four repairs", s)
		}
		spoil()
		r.until(4*time.Second, "the limit", func() bool { return a.status().Err != nil })
		a.see(n2Leads)
		r.within(100*time.Millisecond, second)
	})
}

// Consul that is away, and a token that is refused, are told, and all is published
// within 5 s once it is mended, also when the session is gone by then.
func TestTrouble(t *testing.T) {
	for _, c := range []struct {
		name       string
		harm, mend func(*rig)
		told       string
	}{
		{"away", func(r *rig) { r.consul.Stop() }, func(r *rig) { r.consul.Start() }, "connection refused"},
		{"denied", func(r *rig) { r.consul.RequireToken("x") }, func(r *rig) { r.consul.RequireToken("") }, "status 403: Permission denied"},
		{"frozen", func(r *rig) { r.consul.Freeze() }, func(r *rig) { r.consul.Thaw() }, "no answer within 3s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			world(t, func(r *rig) {
				a := r.start("a", nil)
				a.see(n1Leads)
				r.within(2*time.Second, first)
				lock, _ := r.consul.Get("pgsteer/mesh/main")
				c.harm(r)
				a.see(n2Leads)
				r.until(20*time.Second, "trouble", func() bool { e := a.status().Err; return e != nil && strings.Contains(e.Error(), c.told) })
				r.stays(2*time.Minute, first)
				r.consul.EndSession(lock.Session)
				c.mend(r)
				r.within(5*time.Second, second)
				r.until(5*time.Second, "the end of the trouble", func() bool { return a.status().Err == nil })
			})
		})
	}
}

// A token may not write services: the transaction is refused as a whole.
func TestDeniedByTransaction(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		refuse := consultest.Fault{Status: 409, Text: `{"Errors":[{"OpIndex":1,"What":"Permission denied: token lacks permission 'node:write'"}]}`}
		r.consul.Script(func(q consultest.Request) consultest.Fault {
			if q.Path == "/txn" {
				return refuse
			}
			return consultest.Fault{}
		})
		a.see(n1Leads)
		r.until(4*time.Second, "the refusal", func() bool {
			e := a.status().Err
			return e != nil && strings.Contains(e.Error(), "write the instances of service main") && strings.Contains(e.Error(), "status 403: Permission denied: token lacks permission 'node:write'")
		})
		r.consul.Script(nil)
		r.within(3*time.Second, first)
	})
}

// A node that leaves is critical at once and deregistered after half a minute; one
// that comes back before that is what it was.
func TestDeparted(t *testing.T) {
	const alone, without = "n1 up/writer down/wrong_role no", "n1 primary passing, n2 critical"
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(2*time.Second, first)
		a.see(alone)
		r.within(100*time.Millisecond, without)
		r.stays(25*time.Second, without)
		a.see(n1Leads)
		r.within(100*time.Millisecond, first)
		a.see(alone)
		r.within(100*time.Millisecond, without)
		r.stays(29*time.Second, without)
		r.within(3*time.Second, "n1 primary passing")
	})
}

// Instances of others under the same name are told and never touched.
func TestForeign(t *testing.T) {
	world(t, func(r *rig) {
		r.consul.Register(consultest.Service{Node: "db1", ServiceID: "main/n1", ServiceName: "main", ServiceTags: []string{"master", "primary"}})
		a := r.start("a", nil)
		a.see(n1Leads)
		r.until(3*time.Second, "the warning", func() bool { e := a.status().Err; return e != nil && strings.Contains(e.Error(), "main/n1 on db1") })
		a.see(n2Leads)
		r.within(100*time.Millisecond, "main/n1 master primary , "+second)
		r.consul.Deregister("db1", "")
		r.until(3*time.Second, "the end of the warning", func() bool { return a.status().Err == nil })
	})
}

// More nodes than one transaction takes: the primary comes last, an instance comes
// with its check, and every transaction checks the lock.
func TestManyNodes(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		text := "n1 up/writer down/wrong_role no"
		for i := 2; i <= 80; i++ {
			text += fmt.Sprintf("\nn%d down/wrong_role up/replica yes", i)
		}
		a.see(text)
		r.until(3*time.Second, "all of them", func() bool { return len(r.consul.Published("main")) == 80 })
		var bodies []string
		for _, q := range r.consul.Requests() {
			if q.Path == "/txn" {
				bodies = append(bodies, string(q.Body))
			}
		}
		if len(bodies) != 2 || strings.Contains(bodies[0], `["primary"]`) || !strings.Contains(bodies[1], `["primary"]`) {
			t.Errorf("%d transactions, want two with the primary in the second", len(bodies))
		}
		for _, b := range bodies {
			if s, c := strings.Count(b, `"Service":{"Verb":"set"`), strings.Count(b, `"Check":{"Verb":"set"`); s != c || !strings.Contains(b, "check-session") {
				t.Errorf("%d instances and %d checks in one transaction, or no lock's check", s, c)
			}
		}
	})
}

// With Consul Enterprise every operation is in the client's namespace and partition.
func TestNamespace(t *testing.T) {
	world(t, func(r *rig) {
		r.tenant = [2]string{"team", "part"}
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(2*time.Second, first)
		for _, q := range r.consul.Requests() {
			if q.Path != "/txn" {
				continue
			}
			var ops []map[string]map[string]any
			if err := json.Unmarshal(q.Body, &ops); err != nil {
				t.Fatal(err)
			}
			for _, op := range ops {
				for kind, fields := range op {
					if fields == nil {
						continue
					}
					if inner, ok := fields[kind].(map[string]any); ok {
						fields = inner
					}
					if fields["Partition"] != "part" || kind != "Node" && fields["Namespace"] != "team" {
						t.Errorf("%s is in namespace %v and partition %v", kind, fields["Namespace"], fields["Partition"])
					}
				}
			}
		}
		r.wantTenant()
	})
}

// wantTenant wants every request so far to be in the client's namespace and partition.
func (r *rig) wantTenant() {
	r.t.Helper()
	for _, q := range r.consul.Requests() {
		if q.Query.Get("ns") != r.tenant[0] || q.Query.Get("partition") != r.tenant[1] {
			r.t.Errorf("%s %s is asked in namespace %q and partition %q", q.Method, q.Path, q.Query.Get("ns"), q.Query.Get("partition"))
		}
	}
}

// However many clusters there are, little is asked while nothing happens.
func TestManyClusters(t *testing.T) {
	world(t, func(r *rig) {
		const clusters = 40
		a := r.start("a", func(o *Options) {
			o.Clusters = make(map[string]Settings)
			for i := range clusters {
				name := fmt.Sprintf("c%d", i)
				o.Clusters[name] = Settings{Service: name}
			}
		})
		for i := range clusters {
			v := scene(t, r.now().Mono, n1Leads)
			v.Snapshot.Cluster = fmt.Sprintf("c%d", i)
			a.views.Set(v.Snapshot.Cluster, v)
		}
		r.until(time.Minute, "all", func() bool {
			done := 0
			for _, s := range a.p.Status() {
				done += s.Passing
			}
			return done == 2*clusters
		})
		before := r.asked("/")
		time.Sleep(3 * time.Minute)
		perSecond := float64(r.asked("/")-before) / 180
		t.Logf("%.2f requests a second for %d clusters", perSecond, clusters)
		if perSecond > 3 {
			t.Error("that is more than 3")
		}
	})
}
