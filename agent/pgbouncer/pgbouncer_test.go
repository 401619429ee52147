package pgbouncer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
)

// rig is a fake PgBouncer named edge with databases app and jobs, which write, and
// reports, which reads; other leads to another cluster.
type rig struct {
	*fake
	t     *testing.T
	path  string
	views latest.Map[string, topology.View]
	c     *Control
	log   logtest.Log
	// settled is what the balancers do; nil: they are not waited for.
	settled func(ctx context.Context, cluster string, generation uint64) error
	stop    func()    // ends Run and waits for it
	frozen  time.Time // what the clock says, and ahead in nanoseconds more; zero: it runs
	ahead   atomic.Int64
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{fake: newFake(t, "app", "jobs", "reports", "other"), t: t, path: filepath.Join(t.TempDir(), "state", "pgbouncer.json"), stop: func() {}}
	t.Cleanup(func() { r.stop() })
	return r
}

// control makes a Control, as a start of the agent does.
func (r *rig) control(change ...func(*Bouncer)) *Control {
	r.t.Helper()
	b := Bouncer{
		Name: "edge", Login: Login{Address: r.addr, User: "steer"}, Timeout: 2 * time.Second,
		Databases: []Entry{
			{"app", "main", "primary", topology.ModeWrite},
			{"jobs", "main", "primary", topology.ModeWrite},
			{"reports", "main", "replica", topology.ModeRead},
			{"other", "second", "primary", topology.ModeWrite},
		},
	}
	for _, f := range change {
		f(&b)
	}
	c, err := New(Options{Bouncers: []Bouncer{b}, Settled: r.settled, Views: &r.views, Now: topology.NewTicker(r.time), Path: r.path, Recheck: 20 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&r.log, nil))})
	if err != nil {
		r.t.Fatal(err)
	}
	r.c = c
	return c
}

func (r *rig) time() time.Time {
	if r.frozen.IsZero() {
		return time.Now()
	}
	return r.frozen.Add(time.Duration(r.ahead.Load()))
}

// run starts a Control.
func (r *rig) run(change ...func(*Bouncer)) *Control {
	r.t.Helper()
	c := r.control(change...)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	}
	return c
}

func (r *rig) writer(cluster, node string) {
	r.views.Set(cluster, &topology.View{Snapshot: &topology.Snapshot{Cluster: cluster, Writer: node}})
}

func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		select {
		case <-r.t.Context().Done():
		case <-time.After(2 * time.Millisecond):
		}
		if time.Now().After(end) {
			r.t.Fatalf("waited in vain for %s; paused: %v, sent: %q, status: %+v", what, r.paused(), r.sent(), r.c.Status())
		}
	}
}

// onDisk is what the file has.
func (r *rig) onDisk() string {
	b, err := os.ReadFile(r.path)
	if err != nil {
		return ""
	}
	return string(b)
}

func (r *rig) wantPaused(names ...string) {
	r.t.Helper()
	if got := r.paused(); !slices.Equal(got, names) {
		r.t.Errorf("paused are %v, want %v", got, names)
	}
}

func short(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// A hold pauses what leads to the cluster's writer, notes it on the disk before, and
// leaves alone what an operator has paused, also when it ends.
func TestHold(t *testing.T) {
	r := newRig(t)
	c := r.run()
	r.set(func() {
		r.databases["jobs"].Paused = true // an operator's
		r.servers = [][3]string{{"app", "10.0.0.1", "1"}, {"app", "10.0.0.1", "0"}, {"foreign", "10.0.0.1", "1"}}
		r.before = func(command string) error {
			if command == `PAUSE "app"` && !strings.Contains(r.onDisk(), `"app"`) {
				t.Errorf("PAUSE was sent while the disk had %q", r.onDisk())
			}
			return nil
		}
	})
	h, err := c.Hold(short(t, 5*time.Second), "main")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([][]string{{"edge/app"}, {"edge/jobs"}}, [][]string{h.Paused, h.Left}); diff != "" {
		t.Errorf("paused and left (-want +got)\n%s", diff)
	}
	r.wantPaused("app", "jobs")
	app := Database{Name: "app", Host: "10.0.0.1", Port: "5432", Paused: true}
	r.until("the status to tell", func() bool {
		s := c.Status()[0]
		if len(s.Leads) != 4 || s.Leads[0] != app { // app, jobs, other, reports
			return false
		}
		return slices.Equal(s.Paused, []string{"app"}) && slices.Equal(s.PausedElsewhere, []string{"jobs"}) && s.Leaving == 1 && s.Err == nil
	})
	if err := h.Release(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	r.wantPaused("jobs")
	if strings.Contains(r.onDisk(), `"app"`) {
		t.Errorf("after the release the disk has %s", r.onDisk())
	}
	r.stop()
	r.wantPaused("jobs")
	if n := c.Status()[0].Counters; n["pauses"] != 1 || n["resumes"] != 1 {
		t.Errorf("counted %v", n)
	}
}

// A transaction that does not end ends the hold at its limit: everything is resumed
// before Hold returns, and no cancel request is sent, which would end an operator's
// PAUSE of everything.
func TestHoldEndsAtItsLimit(t *testing.T) {
	r := newRig(t)
	c := r.run()
	r.set(func() {
		r.before = func(command string) error {
			if command != `PAUSE "jobs"` {
				return nil
			}
			r.set(func() { r.databases["jobs"].Paused = true }) // as PgBouncer does while it waits
			return errHang
		}
	})
	begin := time.Now()
	if _, err := c.Hold(short(t, 300*time.Millisecond), "main"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the hold: %v", err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("it took %s", d)
	}
	r.wantPaused()
	r.set(func() {
		if r.cancels != 0 {
			t.Errorf("%d cancel requests", r.cancels)
		}
	})
}

// A console that hangs is given up, told, and opened again; it gets no cancel request
// either.
func TestConsoleHangs(t *testing.T) {
	r := newRig(t)
	hang := func(command string) error {
		if command == "SHOW DATABASES" {
			return errHang
		}
		return nil
	}
	r.set(func() { r.before = hang })
	c := r.run(func(b *Bouncer) { b.Timeout = 100 * time.Millisecond })
	r.until("it to be told", func() bool {
		s := c.Status()[0]
		return s.Err != nil && strings.Contains(s.Err.Error(), "no answer within 100ms") && s.Counters["failed"] > 1 && s.Leads == nil
	})
	r.set(func() { r.before = nil })
	r.until("all to be well", func() bool { return c.Status()[0].Err == nil })
	r.set(func() {
		if r.cancels != 0 || r.logins < 2 {
			t.Errorf("%d cancel requests and %d logins", r.cancels, r.logins)
		}
	})
}

// What an agent that was killed has left paused is resumed at the next start, and
// nothing else.
func TestResumedAtTheNextStart(t *testing.T) {
	r := newRig(t)
	if _, err := r.control().Hold(short(t, 5*time.Second), "main"); err != nil { // and is never heard of again
		t.Fatal(err)
	}
	r.c.bouncers["edge"].hangUp()
	r.set(func() { r.databases["other"].Paused = true })
	r.wantPaused("app", "jobs", "other")
	refused := 0
	r.set(func() {
		r.before = func(command string) error {
			if strings.HasPrefix(command, "RESUME") && refused < 2 {
				refused++
				return errors.New("not now")
			}
			return nil
		}
	})
	r.run()
	r.until("what was left paused to be resumed", func() bool { return slices.Equal(r.paused(), []string{"other"}) })
	r.until("the file to forget it", func() bool { return !strings.Contains(r.onDisk(), `"edge"`) })
	if refused == 0 {
		t.Error("no RESUME was refused, so that no second try was seen")
	}
}

// The end of the agent resumes what a hold has, and lets none begin or go on.
func TestResumedAtTheEnd(t *testing.T) {
	r := newRig(t)
	c := r.run()
	if _, err := c.Hold(short(t, 5*time.Second), "second"); err != nil {
		t.Fatal(err)
	}
	pausing := make(chan struct{})
	r.set(func() {
		r.before = func(command string) error {
			if command == `PAUSE "app"` {
				r.set(func() { r.databases["app"].Paused = true })
				close(pausing)
				return errHang
			}
			return nil
		}
	})
	held := make(chan error, 1)
	go func() {
		_, err := c.Hold(short(t, time.Minute), "main")
		held <- err
	}()
	<-pausing
	r.stop()
	if err := <-held; err == nil {
		t.Error("a hold that began before the end went on")
	}
	r.wantPaused()
	if _, err := c.Hold(t.Context(), "main"); !errors.Is(err, ErrEnding) {
		t.Errorf("a hold after the end: %v", err)
	}
}

// Another writer has the databases of its cluster reconnected, once, also when it came
// while the agent was away, and until it succeeds. The first writer that is seen at
// all has not.
func TestReconnect(t *testing.T) {
	r := newRig(t)
	r.writer("main", "n1")
	r.run()
	r.until("the writer to be noted", func() bool { return strings.Contains(r.onDisk(), `"n1"`) })
	if got := r.sent(); len(got) > 0 {
		t.Errorf("at the first writer %q was sent", got)
	}
	failing := 0
	r.set(func() {
		r.before = func(command string) error {
			if strings.HasPrefix(command, "RECONNECT") && failing < 3 {
				failing++
				return errors.New("not now")
			}
			return nil
		}
	})
	r.writer("main", "")
	r.writer("main", "n2")
	r.until("the failure to be told", func() bool { s := r.c.Status()[0]; return s.Err != nil && strings.Contains(s.Err.Error(), "not now") })
	r.until("a reconnect", func() bool { return r.c.Status()[0].Counters["reconnects"] == 3 && r.c.Status()[0].Err == nil })
	want := `RECONNECT "app" + RECONNECT "jobs" + RECONNECT "reports"`
	if got := r.sent(); len(got) != 2 || got[0] != want || got[1] != want {
		t.Errorf("sent were %q, want twice %q", got, want)
	}
	r.stop()
	r.writer("main", "n3")
	r.run()
	r.until("a reconnect for the writer that came meanwhile", func() bool { return len(r.sent()) == 3 })
	r.drop()
	r.writer("main", "n1")
	r.until("a reconnect over a new session", func() bool { return len(r.sent()) == 4 })
	r.stop()
	told := make(chan struct{})
	r.settled = func(ctx context.Context, cluster string, _ uint64) error {
		if n := len(r.sent()); cluster != "main" || n != 4 {
			t.Errorf("the balancers of %s were waited for after %d commands", cluster, n)
		}
		close(told)
		return errors.New("one does not obey")
	}
	r.writer("main", "n2")
	r.run()
	<-told
	r.until("a reconnect although a balancer does not obey", func() bool { return len(r.sent()) == 5 })
}

// Without a disk to note it on nothing is paused.
func TestNothingIsPausedUnnoted(t *testing.T) {
	r := newRig(t)
	c := r.run()
	if err := os.WriteFile(filepath.Dir(r.path), nil, 0o600); err != nil { // a file where the folder should be
		t.Fatal(err)
	}
	if _, err := c.Hold(short(t, 5*time.Second), "main"); err == nil || !strings.Contains(err.Error(), "nothing was paused") {
		t.Errorf("the hold: %v", err)
	}
	if got := r.sent(); len(got) > 0 {
		t.Errorf("sent were %q", got)
	}
}

// A record that cannot be used is set aside and told; so is what was paused at a
// PgBouncer that is configured no more. Keys of another release are kept.
func TestRecord(t *testing.T) {
	r := newRig(t)
	for text, want := range map[string]string{
		"{nonsense": "SHOW DATABASES",
		`{"paused":[{"bouncer":"gone","database":"x","since":"2026-11-30T12:00:00Z"}],"later":7}`: "PgBouncer gone (an address that was not noted), which is not configured any more",
	} {
		if err := os.MkdirAll(filepath.Dir(r.path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.run()
		r.until(fmt.Sprintf("%q to be told", want), func() bool {
			return slices.ContainsFunc(r.c.Status(), func(s Status) bool { return s.Err != nil && strings.Contains(s.Err.Error(), want) })
		})
		r.writer("main", "n1")
		r.until("the file to be written", func() bool { return strings.Contains(r.onDisk(), `"n1"`) })
		if strings.Contains(text, "later") && !strings.Contains(r.onDisk(), `"later": 7`) {
			t.Errorf("a key of another release is lost: %s", r.onDisk())
		}
		r.stop()
	}
	if _, err := os.Stat(r.path + ".corrupt"); err != nil {
		t.Error(err)
	}
}

func TestPlaces(t *testing.T) {
	for address, want := range map[string]string{
		"/run/postgresql/.s.PGSQL.6432": "/run/postgresql 6432", "10.0.0.1:6432": "10.0.0.1 6432", "[fd00::1]:1": "fd00::1 1",
		"/run/postgresql": "", "/run/.s.PGSQL.x": "", "10.0.0.1": "", "10.0.0.1:0": "", "/run/.s.PGSQL.70000": "",
	} {
		got := ""
		if host, port, err := place(address); err == nil {
			got = fmt.Sprint(host, " ", port)
		}
		if got != want {
			t.Errorf("%s is at %q, want %q", address, got, want)
		}
	}
}
