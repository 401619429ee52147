package pgbouncer

import (
	"strings"
	"testing"
	"time"
)

// A PgBouncer that leads elsewhere than its template's file, as after a restart with
// another pgbouncer.ini, is seen by looking: the status tells, and so does a RELOAD, and
// nothing is paused for a switchover. So is a database that it does not have.
func TestAstray(t *testing.T) {
	for _, tt := range []struct {
		name      string
		templated bool
		lose      func(map[string]*Database)
		want      string
	}{
		{"leads elsewhere", true, func(all map[string]*Database) { all["app"].Host = "10.0.0.1" }, "database app leads to 10.0.0.1:5432 and not to 10.0.0.2:5432 (does its pgbouncer.ini %include /etc/pgsteer.ini"},
		{"is missing", true, func(all map[string]*Database) { delete(all, "jobs") }, "PgBouncer has no database jobs (does its pgbouncer.ini %include /etc/pgsteer.ini"},
		{"is missing without a template", false, func(all map[string]*Database) { delete(all, "jobs") }, "PgBouncer has no database jobs (does its pgbouncer.ini name it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t)
			c := r.run(func(b *Bouncer) {
				if b.Templated = tt.templated; tt.templated {
					b.File = "/etc/pgsteer.ini"
				}
			})
			if tt.templated {
				r.set(func() { r.reload = moved("app", "jobs") })
				if err := c.Reload(t.Context(), "edge", led); err != nil {
					t.Fatal(err)
				}
			}
			looked := func() bool { s := c.Status()[0]; return s.Err == nil && len(s.Leads) == 4 }
			r.until("all to be well", looked)
			var kept map[string]Database
			r.set(func() {
				kept = make(map[string]Database)
				for n, d := range r.databases {
					kept[n] = *d
				}
				tt.lose(r.databases)
				r.reload, r.commands = nil, nil
			})
			r.until("it to be told", func() bool { s := c.Status()[0]; return s.Err != nil && strings.Contains(s.Err.Error(), tt.want) })
			if _, err := c.Hold(short(t, 5*time.Second), "main"); err == nil || !strings.Contains(err.Error(), "PgBouncer edge: "+tt.want) {
				t.Errorf("a hold: %v", err)
			}
			if sent := r.sent(); len(sent) > 0 {
				t.Errorf("sent were %q", sent)
			}
			if _, err := c.Act(t.Context(), "edge", Order{Action: Reload}); err == nil || !strings.Contains(err.Error(), "after RELOAD "+tt.want) {
				t.Errorf("a reload: %v", err)
			}
			r.set(func() {
				for n, d := range kept {
					r.databases[n] = &d
				}
			})
			r.until("all to be well again", looked)
			if _, err := c.Act(t.Context(), "edge", Order{Action: Reload}); err != nil {
				t.Error(err)
			}
			r.stop() // as a change of the configuration does
			r.set(func() { tt.lose(r.databases) })
			c = r.run(func(b *Bouncer) {
				if b.Templated = tt.templated; tt.templated {
					b.File, b.Leads = "/etc/pgsteer.ini", led
				}
			})
			r.until("it to be told by the next one", func() bool { s := c.Status()[0]; return s.Err != nil && strings.Contains(s.Err.Error(), tt.want) })
		})
	}
}

// What `pgsteer pgbouncer pause` has paused keeps a hold from beginning: it would be
// taken for somebody else's, and stay paused after the switchover.
func TestHoldBesideAPause(t *testing.T) {
	r := newRig(t)
	c := r.run()
	if _, err := c.Act(t.Context(), "edge", Order{Action: Pause, Databases: []string{"app"}, For: "1m"}); err != nil {
		t.Fatal(err)
	}
	want := "PgBouncer edge: database app is paused by `pgsteer pgbouncer pause`: `pgsteer pgbouncer resume edge` ends it"
	if _, err := c.Hold(short(t, 5*time.Second), "main"); err == nil || err.Error() != want {
		t.Errorf("a hold: %v", err)
	}
	r.wantPaused("app")
	if h, err := c.Hold(short(t, 5*time.Second), "second"); err != nil { // which app does not lead to
		t.Error(err)
	} else if err := h.Release(t.Context(), ""); err != nil {
		t.Error(err)
	}
	if _, err := c.Act(t.Context(), "edge", Order{Action: Resume}); err != nil {
		t.Fatal(err)
	}
	h, err := c.Hold(short(t, 5*time.Second), "main")
	if err != nil {
		t.Fatal(err)
	}
	r.wantPaused("app", "jobs")
	if err := h.Release(t.Context(), ""); err != nil {
		t.Error(err)
	}
}
