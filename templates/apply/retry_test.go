package apply

import (
	"context"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestCheckRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write("old\n")
		b.run.check = func(staged string) (string, error) { return "line 1: no", &ExitError{Code: 2} }
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Hour)
		b.wantFile("old\n")
		b.wantState(StateRejected)
		if n := b.run.count("check"); n < 55 || n > 85 {
			t.Errorf("%d checks in an hour, want growing pauses up to a minute", n)
		}
		s := b.status()
		if s.LastOutput != "line 1: no" || !strings.Contains(s.Error, "exit code 2") || s.Refused[RefusedCheck] != 1 || s.NextTry.IsZero() {
			t.Errorf("status %+v", s)
		}
		if kept, _ := os.ReadFile(beside(b.file, endRejected)); string(kept) != text("n1") {
			t.Errorf("the refused text was kept as %q", kept)
		}
		b.run.set(func() { b.run.check = nil })
		b.nodes("main", "n1", "n2")
		b.after(time.Second)
		b.wantFile(text("n1", "n2"))
		b.wantState(StateApplied)
	})
}

// What a check stumbled over may lie in another file than ours: once that is
// mended the same text is taken, without any change of ours.
func TestRefusedTextIsTakenOnceItPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write("old\n")
		refuses := func(string) (string, error) { return "another file: no", &ExitError{Code: 1} }
		b.run.check = refuses
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Hour)
		b.wantState(StateRejected)
		b.run.set(func() { b.run.check = nil })
		b.after(75 * time.Second)
		b.wantFile(text("n1"))
		b.wantState(StateApplied)

		b.after(10 * time.Second) // the next reload is allowed
		b.run.set(func() { b.run.check = refuses })
		b.nodes("main", "n2")
		b.after(time.Second)
		b.wantState(StateRejected)
		b.run.set(func() {
			b.run.check = nil
			b.run.reload = func(context.Context) (string, error) { return "", &ExitError{Code: 1} }
		})
		b.after(time.Minute)
		b.wantState(StatePending) // it passes now; what fails is the reload
		if s := b.status(); !strings.Contains(s.Error, "reload") || s.Refused[RefusedCheck] != 2 {
			t.Errorf("status %+v", s)
		}
	})
}

// An operator who has mended something need not wait for the next try.
func TestRetry(t *testing.T) {
	fails := func() (string, error) { return "", &ExitError{Code: 1} }
	for name, breaks := range map[string]func(*script){
		"after a refused check": func(s *script) { s.check = func(string) (string, error) { return fails() } },
		"after a failed reload": func(s *script) { s.reload = func(context.Context) (string, error) { return fails() } },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.group.ReloadInterval = 10 * time.Second
				breaks(&b.run)
				b.nodes("main", "n1")
				b.start()
				defer b.stop()
				b.after(time.Hour)
				for time.Until(b.status().NextTry) < 45*time.Second { // just tried in vain
					b.after(time.Second)
				}
				b.after(11 * time.Second) // the last reload is not too near
				b.run.set(func() { b.run.check, b.run.reload = nil, nil })
				b.a.Retry()
				b.a.Retry() // asked twice is done once
				b.after(0)
				b.wantFile(text("n1"))
				b.wantState(StateApplied)

				checks := b.run.count("check")
				b.a.Retry() // there is nothing to do
				b.after(0)
				if n := b.run.count("check"); n != checks {
					t.Errorf("%d checks of files that run", n-checks)
				}
			})
		})
	}
}

// Retry does not reload more often than allowed.
func TestRetryKeepsTheReloadInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.run.reload = func(context.Context) (string, error) { return "", &ExitError{Code: 1} }
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Second)
		for range 60 {
			b.a.Retry()
			b.after(time.Second)
		}
		if n := b.run.count("reload"); n < 11 || n > 13 {
			t.Errorf("%d reloads in 61 s with an interval of 5 s", n)
		}
	})
}
