package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// TestPatroni runs everything about a Patroni cluster on one lab, since such a
// cluster takes long to start. Each step begins on a settled cluster.
func TestPatroni(t *testing.T) {
	p := newPatroniRig(t)
	p.step("members", p.testMembers)
	p.step("documents", p.testDocuments)
	p.step("switchover", p.testSwitchover)
	p.step("leader key blinks", p.testBlink)
	p.step("session of the leader is lost", p.testSessionLost)
	p.step("member key of the leader blinks", p.testMemberBlink)
	p.step("leader key is absent", p.testAbsent)
	p.step("leader gap", p.testLeaderGap)
	p.step("pause", p.testPause)
	p.step("garbage in a member key", p.testGarbage)
	p.step("noloadbalance", p.testNoLoadBalance)
	p.step("link to Consul is cut", p.testCut)
	p.step("Consul stops under failsafe mode", p.testConsulStops)
	p.step("restart without Consul", p.testRestartCut)
	p.step("failover while away", p.testFailoverAway)
	p.step("Patroni of the leader is frozen", p.testTwoWriters)
	p.step("sql_only", p.testSQLOnly)
}

// testMembers: the nodes come from Consul alone.
func (p *patroniRig) testMembers(leader *lab.PatroniNode) {
	v := p.view("main")
	if !v.Snapshot.Complete || len(v.Snapshot.Nodes) != 3 {
		p.t.Errorf("complete is %t with nodes %v, want the three members", v.Snapshot.Complete, v.Snapshot.Nodes)
	}
	for _, n := range p.patroni.Nodes() {
		if got, _ := v.Snapshot.Node(n.Name()); got.Address.String() != n.Addr() {
			p.t.Errorf("%s is at %q, want %s", n.Name(), got.Address, n.Addr())
		}
	}
	if code, body := p.get(p.status, "/readyz"); code != http.StatusOK {
		p.t.Errorf("readyz: %d %s", code, body)
	}
	if got, want := p.metric(`pgsteer_authority_current{cluster="main"}`), "1"; got != want {
		p.t.Errorf("authority_current is %q, want %s", got, want)
	}
	if text := p.explain("main", leader.Name()); !strings.Contains(text, "holds the leader key and is writable") {
		p.t.Errorf("explain does not name both sides of the evidence:\n%s", text)
	}
}

// testSwitchover: the writes follow the leader key and the node's own word.
func (p *patroniRig) testSwitchover(old *lab.PatroniNode) {
	next := p.others(old)[0]
	book, x := p.record(), p.traffic(old)
	envoyNew := p.lab.Load(p.envoyWrite, lab.LoadOptions{NewSession: true, Interval: 25 * time.Millisecond})
	p.t.Cleanup(func() { envoyNew.Stop() })
	done := make(chan error, 1)
	go func() { done <- p.patroni.Switchover(p.whole.Context(), next.Name()) }()
	writable := p.asWriter(next)
	p.is("main", "primary", next.Name(), topology.Up, topology.CodeWriter)
	for i, at := range x.ends() {
		p.t.Logf("idle session %d ended %s before the successor was writable", i, writable.Sub(at))
	}
	for _, l := range []*lab.Load{x.kept, x.keptEnvoy, x.fresh, envoyNew} {
		p.do(l.Wait(p.t.Context(), "a write on the successor", func(s lab.Sample) bool {
			return s.Op == lab.Write && s.Err == nil && s.Port == next.Port()
		}))
	}
	p.do(<-done)
	p.t.Logf("routing gap: HAProxy %s for new and %s for lasting sessions, Envoy %s and %s", gap(x.fresh.Stop(), writable),
		slowest(x.kept.Stop(), writable), gap(envoyNew.Stop(), writable), slowest(x.keptEnvoy.Stop(), writable))
	x.never(old.Port(), writable, time.Now())
	x.never(next.Port(), x.begin, writable.Add(-time.Second))
	x.writable()
	book.proven(p.t)
	p.is("main", "replica", old.Name(), topology.Up, topology.CodeReplica)
}

// testBlink: a leader key that is absent for 0.2 s cuts nobody.
func (p *patroniRig) testBlink(leader *lab.PatroniNode) {
	book, x := p.record(), p.traffic(leader)
	p.without("leader", func() {
		p.during(200*time.Millisecond, "no session is cut", x.alive)
	})
	p.is("main", "primary", leader.Name(), topology.Up, topology.CodeWriter)
	p.t.Logf("the absence was noticed: %t", book.saw("primary", leader.Name(), topology.Drain, topology.CodeNoLeader))
	p.during(time.Second, "no session is cut", x.alive)
	x.uncut()
}

// testSessionLost: Consul forgets the session of the leader, and with it go the
// leader key and the member key, until Patroni makes a new one.
func (p *patroniRig) testSessionLost(leader *lab.PatroniNode) {
	x, e := p.traffic(leader), p.entry("leader")
	begin := time.Now()
	p.consulDo(http.MethodPut, "session/destroy/"+e.Session, "")
	p.until("Patroni to take the key again", func() bool {
		name, err := p.consul.Get(p.t.Context(), key("leader"))
		return err == nil && name == leader.Name()
	})
	p.t.Logf("the leader was back after %s", time.Since(begin))
	p.during(2*time.Second, "no session is cut", x.alive)
	p.is("main", "primary", leader.Name(), topology.Up, topology.CodeWriter)
	x.uncut()
}

// testMemberBlink: Patroni deletes its member key and writes it anew when its
// session has changed.
func (p *patroniRig) testMemberBlink(leader *lab.PatroniNode) {
	x := p.traffic(leader)
	p.without("members/"+leader.Name(), func() {
		p.touch()
		p.knows("that the member is missing", func(a *topology.Authority) bool { return len(a.Members) == 2 })
		p.during(500*time.Millisecond, "no session is cut", x.alive)
	})
	p.touch()
	p.knows("all members", func(a *topology.Authority) bool { return len(a.Members) == 3 })
	x.undisturbed()
}

// testAbsent: while the leader key is absent no new session is let in, and
// those that there are go on.
func (p *patroniRig) testAbsent(leader *lab.PatroniNode) {
	p.setPolicy("leader_gap: 1m")
	defer p.setPolicy("")
	x := p.traffic(leader)
	p.without("leader", func() {
		took := p.is("main", "primary", leader.Name(), topology.Drain, topology.CodeNoLeader)
		p.t.Logf("drained after %s", took)
		p.until("HAProxy to let nobody in", func() bool { return p.reached(p.write) == 0 })
		p.during(time.Second, "no session is cut", x.alive)
		if got := p.ask("main primary " + leader.Name()); !strings.HasPrefix(got, "up 0%") {
			p.t.Errorf("agent-check says %q, want up 0%% and the reason", got)
		}
		if p.reached(p.write) != 0 {
			p.t.Error("HAProxy let a new session in while there was no leader key")
		}
	})
	took := p.is("main", "primary", leader.Name(), topology.Up, topology.CodeWriter)
	p.t.Logf("up again after %s", took)
	p.until("HAProxy to let sessions in", func() bool { return p.reached(p.write) == leader.Port() })
	x.uncut()
}

// testLeaderGap: sessions outlive an absent leader key for leader_gap and no longer.
func (p *patroniRig) testLeaderGap(leader *lab.PatroniNode) {
	const leaderGap = 3 * time.Second
	p.setPolicy("leader_gap: 3s")
	defer p.setPolicy("")
	x := p.traffic(leader)
	p.without("leader", func() {
		begin := time.Now()
		for i, at := range x.ends() {
			d := at.Sub(begin)
			p.t.Logf("idle session %d ended %s after the key was removed", i, d)
			if d < leaderGap || d > leaderGap+3*time.Second {
				p.t.Errorf("idle session %d ended after %s, want %s", i, d, leaderGap)
			}
		}
		p.is("main", "primary", leader.Name(), topology.Down, topology.CodeNoLeader)
	})
	p.is("main", "primary", leader.Name(), topology.Up, topology.CodeWriter)
	p.writingOn(x.fresh, leader)
}

// writingOn waits until a load has written on a node.
func (p *patroniRig) writingOn(l *lab.Load, n *lab.PatroniNode) {
	p.t.Helper()
	p.do(l.Wait(p.t.Context(), "a write on "+n.Name(), func(s lab.Sample) bool {
		return s.Op == lab.Write && s.Err == nil && s.Port == n.Port()
	}))
}

// testPause: a paused cluster keeps its writer without a leader key.
func (p *patroniRig) testPause(leader *lab.PatroniNode) {
	p.setPolicy("leader_gap: 1s")
	defer p.setPolicy("")
	p.dynamic(`{"pause": true}`)
	p.touch()
	p.knows("the pause", func(a *topology.Authority) bool { return a.Pause == topology.Yes })
	x := p.traffic(leader)
	p.without("leader", func() {
		p.knows("that there is no leader", func(a *topology.Authority) bool { return a.Leader == "" })
		p.during(3*time.Second, "the writer is held", func() bool {
			v, _ := p.verdict("main", "primary", leader.Name())
			return v == topology.Up && x.alive()
		})
	})
	x.undisturbed()
}

// testGarbage: a member key that cannot be read hurts nobody, whoever's it is.
func (p *patroniRig) testGarbage(leader *lab.PatroniNode) {
	x := p.traffic(leader)
	thaw := p.still()
	defer thaw()
	for _, n := range []*lab.PatroniNode{p.others(leader)[0], leader} {
		e := p.entry("members/" + n.Name())
		p.put(entry{Key: e.Key, Session: e.Session, Value: []byte(`{"conn_url": 7`)})
		p.touch()
		p.knows("the garbage", func(a *topology.Authority) bool {
			for _, m := range a.Members {
				if m.Name == n.Name() {
					return m.Address.IsZero()
				}
			}
			return true
		})
		p.during(500*time.Millisecond, "everybody serves", func() bool {
			v := p.view("main").Snapshot
			reads, _ := v.Pool("replica")
			return v.Writer == leader.Name() && len(reads.Up()) == 2 && x.alive()
		})
		p.put(e)
		p.touch()
		p.knows("the member", func(a *topology.Authority) bool { return len(a.Members) == 3 })
	}
	x.undisturbed()
}

// testNoLoadBalance: a tag takes a replica out of the read pool by draining it.
func (p *patroniRig) testNoLoadBalance(leader *lab.PatroniNode) {
	out := p.others(leader)[0]
	session := watchEnd(p.t, p.session(p.read, out.Port()))
	tagged := func(yes bool) func() bool {
		return func() bool {
			v, err := p.consul.Get(p.t.Context(), key("members/"+out.Name()))
			return err == nil && strings.Contains(v, "noloadbalance") == yes
		}
	}
	p.tags(out, map[string]any{"noloadbalance": true})
	p.until("the tag in Consul", tagged(true))
	p.touch()
	p.is("main", "replica", out.Name(), topology.Drain, topology.CodeNoLoadBalance)
	elsewhere := 0
	p.until("HAProxy to send reads elsewhere, twenty times one after another", func() bool {
		if elsewhere++; p.reached(p.read) != p.others(leader)[1].Port() {
			elsewhere = 0
		}
		return elsewhere == 20
	})
	p.tags(out, map[string]any{})
	p.until("the tag to be gone", tagged(false))
	p.touch()
	p.is("main", "replica", out.Name(), topology.Up, topology.CodeReplica)
	if len(session) > 0 {
		p.t.Error("the session on the tagged replica was cut")
	}
}

// testTwoWriters: the leader's Patroni stands still while its PostgreSQL goes
// on; after the election two nodes are writable.
func (p *patroniRig) testTwoWriters(old *lab.PatroniNode) {
	p.setPolicy("leader_gap: 1m") // sessions shall end because another is named
	defer p.setPolicy("")
	book, x := p.record(), p.traffic(old)
	p.do(old.Freeze())
	next := p.election(old)
	named := time.Now()
	writable := p.asWriter(next)
	p.is("main", "primary", next.Name(), topology.Up, topology.CodeWriter)
	decided := time.Now()
	for i, at := range x.ends() {
		d := at.Sub(named)
		p.t.Logf("idle session %d ended %s after another was named, which was writable after %s", i, d, writable.Sub(named))
		if d > 2*time.Second {
			p.t.Errorf("idle session %d on the old writer ended only %s after another was named", i, d)
		}
	}
	p.is("main", "primary", old.Name(), topology.Down, topology.CodeFenced)
	p.until("two that claim to be writable", func() bool { return p.metric(`pgsteer_primary_claims{cluster="main"}`) == "2" })
	if text := p.statusText(); !strings.Contains(text, "two_writers: ") {
		p.t.Errorf("status has no alarm two_writers:\n%s", text)
	}
	p.writingOn(x.fresh, next)
	p.writingOn(x.kept, next)
	p.writingOn(x.keptEnvoy, next)
	p.during(2*time.Second, "the writer stays", func() bool { return p.view("main").Snapshot.Writer == next.Name() })
	x.never(old.Port(), decided, time.Now())
	x.writable()
	book.proven(p.t)
	p.do(old.Thaw())
}
