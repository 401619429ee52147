package pgbouncer

import (
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// held is a rig in a hold of app and jobs.
func held(t *testing.T, change ...func(*Bouncer)) (*rig, *Hold) {
	r := newRig(t)
	h, err := r.run(change...).Hold(short(t, 5*time.Second), "main")
	if err != nil {
		t.Fatal(err)
	}
	r.wantPaused("app", "jobs")
	r.set(func() { r.commands = nil })
	return r, h
}

// wantEarly compares what ended early, each as database by whom.
func wantEarly(t *testing.T, h *Hold, want ...string) {
	t.Helper()
	var got []string
	for _, e := range h.Early() {
		if e.At == 0 {
			t.Errorf("%s has no time", e.Database)
		}
		got = append(got, e.Database+" by "+e.By)
	}
	if !slices.Equal(got, want) {
		t.Errorf("ended early were %q, want %q", got, want)
	}
}

// What an operator or a restart of PgBouncer has resumed in a hold does not keep a
// template's reload from turning it, and has its server connections replaced.
func TestReloadOfWhatIsNotPaused(t *testing.T) {
	r := newRig(t)
	c := r.control(byTemplate) // whose worker, which would see it before, does not run
	t.Cleanup(func() { c.bouncers["edge"].hangUp() })
	h, err := c.Hold(short(t, 5*time.Second), "main")
	if err != nil {
		t.Fatal(err)
	}
	r.set(func() {
		r.databases["app"].Paused = false
		r.reload, r.commands = moved("app", "jobs"), nil
	})
	if err := c.Reload(t.Context(), "edge", led); err != nil {
		t.Fatal(err)
	}
	if want := []string{`RELOAD + RECONNECT "app" + RESUME "jobs"`}; !slices.Equal(r.sent(), want) {
		t.Errorf("sent were %q, want %q", r.sent(), want)
	}
	if err := h.Release(t.Context(), "n2"); err != nil {
		t.Error(err)
	}
	wantEarly(t, h, "edge/app by "+byOthers)
	if strings.Contains(r.onDisk(), `"app"`) || strings.Contains(r.onDisk(), `"jobs"`) {
		t.Errorf("the disk has %s", r.onDisk())
	}
}

// A RESUME that comes between the look and ours is no error either.
func TestReloadOfWhatIsResumedMeanwhile(t *testing.T) {
	r, h := held(t, byTemplate)
	r.set(func() {
		r.reload = func(all map[string]*Database) {
			moved("app", "jobs")(all)
			all["app"].Paused = false
		}
	})
	if err := r.c.Reload(t.Context(), "edge", led); err != nil {
		t.Fatal(err)
	}
	if err := h.Release(t.Context(), "n2"); err != nil {
		t.Error(err)
	}
	r.wantPaused()
}

// Whoever ends a hold early is told by it, and what an operator pauses then stays.
func TestHoldEndedByOthers(t *testing.T) {
	t.Run("seen by looking", func(t *testing.T) {
		r, h := held(t)
		r.set(func() { r.databases["app"].Paused = false })
		r.until("it to be seen", func() bool { return len(h.Early()) == 1 })
		r.set(func() { r.databases["app"].Paused = true })
		if err := h.Release(t.Context(), "n2"); err != nil {
			t.Error(err)
		}
		wantEarly(t, h, "edge/app by "+byOthers)
		r.stop()
		r.wantPaused("app")
	})
	t.Run("seen at the release", func(t *testing.T) {
		r := newRig(t)
		c := r.control()
		t.Cleanup(func() { c.bouncers["edge"].hangUp() })
		h, err := c.Hold(short(t, 5*time.Second), "main")
		if err != nil {
			t.Fatal(err)
		}
		r.set(func() { r.databases["jobs"].Paused = false })
		if err := h.Release(t.Context(), "n2"); err != nil {
			t.Error(err)
		}
		wantEarly(t, h, "edge/jobs by "+byOthers)
	})
	t.Run("by an order", func(t *testing.T) {
		r, h := held(t)
		mux := http.NewServeMux()
		mux.HandleFunc("POST /{bouncer}/{action}", func(w http.ResponseWriter, req *http.Request) { r.c.Serve(w, req) })
		for _, note := range []string{`"note":"a switchover of cluster main held app: it goes on, and clients do not wait for it any more"`, `{"databases":["app"],"status"`} {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/edge/resume", strings.NewReader(`{"databases":["app"]}`)))
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), note) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}
		r.wantPaused("jobs")
		if err := h.Release(t.Context(), "n2"); err != nil {
			t.Error(err)
		}
		wantEarly(t, h, "edge/app by "+byOrder)
	})
	t.Run("by the end", func(t *testing.T) {
		r, h := held(t)
		r.stop()
		r.wantPaused()
		const disk = `{"paused":[{"bouncer":"next","database":"x"}]}`
		if err := os.WriteFile(r.path, []byte(disk), 0o600); err != nil { // by the part that follows
			t.Fatal(err)
		}
		if err := h.Release(t.Context(), "n2"); err != nil {
			t.Error(err)
		}
		wantEarly(t, h, "edge/app by "+byEnd, "edge/jobs by "+byEnd)
		if r.onDisk() != disk {
			t.Errorf("the file of its successor has %s", r.onDisk())
		}
	})
	t.Run("by nobody", func(t *testing.T) {
		r, h := held(t, byTemplate)
		r.set(func() { r.reload = moved("app") })
		if err := r.c.Reload(t.Context(), "edge", map[string]string{"app": "10.0.0.2:5432", "jobs": "10.0.0.1:5432"}); err != nil {
			t.Error(err)
		}
		if err := h.Release(t.Context(), "n2"); err != nil {
			t.Error(err)
		}
		wantEarly(t, h)
	})
}

// The time of an operator's pause does not end what a switchover has paused later.
func TestPauseEndsItsOwnAlone(t *testing.T) {
	r := newRig(t)
	c := r.run()
	if _, err := c.Act(t.Context(), "edge", Order{Action: Pause, Databases: []string{"app"}, For: "100ms"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Act(t.Context(), "edge", Order{Action: Resume}); err != nil {
		t.Fatal(err)
	}
	h, err := c.Hold(short(t, 5*time.Second), "main")
	if err != nil {
		t.Fatal(err)
	}
	r.set(func() { r.commands = nil })
	begin := time.Now()
	r.until("the pause's own time to pass", func() bool { return time.Since(begin) > 200*time.Millisecond })
	looked := c.bouncers["edge"].holdings()
	if sent := r.sent(); len(sent) > 0 || len(looked) != 2 {
		t.Errorf("sent were %q, held are %v", sent, looked)
	}
	r.wantPaused("app", "jobs")
	if err := h.Release(t.Context(), "n2"); err != nil {
		t.Error(err)
	}
}
