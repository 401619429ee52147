package mesh

import (
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
	"github.com/pgsteer/pgsteer/watchers"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// A publisher that keeps its session and cannot write leaves the lock to one that can,
// says so, and is the last to take it again.
func TestUnableLeaves(t *testing.T) {
	for _, harm := range []string{hangs, refused403, refusedAll} {
		t.Run(harm, func(t *testing.T) {
			world(t, func(r *rig) {
				a := r.start("a", nil)
				a.see(n1Leads)
				r.within(2*time.Second, first)
				b := r.start("b", nil)
				b.see(n2Leads)
				r.stays(2*time.Second, first)
				a.lame.Store(harm)
				a.see(n2Leads)
				r.stays(4*time.Second, first)
				r.within(9*time.Second, second)
				r.until(4*time.Second, "a's word on it", func() bool {
					s := a.status()
					return !s.Publishing && s.Publisher == "b" && s.Err != nil && strings.Contains(s.Err.Error(), "left that to others at ") &&
						strings.Contains(s.Err.Error(), "write the instances of service main") && !strings.Contains(s.Err.Error(), "tried again within")
				})
				r.stays(time.Minute, second)
				if s := a.status(); s.Err != nil || s.Publishing || !b.status().Publishing {
					t.Errorf("after the bar a is %+v", s)
				}
				// Now it is one like others, and one that cannot write hands on again.
				c := r.start("c", nil)
				c.see(n1Leads)
				a.see(n1Leads)
				b.stop()
				r.within(11*time.Second, first)
			})
		})
	}
}

// One that is alone goes on trying, the more rarely the longer, publishes within 5 s once
// it can, with another token at once, and hands on to one that comes later.
func TestUnableAlone(t *testing.T) {
	for _, token := range []bool{false, true} {
		world(t, func(r *rig) {
			r.token = filepath.Join(t.TempDir(), "token")
			rotate := func(to string) {
				if err := os.WriteFile(r.token, []byte(to), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			rotate("one")
			a := r.start("a", nil)
			a.see(n1Leads)
			r.within(2*time.Second, first)
			a.lame.Store(refused403)
			a.see(n2Leads)
			for range 3 { // it takes the lock back each time
				r.until(25*time.Second, "a lock that is free", func() bool { p, _ := r.consul.Get("pgsteer/mesh/main"); return p.Session == "" })
				if token {
					break
				}
				r.until(4*time.Second, "a lock that is taken", func() bool { p, _ := r.consul.Get("pgsteer/mesh/main"); return p.Session != "" })
			}
			a.lame.Store("")
			within := 5 * time.Second
			if token {
				rotate("another")
				within = 1500 * time.Millisecond
			}
			r.within(within, second)
			if s := a.status(); !s.Publishing || s.Err != nil {
				t.Errorf("status %+v", s)
			}
			a.lame.Store(refused403)
			a.see(n1Leads)
			before := r.asked("/kv/pgsteer/mesh/main")
			r.stays(6*time.Minute, second)
			if n := r.asked("/kv/pgsteer/mesh/main") - before; n > 24 {
				t.Errorf("the lock is taken and left %d times", n)
			}
			b := r.start("b", nil)
			b.see(n1Leads)
			r.within(unfitMost+5*time.Second, first)
		})
	}
}

// The maintenance of an agent is no word on the nodes for all who ask Consul: it leaves
// publishing to others, and without any what stands stays.
func TestAgentMaintenanceLeaves(t *testing.T) {
	const out = "n1 drain/maintenance drain/maintenance no\nn2 drain/maintenance drain/maintenance yes"
	world(t, func(r *rig) {
		aside := func(v *topology.View) {
			v.Maintenance.Records, v.At = []topology.MaintenanceRecord{{Agent: true, Until: time.Now().Add(time.Hour)}}, time.Now()
		}
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(2*time.Second, first)
		a.see(out, aside)
		r.stays(time.Minute, first)
		if s := a.status(); s.Waiting != whyAside || s.Publishing {
			t.Errorf("status %+v", s)
		}
		b := r.start("b", nil)
		b.see(n2Leads)
		r.within(2*time.Second, second)
		a.see(n1Leads) // its maintenance is over, and b goes aside
		b.see(out, aside)
		r.stays(4*time.Second, second)
		r.within(4*time.Second, first)
		// The maintenance of the whole cluster is a word for all.
		a.see(out, func(v *topology.View) {
			v.Maintenance.Records, v.At = []topology.MaintenanceRecord{{}, {Agent: true, Until: time.Now()}}, time.Now()
		})
		r.within(time.Second, "n1 primary critical, n2 replica async critical")
	})
}

// One that has lost the lock without noticing, and finds what another has written, does
// not say that it has undone it.
func TestLostLockIsNoRepair(t *testing.T) {
	world(t, func(r *rig) {
		var log logtest.Log
		a := r.start("a", func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		a.see(n1Leads)
		r.within(2*time.Second, first)
		lock, _ := r.consul.Get("pgsteer/mesh/main")
		r.consul.Script(func(q consultest.Request) consultest.Fault { // the watch hears of nothing
			return consultest.Fault{Hang: strings.HasPrefix(q.Path, "/kv/") && q.Method == http.MethodGet}
		})
		r.consul.EndSession(lock.Session)
		r.consul.Acquire("pgsteer/mesh/main", "other", "another session")
		r.consul.SetService("pgsteer-main", "pgsteer:main:n2", func(s *consultest.Service) { s.ServiceTags = []string{"replica", "sync"} })
		r.until(5*time.Second, "a try", func() bool { return r.asked("/txn") == 2 })
		r.stays(5*time.Second, "n1 primary passing, n2 replica sync passing")
		a.stop()
		if strings.Contains(log.String(), "written again") {
			t.Errorf("the log says:\n%s", log.String())
		}
	})
}

// A publisher that cannot renew its session does not say that it publishes once Consul
// may have ended that.
func TestUnrenewed(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(2*time.Second, first)
		r.consul.RequireToken("x")
		begin := time.Now()
		r.stays(6*time.Second, first)
		if s := a.status(); !s.Publishing || s.Err == nil || !s.Unrenewed.IsZero() {
			t.Errorf("status %+v", s)
		}
		r.stays(8*time.Second, first)
		s := a.status()
		if age := begin.Sub(s.Unrenewed); s.Publishing || s.Publisher != "a" || age < 0 || age > 4*time.Second || s.Ends.Sub(s.Unrenewed) != 20*time.Second {
			t.Errorf("status %+v, not renewed since %s before the token was refused", s, age)
		}
		r.consul.RequireToken("")
		r.until(5*time.Second, "the end of the trouble", func() bool { s := a.status(); return s.Publishing && s.Unrenewed.IsZero() && s.Err == nil })
	})
}

// What failed before a lock was lost does not count against whoever gets it again.
func TestLockForgets(t *testing.T) {
	l := lock{nudge: watchers.NewNudge(), fit: true, held: true, fault: errors.New("refused"), failing: topology.Mono(time.Second)}
	late := l.failing.Add(time.Hour)
	if !l.leaves(late) {
		t.Error("it keeps a lock with which it cannot write")
	}
	if l.set(false); l.leaves(late) {
		t.Error("it leaves what it has not")
	}
	if l.set(true); l.leaves(late) {
		t.Error("it leaves a lock that it has not tried")
	}
}
