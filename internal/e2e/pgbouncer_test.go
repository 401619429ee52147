package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// A planned switchover by Patroni while clients of PgBouncer write, in sessions that
// stay and in new ones: they wait, and not one transaction fails. PgBouncer leads to
// the new writer by the file that a template writes.
func TestHeldSwitchoverByPatroni(t *testing.T) {
	t.Parallel()
	b := newBouncerRig(t, bouncerOptions{patroni: true})
	for _, to := range []string{"n2", "n3"} {
		b.until(to+" to serve reads", func() bool { v, _ := b.verdict("main", "replica", to); return v == topology.Up })
		loads := b.clients()
		pgbench := b.pgbench(10)
		begin := time.Now()
		s := b.switchOver(t.Context(), `{"to":"`+to+`"}`)
		t.Logf("switchover to %s:\n%s", to, s.text())
		if s.code != http.StatusOK || s.result.Error != "" || s.result.Writer != to || s.result.LimitReached {
			t.Fatalf("%d %+v", s.code, s.result)
		}
		port := b.patroni.Node(to).Port()
		for _, l := range loads {
			b.do(l.Wait(t.Context(), "a write after it", func(x lab.Sample) bool { return x.Op == lab.Write && x.Err == nil }))
		}
		for i, l := range loads {
			b.unbroken([]string{"sessions that stay", "new sessions"}[i], l.Stop())
			w := waits(l.Samples(), begin.Add(-5*time.Second), time.Now())
			t.Logf("the longest wait was %s; clients were held for %.3f s", w[len(w)-1], s.result.HeldFor)
		}
		out, err := pgbench()
		t.Logf("pgbench says:\n%s", out)
		if err != nil || !strings.Contains(out, "number of failed transactions: 0 ") {
			t.Errorf("pgbench: %v", err)
		}
		if b.isPaused() || b.reached(b.bouncer.Addr()) != port {
			t.Errorf("afterwards PgBouncer is paused: %t, and leads to port %d, want %d", b.isPaused(), b.reached(b.bouncer.Addr()), port)
		}
	}
	n1, why := b.patroni.Node("n1"), ""
	b.do(n1.Postgres().Freeze())
	b.until("n1 to be refused", func() bool {
		s := b.switchOver(t.Context(), `{"to":"n1"}`)
		why = s.text()
		return s.code == http.StatusConflict && strings.Contains(why, "n1 is up in no pool")
	})
	b.do(n1.Postgres().Thaw())
	t.Logf("a candidate that does not answer: %s", why)
}

// The same where PgBouncer leads to HAProxy, and a command switches over: resumed is
// only once HAProxy knows the new writer.
func TestHeldSwitchoverBeforeHAProxy(t *testing.T) {
	t.Parallel()
	b := newBouncerRig(t, bouncerOptions{behindHAProxy: true})
	var done func()
	b.o.switchover, done = b.byHand()
	b.writeConfig()
	b.do(b.agent.Reload(t.Context()))
	loads := b.clients()
	answer := make(chan switched, 1)
	go func() { answer <- b.switchOver(context.Background(), `{"to":"n2"}`) }()
	b.asked()
	b.switchover("n2")
	done()
	s := <-answer
	t.Logf("switchover:\n%s", s.text())
	if s.result.Error != "" || s.result.Writer != "n2" {
		t.Fatalf("%d %+v", s.code, s.result)
	}
	for i, l := range loads {
		b.do(l.Wait(t.Context(), "a write after it", func(x lab.Sample) bool { return x.Op == lab.Write && x.Err == nil }))
		b.unbroken([]string{"sessions that stay", "new sessions"}[i], l.Stop())
	}
	if p := b.reached(b.bouncer.Addr()); p != b.node("n2").Port() {
		t.Errorf("PgBouncer leads to port %d", p)
	}
}

// An authority that hangs: at the limit everything is resumed, and nobody has failed.
// A caller who goes away has everything resumed at once, and the command goes on. A
// PgBouncer that does not read the template's file is told, and not paused. What `pgsteer
// pgbouncer pause` has paused keeps a switchover away; an operator's own PAUSE stays.
func TestSwitchoverLimit(t *testing.T) {
	t.Parallel()
	b := newBouncerRig(t, bouncerOptions{})
	ended := b.file("ended")
	b.o.switchover = fmt.Sprintf("command: [sh, -c, %q], limit: 1s, timeout: 7s", fmt.Sprintf("trap 'touch %s; exit 1' TERM; sleep 60 & wait", ended))
	b.o.timeout = "3s" // another one of what speaks to PgBouncer, which knows where it must lead
	b.writeConfig()
	b.do(b.agent.Reload(t.Context()))
	loads := b.clients()
	begin := time.Now()
	s := b.switchOver(t.Context(), `{"to":"n2"}`)
	t.Logf("an authority that hangs:\n%s", s.text())
	if !strings.Contains(s.result.Error, "the command sh was ended by pgsteer before it was through") || !s.result.LimitReached || s.result.HeldFor < 0.9 || s.result.HeldFor > 3 {
		t.Errorf("%d %+v", s.code, s.result)
	}
	for i, l := range loads {
		w := waits(l.Samples(), begin.Add(-time.Second), time.Now())
		t.Logf("%d operations, the longest took %s", len(w), w[len(w)-1])
		b.unbroken([]string{"sessions that stay", "new sessions"}[i], l.Stop())
	}

	b.do(os.Remove(ended))
	ctx, abort := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() { defer close(gone); b.switchOver(ctx, `{"to":"n2","limit":"3s"}`) }()
	b.until("the pause", b.isPaused)
	abort()
	<-gone
	if d := b.until("the end of the pause", func() bool { return !b.isPaused() }); d > time.Second {
		t.Errorf("after the caller went away it took %s to resume", d)
	}
	if s = b.switchOver(t.Context(), `{"to":"n2"}`); !strings.Contains(s.text(), "its command still runs") {
		t.Errorf("beside the command: %s", s.text())
	}
	b.unread()
	if s, err := b.order("pause", `{"for":"1m"}`); err != nil || s != http.StatusOK {
		t.Errorf("pause: %d %v", s, err)
	}
	b.until("the end of the command", func() bool { _, err := os.Stat(ended); return err == nil })
	b.until("it to be seen", func() bool {
		s = b.switchOver(t.Context(), `{"to":"n2"}`)
		return !strings.Contains(s.text(), "under way")
	})
	if want := "database postgres is paused by `pgsteer pgbouncer pause`"; !strings.Contains(s.result.Error, want) || !b.isPaused() {
		t.Errorf("beside a pause: %d %s %+v", s.code, s.text(), s.result)
	}
	t.Logf("beside a pause: %s", s.result.Error)
	if s, err := b.order("resume", ""); err != nil || s != http.StatusOK {
		t.Errorf("resume: %d %v", s, err)
	}
	s = b.switchOver(t.Context(), `{"to":"n1"}`)
	if s.code != http.StatusConflict || !strings.Contains(s.text(), "n1 is the writer already") {
		t.Errorf("%d %s", s.code, s.text())
	}

	b.console(`PAUSE "postgres"`)
	s = b.switchOver(t.Context(), `{"to":"n2"}`)
	if !strings.Contains(s.text(), "paused before by somebody else") || len(s.result.Paused) > 0 {
		t.Errorf("what an operator has paused:\n%s", s.text())
	}
	b.down()
	if !b.isPaused() {
		t.Error("an operator's PAUSE did not stay")
	}
	b.console(`RESUME "postgres"`)
}

// pgsteer is killed while its switchover holds clients: at its next start they go on,
// and none has failed.
func TestKilledWhilePaused(t *testing.T) {
	t.Parallel()
	b := newBouncerRig(t, bouncerOptions{external: true, switchover: `command: [sleep, "60"], limit: 30s`})
	program := buildProgram(t)
	p := b.run(program)
	ready := func() bool { return b.sink("template edge").State == "applied" }
	b.until("the template to be applied", ready)
	loads := b.clients()
	go b.switchOver(context.Background(), `{"to":"n2"}`)
	b.until("the pause", b.isPaused)
	p.kill()
	b.during(500*time.Millisecond, "without pgsteer it stays paused", b.isPaused)
	b.run(program)
	d := b.until("the end of the pause", func() bool { return !b.isPaused() })
	t.Logf("resumed %s after the start", d)
	for i, l := range loads {
		b.do(l.Wait(t.Context(), "a write after it", func(x lab.Sample) bool { return x.Op == lab.Write && x.Err == nil }))
		b.unbroken([]string{"sessions that stay", "new sessions"}[i], l.Stop())
	}
	b.until("the agent to be as it should be", func() bool { s := b.sink("pgbouncer edge"); return s.State == "ok" && s.Gauges["paused"] == 0 })
}

// A promotion whose old writer lives on and takes writes: sessions that PgBouncer has
// leave it after the decision, though nothing has cut them (PgBouncer issue 1311).
func TestReconnectLeavesTheOldWriter(t *testing.T) {
	t.Parallel()
	b := newBouncerRig(t, bouncerOptions{})
	old, next := b.writer(), b.node("n2")
	held := b.session(b.bouncer.Addr(), old.Port())
	b.do(b.cluster.Promote(t.Context(), "n2"))
	b.until("n2 to be the writer", func() bool { v := b.view("main"); return v.Snapshot.Writer == "n2" })
	d := b.until("the session to reach n2", func() bool { return serverPort(held) == next.Port() })
	t.Logf("the session is on n2 %s after the decision", d)
	for range 100 {
		if p := serverPort(held); p != next.Port() {
			t.Fatalf("a transaction was on port %d, n1 has %d", p, old.Port())
		}
	}
	if s := b.sink("pgbouncer edge"); s.Counters["reloads"] == 0 || s.Counters["reconnects"] == 0 {
		t.Errorf("counted were %v", s.Counters)
	}
	if port := b.reached(old.Addr()); port != old.Port() {
		t.Errorf("the old writer is gone, so that nothing was shown: port %d", port)
	}
}

// pg_auto_failover's monitor is asked by its function, and carries it out; there is no
// PgBouncer, so that nobody is held.
func TestSwitchoverByMonitor(t *testing.T) {
	t.Parallel()
	p := autoRigOf(t, 2, lab.NeedAutoFailover)
	p.replace("operator.token", operator+"\n")
	p.steer("    switchover: {user: autoctl_node}\nmaintenance: {admin_token_file: operator.token}\n")
	p.up()
	p.settled("n1", "n2")
	s := p.switchOver(t.Context(), `{"to":"n2"}`)
	t.Logf("switchover:\n%s", s.text())
	if s.result.Error != "" || s.result.Writer != "n2" || len(s.result.Paused) > 0 || !strings.Contains(s.text(), "nobody's clients are held") {
		t.Errorf("%d %+v", s.code, s.result)
	}
	p.settled("n2", "n1")
	p.steer("maintenance: {admin_token_file: operator.token}\n") // the role that reads
	p.do(p.agent.Reload(t.Context()))
	if s := p.switchOver(t.Context(), `{}`); !strings.Contains(s.result.Error, "permission denied") {
		t.Errorf("without the right to: %d %+v", s.code, s.result)
	}
}
