package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// consulConfig is a cluster whose nodes only Consul knows.
const consulConfig = `consul: {address: "http://%s"%s}
clusters:
  main: {authority: patroni, patroni: {scope: %s}}
`

// notReady waits until the agent runs and says why it is not ready, and fails
// the test for every word that status lacks.
func (r *rig) notReady(words ...string) {
	r.t.Helper()
	r.until("the agent to say that it is not ready", func() bool {
		code, body := r.get(r.status, "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "main")
	})
	r.until("status to say why", func() bool {
		text := r.statusText()
		for _, w := range words {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	})
	if code, body := r.get(r.status, "/livez"); code != http.StatusOK {
		r.t.Errorf("livez: %d %s", code, body)
	}
	if got := r.ask("main primary n1"); got != "" {
		r.t.Errorf("agent-check says %q of a name that nobody may know yet, want silence", got)
	}
}

// TestConsulOutOfReach: the agent starts, says what is wrong, and goes on by
// itself when Consul comes.
func TestConsulOutOfReach(t *testing.T) {
	r := newRig(t, lab.NeedConsul)
	consul, err := r.lab.Consul(t.Context())
	r.do(err)
	r.do(consul.Put(t.Context(), "service/main/members/n1", `{"conn_url":"postgres://127.0.0.1:1/postgres","role":"replica","state":"running"}`))
	r.do(consul.Stop(t.Context()))
	r.configure(consulConfig, consul.Addr(), "", "main")
	r.up()
	r.notReady("authority patroni unknown", "stale: consul/main failing", consul.Addr(), "connection refused")
	r.do(consul.Start(t.Context()))
	took := r.until("readiness", func() bool { code, _ := r.get(r.status, "/readyz"); return code == http.StatusOK })
	t.Logf("ready %s after Consul was there", took)
	if v := r.view("main"); len(v.Snapshot.Nodes) != 1 || v.Snapshot.Authority.State != topology.AuthorityStateCurrent {
		t.Errorf("nodes %v, authority %s; want n1 and current", v.Snapshot.Nodes, v.Snapshot.Authority.State)
	}
}

// TestConsulTokenFile: a token file that cannot be used is told before anything
// starts, with its place in the configuration.
func TestConsulTokenFile(t *testing.T) {
	r := newRig(t)
	for text, want := range map[string]string{"": "empty", "one\ntwo\n": "line", "-": "no such file"} {
		r.do(os.RemoveAll(r.file("token")))
		if text != "-" {
			r.replace("token", text)
		}
		r.configure(consulConfig, "127.0.0.1:8500", `, token_file: "`+r.file("token")+`"`, "main")
		_, err := agent.New(agent.Options{Load: func() (*config.Config, error) { return config.Load(r.path) }})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "pgsteer.yaml:3:") {
			t.Errorf("with the file %q the error is %v, want %q and the line", text, err, want)
		}
	}
}

// TestConsulScopeMissing: of a scope that does not exist nothing is invented.
func TestConsulScopeMissing(t *testing.T) {
	r := newRig(t, lab.NeedConsul)
	consul, err := r.lab.Consul(t.Context())
	r.do(err)
	r.configure(consulConfig, consul.Addr(), "", "mian")
	r.up()
	r.until("the authority's word", func() bool {
		v := r.view("main")
		return v != nil && v.Snapshot.Authority.State == topology.AuthorityStateCurrent
	})
	if v := r.view("main"); len(v.Snapshot.Nodes) != 0 || v.Snapshot.Writer != "" {
		t.Errorf("nodes %v, writer %q; want none", v.Snapshot.Nodes, v.Snapshot.Writer)
	}
	text := r.statusText()
	t.Log(text)
	if want := "no node is known: consul/mian lists none"; !strings.Contains(text, want) {
		t.Errorf("status does not say %q", want)
	}
	if got := r.ask("main primary n1"); !strings.HasPrefix(got, "down #unknown") {
		t.Errorf("agent-check says %q of a node that nobody lists, want down #unknown", got)
	}
}

// cutFor is how long the agent's link to Consul is cut: PGSTEER_CUT, or 20 s.
func cutFor(tb testing.TB) time.Duration {
	tb.Helper()
	text := os.Getenv("PGSTEER_CUT")
	if text == "" {
		return 20 * time.Second
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		tb.Fatalf("PGSTEER_CUT: %v", err)
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
	p.do(leader.Freeze()) // else it starts PostgreSQL again before anybody sees it down
	p.do(leader.Postgres().Kill())
	took := p.is("main", "primary", leader.Name(), topology.Down, topology.CodeRefused)
	p.t.Logf("out %s after its PostgreSQL was killed", took)
	p.do(leader.Thaw())
	p.asWriter(leader)
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
	x.undisturbed()
	postmaster := leader.Postgres().PID()
	p.do(p.consul.Start(p.t.Context()))
	p.current()
	p.until("Patroni to hold a key again", func() bool {
		name, err := p.consul.Get(p.t.Context(), key("leader"))
		return err == nil && name != "" && p.view("main").Snapshot.Writer == name
	})
	// On a busy machine Patroni itself may fail to renew its key just now, and then
	// restarts its server; that cuts sessions, and is not pgsteer's doing.
	if leader.Postgres().PID() != postmaster {
		p.t.Logf("Patroni has restarted %s when Consul came back", leader.Name())
		return
	}
	p.during(3*time.Second, "no session is cut", func() bool { return x.alive() || leader.Postgres().PID() != postmaster })
	p.t.Logf("the leader key blinked: %t", book.saw("primary", leader.Name(), topology.Drain, topology.CodeNoLeader))
	if leader.Postgres().PID() == postmaster {
		x.undisturbed()
	}
}

// testRestartCut: pgsteer starts anew, and again while Consul is out of reach.
func (p *patroniRig) testRestartCut(leader *lab.PatroniNode) {
	x := p.traffic(leader)
	p.down()
	p.restart() // with Consul in reach
	p.is("main", "primary", leader.Name(), topology.Up, topology.CodeWriter)
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
	x.writable()
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
	x.writable()
	p.do(p.link.Heal())
	p.current()
	p.during(time.Second, "the writer stays", func() bool { return p.view("main").Snapshot.Writer == next.Name() })
}
