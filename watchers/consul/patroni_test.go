package consul

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

func TestPatroniSwitchover(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		r.wait(time.Minute)
		at := time.Since(r.began)
		a.Delete(alpha + "leader")
		r.wait(0)
		a.Acquire(alpha+"leader", "b", "s-b")
		a.Put(alpha+"members/b", member("primary", "192.0.2.12:5432"))
		r.wait(0)
		r.want("a of 3", "(none) of 3", "b of 3")
		obs := r.all()
		last := obs[len(obs)-1]
		if last.at != at {
			t.Errorf("new leader was told %v after the key was written, want at once", last.at-at)
		}
		if last.o.Authority.SessionAgrees != topology.Yes {
			t.Errorf("sessions: %v, want yes", last.o.Authority.SessionAgrees)
		}
		r.wait(10 * time.Second)
	})
}

// Each read confirms, so the engine can tell how old its knowledge is.
func TestPatroniReadsOnAQuietCluster(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		before := len(a.Requests())
		r.wait(10 * time.Minute)
		if n := len(a.Requests()) - before; n > 60+2*3 {
			t.Errorf("%d requests in ten quiet minutes, want a read every 10 s and little more", n)
		}
		obs := r.all()
		for i := 2; i < len(obs); i++ {
			if gap := obs[i].at - obs[i-1].at; gap > 10*time.Second {
				t.Errorf("nothing was told for %v", gap)
			}
		}
		r.want("a of 3")
	})
}

func TestPatroniLeaderBlip(t *testing.T) {
	t.Run("gone for 0.2 s", func(t *testing.T) {
		run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
			a.Delete(alpha + "leader")
			r.wait(200 * time.Millisecond)
			a.Acquire(alpha+"leader", "a", "s-a")
			r.wait(0)
			r.want("a of 3", "(none) of 3", "a of 3")
			obs := r.all()
			n := len(obs)
			if got := obs[n-1].at - obs[n-2].at; got != 200*time.Millisecond {
				t.Errorf("the key's return was told %v after its absence, want 200ms", got)
			}
		})
	})
	t.Run("back before the second read", func(t *testing.T) {
		run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
			a.Script(func(q consultest.Request) consultest.Fault {
				if q.Recurse && q.Consistent {
					a.Acquire(alpha+"leader", "a", "s-a")
				}
				return consultest.Fault{}
			})
			a.Delete(alpha + "leader")
			r.wait(5 * time.Second)
			r.want("a of 3")
			if s := r.w.Stats(); s.EmptyRefused != 1 {
				t.Errorf("stats %+v, want one absence that was not confirmed", s)
			}
		})
	})
	t.Run("second read fails", func(t *testing.T) {
		run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
			a.Script(func(q consultest.Request) consultest.Fault {
				if q.Consistent {
					return consultest.Fault{Status: 500, Text: "No cluster leader"}
				}
				return consultest.Fault{}
			})
			a.Delete(alpha + "leader")
			r.wait(30 * time.Second)
			r.want("a of 3", "!store")
		})
	})
}

// FR-28: a scope that is suddenly empty changes nothing until a quorum says so.
func TestPatroniEmptyScope(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		a.Script(func(q consultest.Request) consultest.Fault {
			return consultest.Fault{Empty: q.Recurse && !q.Consistent}
		})
		r.wait(30 * time.Second)
		r.want("a of 3")
		a.Script(nil)
		a.DeleteTree(alpha)
		r.wait(time.Second)
		r.want("a of 3", "(none) of 0")
		obs := r.all()
		if last := obs[len(obs)-1].o; !last.Nodes.ConfirmedEmpty {
			t.Error("the empty list is not marked as confirmed")
		}
		healthy(a)
		r.wait(2 * time.Second)
		if words := r.words(); words[len(words)-1] != "a of 3" {
			t.Errorf("observed %v, want the cluster back", words)
		}
	})
}

// FR-24: a member without a usable address disturbs nobody and is warned of once.
func TestPatroniMalformedMember(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		a.Put(alpha+"members/c", `{"conn_url":"postgres://2001:db8::13:5432/postgres","role":"replica","state":"running"}`)
		r.wait(time.Minute)
		r.want("a of 3", "a of 2")
		obs := r.all()
		last := obs[len(obs)-1].o
		if len(last.Authority.Members) != 3 || last.Nodes.ConfirmedEmpty {
			t.Errorf("members %v, want all three", last.Authority.Members)
		}
		if n := r.log.Count("members/c"); n != 1 {
			t.Errorf("%d lines about members/c in a minute, want one:\n%s", n, r.log)
		}
		a.Put(alpha+"members/c", member("replica", "[2001:db8::13]:5432"))
		r.wait(11 * time.Second)
		r.want("a of 3", "a of 2", "a of 3")
	})
}

func TestPatroniUnknownWordsAreKept(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		a.Put(alpha+"members/c", member("emperor", "192.0.2.13:5432"))
		r.wait(time.Minute)
		obs := r.all()
		if got := obs[len(obs)-1].o.Authority.Members[2].Role; got != "emperor" {
			t.Errorf("role %q, want it as it was written", got)
		}
		if n := r.log.Count("emperor"); n != 1 {
			t.Errorf("%d warnings about one word, want one", n)
		}
	})
}

// FR-37: two servers under one name.
func TestPatroniAlternatingAddress(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		for i := range 4 {
			a.Put(alpha+"members/c", member("replica", fmt.Sprintf("192.0.2.%d:5432", 20+i%2)))
			r.wait(10 * time.Second)
		}
		if r.log.Count("alternates") == 0 {
			t.Error("no warning about a member whose address alternates")
		}
	})
}

// FR-37: a member whose name differs by case only from one that is there stays
// out, said once, until it leads; then the other one does.
func TestPatroniNameThatDiffersByCase(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		names := func() (names string) {
			obs := r.all()
			for _, n := range obs[len(obs)-1].o.Nodes.Nodes {
				names += n.Name + " "
			}
			return names
		}
		a.Acquire(alpha+"members/B", member("replica", "192.0.2.22:5432"), "s-B") // before b by name
		r.wait(time.Minute)
		if got := names(); got != "a b c " {
			t.Errorf("nodes %s, want b as before", got)
		}
		if n := r.log.Count("differs from that of b by case only"); n != 1 {
			t.Errorf("%d warnings in a minute, want one:\n%s", n, r.log)
		}
		a.Delete(alpha + "leader")
		a.Acquire(alpha+"leader", "B", "s-B")
		r.wait(time.Second)
		if got := names(); got != "B a c " {
			t.Errorf("nodes %s, want the leader B in place of b", got)
		}
		a.Delete(alpha + "leader")
		a.Acquire(alpha+"leader", "a", "s-a")
		r.wait(time.Minute)
		if got := names(); got != "B a c " {
			t.Errorf("nodes %s, want B to stay", got)
		}
		a.Delete(alpha + "members/B")
		r.wait(time.Minute)
		if got := names(); got != "a b c " {
			t.Errorf("nodes %s, want b back", got)
		}
	})
}

func TestPatroniConfirm(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		r.wait(3 * time.Second)
		before := len(a.Requests())
		r.w.Confirm()
		r.wait(0)
		news := a.Requests()[before:]
		if len(news) != 1 || !news[0].Consistent || !news[0].Recurse {
			t.Errorf("requests %+v, want one consistent read of the scope", news)
		}
		for range 6000 { // a minute of demands
			r.w.Confirm()
			time.Sleep(10 * time.Millisecond)
		}
		if n := len(a.Requests()) - before; n > 70 {
			t.Errorf("%d requests in a minute of demands, want one a second", n)
		}
	})
}

// FR-25: a storm of writes costs a bounded number of requests.
func TestPatroniStorm(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		before := len(a.Requests())
		for i := range 3000 {
			a.Delete(alpha + "leader")
			a.Acquire(alpha+"leader", string("abc"[i%3]), "s-"+string("abc"[i%3]))
			time.Sleep(10 * time.Millisecond)
		}
		a.Delete(alpha + "leader")
		a.Acquire(alpha+"leader", "b", "s-b")
		r.wait(2 * time.Second)
		if n := len(a.Requests()) - before; n > 2*32+watchBurst+readBurst {
			t.Errorf("%d requests in 32 s of storm, want two a second", n)
		}
		words := r.words()
		if words[len(words)-1] != "b of 3" {
			t.Errorf("last observation %q, want the last leader", words[len(words)-1])
		}
	})
}

// A watch that is stuck is found out by the reads and begun anew.
func TestPatroniStuckWatch(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		a.Script(func(q consultest.Request) consultest.Fault {
			return consultest.Fault{Hang: !q.Recurse && q.Index > 0}
		})
		r.w.leader.Restart()
		r.wait(time.Second)
		a.Delete(alpha + "leader")
		a.Acquire(alpha+"leader", "b", "s-b")
		r.wait(25 * time.Second)
		r.want("a of 3", "b of 3")
		if s := r.w.Stats(); s.Disagreed != 1 || s.Watch.Restarts != 2 {
			t.Errorf("stats %+v, want one disagreement and a restart by it", s)
		}
	})
}

// A default read with a lower index than before is not believed by itself.
func TestPatroniIndexBackwards(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		a.Script(func(q consultest.Request) consultest.Fault {
			if q.Recurse && !q.Consistent {
				return consultest.Fault{Index: 3, Pairs: []consultest.Pair{
					{Key: alpha + "leader", Value: []byte("old"), Session: "s"},
					{Key: alpha + "members/old", Value: []byte(member("primary", "192.0.2.99:5432"))},
				}}
			}
			return consultest.Fault{}
		})
		r.wait(25 * time.Second)
		r.want("a of 3")
		a.Script(nil)
		a.SetIndex(5) // a restored snapshot: a quorum says so too
		a.Acquire(alpha+"leader", "a", "s-a")
		r.wait(25 * time.Second)
		r.want("a of 3")
	})
}

func TestPatroniRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		healthy(a)
		r := newRig(t, a)
		r.wait(time.Second)
		r.stop()
		n := len(r.all())
		ctx, cancel := context.WithCancel(t.Context())
		r.cancel, r.done = cancel, make(chan struct{})
		go func() {
			defer close(r.done)
			_ = r.w.Run(ctx, r.report)
		}()
		r.wait(time.Second)
		r.stop() // checks that the sequence goes on
		if len(r.all()) <= n {
			t.Error("nothing was observed in the second run")
		}
	})
}

func TestNewRefuses(t *testing.T) {
	c, err := NewClient(ClientOptions{Transport: consultest.New()})
	if err != nil {
		t.Fatal(err)
	}
	now := topology.NewTicker(time.Now)
	for name, o := range map[string]Options{
		"no client":  {Cluster: "m", Scope: "s", Now: now},
		"no clock":   {Cluster: "m", Scope: "s", Client: c},
		"no scope":   {Cluster: "m", Scope: "/", Client: c, Now: now},
		"no cluster": {Scope: "s", Client: c, Now: now},
		"long wait":  {Cluster: "m", Scope: "s", Client: c, Now: now, LeaderWait: time.Hour},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	w, err := New(Options{Cluster: "m", Scope: "a/0", Namespace: "/x//y/", Client: c, Now: now})
	if err != nil || w.prefix != "x/y/a/0/" {
		t.Errorf("prefix %q, %v; want x/y/a/0/", w.prefix, err)
	}
}

// While there is no leader the engine asks for confirmation again and again;
// that must not delay the word of the next leader.
func TestPatroniConfirmLeavesRoom(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		r.wait(time.Minute)
		a.Delete(alpha + "leader")
		for range 24 {
			r.wait(500 * time.Millisecond)
			r.w.Confirm()
		}
		r.wait(0)
		at := time.Since(r.began)
		a.Acquire(alpha+"leader", "b", "s-b")
		r.wait(10 * time.Second)
		r.want("a of 3", "(none) of 3", "b of 3")
		reads := 0
		for _, g := range r.all() {
			if g.at >= at-12*time.Second && g.at < at {
				reads++
			}
			if g.o.Authority.Leader == "b" {
				if g.at != at {
					t.Errorf("the new leader was told %v after its key was written, want at once", g.at-at)
				}
				break
			}
		}
		if reads < 6 {
			t.Errorf("%d reads in 12 s although confirmation was wanted", reads)
		}
	})
}
