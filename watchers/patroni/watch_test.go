package patroni

import (
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/patronitest"
)

type (
	cluster = patronitest.Cluster
	member  = patronitest.Member
	store   = patronitest.Store
)

func TestSteadyState(t *testing.T) {
	run(t, func(t *testing.T, _ *cluster, r *rig) {
		begin := time.Now()
		r.wait(time.Minute)
		r.want("a of 3")
		for _, m := range []string{"a", "b", "c"} {
			if n := r.requests(begin, m, pathWord); n < 53 || n > 67 {
				t.Errorf("%s was asked for its word %d times a minute, want about 60", m, n)
			}
		}
		if n := r.requests(begin, "a", pathView); n < 10 || n > 13 {
			t.Errorf("the leader was asked for its list %d times a minute, want about 12", n)
		}
		if n := r.requests(begin, "b", "") + r.requests(begin, "c", ""); n > 2*67 {
			t.Errorf("the replicas were asked %d times", n)
		}
		if n := r.requests(begin, "a", "/config"); n < 1 || n > 3 {
			t.Errorf("the configuration was asked for %d times a minute, want two", n)
		}
	})
}

// The first picture has the nodes, and the next one the dynamic configuration.
func TestFirstPicture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := patronitest.New("alpha", "a", "b", "c")
		r := newRig(t, c, options(c, patronitest.URL("b")))
		defer r.stop()
		r.wait(1500 * time.Millisecond)
		all := r.all()
		if first := all[0]; first.at != 0 || first.o.Nodes == nil || len(first.o.Nodes.Nodes) != 3 || first.o.Authority.Leader != "a" {
			t.Errorf("the first observation came after %v: %+v", first.at, first.o)
		}
		if a := all[1].o.Authority; a.TTL != 30*time.Second || a.Failsafe != topology.No || a.Pause != topology.No {
			t.Errorf("the second observation lacks the configuration: %+v", a)
		}
	})
}

func TestSwitchover(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		for begin := time.Now(); r.requests(begin, "a", pathView) == 0; {
			r.wait(10 * time.Millisecond)
		}
		r.since() // the list was just read, and is read again for a new leader alone
		c.Lead("b")
		c.Member(func(m *member) { m.New = false }, "b")
		r.wait(1200 * time.Millisecond)
		r.want("b of 3")
		a := r.all()[0].o.Authority
		if a.Timeline != 6 || a.Optime != 50000000 {
			t.Errorf("timeline %d at %d, want 6 and the new leader's position", a.Timeline, a.Optime)
		}
		if a.Members[0].Role != "replica" || a.Members[1].Role != "primary" {
			t.Errorf("the members are of before: %+v", a.Members)
		}
	})
}

func TestConfirmAsksAtOnce(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		r.wait(2 * time.Second)
		r.since()
		c.Lead("b")
		r.w.Confirm()
		synctest.Wait()
		r.want("b of 3")
		if at := r.first("b of 3"); at != 0 {
			t.Errorf("after %v, want at once", at)
		}
	})
}

// Confirm reads the list too, though it was read a moment ago.
func TestConfirmReadsTheList(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		c.Change(func(s *store) { s.Pause = true })
		r.w.Confirm()
		synctest.Wait()
		if r.last().Authority.Pause != topology.Yes {
			t.Error("the pause was not seen")
		}
	})
}

// After a round in which somebody answered and nothing was proven, the next one
// comes soon.
func TestDoubtIsHasty(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		c.Member(func(m *member) { m.Lock = false }, "a")
		var doubted atomic.Bool
		c.Script(func(q patronitest.Request) patronitest.Fault {
			if q.Path != pathView || doubted.Load() {
				return patronitest.Fault{}
			}
			return patronitest.Fault{Err: io.EOF}
		})
		for begin := time.Now(); r.requests(begin, "b", pathView) == 0; {
			r.wait(time.Millisecond)
		}
		doubted.Store(true)
		c.Member(func(m *member) { m.Lock = true }, "a")
		r.since()
		r.wait(5 * time.Second)
		if at := r.all()[0].at; at > 150*time.Millisecond {
			t.Errorf("the next proof came after %v", at)
		}
	})
}

// Without a leader's own word a round takes two questions a member, and comes half
// as often.
func TestLastingDoubtIsNotHasty(t *testing.T) {
	for _, c := range []struct {
		name string
		does func(c *cluster)
		want string
	}{
		{"only the lists of others name the leader", func(c *cluster) { c.Member(func(m *member) { m.Down = true }, "a") }, "a? of 3"},
		{"no leader", func(c *cluster) {
			c.Change(func(s *store) { s.Leader = "" })
			c.Member(func(m *member) { m.Lock = false }, "a")
		}, "(none) of 3"},
		{"nothing is proven", func(c *cluster) {
			c.Freeze("c")
			c.Change(func(s *store) { s.Leader = "" })
			c.Member(func(m *member) { m.Lock = false }, "a")
		}, "!store"},
	} {
		run(t, func(t *testing.T, cl *cluster, r *rig) {
			c.does(cl)
			r.wait(20 * time.Second)
			begin := time.Now()
			r.since()
			r.wait(time.Minute)
			r.want(c.want)
			if n := r.requests(begin, "b", ""); n < 50 || n > 74 {
				t.Errorf("%s: b was asked %d times a minute, want about 60", c.name, n)
			}
		})
	}
}

// The dynamic configuration is unknown two minutes after it could last be read, and
// an empty one says nothing.
func TestConfigurationIsForgotten(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		r.wait(2 * time.Second)
		c.Change(func(s *store) { s.Config = "" })
		r.wait(factsAge - 45*time.Second)
		if r.last().Authority.TTL == 0 {
			t.Error("it was forgotten at once")
		}
		r.wait(50 * time.Second)
		if a := r.last().Authority; a.TTL != 0 || a.Failsafe != topology.Unknown || a.Leader != "a" {
			t.Errorf("it is still believed: %+v", a)
		}
		c.Change(func(s *store) { s.Config = "{}" })
		r.wait(40 * time.Second)
		if a := r.last().Authority; a.Failsafe != topology.Unknown {
			t.Errorf("an empty configuration says that failsafe mode is off: %+v", a)
		}
	})
}

// A position on another timeline than the newest is no position of the cluster.
func TestPositionOfAnOldTimeline(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		c.Change(func(s *store) { s.History = `[[8,60000000,"x"]]` })
		r.wait(40 * time.Second)
		if a := r.last().Authority; a.Timeline != 9 || a.Optime != 0 {
			t.Errorf("timeline %d at %d, want 9 and no position", a.Timeline, a.Optime)
		}
	})
}

// The leader's PostgreSQL answers its Patroni, or does not.
func TestWordOfLife(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		r.wait(5 * time.Second)
		before := r.last().Authority.OptimeIndex
		if before < 4 {
			t.Errorf("the index moved %d times", before)
		}
		c.Member(func(m *member) { m.Away = true }, "a")
		r.wait(1200 * time.Millisecond)
		r.since()
		r.wait(5 * time.Second)
		all := r.all()
		if first, last := all[0].o.Authority, all[len(all)-1].o.Authority; first.OptimeIndex != last.OptimeIndex || last.Leader != "a" || last.Optime != 0 {
			t.Errorf("the index moved from %d to %d at %d, without a word of PostgreSQL", first.OptimeIndex, last.OptimeIndex, last.Optime)
		}
	})
}

func TestConfirmIsBounded(t *testing.T) {
	run(t, func(t *testing.T, _ *cluster, r *rig) {
		begin := time.Now()
		for range 600 {
			r.w.Confirm()
			r.wait(100 * time.Millisecond)
		}
		if n := r.requests(begin, "b", ""); n > 2*60+roundsBurst {
			t.Errorf("a replica was asked %d times a minute, want two a second", n)
		}
	})
}

// A leader that has just taken the key: its own status is from before, and its
// list is not.
func TestNewLeaderOfTwo(t *testing.T) {
	runOn(t, []string{"a", "b"}, func(t *testing.T, c *cluster, r *rig) {
		c.Member(func(m *member) { m.Hung = true }, "a")
		r.wait(20 * time.Second)
		r.want("!store") // b's word alone does not prove that a still leads
		r.since()
		c.Change(func(s *store) { delete(s.Members, "a") })
		c.Lead("b")
		r.wait(4 * time.Second)
		if at := r.first("b of 1"); at > 3*time.Second {
			t.Errorf("the new leader of two was named after %v", at)
		}
	})
}

// The silence of everybody is told soon, again and again, and no longer than it
// lasts; the second time is like the first. Every pause is as long as it can be.
func TestAuthorityLost(t *testing.T) {
	for _, c := range []struct {
		name string
		fail func(m *member)
		want string
		told time.Duration // at most, after the failure
		back time.Duration // at most, after its end
		text string
	}{
		{"silent", func(m *member) { m.Hung = true }, "!timeout", 9 * time.Second, 12 * time.Second, "no answer within"},
		{"refused", func(m *member) { m.Down = true }, "!refused", 3 * time.Second, 6 * time.Second, "connection refused"},
		{"no store in sight", func(m *member) { m.Blind = true }, "!store", 8 * time.Second, 6 * time.Second, "cannot read its store"},
	} {
		lost := func(t *testing.T, cl *cluster, r *rig) {
			t.Helper()
			cl.Member(c.fail)
			r.wait(30 * time.Second)
			if at := r.first(c.want); at > c.told || r.words()[len(r.words())-1] != c.want {
				t.Errorf("%s: told after %v, want within %v: %v", c.name, at, c.told, r.words())
			}
			if text := r.last().Failure.Text; !strings.Contains(text, c.text) {
				t.Errorf("%s: %q does not say %q", c.name, text, c.text)
			}
			before := r.first(c.want)
			for _, g := range r.all() {
				if gap := g.at - before; gap > 0 && (gap < repeatEvery || gap > 7*time.Second) {
					t.Errorf("%s: told again after %v, want every few seconds", c.name, gap)
				}
				before = max(before, g.at)
			}
			cl.Member(func(m *member) { m.Hung, m.Down, m.Blind = false, false, false })
			r.since()
			r.wait(20 * time.Second)
			if got := r.words(); got[len(got)-1] != "a of 3" {
				t.Errorf("%s: after its end %v", c.name, got)
			}
			if at := r.first("a of 3"); at > c.back {
				t.Errorf("%s: ended after %v, want within %v", c.name, at, c.back)
			}
			r.since()
		}
		runOn(t, []string{"a", "b", "c"}, func(t *testing.T, cl *cluster, r *rig) {
			lost(t, cl, r)
			lost(t, cl, r)
		}, func(w *Watcher) { w.jitter = func(d time.Duration) time.Duration { return d } })
	}
}

// The pauses after failures are drawn, so that agents do not come back in step.
func TestPausesAreDrawn(t *testing.T) {
	var s standing
	var drawn []time.Duration
	for range 5 {
		s.note(0, &trouble{}, func(d time.Duration) time.Duration { drawn = append(drawn, d); return 0 })
		if half := time.Duration(s.until); half != drawn[len(drawn)-1] {
			t.Errorf("%v is certain and %v is drawn", half, drawn[len(drawn)-1])
		}
	}
	want := []time.Duration{250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, pauseMost / 2}
	if !slices.Equal(drawn, want) {
		t.Errorf("drawn of %v, want %v", drawn, want)
	}
}

// A standby cluster stays one while it has no leader.
func TestStandbyClusterWithoutLeader(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		c.Change(func(s *store) { s.Config = `{"standby_cluster":{"host":"192.0.2.99"}}` })
		r.wait(7 * time.Second)
		if a := r.last().Authority; !a.StandbyCluster || a.Members[0].Role != "standby_leader" {
			t.Errorf("no standby cluster: %+v", a)
		}
		c.Change(func(s *store) { s.Leader = "" })
		c.Member(func(m *member) { m.Lock = false })
		r.wait(5 * time.Second)
		if a := r.last().Authority; !a.StandbyCluster || a.Leader != "" {
			t.Errorf("without a leader: %+v", a)
		}
	})
}

// Members whose PostgreSQL cannot be reached are members and no nodes.
func TestMembersWithoutAddress(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		c.Change(func(s *store) {
			for name, e := range s.Members {
				e.Host = ""
				s.Members[name] = e
			}
		})
		r.wait(7 * time.Second)
		r.since()
		r.wait(7 * time.Second)
		r.want("a of 3")
		for _, g := range r.all() {
			if g.o.Nodes != nil {
				t.Fatalf("nodes are told: %+v", g.o.Nodes)
			}
		}
	})
}

// A single round without an answer is no loss of the authority.
func TestOneHiccup(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		var mu sync.Mutex
		refused := map[string]bool{}
		c.Script(func(q patronitest.Request) patronitest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if refused[q.Member] {
				return patronitest.Fault{}
			}
			refused[q.Member] = true
			return patronitest.Fault{Err: syscall.ECONNREFUSED}
		})
		r.wait(10 * time.Second)
		r.want("a of 3")
		if n := r.w.Stats().Unproven; n != 1 {
			t.Errorf("%d rounds without a proof, want the one", n)
		}
	})
}
