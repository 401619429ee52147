package mesh

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// A publisher that lost the lock without noticing cannot write.
func TestLostLock(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(2*time.Second, first)
		lock, _ := r.consul.Get("pgsteer/mesh/main")
		// The watch hears of nothing: its questions hang.
		r.consul.Script(func(q consultest.Request) consultest.Fault {
			return consultest.Fault{Hang: strings.HasPrefix(q.Path, "/kv/") && q.Method == http.MethodGet}
		})
		r.consul.EndSession(lock.Session)
		r.consul.Acquire("pgsteer/mesh/main", "other", "another session")
		a.see(n2Leads)
		r.until(time.Second, "a try", func() bool { return r.asked("/txn") == 2 })
		if s := a.status(); s.Err != nil {
			t.Errorf("status %+v", s)
		}
		r.stays(30*time.Second, first)
		r.consul.Script(nil)
		r.until(40*time.Second, "it knows who publishes", func() bool { return a.status().Publisher == "other" && !a.status().Publishing })
		r.consul.EndSession("another session")
		r.within(2*time.Second, second)
	})
}

// One of two publishes. A stop hands over at once, a death within twice the TTL,
// which is when Consul ends the session.
func TestHandover(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(2*time.Second, first)
		b := r.start("b", nil)
		b.see(n2Leads) // it sees otherwise, and may not say so
		r.stays(10*time.Second, first)
		if s := b.status(); s.Publishing || s.Publisher != "a" || s.Err != nil {
			t.Errorf("status %+v", s)
		}
		a.stop()
		r.within(100*time.Millisecond, second)
		c := r.start("c", nil)
		c.see(n1Leads)
		r.stays(5*time.Second, second)
		lock, _ := r.consul.Get("pgsteer/mesh/main")
		b.cut.Store(true)
		r.stays(20*time.Second, second)
		r.consul.EndSession(lock.Session)
		r.within(100*time.Millisecond, first)
		// The one that was cut off comes back with another decision, and may not write.
		b.cut.Store(false)
		b.see(n2Leads)
		r.stays(30*time.Second, first)
		if s := b.status(); s.Publishing || s.Publisher != "c" || s.Err != nil {
			t.Errorf("status %+v", s)
		}
	})
}

// The rest of the agents learns of a death at once when a refused token is taken
// again, however long the watch on the locks would pause by itself.
func TestHandoverAfterDenial(t *testing.T) {
	for range 6 { // the pause is drawn at random
		world(t, func(r *rig) {
			a := r.start("a", nil)
			a.see(n1Leads)
			r.within(2*time.Second, first)
			b := r.start("b", nil)
			b.see(n2Leads)
			r.until(2*time.Second, "b's knowledge", func() bool { return b.status().Publisher == "a" })
			r.consul.RequireToken("x")
			r.stays(time.Minute, first)
			lock, _ := r.consul.Get("pgsteer/mesh/main")
			a.cut.Store(true)
			r.consul.EndSession(lock.Session)
			r.consul.RequireToken("")
			r.within(5*time.Second, second)
		})
	}
}

// A write that is refused because of a session of before does not cost the lock that
// the next session has got meanwhile.
func TestLateRefusal(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", func(o *Options) { o.Timeout = 20 * time.Second })
		a.see(n1Leads)
		r.within(time.Second, first)
		lock, _ := r.consul.Get("pgsteer/mesh/main")
		a.slow.Store(int64(8 * time.Second))
		a.see(n2Leads)
		synctest.Wait()
		r.consul.EndSession(lock.Session)
		r.until(6*time.Second, "another session", func() bool {
			now, _ := r.consul.Get("pgsteer/mesh/main")
			return now.Session != "" && now.Session != lock.Session
		})
		a.slow.Store(0)
		r.within(5*time.Second, second)
	})
}

// An agent that cannot tell who is primary leaves the lock to one that can.
func TestBlindLeaves(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(2*time.Second, first)
		b := r.start("b", nil)
		b.see(n2Leads)
		r.stays(2*time.Second, first)
		a.see(nobody)
		r.stays(4*time.Second, first)
		r.within(4*time.Second, second)
		if a.status().Waiting != whyUnknown || !b.status().Publishing {
			t.Errorf("status %+v and %+v", a.status(), b.status())
		}
	})
}

// A key that was deleted before the watch has seen it held is taken again.
func TestLockDeleted(t *testing.T) {
	world(t, func(r *rig) {
		a := r.start("a", nil)
		a.see(n1Leads)
		r.within(time.Second, first)
		r.consul.Delete("pgsteer/mesh/main")
		a.see(n2Leads)
		r.within(2*time.Second, second)
	})
}

// Consul's state is put back to one of before this agent came: the session, the lock and
// all that was published are gone, and its watches, which wait for an index that is far
// away now, tell nothing of that. All is whole again soon, however long the session is not
// due to be renewed.
func TestRestored(t *testing.T) {
	for age := time.Duration(0); age < 4*time.Second; age += 300 * time.Millisecond {
		world(t, func(r *rig) {
			r.consul.Script(func(q consultest.Request) consultest.Fault {
				return consultest.Fault{Hang: strings.HasPrefix(q.Path, "/kv/") && q.Query.Has("index")}
			})
			a := r.start("a", nil)
			a.see(n1Leads)
			r.within(2*time.Second, first)
			r.stays(age, first)
			lock, _ := r.consul.Get("pgsteer/mesh/main")
			r.consul.EndSession(lock.Session)
			r.consul.Delete("pgsteer/mesh/main")
			r.consul.Deregister("pgsteer-main", "")
			r.within(3*time.Second, first)
			if s := a.status(); !s.Publishing || s.Err != nil {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// A lock that the token may not take, be it that it has lost the right while another one's
// session ended, costs no other cluster anything. It is taken soon after the right is given.
func TestDeniedLock(t *testing.T) {
	world(t, func(r *rig) {
		deny := func(q consultest.Request) consultest.Fault {
			if q.Path == "/kv/pgsteer/mesh/alpha" && q.Method == http.MethodPut {
				return consultest.Fault{Status: 403, Text: "Permission denied: token lacks permission 'key:write' on \"pgsteer/mesh/alpha\""}
			}
			return consultest.Fault{}
		}
		r.consul.Script(deny)
		a := r.start("a", func(o *Options) {
			o.Clusters = map[string]Settings{"alpha": {Service: "alpha"}, "beta": {Service: "beta"}}
		})
		for name := range a.p.o.Clusters {
			a.views.Set(name, quiet(name, r.now().Mono))
		}
		published := func(name string) func() bool {
			return func() bool { return len(r.consul.Published(name)) == 2 }
		}
		told := func() bool {
			alpha, beta := a.p.Status()[0], a.p.Status()[1]
			return !alpha.Publishing && alpha.Err != nil && strings.Contains(alpha.Err.Error(), "'key:write'") && beta.Publishing && beta.Err == nil
		}
		r.until(2*time.Second, "beta", published("beta"))
		r.until(2*time.Second, "word of it", told)
		lock, _ := r.consul.Get("pgsteer/mesh/beta")
		r.consul.EndSession(lock.Session)
		r.until(3*time.Second, "beta's lock again", func() bool {
			now, _ := r.consul.Get("pgsteer/mesh/beta")
			return now.Session != "" && now.Session != lock.Session
		})
		r.until(3*time.Second, "word of it again", told)
		before := r.asked("/kv/pgsteer/mesh/alpha")
		for range 33 { // of another publisher's locks, each news for this one
			r.consul.Acquire("pgsteer/mesh/other", "other", "another session")
			time.Sleep(300 * time.Millisecond)
			r.consul.EndSession("another session")
			time.Sleep(300 * time.Millisecond)
		}
		if n := r.asked("/kv/pgsteer/mesh/alpha") - before; n > 21 {
			t.Errorf("it was tried %d times in 20 s, want once a second", n)
		}
		r.consul.Acquire("pgsteer/mesh/alpha", "other", "another session")
		r.until(2*time.Second, "no trouble while another one has it", func() bool {
			s := a.p.Status()[0]
			return s.Publisher == "other" && s.Err == nil
		})
		r.consul.EndSession("another session")
		r.until(2*time.Second, "word of it again", told)
		r.consul.Script(nil)
		r.until(2*time.Second, "alpha", published("alpha"))
		r.until(2*time.Second, "no trouble", func() bool { return a.p.Status()[0].Err == nil })
	})
}

// What was denied comes behind what was not, or there may be nothing left for that.
func TestDeniedLast(t *testing.T) {
	at := 2 * topology.Mono(locksEvery)
	k := &locks{o: &Options{Now: func() topology.Clock { return topology.Clock{Mono: at} }}, session: "s", heard: true, all: map[string]*lock{
		"a": {fit: true, denied: errLost, deniedAt: at / 2}, "b": {fit: true}, "c": {fit: true, denied: errLost, deniedAt: at/2 - 1}, "d": {fit: true},
		"e": {fit: true, denied: errLost, deniedAt: at - 1},
	}}
	if take, _ := k.due(); strings.Join(take, " ") != "b d c a" {
		t.Errorf("%q", take)
	}
}

// Nor does each of a few clusters cost time of its own when Consul does not answer.
func TestUnansweredLocks(t *testing.T) {
	world(t, func(r *rig) {
		r.consul.Script(func(q consultest.Request) consultest.Fault {
			return consultest.Fault{Hang: strings.HasPrefix(q.Path, "/kv/pgsteer/mesh/c") && q.Method == http.MethodPut}
		})
		views := new(latest.Map[string, topology.View])
		for i := range fewLocks {
			views.Set(fleetName(i), quiet(fleetName(i), r.now().Mono))
		}
		a := r.startFleet("a", fewLocks, views)
		time.Sleep(30 * time.Second)
		if n := r.asked("/kv/pgsteer/mesh/c"); n < 7 || n > 11 {
			t.Errorf("%d tries in 30 s, want one each %s", n, a.p.o.Timeout)
		}
	})
}
