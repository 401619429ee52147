package postgres

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// Tests of the questions beside the probe on the installed PostgreSQL and
// PgBouncer.

func TestRealPgBouncer(t *testing.T) {
	w, b := withBouncer(t, map[string]string{"server_login_retry": "1"})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *lab.PgBouncer)
	}{
		{"connect leaves no line", w.connectIsQuiet},
		{"one session for all queries", w.queriesAreQuiet},
		{"one login with a wrong password", w.bouncerRefuses},
		{"a server that is away", w.serverAway},
		{"a PgBouncer that freezes and dies", w.bouncerAway},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, b) }) {
			t.Fatal("the rest depends on it")
		}
	}
}

func withBouncer(t *testing.T, settings map[string]string) (*world, *lab.PgBouncer) {
	t.Helper()
	l := labtest.ForTest(t, lab.NeedPostgres, lab.NeedPgBouncer)
	c, err := l.Cluster(t.Context(), lab.ClusterOptions{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.PgBouncer(t.Context(), lab.PgBouncerOptions{Node: c.Node("n1"), Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	return &world{c: c, n1: c.Node("n1")}, b
}

// said returns what a PgBouncer logged while f ran.
func said(t *testing.T, b *lab.PgBouncer, f func()) []string {
	t.Helper()
	read := func() []string {
		text, err := os.ReadFile(b.LogFile())
		if err != nil {
			t.Fatal(err)
		}
		return strings.SplitAfter(strings.TrimSpace(string(text)), "\n")
	}
	before := len(read())
	f()
	return read()[before:]
}

// checking starts a prober that checks one port alone beside its probes.
func (w *world) checking(t *testing.T, port int, how topology.PortCheck) *watch {
	t.Helper()
	o := w.options(t, w.n1)
	o.LoginEvery = time.Hour
	p := start(t, o)
	p.SetPorts(Ports{uint16(port): how})
	return p
}

func (w *watch) untilPort() {
	w.t.Helper()
	w.until("answer of the port", func(o topology.Observation) bool { return o.Port != nil })
}

// portFailure waits for a failure of the port and returns it.
func (w *watch) portFailure(c topology.FailureClass) topology.Failure {
	w.t.Helper()
	return *w.until("failed port: "+string(c), func(o topology.Observation) bool {
		return o.Failure != nil && o.Failure.Asked == topology.ProbePort && o.Failure.Class == c
	}).Failure
}

// connectIsQuiet checks PgBouncer's port, and PostgreSQL's own like a pool's.
func (w *world) connectIsQuiet(t *testing.T, b *lab.PgBouncer) {
	var server []string
	front := said(t, b, func() {
		server = written(t, w.n1, func() {
			for _, port := range []int{b.Port(), w.n1.Port()} {
				p := w.checking(t, port, topology.PortCheckConnect)
				for range 12 {
					p.untilPort()
				}
				p.stop()
			}
		})
	})
	if len(front)+len(server) > 0 {
		t.Errorf("PgBouncer logged %q, PostgreSQL %q", front, server)
	}
}

func (w *world) queriesAreQuiet(t *testing.T, b *lab.PgBouncer) {
	var server []string
	front := said(t, b, func() {
		server = written(t, w.n1, func() {
			p := w.checking(t, b.Port(), topology.PortCheckPgBouncer)
			for range 12 {
				p.untilPort()
			}
			p.stop()
		})
	})
	logins := 0
	for _, l := range front {
		if strings.Contains(l, "login attempt") {
			logins++
		}
		if strings.Contains(l, "WARNING") || strings.Contains(l, "ERROR") || strings.Contains(l, "eof") {
			t.Errorf("PgBouncer complains: %s", l)
		}
	}
	if logins != 1 || len(server) > 0 {
		t.Errorf("%d logins in %q, want one; PostgreSQL logged %q", logins, front, server)
	}
}

func (w *world) bouncerRefuses(t *testing.T, b *lab.PgBouncer) {
	o := w.options(t, w.n1)
	o.User, o.Password, o.LoginEvery = "nobody", func() string { return "certainly-not-it" }, time.Hour
	front := said(t, b, func() {
		p := start(t, o)
		defer p.stop()
		p.SetPorts(Ports{uint16(b.Port()): topology.PortCheckPgBouncer})
		for range 10 {
			if f := p.portFailure(topology.FailAuth); strings.Contains(f.Text, "certainly-not-it") {
				t.Errorf("the text holds the password: %s", f.Text)
			}
		}
	})
	if n := strings.Count(strings.Join(front, ""), "login attempt"); n != 1 {
		t.Errorf("%d logins, want one: %q", n, front)
	}
}

// serverAway: PgBouncer accepts and cannot reach PostgreSQL.
func (w *world) serverAway(t *testing.T, b *lab.PgBouncer) {
	p := w.checking(t, b.Port(), topology.PortCheckPgBouncer)
	defer p.stop()
	p.untilPort()
	if err := w.n1.Stop(t.Context(), lab.Fast); err != nil {
		t.Fatal(err)
	}
	front := said(t, b, func() {
		for range 3 {
			p.portFailure(topology.FailTimeout)
		}
	})
	if n := strings.Count(strings.Join(front, ""), "login attempt"); n > 1 {
		t.Errorf("%d logins at PgBouncer while its server is away, want one question that stays open: %q", n, front)
	}
	if err := w.n1.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.untilPort()
}

func (w *world) bouncerAway(t *testing.T, b *lab.PgBouncer) {
	p := w.checking(t, b.Port(), topology.PortCheckPgBouncer)
	defer p.stop()
	p.untilPort()
	if err := b.Freeze(); err != nil {
		t.Fatal(err)
	}
	p.portFailure(topology.FailTimeout)
	if err := b.Thaw(); err != nil {
		t.Fatal(err)
	}
	p.untilPort()
	began := time.Now()
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	p.portFailure(topology.FailRefused)
	p.portFailure(topology.FailRefused)
	if d := time.Since(began); d > 2*time.Second {
		t.Errorf("a dead PgBouncer was seen and confirmed after %v", d)
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.untilPort()
}

func TestRealWriteProbe(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedPostgres)
	c, err := l.Cluster(t.Context(), lab.ClusterOptions{Nodes: 2})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{c: c, n1: c.Node("n1"), n2: c.Node("n2")}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"without a table", w.writeWithoutTable},
		{"with a table", w.writes},
		{"a lock in the way", w.writeBehindLock},
		{"commits that wait for a standby", w.syncWaiters},
		{"slots that are all taken", w.slots},
	} {
		if !t.Run(test.name, test.run) {
			t.Fatal("the rest depends on it")
		}
	}
}

// heartbeat is what the manual tells to run for write_probe.
var heartbeat = []string{
	"CREATE SCHEMA IF NOT EXISTS pgsteer",
	"CREATE TABLE pgsteer.heartbeat (agent text PRIMARY KEY, at timestamptz NOT NULL)",
	"GRANT USAGE ON SCHEMA pgsteer TO pgsteer",
	"GRANT SELECT, INSERT, UPDATE ON pgsteer.heartbeat TO pgsteer",
}

func (w *world) writing(t *testing.T, n *lab.Node) *watch {
	t.Helper()
	o := w.options(t, n)
	o.WriteProbe, o.Agent, o.LoginEvery = "pgsteer.heartbeat", "a1", time.Hour
	return start(t, o)
}

func (w *watch) writeFailure(c topology.FailureClass) topology.Failure {
	w.t.Helper()
	return *w.until("failed write: "+string(c), func(o topology.Observation) bool {
		return o.Failure != nil && o.Failure.Asked == topology.ProbeWrite && o.Failure.Class == c
	}).Failure
}

// writeWithoutTable: a table that is missing, then one without rights; each is
// one error in the log.
func (w *world) writeWithoutTable(t *testing.T) {
	for _, c := range []struct {
		before []string
		text   string
	}{
		{nil, "does not exist"},
		{heartbeat[:2], "permission denied"},
	} {
		if err := w.n1.Exec(t.Context(), c.before...); err != nil {
			t.Fatal(err)
		}
		lines := written(t, w.n1, func() {
			p := w.writing(t, w.n1)
			defer p.stop()
			f := p.writeFailure(topology.FailProtocol)
			if !strings.Contains(f.Text, c.text) || !strings.Contains(f.Text, "agent text PRIMARY KEY") {
				t.Errorf("the text is %q", f.Text)
			}
			for range 15 { // more than writeEvery
				p.untilKind(topology.ProbeFull)
			}
		})
		if n := strings.Count(strings.Join(lines, ""), "ERROR:"); n != 1 {
			t.Errorf("the server logged %q, want one error", lines)
		}
	}
}

func (w *world) writes(t *testing.T) {
	if err := w.n1.Exec(t.Context(), heartbeat[2:]...); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*lab.Node{w.n1, w.n2} {
		lines := written(t, n, func() {
			p := w.writing(t, n)
			defer p.stop()
			if n == w.n1 {
				p.untilKind(topology.ProbeWrite)
				p.untilKind(topology.ProbeWrite)
				return
			}
			for range 20 {
				if o := p.until("anything", func(topology.Observation) bool { return true }); o.Failure != nil || o.Probe.Kind == topology.ProbeWrite {
					t.Fatalf("observed %+v %+v on a standby", o.Probe, o.Failure)
				}
			}
		})
		if len(lines) > 0 {
			t.Errorf("%s logged %q", n.Name(), lines)
		}
	}
	conn, err := w.n1.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var rows int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pgsteer.heartbeat WHERE agent = 'a1'").Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d rows of agent a1, %v; want one", rows, err)
	}
}

func (w *world) writeBehindLock(t *testing.T) {
	p := w.writing(t, w.n1)
	defer p.stop()
	p.untilKind(topology.ProbeWrite)
	conn, err := w.n1.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE pgsteer.heartbeat"); err != nil {
		t.Fatal(err)
	}
	if f := p.writeFailure(topology.FailTimeout); !strings.Contains(f.Text, "55P03") {
		t.Errorf("the text is %q, want lock_timeout to be met", f.Text)
	}
	if _, err := conn.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	p.untilKind(topology.ProbeWrite)
}

// syncWaiters: commits that wait for a standby that is away are counted, by a
// role that may see them; the write probe waits for no standby.
func (w *world) syncWaiters(t *testing.T) {
	p := w.writing(t, w.n1)
	defer p.stop()
	if got := p.untilKind(topology.ProbeFull); got.SyncWaiters != 0 {
		t.Errorf("%d sessions wait, want none", got.SyncWaiters)
	}
	waiting, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := w.n1.Exec(t.Context(), "ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	conn, err := w.n1.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = conn.Exec(waiting, "INSERT INTO writes DEFAULT VALUES") // it never returns by itself
	}()
	p.until("waiting session", func(o topology.Observation) bool { return o.Probe != nil && o.Probe.SyncWaiters == 1 })
	p.untilKind(topology.ProbeWrite)
	p.untilKind(topology.ProbeWrite)
	o := w.options(t, w.n1)
	o.User, o.Password = "app", nil
	blind := start(t, o)
	if got := blind.untilKind(topology.ProbeFull); got.SyncWaiters != -1 {
		t.Errorf("a role without pg_monitor counts %d waiting sessions, want unknown", got.SyncWaiters)
	}
	blind.stop()
	if err := w.n1.Exec(t.Context(), "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	p.until("end of the wait", func(o topology.Observation) bool {
		return o.Probe != nil && o.Probe.Kind == topology.ProbeFull && o.Probe.SyncWaiters == 0
	})
	<-done
}

// slots: a role that may have one session keeps it, and is told by name that
// there is no second one.
func (w *world) slots(t *testing.T) {
	o := w.options(t, w.n1)
	o.Interval, o.LoginEvery = 500*time.Millisecond, 200*time.Millisecond
	p := start(t, o)
	defer p.stop()
	p.untilKind(topology.ProbeFull)
	if err := w.n1.Exec(t.Context(), "ALTER ROLE pgsteer CONNECTION LIMIT 1"); err != nil {
		t.Fatal(err)
	}
	if f := p.untilFailure(topology.FailSlots); f.Asked != topology.ProbeLogin {
		t.Errorf("failed as %+v, want the fresh login alone to fail", f)
	}
	p.untilKind(topology.ProbeFull)
	if err := w.n1.Exec(t.Context(), "ALTER ROLE pgsteer CONNECTION LIMIT 0",
		"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgsteer'"); err != nil {
		t.Fatal(err)
	}
	p.until("attempt at a new session without a slot", func(o topology.Observation) bool {
		return o.Failure != nil && o.Failure.Class == topology.FailSlots && o.Failure.Asked == topology.ProbeFull
	})
}
