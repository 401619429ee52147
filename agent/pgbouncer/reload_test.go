package pgbouncer

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func moved(names ...string) func(map[string]*Database) {
	return func(all map[string]*Database) {
		for _, n := range names {
			all[n].Host = "10.0.0.2"
		}
	}
}

var (
	led        = map[string]string{"app": "10.0.0.2:5432", "jobs": "10.0.0.2:5432", "reports": "10.0.0.1:5432"}
	byTemplate = func(b *Bouncer) { b.Templated = true }
)

// A template's file is reloaded and what leads elsewhere by it reconnected, in this order
// and in one packet, and looked at; a writer alone makes nothing happen there.
func TestReload(t *testing.T) {
	r := newRig(t)
	c := r.run(byTemplate)
	r.writer("main", "n1")
	r.writer("main", "n2")
	r.set(func() { r.reload = moved("app") })
	err := c.Reload(t.Context(), "edge", led)
	if err == nil || !strings.Contains(err.Error(), "after RELOAD database jobs leads to 10.0.0.1:5432 and not to 10.0.0.2:5432") {
		t.Errorf("a file that PgBouncer does not read whole: %v", err)
	}
	r.set(func() { r.reload = moved("jobs") })
	if err := c.Reload(t.Context(), "edge", led); err != nil {
		t.Fatal(err)
	}
	// What leads where it should may still have a server connection of before, as after
	// a try that got half way.
	r.set(func() {
		r.servers = [][3]string{{"app", "10.0.0.1", "0"}, {"jobs", "10.0.0.2", "0"}, {"reports", "10.0.0.3", "1"}, {"foreign", "10.0.0.1", "0"}}
	})
	for range 2 {
		if err := c.Reload(t.Context(), "edge", led); err != nil {
			t.Fatal(err)
		}
		r.set(func() { r.servers = nil })
	}
	want := []string{`RELOAD + RECONNECT "app" + RECONNECT "jobs"`, `RELOAD + RECONNECT "jobs"`, "RELOAD", `RECONNECT "app"`, "RELOAD"}
	if diff := cmp.Diff(want, r.sent()); diff != "" {
		t.Errorf("sent (-want +got)\n%s", diff)
	}
	if err := c.Reload(t.Context(), "egde", led); err == nil {
		t.Error("a PgBouncer that nobody has was reloaded")
	}
}

// In a hold the reload that turns a database to the new writer resumes it in the same
// packet: a client that logged in between would make PgBouncer wait for
// server_login_retry. What does not lead elsewhere stays paused.
func TestReloadEndsTheHold(t *testing.T) {
	r := newRig(t)
	c := r.run(byTemplate)
	h, err := c.Hold(short(t, 5*time.Second), "main")
	if err != nil {
		t.Fatal(err)
	}
	r.set(func() { r.reload = moved("app"); r.commands = nil })
	if err := c.Reload(t.Context(), "edge", map[string]string{"app": "10.0.0.2:5432", "jobs": "10.0.0.1:5432"}); err != nil {
		t.Fatal(err)
	}
	r.wantPaused("jobs")
	if want := []string{`RELOAD + RESUME "app"`}; !slices.Equal(r.sent(), want) {
		t.Errorf("sent were %q, want %q", r.sent(), want)
	}
	if s := c.Status()[0]; !slices.Equal(s.Paused, []string{"jobs"}) {
		t.Errorf("by the status these are paused: %v", s.Paused)
	}
	if err := h.Release(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	r.wantPaused()
}

// What an operator has paused stays so where a reload leads it elsewhere, also beside a
// switchover's hold that the same reload ends: RECONNECT is sent, no RESUME, and the log
// says where clients will go.
func TestReloadKeepsAPause(t *testing.T) {
	r := newRig(t)
	c := r.run(byTemplate)
	if _, err := c.Act(t.Context(), "edge", Order{Action: Pause, Databases: []string{"app", "reports"}, For: "1m"}); err != nil {
		t.Fatal(err)
	}
	reload := func(host, want string, names ...string) {
		t.Helper()
		leads := make(map[string]string)
		for _, n := range names {
			leads[n] = host + ":5432"
		}
		r.set(func() {
			r.commands = nil
			r.reload = func(all map[string]*Database) {
				for _, n := range names {
					all[n].Host = host
				}
			}
		})
		if err := c.Reload(t.Context(), "edge", leads); err != nil {
			t.Fatal(err)
		}
		if got := r.sent(); !slices.Equal(got, []string{want}) {
			t.Errorf("sent were %q, want %q", got, want)
		}
	}
	reload("10.0.0.2", `RELOAD + RECONNECT "app" + RECONNECT "jobs"`, "app", "jobs")
	reload("10.0.0.2", "RELOAD", "app", "jobs") // which is no news
	r.wantPaused("app", "reports")
	const line = "a database leads elsewhere now, and stays paused as an operator ordered"
	if r.log.Count(line) != 1 || r.log.Count(line+`" pgbouncer=edge database=app leads=10.0.0.2:5432`) != 1 {
		t.Errorf("the log:\n%s", r.log.String())
	}
	if s := c.Status()[0]; !slices.Equal(s.Paused, []string{"app", "reports"}) {
		t.Errorf("by the status these are paused: %v", s.Paused)
	}
	if _, err := c.Act(t.Context(), "edge", Order{Action: Resume, Databases: []string{"app"}}); err != nil {
		t.Fatal(err)
	}
	r.wantPaused("reports")

	h, err := c.Hold(short(t, 5*time.Second), "main")
	if err != nil {
		t.Fatal(err)
	}
	reload("10.0.0.3", `RELOAD + RECONNECT "reports" + RESUME "app"`, "app", "reports")
	r.wantPaused("jobs", "reports")
	if err := h.Release(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	r.wantPaused("reports")
}

// Without a template an operator's pause keeps no database of the cluster from being
// reconnected for a new writer, and does not end by it.
func TestReconnectBesideAPause(t *testing.T) {
	r := newRig(t)
	r.writer("main", "n1")
	c := r.run()
	r.until("the writer to be noted", func() bool { return strings.Contains(r.onDisk(), `"n1"`) })
	if _, err := c.Act(t.Context(), "edge", Order{Action: Pause, Databases: []string{"reports"}, For: "1m"}); err != nil {
		t.Fatal(err)
	}
	r.writer("main", "n2")
	r.until("a reconnect", func() bool { return c.Status()[0].Counters["reconnects"] == 3 })
	r.wantPaused("reports")
}
