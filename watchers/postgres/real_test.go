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

// Tests on the installed PostgreSQL: what a scripted server cannot prove.

func TestRealPostgreSQL(t *testing.T) {
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
		{"every field of a primary", w.primaryFields},
		{"every field of a standby", w.standbyFields},
		{"what a receiver has written", w.received},
		{"a role without rights", w.noRights},
		{"no line in the log", w.quiet},
		{"no line in the log over TLS", w.quietTLS},
		{"TLS that cannot be agreed", w.noTLS},
		{"TLS where the server offers it", w.preferTLS},
		{"one line for a wrong password", w.wrongPassword},
		{"a session that an operator ends", w.terminated},
		{"a line for other questions", w.line},
		{"a server that freezes and thaws", w.frozen},
		{"a promotion", w.promotion},
		{"a shutdown", w.shutdown},
	} {
		if !t.Run(test.name, test.run) {
			t.Fatal("the rest depends on it")
		}
	}
}

// world is the cluster that the tests share, in their order.
type world struct {
	c      *lab.Cluster
	n1, n2 *lab.Node
}

// watch is a running prober on a real server.
type watch struct {
	*Prober
	t    *testing.T
	seen chan topology.Observation
	stop func()
}

// options are those of the role with pg_monitor, with everything quick.
func (w *world) options(t *testing.T, n *lab.Node) Options {
	addr, err := topology.ParseAddress(n.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Cluster: "main", Node: n.Name(), Address: addr, User: w.c.ProbeUser(),
		Password:   func() string { return w.c.Password(w.c.ProbeUser()) },
		Interval:   100 * time.Millisecond,
		LoginEvery: 100 * time.Millisecond,
		Now:        topology.NewTicker(time.Now),
	}
}

func start(t *testing.T, o Options) *watch {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	w := &watch{Prober: p, t: t, seen: make(chan topology.Observation, 10000)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, func(o topology.Observation) { w.seen <- o }) }()
	w.stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	}
	return w
}

// until returns the first observation that fits.
func (w *watch) until(what string, fits func(topology.Observation) bool) topology.Observation {
	w.t.Helper()
	timeout := time.After(20 * time.Second)
	var last topology.Observation
	for {
		select {
		case last = <-w.seen:
			if fits(last) {
				return last
			}
		case <-timeout:
			w.t.Fatalf("no %s within 20 s; the last observation is %+v %+v", what, last.Probe, last.Failure)
		}
	}
}

func (w *watch) untilKind(k topology.ProbeKind) topology.Probe {
	w.t.Helper()
	return *w.until(string(k), func(o topology.Observation) bool { return o.Probe != nil && o.Probe.Kind == k }).Probe
}

func (w *watch) untilFailure(c topology.FailureClass) topology.Failure {
	w.t.Helper()
	return *w.until(string(c), func(o topology.Observation) bool { return o.Failure != nil && o.Failure.Class == c }).Failure
}

// logLines returns the lines that a node wrote, but those of checkpoints and of
// its receiver, which comes and goes by the tests' own doing.
func logLines(t *testing.T, n *lab.Node) []string {
	t.Helper()
	b, err := os.ReadFile(n.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for l := range strings.Lines(string(b)) {
		if !strings.Contains(l, "checkpoint") && !strings.Contains(l, "restartpoint") &&
			!strings.Contains(l, "recovery restart point") && !strings.Contains(l, "started streaming WAL") && !strings.HasPrefix(l, "\t") {
			lines = append(lines, l)
		}
	}
	return lines
}

// written runs f and returns what a node logged meanwhile.
func written(t *testing.T, n *lab.Node, f func()) []string {
	t.Helper()
	before := len(logLines(t, n))
	f()
	return logLines(t, n)[before:]
}

func (w *world) primaryFields(t *testing.T) {
	p := start(t, w.options(t, w.n1))
	defer p.stop()
	got := *p.until("standby in the answer", func(o topology.Observation) bool {
		return o.Probe != nil && len(o.Probe.Standbys) == 1 && o.Probe.Standbys[0].ReplayLSN != 0
	}).Probe
	want := []string{}
	for what, ok := range map[string]bool{
		"no recovery": got.InRecovery == topology.No, "read-write": got.ReadOnly == topology.No,
		"system identifier": got.SystemID != 0, "timeline 1": got.Timeline == 1, "write position": got.WriteLSN != 0,
		"no receive position": got.ReceiveLSN == 0, "pause state unknown": got.ReplayPaused == topology.Unknown,
		"no upstream": got.Upstream == topology.No, "no receiver": got.Receiver.Running == topology.No,
		"message age unknown": got.Receiver.MessageAge < 0,
		"start time":          time.Since(got.StartedAt) < 10*time.Minute, "version": got.ServerVersion >= 140000,
		"streaming standby": got.Standbys[0].State == "streaming" && got.Standbys[0].SyncState == "async" &&
			got.Standbys[0].ReplayLSN != 0 && got.Standbys[0].Name != "",
	} {
		if !ok {
			want = append(want, what)
		}
	}
	if len(want) > 0 {
		t.Errorf("wanted %s in %+v", strings.Join(want, ", "), got)
	}
}

func (w *world) standbyFields(t *testing.T) {
	if err := w.n1.Exec(t.Context(), "INSERT INTO writes DEFAULT VALUES"); err != nil {
		t.Fatal(err)
	}
	p := start(t, w.options(t, w.n2))
	defer p.stop()
	got := *p.until("full probe", func(o topology.Observation) bool {
		return o.Probe != nil && o.Probe.Kind == topology.ProbeFull && !o.Probe.ReplayedAt.IsZero()
	}).Probe
	want := []string{}
	for what, ok := range map[string]bool{
		"recovery": got.InRecovery == topology.Yes, "read-only": got.ReadOnly == topology.Yes,
		"system identifier": got.SystemID != 0, "timeline 1": got.Timeline == 1, "no write position": got.WriteLSN == 0,
		"positions": got.ReceiveLSN != 0 && got.ReplayLSN != 0, "replay time": time.Since(got.ReplayedAt) < 10*time.Minute,
		"not paused": got.ReplayPaused == topology.No, "no delay": got.ApplyDelay == 0, "upstream": got.Upstream == topology.Yes,
		"streaming": got.Receiver.Running == topology.Yes && got.Receiver.Streaming == topology.Yes && got.Receiver.Timeline == 1 &&
			got.Receiver.LatestEnd != 0 && got.Receiver.SenderHost == w.n1.Host() && int(got.Receiver.SenderPort) == w.n1.Port() && got.Receiver.MessageAge >= 0 && got.Receiver.MessageAge < time.Minute,
		"start time": !got.StartedAt.IsZero(),
	} {
		if !ok {
			want = append(want, what)
		}
	}
	if len(want) > 0 {
		t.Errorf("wanted %s in %+v", strings.Join(want, ", "), got)
	}
	w.pausedAndDelayed(t, p)
}

func (w *world) pausedAndDelayed(t *testing.T, p *watch) {
	ctx := t.Context()
	if err := w.n2.PauseReplay(ctx); err != nil {
		t.Fatal(err)
	}
	p.until("pause", func(o topology.Observation) bool { return o.Probe != nil && o.Probe.ReplayPaused == topology.Yes })
	if err := w.n2.ResumeReplay(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.n2.Exec(ctx, "ALTER SYSTEM SET recovery_min_apply_delay = '90s'", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	p.until("delay", func(o topology.Observation) bool { return o.Probe != nil && o.Probe.ApplyDelay == 90*time.Second })
	if err := w.n2.Exec(ctx, "ALTER SYSTEM RESET recovery_min_apply_delay", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	if err := w.n2.StopReceiver(ctx); err != nil {
		t.Fatal(err)
	}
	p.until("missing receiver", func(o topology.Observation) bool {
		return o.Probe != nil && o.Probe.Receiver.Running == topology.No && o.Probe.Timeline == 1
	})
	if err := w.n2.StartReceiver(ctx); err != nil {
		t.Fatal(err)
	}
}

// noRights: the role app may connect and nothing else.
func (w *world) noRights(t *testing.T) {
	for _, n := range []*lab.Node{w.n1, w.n2} {
		o := w.options(t, n)
		o.User, o.Password = "app", nil
		lines := written(t, n, func() {
			p := start(t, o)
			defer p.stop()
			got := p.untilKind(topology.ProbeFull)
			if got.InRecovery != topology.Bool(n == w.n2) || got.ReadOnly != topology.Bool(n == w.n2) || got.Timeline != 1 ||
				got.SystemID == 0 || got.WriteLSN == 0 && got.ReplayLSN == 0 {
				t.Errorf("%s: role, timeline, identifier or position is missing in %+v", n.Name(), got)
			}
			if got.Upstream != topology.Unknown || len(got.Standbys) != 0 {
				t.Errorf("%s: the role sees more than it may: %+v", n.Name(), got)
			}
			if n == w.n2 && (got.Receiver.Running != topology.Unknown || got.Receiver.Streaming != topology.Unknown) {
				t.Errorf("the receiver is %s, want unknown", got.Receiver.Running)
			}
		})
		if len(lines) > 0 {
			t.Errorf("%s logged %q", n.Name(), lines)
		}
	}
}

func (w *world) quiet(t *testing.T) {
	for _, n := range []*lab.Node{w.n1, w.n2} {
		if lines := written(t, n, func() { w.visit(t, w.options(t, n)) }); len(lines) > 0 {
			t.Errorf("%s logged %q", n.Name(), lines)
		}
	}
}

// visit runs three probers after one another, each with full probes, role
// probes and logins; the last one is stopped at once.
func (w *world) visit(t *testing.T, o Options) {
	for range 3 {
		p := start(t, o)
		p.SetPace(Burst)
		for _, k := range []topology.ProbeKind{
			topology.ProbeFull, topology.ProbeRole, topology.ProbeLogin, topology.ProbeFull, topology.ProbeLogin, topology.ProbeLogin,
		} {
			p.untilKind(k)
		}
		p.stop()
	}
	start(t, o).stop()
}

func (w *world) terminated(t *testing.T) {
	lines := written(t, w.n1, func() {
		o := w.options(t, w.n1)
		o.Interval, o.LoginEvery = 5*time.Second, time.Minute
		p := start(t, o)
		defer p.stop()
		p.untilKind(topology.ProbeFull)
		began := time.Now()
		err := w.n1.Exec(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgsteer'")
		if err != nil {
			t.Fatal(err)
		}
		p.untilFailure(topology.FailShutdown)
		p.untilKind(topology.ProbeFull)
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("the end of the session was seen and mended after %v, want at once", d)
		}
	})
	if len(lines) != 1 || !strings.Contains(lines[0], "terminating connection") {
		t.Errorf("the server logged %q, want the termination alone", lines)
	}
}

func (w *world) frozen(t *testing.T) {
	lines := written(t, w.n1, func() {
		p := start(t, w.options(t, w.n1))
		defer p.stop()
		p.untilKind(topology.ProbeFull)
		if err := w.n1.Freeze(); err != nil {
			t.Fatal(err)
		}
		for range lingerMost + 2 {
			p.untilFailure(topology.FailTimeout)
		}
		if err := w.n1.Thaw(); err != nil {
			t.Fatal(err)
		}
		p.untilKind(topology.ProbeFull)
		for p.door.conns.unanswered() > 0 {
			p.untilKind(topology.ProbeFull)
		}
	})
	if len(lines) > 0 {
		t.Errorf("the server logged %q", lines)
	}
}

// promotion: the empty query sees it, the full probe tells the new timeline.
func (w *world) promotion(t *testing.T) {
	o := w.options(t, w.n2)
	o.Interval = 2 * time.Second // so that only the role probes can be first
	p := start(t, o)
	defer p.stop()
	p.untilKind(topology.ProbeFull)
	p.SetPace(Burst)
	p.untilKind(topology.ProbeRole)
	if err := w.c.Promote(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	first := p.until("writable", func(o topology.Observation) bool {
		return o.Probe != nil && o.Probe.Kind != topology.ProbeLogin && o.Probe.InRecovery == topology.No
	}).Probe
	if first.Kind != topology.ProbeRole || first.ReadOnly != topology.No {
		t.Errorf("the first to see it is %+v, want a role probe that says read-write", first)
	}
	full := p.untilKind(topology.ProbeFull)
	if full.Timeline != 2 || full.WriteLSN == 0 || full.ReadOnly != topology.No {
		t.Errorf("the new primary says %+v, want timeline 2 and a write position", full)
	}
	if err := w.n2.Exec(t.Context(), "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	p.until("read-only", func(o topology.Observation) bool {
		return o.Probe != nil && o.Probe.Kind == topology.ProbeRole && o.Probe.ReadOnly == topology.Yes && o.Probe.InRecovery == topology.No
	})
}

func (w *world) shutdown(t *testing.T) {
	p := start(t, w.options(t, w.n2))
	defer p.stop()
	p.untilKind(topology.ProbeFull)
	if err := w.n2.Stop(t.Context(), lab.Fast); err != nil {
		t.Fatal(err)
	}
	p.untilFailure(topology.FailShutdown)
	p.untilFailure(topology.FailRefused)
	p.untilFailure(topology.FailRefused)
}
