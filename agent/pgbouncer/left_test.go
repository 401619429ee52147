package pgbouncer

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
)

// killed is a rig whose agent was killed in a hold that has paused app.
func killed(t *testing.T) *rig {
	r := newRig(t)
	if _, err := r.control(func(b *Bouncer) { b.Databases = b.Databases[:1] }).Hold(short(t, 5*time.Second), "main"); err != nil {
		t.Fatal(err)
	}
	r.c.bouncers["edge"].hangUp() // and it is never heard of again
	r.wantPaused("app")
	return r
}

// What was left paused at a PgBouncer that is configured no more is told at the start
// and by the status, with the command that resumes it, also where none is configured at
// all; an operator who has resumed it has it struck off.
func TestLeftPaused(t *testing.T) {
	r := killed(t)
	var log logtest.Log
	c, err := New(Options{Views: &r.views, Now: topology.NewTicker(time.Now), Path: r.path, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	host, port, _ := strings.Cut(r.addr, ":")
	want := "database app was paused by pgsteer at PgBouncer edge (" + r.addr + "), which is not configured any more, so that its clients may wait: " +
		"resume it with `psql -h " + host + " -p " + port + ` -U steer -c 'RESUME "app"' pgbouncer` + "`, and then have it struck off with `pgsteer pgbouncer forget edge app`"
	r.c = c
	r.until("it to be told", func() bool {
		s := c.Status()
		return len(s) == 1 && s[0].Bouncer == "edge" && slices.Equal(s[0].Paused, []string{"app"}) && s[0].Err != nil && strings.HasPrefix(s[0].Err.Error(), want)
	})
	r.until("the log to tell", func() bool {
		return strings.Contains(log.String(), "level=ERROR") && strings.Contains(log.String(), "pgsteer pgbouncer forget edge app")
	})
	if _, err := c.Act(ctx, "edge", Order{Action: Forget, Databases: []string{"jobs"}}); err == nil {
		t.Error("what was never paused is forgotten")
	}
	names, err := c.Act(ctx, "edge", Order{Action: Forget})
	if diff := cmp.Diff([]string{"app"}, names); err != nil || diff != "" {
		t.Errorf("forgotten: %v\n%s", err, diff)
	}
	if s := c.Status(); len(s) > 0 || strings.Contains(r.onDisk(), "app") {
		t.Errorf("after that the status is %+v, and the disk has %s", s, r.onDisk())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A PgBouncer that has another name now is told by its address. One whose address is
// another one is told by its name, with a word of warning.
func TestLeftPausedElsewhere(t *testing.T) {
	r := killed(t)
	r.run(func(b *Bouncer) { b.Name = "west" })
	r.until("it to be resumed", func() bool { return len(r.paused()) == 0 && !strings.Contains(r.onDisk(), `"app"`) })
	if _, err := r.c.Act(t.Context(), "west", Order{Action: Forget}); err == nil {
		t.Error("a PgBouncer that is configured is forgotten")
	}
	r.stop()

	r = killed(t)
	if err := os.WriteFile(r.path, []byte(strings.ReplaceAll(r.onDisk(), r.addr, "10.0.0.9:6432")), 0o600); err != nil {
		t.Fatal(err)
	}
	r.run()
	r.until("it to be resumed", func() bool { return len(r.paused()) == 0 && !strings.Contains(r.onDisk(), `"app"`) })
	r.until("the log to tell its former address", func() bool { return strings.Contains(r.log.String(), "was=10.0.0.9:6432") })
}

func TestCommandToResume(t *testing.T) {
	for want, p := range map[string]Paused{
		`psql -h /run/postgresql -p 6432 -U pgsteer -c 'RESUME "app"' pgbouncer`:   {Database: "app", Address: "/run/postgresql/.s.PGSQL.6432", User: "pgsteer"},
		`psql -h '/run/a b' -p 1 -U pgsteer -c 'RESUME "it'\''s ""x"""' pgbouncer`: {Database: `it's "x"`, Address: "/run/a b/.s.PGSQL.1", User: "pgsteer"},
		`psql -h HOST -p PORT -U USER -c 'RESUME "app"' pgbouncer`:                 {Database: "app"},
	} {
		if got := p.command(); got != want {
			t.Errorf("it is %s, want %s", got, want)
		}
	}
}

// What was resumed while the disk was full is resumed for good: an operator's PAUSE that
// follows is none of ours, and the file is written once that works again.
func TestResumedOnAFullDisk(t *testing.T) {
	r := newRig(t)
	c := r.run()
	h, err := c.Hold(short(t, 5*time.Second), "main")
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Dir(r.path)
	if err := os.Rename(folder, folder+".kept"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(folder, nil, 0o600); err != nil { // where the folder should be
		t.Fatal(err)
	}
	if err := h.Release(t.Context(), "n2"); err == nil || !strings.Contains(err.Error(), "[app jobs] are resumed") {
		t.Errorf("the release: %v", err)
	}
	r.set(func() { r.databases["app"].Paused = true }) // an operator's
	r.until("the status to tell", func() bool {
		s := c.Status()[0]
		return s.Err != nil && strings.Contains(s.Err.Error(), "note which databases") && len(s.Paused) == 0 && slices.Equal(s.PausedElsewhere, []string{"app"})
	})
	if err := os.Remove(folder); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(folder+".kept", folder); err != nil {
		t.Fatal(err)
	}
	r.until("the file to be written", func() bool { return c.Status()[0].Err == nil && !strings.Contains(r.onDisk(), `"app"`) })
	r.stop()
	r.wantPaused("app")
}
