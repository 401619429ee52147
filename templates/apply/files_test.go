package apply

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/templates/render"
)

func TestUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write("old\n")
		second := filepath.Join(t.TempDir(), "second")
		b.group.Files = append(b.group.Files, File{Template: render.Template{Name: "u", Text: "x"}, Destination: second})
		b.run.check = func(string) (string, error) {
			if err := os.MkdirAll(filepath.Join(second, "in the way"), 0o700); err != nil {
				t.Error(err)
			}
			return "", nil
		}
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Second)
		b.wantFile("old\n")
		b.wantCalls(1, 0)
		b.wantState(StatePending)
		if s := b.status(); !strings.Contains(s.Error, second) {
			t.Errorf("status %+v", s)
		}
		b.run.set(func() { b.run.check = nil })
		if err := os.RemoveAll(second); err != nil {
			t.Fatal(err)
		}
		b.after(time.Minute)
		b.wantFile(text("n1"))
		b.wantState(StateApplied)
	})
}

func TestFolderComesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		dir := filepath.Join(t.TempDir(), "later")
		b.file = filepath.Join(dir, "f")
		b.group.Files[0].Destination = b.file
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Minute)
		b.wantState(StatePending)
		if s := b.status(); !strings.Contains(s.Error, "the folder must exist") {
			t.Errorf("error %q", s.Error)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		b.after(2 * time.Minute)
		b.wantFile(text("n1"))
		b.wantState(StateApplied)
	})
}

func TestLinkStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		target := filepath.Join(t.TempDir(), "target")
		if err := errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, b.file)); err != nil {
			t.Fatal(err)
		}
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Second)
		if got, _ := os.Readlink(b.file); got != target {
			t.Errorf("the link points to %q", got)
		}
		b.wantFile(text("n1"))
	})
}

func TestChangedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.nodes("main", "n1")
		b.start()
		defer b.stop()
		b.after(time.Minute)
		b.write("by hand\n")
		b.nodes("main", "n1")
		b.after(time.Second)
		b.wantFile(text("n1"))
		b.wantCalls(2, 2)
	})
}

func TestLeftoversAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for _, n := range []string{".haproxy.cfg123", ".haproxy.cfg123x"} {
			if err := os.WriteFile(filepath.Join(filepath.Dir(b.file), n), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b.start()
		defer b.stop()
		b.after(time.Second)
		if diff := cmp.Diff([]string{".haproxy.cfg123x"}, b.litter()); diff != "" {
			t.Error(diff)
		}
	})
}

// While a reload is owed a mark says so, and a run that finds it puts back what
// the run before knew to be good.
func TestOwedReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.nodes("main", "n1")
		marked := func() bool { _, err := os.Stat(beside(b.file, endPending)); return err == nil }
		b.run.reload = func(context.Context) (string, error) {
			if !marked() {
				t.Error("no mark during the reload")
			}
			return "", nil
		}
		b.start()
		b.after(time.Second)
		if marked() {
			t.Error("the mark stays after the reload")
		}
		b.stop()

		b.write(text("n1", "n2")) // replaced, and then the run was killed
		if err := os.WriteFile(beside(b.file, endPending), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		b.run.set(func() { b.run.reload = func(context.Context) (string, error) { return "", &ExitError{Code: 1} } })
		b.nodes("main", "n1", "n2")
		b.start()
		defer b.stop()
		b.after(time.Second)
		b.wantFile(text("n1"))
		b.wantState(StatePending)
		b.run.set(func() { b.run.reload = nil })
		b.after(time.Minute)
		b.wantFile(text("n1", "n2"))
		b.wantState(StateApplied)
	})
}
