package patroni

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/patronitest"
)

func down(m *member)  { m.Down = true }
func hung(m *member)  { m.Hung = true }
func blind(m *member) { m.Blind = true }

func vanish(c *cluster, name string) { c.Change(func(s *store) { delete(s.Members, name) }) }

// unlock takes the key away; its holder may not know yet.
func unlock(c *cluster, believes bool) {
	c.Change(func(s *store) { s.Leader = "" })
	c.Member(func(m *member) { m.Lock = believes }, "a")
}

// partitions of a, which leads, b and c.
var partitions = []struct {
	name string
	does func(c *cluster)
	want []string // words from then on, for 20 s
}{
	{"the leader's Patroni died and its key is still there", func(c *cluster) { c.Member(down, "a") }, []string{"a? of 3"}},
	{"we cannot reach the leader", func(c *cluster) { c.Member(hung, "a") }, []string{"a? of 3"}},
	{"we cannot reach anybody but the leader", func(c *cluster) { c.Member(hung, "b", "c") }, []string{"a of 3"}},
	{"we cannot reach anybody but a replica", func(c *cluster) { c.Member(hung, "a", "b") }, []string{"!store"}},
	{"the leader lost its store, and others see its key", func(c *cluster) { c.Member(blind, "a") }, []string{"a? of 3"}},
	{"the leader lost its store and its lock", func(c *cluster) {
		c.Member(func(m *member) { m.Blind, m.Lock, m.Replica = true, false, true }, "a")
	}, []string{"a! of 3"}},
	{"a replica lost its store", func(c *cluster) { c.Member(blind, "b") }, []string{"a of 3"}},
	{"all replicas lost their store", func(c *cluster) { c.Member(blind, "b", "c") }, []string{"a of 3"}},

	{"the key is gone and its holder knows", func(c *cluster) { unlock(c, false) }, []string{"(none) of 3"}},
	{"the key is gone and its holder does not know", func(c *cluster) { unlock(c, true) }, []string{"(none) of 3"}},
	{"the leader and its keys are gone", func(c *cluster) {
		unlock(c, false)
		vanish(c, "a")
		c.Member(down, "a")
	}, []string{"(none) of 2"}},
	{"the leader and its keys are gone, and a replica too", func(c *cluster) {
		unlock(c, false)
		vanish(c, "a")
		c.Member(down, "a", "b")
	}, []string{"!store"}},
	{"the key is gone, and one of three sees it", func(c *cluster) {
		unlock(c, false)
		c.Member(hung, "a", "b")
	}, []string{"!store"}},
	{"the key is gone in pause, and its holder lost the store", func(c *cluster) {
		c.Change(func(s *store) { s.Pause = true })
		unlock(c, false)
		c.Member(blind, "a")
	}, []string{"(none) of 3"}},

	{"an old leader goes on in pause, and another holds the key", func(c *cluster) {
		c.Change(func(s *store) { s.Pause = true })
		c.Lead("b")
		c.Member(func(m *member) { m.Blind, m.Replica = true, false }, "a")
	}, []string{"b of 3"}},
	{"the old leader does not know yet", func(c *cluster) {
		c.Lead("b")
		c.Member(func(m *member) { m.Lock = true }, "a")
	}, []string{"b of 3"}},
	{"the old leader does not know yet, and its list is old", func(c *cluster) {
		c.Freeze("a")
		c.Lead("b")
		c.Member(func(m *member) { m.Lock = true }, "a")
	}, []string{"b of 3"}},
	{"the old leader and a replica see an old store", func(c *cluster) {
		c.Freeze("a", "c")
		c.Lead("b")
		c.Member(func(m *member) { m.Lock = true }, "a")
	}, []string{"a of 3"}}, // the case that the document accepts
	{"the replicas see an old store", func(c *cluster) {
		c.Freeze("b", "c")
		c.Change(func(s *store) { s.Leader = "" })
		c.Member(func(m *member) { m.Lock = false }, "a")
	}, []string{"a! of 3"}},
	{"the new leader cannot be reached", func(c *cluster) {
		c.Lead("b")
		c.Member(hung, "b")
	}, []string{"b? of 3"}},
	{"the new leader cannot be reached, and the old does not know yet", func(c *cluster) {
		c.Lead("b")
		c.Member(hung, "b")
		c.Member(func(m *member) { m.Lock = true }, "a")
	}, []string{"!store"}},
}

// What is seen from one side of a partition, and after it.
func TestPartitions(t *testing.T) {
	for _, p := range partitions {
		t.Run(p.name, func(t *testing.T) {
			run(t, func(t *testing.T, c *cluster, r *rig) {
				p.does(c)
				r.wait(20 * time.Second)
				got := r.words()
				// Until the first round a watcher may still tell what was before.
				if got[0] == "a of 3" && p.want[0] != got[0] {
					got = got[1:]
				}
				if !slices.Equal(got, p.want) {
					t.Errorf("told %v, want %v", got, p.want)
				}
				heal(c)
				r.since()
				r.wait(20 * time.Second)
				if got := r.words(); got[len(got)-1] != "c of 3" {
					t.Errorf("after its end: %v", got)
				}
			})
		})
	}
}

// heal ends whatever there was, with c as the leader.
func heal(c *cluster) {
	fresh := patronitest.New("alpha", "a", "b", "c")
	c.Thaw()
	c.Member(func(m *member) { m.Blind, m.Down, m.Hung = false, false, false })
	fresh.Change(func(healthy *store) {
		c.Change(func(s *store) {
			s.Pause = false
			s.Members = healthy.Members
		})
	})
	c.Lead("c")
}

// An absent key is told after a second round that began after the first.
func TestAbsenceIsConfirmed(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		gone := time.Now()
		c.Change(func(s *store) { s.Leader = "" })
		c.Member(func(m *member) { m.Lock = false }, "a")
		r.wait(5 * time.Second)
		at := r.first("(none) of 3")
		if at < confirmAfter || at > 2*time.Second {
			t.Errorf("told after %v", at)
		}
		lists := 0
		for _, q := range c.Requests() {
			if q.Path == pathView && q.Member == "b" && !q.At.Before(gone) && q.At.Sub(gone) <= at {
				lists++
			}
		}
		if lists != confirmTimes {
			t.Errorf("b was asked for its list %d times before the absence was told, want %d", lists, confirmTimes)
		}
		c.Lead("b")
		r.wait(3 * time.Second)
		r.want("(none) of 3", "b of 3")
	})
}

// Rounds that show no leader confirm each other only in succession.
func TestAbsenceWithDoubtBetween(t *testing.T) {
	run(t, func(_ *testing.T, c *cluster, r *rig) {
		var rounds atomic.Int64
		c.Script(func(q patronitest.Request) patronitest.Fault {
			if q.Member == "b" && q.Path == pathWord {
				rounds.Add(1)
			}
			if q.Path == pathView && rounds.Load()%2 == 0 {
				return patronitest.Fault{Body: "<html>"}
			}
			return patronitest.Fault{}
		})
		c.Change(func(s *store) { s.Leader = "" })
		c.Member(func(m *member) { m.Lock = false }, "a")
		r.wait(30 * time.Second)
		r.want("!store")
	})
}

// A key that is absent for an instant, or for one round, is no absence.
func TestBlinkOfTheKey(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		for range 20 {
			c.Change(func(s *store) { s.Leader = "" })
			r.w.Confirm()
			r.wait(200 * time.Millisecond)
			c.Change(func(s *store) { s.Leader = "a" })
			r.wait(2 * time.Second)
		}
		r.want("a of 3")
	})
}

// Patroni deletes the leader's own entry and writes it anew when its session has
// changed. Meanwhile its list shows no leader.
func TestBlinkOfTheEntry(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		var entry patronitest.Entry
		c.Change(func(s *store) {
			entry = s.Members["a"]
			delete(s.Members, "a")
		})
		r.wait(20 * time.Second)
		r.want("a of 3")
		if n := r.last().Authority; !slices.ContainsFunc(n.Members, func(m topology.Member) bool { return m.Name == "a" && !m.Address.IsZero() }) {
			t.Errorf("the leader is missing: %+v", n.Members)
		}
		c.Change(func(s *store) { s.Members["a"] = entry })
		r.wait(10 * time.Second)
		r.want("a of 3")
	})
}

// Each question that hangs holds a thread of the member's Patroni. The others'
// words wait for it for a second at most.
func TestHungMemberIsLeftAlone(t *testing.T) {
	for _, hung := range []string{"a", "b"} {
		run(t, func(t *testing.T, c *cluster, r *rig) {
			c.Member(func(m *member) { m.Hung = true }, hung)
			r.wait(5 * time.Second)
			begin := time.Now()
			for range 120 {
				r.w.Confirm()
				r.wait(500 * time.Millisecond)
			}
			if n := r.requests(begin, hung, ""); n < 5 || n > 10 {
				t.Errorf("%s hangs and was asked %d times a minute", hung, n)
			}
			last := begin
			for _, q := range c.Requests() {
				if q.Member != "c" || q.Path != pathWord || q.At.Before(begin) {
					continue
				}
				if gap := q.At.Sub(last); gap > 1600*time.Millisecond {
					t.Errorf("%s hangs and c was not asked for %v", hung, gap)
				}
				last = q.At
			}
			if got := r.words(); len(got) > 2 || got[len(got)-1][0] != 'a' {
				t.Errorf("%s hangs: %v", hung, got)
			}
			c.Member(func(m *member) { m.Hung = false }, hung)
			c.Lead("b")
			r.wait(15 * time.Second)
			if got := r.words(); got[len(got)-1] != "b of 3" {
				t.Errorf("after the end of the hang: %v", got)
			}
		})
	}
}

// A list that hangs, as while the store does, is not asked for each second.
func TestHungListIsLeftAlone(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		c.Script(func(q patronitest.Request) patronitest.Fault {
			return patronitest.Fault{Hang: q.Path == pathView}
		})
		begin := time.Now()
		r.wait(time.Minute)
		r.want("a of 3")
		for _, m := range []string{"a", "b", "c"} {
			if n := r.requests(begin, m, pathView); n < 4 || n > 9 {
				t.Errorf("%s was asked for its list %d times a minute", m, n)
			}
		}
		if r.last().Nodes != nil {
			t.Error("nodes are told although no list was read")
		}
	})
}
