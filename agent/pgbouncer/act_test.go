package pgbouncer

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// What operators order, command by command, and that KILL lets clients come anew but
// where somebody else had paused.
func TestOrders(t *testing.T) {
	r := newRig(t)
	c := r.run()
	for _, tt := range []struct {
		action Action
		names  []string
		want   string
	}{
		{Disable, []string{"app"}, `DISABLE "app"`},
		{Enable, nil, `ENABLE "app" + ENABLE "jobs" + ENABLE "reports" + ENABLE "other"`},
		{Reconnect, []string{"jobs"}, `RECONNECT "jobs"`},
		{Reload, nil, "RELOAD"},
		{Kill, []string{"app", "jobs"}, `KILL "app" + RESUME "app" + KILL "jobs"`},
	} {
		r.set(func() { r.databases["jobs"].Paused = true; r.commands = nil })
		if _, err := c.Act(t.Context(), "edge", Order{Action: tt.action, Databases: tt.names}); err != nil {
			t.Errorf("%s: %v", tt.action, err)
		}
		if got := r.sent(); len(got) != 1 || got[0] != tt.want {
			t.Errorf("%s sends %q, want %q", tt.action, got, tt.want)
		}
	}
	r.wantPaused("jobs")
	if strings.Contains(r.onDisk(), `"app"`) {
		t.Errorf("the disk has %s", r.onDisk())
	}
	if _, err := c.Act(t.Context(), "edge", Order{Action: Resume, Databases: []string{"jobs"}}); err != nil {
		t.Error(err)
	}
	r.wantPaused()
	for _, o := range []Order{{Action: "suspend"}, {Action: Disable, Databases: []string{"postgres"}}, {Action: Pause, For: "1h"}, {Action: Pause, For: "-1s"}} {
		if _, err := c.Act(t.Context(), "edge", o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	if _, err := c.Act(t.Context(), "egde", Order{Action: Reload}); err == nil {
		t.Error("a PgBouncer that nobody has took an order")
	}
}

// An operator's pause ends by itself, at the end of the agent, and at once when a
// transaction keeps it from being complete.
func TestPauseEnds(t *testing.T) {
	r := newRig(t)
	c := r.run()
	begin := time.Now()
	if _, err := c.Act(t.Context(), "edge", Order{Action: Pause, Databases: []string{"app"}, For: "1s"}); err != nil {
		t.Fatal(err)
	}
	r.wantPaused("app")
	r.until("the end of the pause", func() bool { return len(r.paused()) == 0 })
	if d := time.Since(begin); d < time.Second {
		t.Errorf("it lasted %s", d)
	}
	r.set(func() {
		r.before = func(command string) error {
			if command == `PAUSE "jobs"` {
				r.set(func() { r.databases["jobs"].Paused = true })
				return errHang
			}
			return nil
		}
	})
	_, err := c.Act(t.Context(), "edge", Order{Action: Pause, Databases: []string{"app", "jobs"}, For: "200ms"})
	want := "database jobs: a transaction, or with pool_mode = session a client, did not end: waited for 200ms; nothing is paused. Give it longer (--for)"
	if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "pgsteer pgbouncer kill edge app jobs") {
		t.Errorf("a pause that was not complete: %v", err)
	}
	r.wantPaused()
	if _, err := c.Act(t.Context(), "edge", Order{Action: Pause, Databases: []string{"app"}, For: "1m"}); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.wantPaused()
	if _, err := c.Act(t.Context(), "edge", Order{Action: Pause}); !errors.Is(err, ErrEnding) {
		t.Errorf("after the end: %v", err)
	}
}

// Over HTTP.
func TestServe(t *testing.T) {
	r := newRig(t)
	c := r.run()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /admin/pgbouncer/{bouncer}/{action}", func(w http.ResponseWriter, req *http.Request) {
		c.Serve(w, req, "certificate", "ann", "from", "192.0.2.1")
	})
	for _, tt := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"edge/disable", `{"databases":["app"]}`, 200, `"databases":["app"],"status":"disable done"`},
		{"edge/disable", `{"database":["app"]}`, 400, "unknown field"},
		{"edge/suspend", "", 409, "there is no action"},
		{"egde/reload", "", 409, "there is no PgBouncer egde"},
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/admin/pgbouncer/"+tt.path, strings.NewReader(tt.body)))
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%s %s: %d %s", tt.path, tt.body, w.Code, w.Body)
		}
	}
	for _, want := range []string{
		`target=edge/disable pgbouncer=edge databases=[app] for="" certificate=ann from=192.0.2.1 audit=disable`,
		`target=egde/reload pgbouncer=egde databases=[] for="" certificate=ann from=192.0.2.1 audit="reload failed"`,
	} {
		if r.log.Count(want) != 1 {
			t.Errorf("the log has not once %s:\n%s", want, r.log.String())
		}
	}
	r.until("the status to tell", func() bool { return slices.Equal(c.Status()[0].Disabled, []string{"app"}) })
}
