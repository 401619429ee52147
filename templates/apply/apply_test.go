package apply

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestFirstApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write("old\n")
		b.run.check = func(staged string) (string, error) {
			b.wantFile("old\n") // the check comes before the replacement
			got, err := os.ReadFile(staged)
			if err != nil || string(got) != text("n1", "n2") {
				t.Errorf("the check was given %q, %v", got, err)
			}
			if st, _ := os.Stat(staged); st.Mode().Perm() != 0o640 {
				t.Errorf("staged with mode %v", st.Mode())
			}
			if filepath.Dir(staged) != filepath.Dir(b.file) || filepath.Base(staged)[0] != '.' {
				t.Errorf("staged as %s", staged)
			}
			return "", nil
		}
		b.nodes("main", "n1", "n2")
		b.start()
		defer b.stop()
		b.after(time.Second)
		b.wantFile(text("n1", "n2"))
		b.wantState(StateApplied)
		b.wantCalls(1, 1)
		if l := b.litter(); l != nil {
			t.Errorf("left behind: %q", l)
		}
		st, _ := os.Stat(b.file)
		if st.Mode().Perm() != 0o640 {
			t.Errorf("mode %v", st.Mode())
		}
		if diff := cmp.Diff(map[string]uint64{"main": 1}, b.status().Applied); diff != "" {
			t.Error(diff)
		}
	})
}

// Equal at the start: nothing is written, checked or reloaded.
func TestAdopt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write(text("n1"))
		before, _ := os.Stat(b.file)
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Hour)
		b.wantState(StateApplied)
		b.wantCalls(0, 0)
		if now, _ := os.Stat(b.file); !os.SameFile(before, now) {
			t.Error("the file was replaced")
		}
	})
}

func TestReloadAtStart(t *testing.T) {
	for name, prepare := range map[string]func(*bench){
		"setting": func(b *bench) { b.group.ReloadAtStart = true },
		"an earlier run was killed before its reload": func(b *bench) {
			if err := os.WriteFile(beside(b.file, endPending), nil, 0o600); err != nil {
				b.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.write(text("n1"))
				prepare(b)
				b.nodes("main", "n1")
				b.start()
				defer b.stop()
				b.after(time.Minute)
				b.wantState(StateApplied)
				b.wantCalls(1, 1)
				if l := b.litter(); l != nil {
					t.Errorf("left behind: %q", l)
				}
			})
		})
	}
}

// A check that cannot be run says nothing about the text: it is tried again,
// with growing pauses.
func TestCheckCannotRun(t *testing.T) {
	for name, fault := range map[string]error{
		"not found": errors.New("no such file"), "in a shell": &ExitError{Code: 127},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.write("old\n")
				b.run.check = func(string) (string, error) { return "", fault }
				b.nodes("main", "n1")
				b.start()
				defer b.stop()
				b.after(10 * time.Minute)
				b.wantFile("old\n")
				b.wantState(StatePending)
				if n := b.run.count("check"); n < 10 || n > 25 {
					t.Errorf("%d attempts in 10 minutes", n)
				}
				if s := b.status(); s.NextTry.IsZero() || s.Error == "" {
					t.Errorf("status %+v", s)
				}
				b.run.set(func() { b.run.check = nil })
				b.after(2 * time.Minute)
				b.wantFile(text("n1"))
				b.wantState(StateApplied)
			})
		})
	}
}

func TestReloadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write("old\n")
		b.run.reload = func(context.Context) (string, error) {
			b.wantFile(text("n1"))
			return "port in use", &ExitError{Code: 1}
		}
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Second)
		b.wantFile("old\n") // a restart must not meet what could not be reloaded
		b.wantState(StatePending)
		if s := b.status(); s.LastOutput != "port in use" || s.ReloadsFailed != 1 || s.Running != "" {
			t.Errorf("status %+v", s)
		}
		b.after(10 * time.Minute)
		if n := b.run.count("reload"); n < 8 || n > 25 {
			t.Errorf("%d reloads in 10 minutes", n)
		}
		b.run.set(func() { b.run.reload = nil })
		b.after(2 * time.Minute)
		b.wantFile(text("n1"))
		b.wantState(StateApplied)
		if l := b.litter(); l != nil {
			t.Errorf("left behind: %q", l)
		}
	})
}

// After a reload that failed nobody knows what runs, so going back to the
// earlier nodes needs a reload as well.
func TestBackAfterFailedReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write(text("n1"))
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Second)
		b.run.set(func() {
			b.run.reload = func(ctx context.Context) (string, error) { <-ctx.Done(); return "", ctx.Err() }
		})
		b.nodes("main", "n1", "n2")
		b.after(30500 * time.Millisecond)
		b.wantFile(text("n1"))
		b.run.set(func() { b.run.reload = nil })
		b.nodes("main", "n1")
		b.after(10 * time.Second)
		b.wantState(StateApplied)
		b.wantFile(text("n1"))
		b.wantCalls(2, 2)
	})
}

// Field report FR-20: many changes, few reloads, the last one counts.
func TestReloadInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.start()
		defer b.stop()
		for i := range 50 {
			b.nodes("main", fmt.Sprintf("n%d", i))
			b.after(1200 * time.Millisecond)
		}
		if n := b.run.count("reload"); n < 10 || n > 13 {
			t.Errorf("%d reloads for 50 changes in 60 s with an interval of 5 s", n)
		}
		b.after(10 * time.Second)
		b.wantFile(text("n49"))
		b.wantState(StateApplied)
	})
}

func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.start()
		defer b.stop()
		b.after(time.Minute)
		for i := range 10 { // 100 ms apart: no quiet of 200 ms
			b.nodes("main", fmt.Sprintf("n%d", i))
			b.after(100 * time.Millisecond)
		}
		b.wantFile("(none)")
		b.after(101 * time.Millisecond)
		b.wantFile(text("n9"))
		b.wantCalls(1, 1)
		for i := range 30 { // never quiet, but for no longer than 2 s
			b.nodes("main", fmt.Sprintf("m%d", i))
			b.after(100 * time.Millisecond)
		}
		if s := b.status(); s.Desired == s.Running {
			t.Error("3 s of changes were not even rendered")
		}
	})
}

// Roles, lags and generations change; the files and the program do not.
func TestRoleChangeDoesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.nodes("main", "n1", "n2")
		b.start()
		defer b.stop()
		b.after(time.Minute)
		for i := range uint64(100) {
			s := snapshotOf("main", 10+i, "n1", "n2")
			s.Writer = []string{"n1", "n2", ""}[i%3]
			s.Pools[0].Nodes = []topology.NodeVerdict{{Node: s.Writer, Verdict: topology.Up}}
			b.views.Set("main", &topology.View{Snapshot: s})
			b.after(time.Second)
		}
		b.wantCalls(1, 1)
		if got := b.status().Applied["main"]; got != 109 {
			t.Errorf("applied generation %d, want 109", got)
		}
	})
}

// The end of Run lets a reload finish and breaks off a check.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.run.reload = func(ctx context.Context) (string, error) {
			select {
			case <-ctx.Done():
				t.Error("the reload was broken off")
			case <-time.After(10 * time.Second):
			}
			return "", nil
		}
		b.nodes("main", "n1")
		b.start()
		b.after(time.Second)
		b.stop()
		b.wantFile(text("n1"))
		if l := b.litter(); l != nil {
			t.Errorf("left behind: %q", l)
		}
	})
}

func TestNoReloadCommand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.group.Reload, b.group.Check = nil, nil
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Second)
		b.nodes("main", "n2")
		b.after(300 * time.Millisecond) // nothing to reload, so no interval either
		b.wantFile(text("n2"))
		b.wantState(StateApplied)
	})
}
