package mesh

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// fleets are sizes of fleets that are published in fake time.
func fleets() []int {
	if underRace || testing.Short() {
		return []int{100, 400}
	}
	return []int{100, 400, 10_000}
}

// window is how long a rate is counted that is to be about two a second: a whole round of
// reads, or as much of it as costs no minute of real time.
func window(n int) time.Duration { return min(time.Duration(n)*readGap, 60*time.Second) }

// startFleet starts a publisher of n clusters, which says nothing; views are theirs.
func (r *rig) startFleet(name string, n int, views *latest.Map[string, topology.View]) *agent {
	return r.start(name, func(o *Options) {
		o.Logger = slog.New(slog.DiscardHandler) // ten thousand lines of it
		o.Name, o.Views = name, views
		o.Clusters = make(map[string]Settings)
		for i := range n {
			o.Clusters[fleetName(i)] = Settings{Service: fleetName(i)}
		}
	})
}

// counted lets time pass until ok, and returns how long that took and the requests
// meanwhile, and the most of them within a second and within ten.
func (r *rig) counted(most time.Duration, ok func(passed time.Duration) bool) (took time.Duration, all, inOne, inTen int) {
	r.t.Helper()
	begin, before := time.Now(), r.consul.Asked()
	counts := []int{before}
	for !ok(time.Since(begin)) {
		if time.Since(begin) > most {
			r.t.Fatalf("it takes more than %s", most)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		counts = append(counts, r.consul.Asked())
		last := len(counts) - 1
		inOne = max(inOne, counts[last]-counts[last-1])
		inTen = max(inTen, counts[last]-counts[max(0, last-10)])
	}
	return time.Since(begin), r.consul.Asked() - before, inOne, inTen
}

// whole reports whether all clusters are published by an agent and nothing is wrong.
func (a *agent) whole() bool {
	for _, s := range a.p.stations {
		if st := s.report(); !st.Publishing || st.Instances != 2 || st.Err != nil {
			return false
		}
	}
	return true
}

// What stands is read twice a second for all clusters together, however many there
// are, and nothing is asked beside that but for the session and the locks. A change of
// roles is published at once all the same, and Consul is flooded neither by the first
// publishing nor by that of another agent after a publisher's death.
func TestRequestsOfMany(t *testing.T) {
	for _, n := range fleets() {
		world(t, func(r *rig) {
			began := time.Now()
			views := new(latest.Map[string, topology.View])
			for i := range n {
				views.Set(fleetName(i), quiet(fleetName(i), r.now().Mono))
			}
			a := r.startFleet("a", n, views)
			took, all, one, ten := r.counted(time.Hour, func(time.Duration) bool { return a.whole() })
			t.Logf("%d clusters: published after %s with %d requests, at most %d in a second and %d in ten", n, took, all, one, ten)
			r.bounded(n, ten)
			r.counted(time.Hour, func(d time.Duration) bool { return d >= window(n) })
			took, all, _, ten = r.counted(time.Hour, func(d time.Duration) bool { return d >= window(n) })
			if perSecond := float64(ten) / 10; perSecond > 6 {
				t.Errorf("%d clusters: up to %.1f requests a second in ten seconds, want them spread", n, perSecond)
			}
			rate := float64(all) / took.Seconds()
			if t.Logf("%d clusters: %.2f requests a second", n, rate); rate > 2.6 || rate < 1.9 {
				t.Errorf("%d clusters cost %.2f requests a second, want about two", n, rate)
			}
			r.changeOne(a, n/2)
			r.takeover(a, n)
			t.Logf("%d clusters: all that is %s of fake time", n, time.Since(began).Round(time.Second))
		})
	}
}

// bounded wants no more requests in ten seconds than all stations together may have, and
// beside those the transactions that take locks, and word of the locks five times a second.
func (r *rig) bounded(n, inTen int) {
	r.t.Helper()
	const session, changes = 5, 10 * 3
	if most := requestBurst + takesPerSecond + session + changes + 10*(requestRate+takesPerSecond+5); inTen > most {
		r.t.Errorf("%d clusters: %d requests in ten seconds, want at most %d", n, inTen, most)
	}
}

// changeOne wants a change of one cluster's roles to be published at once.
func (r *rig) changeOne(a *agent, i int) {
	r.t.Helper()
	a.p.o.Views.Set(fleetName(i), swapped(fleetName(i), r.now().Mono))
	r.changed(100*time.Millisecond, i)
}

// changed wants a change of one cluster's roles to stand.
func (r *rig) changed(within time.Duration, i int) {
	r.t.Helper()
	name := fleetName(i)
	r.until(within, "the change of roles", func() bool {
		all := r.consul.Published(name)
		return all[ID(name, "n2")].ServiceMeta[metaRole] == RolePrimary && all[ID(name, "n1")].ServiceMeta[metaRole] != RolePrimary
	})
}

// takeover: the publisher dies, another one has all locks soon, reads everything anew and
// writes nothing but what has changed, and that at once.
func (r *rig) takeover(a *agent, n int) {
	r.t.Helper()
	b := r.startFleet("b", n, a.p.o.Views)
	time.Sleep(5 * time.Second)
	a.cut.Store(true)
	a.stop()
	b.p.o.Views.Set(fleetName(0), swapped(fleetName(0), r.now().Mono)) // while nobody publishes
	time.Sleep(2 * b.p.o.SessionTTL)
	for _, s := range r.consul.Sessions() {
		if s.Name == "pgsteer publisher a" {
			r.consul.EndSession(s.ID)
		}
	}
	held := time.Duration(0)
	took, all, one, ten := r.counted(time.Hour, func(d time.Duration) bool {
		if held == 0 && b.p.locks.holds() == n {
			held = d
			r.changed(0, 0)
			for i := 1; i < 10; i++ {
				r.changeOne(b, i) // while others wait to be read
			}
		}
		return b.whole()
	})
	r.t.Logf("%d clusters: taken over, all locks after %s, all read after %s with %d requests, at most %d in a second and %d in ten", n, held, took, all, one, ten)
	r.bounded(n, ten)
	for _, s := range b.p.Status()[10:] {
		if s.Writes != 0 {
			r.t.Fatalf("what stands was written again: %+v", s)
		}
	}
}

// holds counts the locks that are held.
func (k *locks) holds() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.all {
		if l.held {
			n++
		}
	}
	return n
}

// What mode local has left at the Consul agent is asked once for all clusters, be that in
// vain, and takes none of the others' requests.
func TestTidyOfMany(t *testing.T) {
	const n = 600 // so many that each of them alone would take more than there is
	world(t, func(r *rig) {
		views := new(latest.Map[string, topology.View])
		for i := range n {
			views.Set(fleetName(i), quiet(fleetName(i), r.now().Mono))
		}
		a := r.startFleet("a", n, views)
		r.counted(time.Minute, func(time.Duration) bool { return a.whole() })
		r.consul.Script(func(q consultest.Request) consultest.Fault {
			if q.Path == "/agent/services" {
				return consultest.Fault{Status: 500, Text: "no"}
			}
			return consultest.Fault{}
		})
		before := r.asked("/agent/services")
		time.Sleep(10 * time.Second) // the first publishing has taken all
		least := float64(requestBurst)
		for range 10 * tidyEvery / (100 * time.Millisecond) {
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
			least = min(least, a.p.requests.Tokens())
		}
		if least < requestBurst-20 {
			t.Errorf("there was room for %.0f requests, want what is not asked to take none", least)
		}
		if asked := r.asked("/agent/services") - before; asked < 10 || asked > 12 {
			t.Errorf("asked %d times in ten periods, want about ten", asked)
		}
	})
}

// What waited behind the requests of other clusters is what is decided by then.
func TestQueuedIsNewest(t *testing.T) {
	for _, waiting := range []int{0, 1, 2} { // requests of this one that are through already
		world(t, func(r *rig) {
			a := r.start("a", nil)
			a.p.requests.ReserveN(time.Now(), requestBurst-waiting)
			a.p.requests.ReserveN(time.Now(), requestBurst)
			a.p.hasty.ReserveN(time.Now(), requestBurst)
			a.p.hasty.ReserveN(time.Now(), requestBurst)
			a.see(n1Leads)
			time.Sleep(time.Second)
			synctest.Wait()
			a.see(n2Leads)
			r.stays(500*time.Millisecond, "")
			r.until(10*time.Second, "something", func() bool { return r.is() != "" })
			r.within(0, second)
		})
	}
}
