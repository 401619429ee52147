package e2e

import (
	"net/http"
	"os"
	"path/filepath"
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

// cutFor is how long the agent's link to Consul is cut: PGSTEER_CUT, or 20 s.
func cutFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("PGSTEER_CUT")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("PGSTEER_CUT: %v", err)
	}
	return d
}

// lost waits until pgsteer has lost its authority and shows it everywhere.
func (p *patroniRig) lost() {
	p.t.Helper()
	p.until("the authority to be lost", func() bool {
		return p.view("main").Snapshot.Authority.State == topology.AuthorityStateLost
	})
	if got := p.metric(`pgsteer_authority_current{cluster="main"}`); got != "0" {
		p.t.Errorf("authority_current is %q, want 0", got)
	}
	// A word can be too old a moment before the read that should renew it fails.
	p.until("status to say so", func() bool {
		text := p.statusText()
		return strings.Contains(text, "authority patroni lost") && strings.Contains(text, "stale: consul/main failing") &&
			strings.Contains(text, "authority_lost: ")
	})
}

// current waits until pgsteer has its authority again.
func (p *patroniRig) current() {
	p.t.Helper()
	took := p.until("the authority to be current", func() bool {
		return p.view("main").Snapshot.Authority.State == topology.AuthorityStateCurrent
	})
	p.t.Logf("current again after %s", took)
	if took > 7*time.Second {
		p.t.Errorf("current again only after %s, want 5 s", took)
	}
}

// testCut: pgsteer's own link to Consul is cut. Nobody is hurt; nobody is
// admitted; a writer that dies leaves by SQL evidence alone.
func (p *patroniRig) testCut(leader *lab.PatroniNode) {
	x, length := p.traffic(leader), cutFor(p.t)
	begin := time.Now()
	p.do(p.link.Cut())
	p.lost()
	p.t.Logf("stale %s after the cut", time.Since(begin))
	p.during(length-time.Since(begin), "the writer is held", func() bool {
		v, _ := p.verdict("main", "primary", leader.Name())
		return v == topology.Up && x.alive()
	})
	p.do(p.link.Heal())
	p.current()
	x.undisturbed()

	p.do(p.link.Cut())
	p.lost()
	killed := time.Now()
	p.do(leader.Postgres().Kill())
	p.is("main", "primary", leader.Name(), topology.Down, "")
	p.t.Logf("out %s after its PostgreSQL was killed", time.Since(killed))
	p.asWriter(leader) // Patroni starts it again
	p.until("the node's word that it is writable", func() bool { return p.view("main").Facts.Nodes[leader.Name()].InRecovery == topology.No })
	p.during(2*time.Second, "nobody is admitted", func() bool { return p.view("main").Snapshot.Writer == "" })
	if port := p.reached(p.write); port != 0 {
		p.t.Errorf("a write session was let in on port %d without an authority", port)
	}
	p.do(p.link.Heal())
	p.current()
	p.is("main", "primary", leader.Name(), topology.Up, topology.CodeWriter)
	p.writingOn(x.fresh, leader)
}

// testConsulStops: under failsafe_mode a cluster goes on without Consul.
func (p *patroniRig) testConsulStops(leader *lab.PatroniNode) {
	p.dynamic(`{"failsafe_mode": true}`)
	p.until("every Patroni to know of failsafe mode and all members", func() bool {
		for _, n := range p.patroni.Nodes() {
			v, err := n.REST(p.t.Context(), http.MethodGet, "/failsafe", "")
			if err != nil || strings.Count(v, "http") != 3 {
				return false
			}
		}
		return true
	})
	p.touch()
	p.knows("of failsafe mode", func(a *topology.Authority) bool { return a.Failsafe == topology.Yes })
	book, x := p.record(), p.traffic(leader)
	p.do(p.consul.Stop(p.t.Context()))
	p.lost()
	// Without failsafe mode Patroni would demote within retry_timeout and a loop.
	p.during(10*time.Second, "the writer is held", func() bool {
		v, _ := p.verdict("main", "primary", leader.Name())
		return v == topology.Up && x.alive()
	})
	p.do(p.consul.Start(p.t.Context()))
	p.current()
	p.until("Patroni to hold its key again", func() bool {
		name, err := p.consul.Get(p.t.Context(), key("leader"))
		return err == nil && name == leader.Name() && p.view("main").Snapshot.Authority.Leader == name
	})
	p.during(3*time.Second, "no session is cut", x.alive)
	p.t.Logf("the leader key blinked: %t", book.saw("primary", leader.Name(), topology.Drain, topology.CodeNoLeader))
	x.undisturbed()
}

// testRestartCut: pgsteer starts anew, and again while Consul is out of reach.
func (p *patroniRig) testRestartCut(leader *lab.PatroniNode) {
	x := p.traffic(leader)
	p.down()
	p.restart() // with Consul in reach
	p.is("main", "primary", leader.Name(), topology.Up, topology.CodeWriter)
	x.undisturbed()
	p.down()
	p.do(p.link.Cut())
	p.restart()
	p.until("the first decision", func() bool { return p.view("main") != nil })
	p.during(2*time.Second, "the writer is held and not decided", func() bool {
		s := p.view("main").Snapshot
		v, _ := p.verdict("main", "primary", leader.Name())
		return v == topology.Undecided && s.Held == leader.Name() && s.Writer == "" && x.alive()
	})
	if text, want := p.statusText(), "undecided ("+leader.Name()+" held from before)"; !strings.Contains(text, want) {
		p.t.Errorf("status does not say %q:\n%s", want, text)
	}
	if got := p.ask("main primary " + leader.Name()); got != "" {
		p.t.Errorf("agent-check says %q, want silence", got)
	}
	write, fresh := p.secondHAProxy()
	p.during(2*time.Second, "a fresh HAProxy lets no write in", func() bool { return p.reached(write) == 0 })
	p.do(p.link.Heal())
	p.is("main", "primary", leader.Name(), topology.Up, topology.CodeWriter)
	took := p.until("the fresh HAProxy to let writes in", func() bool { return p.reached(write) == leader.Port() })
	p.t.Logf("the fresh HAProxy had the writer %s after the decision", took)
	x.undisturbed()
	p.do(fresh.Stop(p.t.Context()))
}

// secondHAProxy starts another HAProxy with the rendered configuration on ports
// of its own and returns its address for writes.
func (p *patroniRig) secondHAProxy() (write string, h *lab.HAProxy) {
	p.t.Helper()
	b, err := os.ReadFile(p.file("haproxy.cfg"))
	p.do(err)
	write = p.addr()
	admin := p.lab.SocketPath("admin.sock")
	text := strings.NewReplacer(p.write, write, p.read, p.addr(), admin, filepath.Join(filepath.Dir(admin), "second.sock")).Replace(string(b))
	h, err = p.lab.HAProxy(p.t.Context(), lab.HAProxyOptions{Config: text})
	p.do(err)
	return write, h
}

// testFailoverAway: the writer falls silent and another is promoted while
// pgsteer is not there.
func (p *patroniRig) testFailoverAway(old *lab.PatroniNode) {
	x := p.traffic(old)
	p.down()
	p.do(old.Freeze())
	p.do(old.Postgres().Freeze())
	next := p.election(old)
	p.asWriter(next)
	p.do(p.link.Cut())
	p.restart()
	// Without its authority it drops the old one, whose timeline is over, and admits nobody.
	p.is("main", "primary", old.Name(), topology.Down, "")
	p.during(time.Second, "nobody is admitted", func() bool { return p.view("main").Snapshot.Writer == "" })
	p.do(p.link.Heal())
	took := p.is("main", "primary", next.Name(), topology.Up, topology.CodeWriter)
	decided := time.Now()
	p.t.Logf("the new writer was up %s after Consul was in reach", took)
	p.is("main", "primary", old.Name(), topology.Down, "")
	p.writingOn(x.fresh, next)
	x.ends()
	// It wakes as a second writable primary.
	p.do(old.Postgres().Thaw())
	p.until("two that claim to be writable", func() bool { return p.metric(`pgsteer_primary_claims{cluster="main"}`) == "2" })
	p.is("main", "primary", old.Name(), topology.Down, topology.CodeFenced)
	p.during(time.Second, "the writer stays", func() bool { return p.view("main").Snapshot.Writer == next.Name() })
	x.never(old.Port(), decided, time.Now())
	p.do(old.Thaw())
	p.do(p.patroni.WaitRunning(p.t.Context()))
	x.never(old.Port(), decided, time.Now())
}

// testTwoWriters: the leader's Patroni stands still while its PostgreSQL goes
// on; after the election two nodes are writable.
func (p *patroniRig) testTwoWriters(old *lab.PatroniNode) {
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
	book.proven(p.t)
	p.do(old.Thaw())
}

// testSQLOnly: with authority_lost sql_only the evidence decides once the
// authority's word is too old.
func (p *patroniRig) testSQLOnly(old *lab.PatroniNode) {
	p.setPolicy("authority_lost: sql_only, authority_max_age: 12s")
	defer p.setPolicy("")
	next := p.others(old)[0]
	x := p.traffic(old)
	p.do(p.link.Cut())
	p.lost()
	p.until("evidence to decide alone", func() bool {
		pv, _ := p.view("main").Snapshot.Pool("primary")
		v, _ := pv.Verdict(old.Name())
		return v.Verdict == topology.Up && strings.Contains(v.Reason().Text, "highest timeline")
	})
	x.undisturbed()
	p.do(p.patroni.Switchover(p.t.Context(), next.Name()))
	p.is("main", "primary", next.Name(), topology.Up, topology.CodeWriter)
	p.writingOn(x.fresh, next)
	x.ends()
	p.do(p.link.Heal())
	p.current()
	p.during(time.Second, "the writer stays", func() bool { return p.view("main").Snapshot.Writer == next.Name() })
}
