package switchover

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A command that switches over is not ended by the new writer, nor by its caller's
// leave: clients go on at once, and it runs until it ends or its time is up, which is
// told. Until then no other switchover begins.
func TestCommandRunsOn(t *testing.T) {
	const times = 40 * time.Second // of the command
	for _, tt := range []struct {
		name   string
		writer time.Duration // when the new one is up; 0: never
		abort  time.Duration
		runs   time.Duration // of the command, if nothing ends it
		fails  error
		took   time.Duration // until the answer
		err    string
		told   string // among the steps
		log    string
	}{
		{"waited for", 2 * time.Second, 0, times, nil, times, "", "it still runs and is waited for, until 1m0s after its start (switchover.timeout)", ""},
		{"fails after the new writer", 2 * time.Second, 0, times, errors.New("exit code 3"), times, "it failed: exit code 3", "", "level=WARN"},
		{"time is up", 2 * time.Second, 0, time.Hour, nil, time.Minute, "it was ended by pgsteer before it was through, since its time of 1m0s (switchover.timeout) is up: look at what it has left undone", "", "level=WARN"},
		{"time is up and no writer", 0, 0, time.Hour, nil, time.Minute, "it was ended by pgsteer before it was through", "", "level=WARN"},
		{"the caller leaves before the writer", 0, 3 * time.Second, times, nil, 3 * time.Second, "aborted: everything is resumed; it goes on until it ends, or until 1m0s after its start", "", "it has ended"},
		{"the caller leaves after the writer", 2 * time.Second, 3 * time.Second, times, nil, 3 * time.Second, "aborted: everything is resumed; it goes on until it ends", "", "it has ended"},
		{"the caller leaves and it fails", 0, 3 * time.Second, times, errors.New("exit code 3"), 3 * time.Second, "aborted", "", "level=WARN"},
		{"the caller leaves and its time is up", 0, 3 * time.Second, time.Hour, nil, 3 * time.Second, "aborted", "", "since its time of 1m0s"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.command = true
				ran := make(chan time.Duration, 1)
				r.ask = func(ctx context.Context, _, _ string) error {
					begin := time.Now()
					defer func() { ran <- time.Since(begin) }()
					select {
					case <-ctx.Done():
						return context.Cause(ctx)
					case <-time.After(tt.runs):
						return tt.fails
					}
				}
				if tt.writer > 0 {
					time.AfterFunc(tt.writer, func() { r.writer("n2", 2) })
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.abort > 0 {
					time.AfterFunc(tt.abort, cancel)
				}
				begin := time.Now()
				var texts []string
				runsOn := ""
				p, err := r.Plan(Request{Cluster: "main", To: "n2"})
				if err != nil {
					t.Fatal(err)
				}
				res := p.Run(ctx, func(e Event) { texts = append(texts, e.Text); runsOn = e.RunsOn })
				if d := time.Since(begin); d != tt.took {
					t.Errorf("the answer took %s, want %s", d, tt.took)
				}
				if !strings.Contains(res.Error, tt.err) || (res.Error == "") != (tt.err == "") || res.HeldFor > 10 || tt.writer > 0 && res.HeldFor != 2 {
					t.Errorf("%+v", res)
				}
				if all := strings.Join(texts, "\n"); !strings.Contains(all, tt.told) {
					t.Errorf("told was:\n%s", all)
				}
				if tt.abort > 0 {
					if runsOn != "it" {
						t.Errorf("by the last step %q goes on", runsOn)
					}
					if _, err := r.Plan(Request{Cluster: "main", To: "n3"}); err == nil || !strings.Contains(err.Error(), "its command still runs") {
						t.Errorf("beside the command: %v", err)
					}
				}
				time.Sleep(2 * time.Minute)
				if got, want := <-ran, min(tt.runs, time.Minute); got != want {
					t.Errorf("the command ran for %s, want %s", got, want)
				}
				if !strings.Contains(r.log.String(), tt.log) {
					t.Errorf("the log has no %q:\n%s", tt.log, r.log.String())
				}
				if _, err := r.Plan(Request{Cluster: "main", To: "n3"}); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			})
		})
	}
}
