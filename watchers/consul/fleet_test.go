package consul

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// Up to a hundred clusters each have a query of their own; one more, and none has.
func TestFleetGrowsAndShrinks(t *testing.T) {
	sail(t, crowd, func(t *testing.T, r *fleetRig) {
		if q := r.since(0); q.stale+q.sure != 0 || q.blocking != crowd {
			t.Errorf("requests of %d clusters: %+v, want a blocking query each and no transaction", crowd, q)
		}
		settle(r.agent, "more", "a")
		r.launch("more")
		r.wait(12 * time.Second)
		at := r.mark()
		r.wait(time.Minute)
		if q := r.since(at); q.plain+q.blocking+q.sure != 0 || q.stale == 0 {
			t.Errorf("requests of %d clusters: %+v, want stale transactions alone", crowd+1, q)
		}
		r.want("a", nil)

		last := r.ships[crowd]
		last.cancel()
		<-last.done
		r.ships = r.ships[:crowd]
		r.wait(time.Second)
		at = r.mark()
		r.wait(time.Minute)
		if q := r.since(at); q.stale+q.sure != 0 || q.plain < 5*crowd {
			t.Errorf("requests of %d clusters again: %+v, want plain reads alone", crowd, q)
		}
		for _, s := range r.ships {
			r.agent.Delete("service/" + s.name + "/leader")
		}
		r.wait(0)
		r.want("(none)", nil)
	})
}

// 1,000 quiet clusters cost at most 20 requests a second, and each is confirmed
// every ten seconds or so.
func TestFleetOfAThousand(t *testing.T) {
	const n, span = 1000, 30 * time.Second
	sail(t, n, func(t *testing.T, r *fleetRig) {
		r.wait(12 * time.Second)
		at := r.mark()
		r.wait(span)
		q := r.since(at)
		if rate := float64(q.all()) / span.Seconds(); rate > 20 || rate < 10 {
			t.Errorf("%.1f requests a second: %+v, want at most 20", rate, q)
		}
		for _, s := range r.ships {
			obs := s.all()
			for i := 2; i < len(obs); i++ {
				if gap := obs[i].at - obs[i-1].at; gap > defaultReadEvery+departEvery+100*time.Millisecond {
					t.Fatalf("%s was silent for %v", s.name, gap)
				}
			}
		}
		r.want("a", nil)
	})
}

// However the clusters came, their reads find together.
func TestFleetThatCameOneByOne(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newFleetRig(t, 0, ClientOptions{})
		defer r.stop()
		const n = 320
		for i := range n {
			settle(r.agent, scopeOf(i), "a")
			r.launch(scopeOf(i))
			r.wait(15 * time.Millisecond) // 4.8 s in all
		}
		r.wait(12 * time.Second)
		at := r.mark()
		r.wait(time.Minute)
		if q := r.since(at); q.all() > 8*60 {
			t.Errorf("requests in a minute: %+v, want at most 5 looks and 3 reads a second", q)
		}
	})
}

// lag is how long after a moment a watcher told a word.
func lag(t *testing.T, s *shipRig, since time.Duration, word string) time.Duration {
	t.Helper()
	for _, g := range s.all() {
		if g.at >= since && short(g.o) == word {
			return g.at - since
		}
	}
	t.Errorf("%s never told %s, last %s", s.name, word, s.last())
	return time.Hour
}

func switchOver(a *consultest.Agent, scope, to string) {
	a.Delete("service/" + scope + "/leader")
	a.Acquire("service/"+scope+"/leader", to, scope+"-"+to)
}

// A change in a quiet cluster is seen within a second; in one that somebody is
// in doubt of, at once.
func TestFleetSeesANewLeader(t *testing.T) {
	sail(t, 150, func(t *testing.T, r *fleetRig) {
		for i := range 20 {
			r.wait(137 * time.Millisecond)
			s, at := r.ships[i*7], time.Since(r.began)
			switchOver(r.agent, s.name, "b")
			r.wait(3 * time.Second)
			if d := lag(t, s, at, "b"); d > lookEvery+2*gatherFor {
				t.Errorf("%s: told after %v, want a second", s.name, d)
			}
		}
		r.wait(unsettledFor + manyWait)
		doubtful, before := r.ships[149], r.mark()
		for range 20 { // as the engine does
			doubtful.w.Confirm()
			r.wait(500 * time.Millisecond)
		}
		if q := r.since(before); q.blocking == 0 || q.blocking > 3 {
			t.Errorf("requests: %+v, want a blocking query", q)
		}
		at := time.Since(r.began)
		switchOver(r.agent, doubtful.name, "b")
		r.wait(time.Second)
		if d := lag(t, doubtful, at, "b"); d > gatherFor {
			t.Errorf("told after %v in doubt, want at once", d)
		}
		r.wait(unsettledFor + manyWait)
		before = r.mark()
		r.wait(30 * time.Second)
		if q := r.since(before); q.blocking != 0 {
			t.Errorf("requests: %+v, want no blocking query once all is quiet", q)
		}
	})
}

// An absent key is believed only after a consistent read, and told within a second.
func TestFleetConfirmsAnAbsentLeader(t *testing.T) {
	sail(t, 110, func(t *testing.T, r *fleetRig) {
		r.agent.Script(func(q consultest.Request) consultest.Fault {
			return consultest.Fault{Empty: q.Path == "/txn" && !q.Consistent}
		})
		r.wait(30 * time.Second)
		r.want("a", nil)
		r.agent.Script(nil)
		at := time.Since(r.began)
		r.agent.Delete("service/" + scopeOf(3) + "/leader")
		r.wait(2 * time.Second)
		r.want("a", map[string]string{scopeOf(3): "(none)"})
		if d := lag(t, r.ships[3], at, "(none)"); d > lookEvery+4*gatherFor {
			t.Errorf("told after %v, want a second", d)
		}
	})
}

// A server that is behind the others says nothing that is believed.
func TestFleetDistrustsOldAnswers(t *testing.T) {
	old := consultest.Fault{Pairs: []consultest.Pair{
		{Key: "service/" + scopeOf(5) + "/leader", Value: []byte("b"), Session: "s", ModifyIndex: 3},
		{Key: "service/" + scopeOf(5) + "/members/b", Value: []byte(member("primary", "192.0.2.99:5432")), ModifyIndex: 4},
	}}
	late, lost := old, old
	late.LastContact, lost.NoLeader = 2*time.Second, true
	for name, f := range map[string]consultest.Fault{"behind without knowing": old, "long without the leader": late, "no leader": lost} {
		t.Run(name, func(t *testing.T) {
			sail(t, 105, func(t *testing.T, r *fleetRig) {
				r.agent.Script(func(q consultest.Request) consultest.Fault {
					if q.Stale {
						return f
					}
					return consultest.Fault{}
				})
				r.wait(35 * time.Second)
				r.want("a", nil)
				for _, s := range r.ships {
					for _, g := range s.all() {
						if w := short(g.o); w != "a" {
							t.Fatalf("%s told %s, want nothing of the old answer", s.name, w)
						}
					}
				}
			})
		})
	}
}

// A server that has not heard of a change yet does not undo it, and costs little.
func TestFleetKeepsWhatIsNewer(t *testing.T) {
	sail(t, 105, func(t *testing.T, r *fleetRig) {
		before := consultest.Fault{Pairs: r.agent.Pairs()}
		switchOver(r.agent, scopeOf(5), "b")
		r.wait(3 * time.Second)
		b := map[string]string{scopeOf(5): "b"}
		r.want("a", b)
		r.agent.Script(func(q consultest.Request) consultest.Fault {
			if q.Stale {
				return before
			}
			return consultest.Fault{}
		})
		at := r.mark()
		r.wait(35 * time.Second)
		r.want("a", b)
		if q := r.since(at); q.sure > 4 {
			t.Errorf("requests: %+v, want a consistent read for each stale one that is behind", q)
		}
		told := map[string]int{}
		for _, g := range r.ships[5].all() {
			told[short(g.o)]++
			if told["b"] > 0 && short(g.o) != "b" {
				t.Errorf("%s was told after b", short(g.o))
			}
		}
	})
}

// The word of a server is as old as its contact with the leader.
func TestFleetAgesAnswers(t *testing.T) {
	sail(t, 120, func(t *testing.T, r *fleetRig) {
		r.agent.Script(func(q consultest.Request) consultest.Fault {
			if q.Stale {
				return consultest.Fault{LastContact: 700 * time.Millisecond}
			}
			return consultest.Fault{}
		})
		r.wait(25 * time.Second)
		obs := r.ships[0].all()
		o := obs[len(obs)-1].o
		if age := o.At.Mono.Sub(o.AskedAt.Mono); age < 700*time.Millisecond || age > 700*time.Millisecond+gatherFor || o.Authority == nil {
			t.Errorf("%+v is told as %v old, want 700ms more than the question took", o, age)
		}
		if age := o.At.Wall.Sub(o.AskedAt.Wall); age < 700*time.Millisecond {
			t.Errorf("by the wall clock it is %v old", age)
		}
	})
}

// When all clusters change at once, there is no blocking query for most of them,
// and each is told all the same.
func TestFleetChangesAtOnce(t *testing.T) {
	sail(t, 150, func(t *testing.T, r *fleetRig) {
		r.wait(time.Minute)
		at := time.Since(r.began)
		for _, s := range r.ships {
			switchOver(r.agent, s.name, "b")
		}
		r.wait(3 * time.Second)
		for _, s := range r.ships {
			if d := lag(t, s, at, "b"); d > lookEvery+3*gatherFor {
				t.Fatalf("%s told after %v, want a second", s.name, d)
			}
		}
	})
}

// When all clusters are in doubt at once, blocking queries and transactions stay
// within their bounds, and each cluster is read all the same.
func TestFleetInDoubt(t *testing.T) {
	const n = 200
	sail(t, n, func(t *testing.T, r *fleetRig) {
		at, mark := time.Since(r.began), r.mark()
		for _, s := range r.ships {
			switchOver(r.agent, s.name, "b")
		}
		for range 20 {
			for _, s := range r.ships {
				s.w.Confirm()
			}
			r.wait(500 * time.Millisecond)
			if w := r.c.fleet.watches; w > maxWatches {
				t.Fatalf("%d blocking queries at once, want at most %d", w, maxWatches)
			}
		}
		q := r.since(mark)
		if q.blocking < maxWatches || q.sure > 10*txnRate+txnBurst || q.plain > 10*maxWatches {
			t.Errorf("requests in 10 s: %+v", q)
		}
		for _, s := range r.ships {
			if d := lag(t, s, at, "b"); d > 2*time.Second {
				t.Fatalf("%s told after %v", s.name, d)
			}
		}
	})
}

// A Consul that is no Enterprise ignores a namespace in transactions, and refuses
// it in plain reads: those come first.
func TestFleetInANamespace(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newFleetRig(t, 110, ClientOptions{Namespace: "team"})
		defer r.stop()
		r.wait(30 * time.Second)
		r.want("a", nil)
		if q := r.since(0); q.plain < 110 || q.stale == 0 {
			t.Errorf("requests: %+v, want a plain read of each and then transactions", q)
		}
		r.agent.Script(func(q consultest.Request) consultest.Fault {
			if q.Path != "/txn" {
				return consultest.Fault{Status: 400, Text: `Invalid query parameter: "ns" - Namespaces are a Consul Enterprise feature`}
			}
			return consultest.Fault{Empty: true}
		})
		r.wait(30 * time.Second)
		r.want("!store", nil)
		for _, q := range r.agent.Requests() {
			if q.Query.Get("ns") != "team" {
				t.Fatalf("request %s without the namespace", fmt.Sprint(q.Path, q.Query))
			}
		}
	})
}
