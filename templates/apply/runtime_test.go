package apply

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What the running process takes over is no reload: it waits for none and counts
// as none. What it does not take over reloads, no sooner than the rate allows.
func TestRuntimeInsteadOfReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.group.Runtime = true
		var brought []string
		refuse := false
		b.bring = func(_ context.Context, before, after []byte) error {
			if refuse {
				return errors.New("not at runtime")
			}
			brought = append(brought, string(before)+"->"+string(after))
			return nil
		}
		b.nodes("main", "n1")
		b.start()
		b.after(time.Second)
		b.wantCalls(1, 1) // nobody knows what runs at first
		want := []string{}
		last := text("n1")
		for _, names := range [][]string{{"n1", "n2"}, {"n2"}, {"n2", "n3"}} {
			b.nodes("main", names...)
			b.after(300 * time.Millisecond)
			b.wantFile(text(names...))
			b.wantState(StateApplied)
			want, last = append(want, last+"->"+text(names...)), text(names...)
		}
		b.wantCalls(4, 1)
		for i := range want {
			if len(brought) != len(want) || brought[i] != want[i] {
				t.Fatalf("brought about %q, want %q", brought, want)
			}
		}
		b.after(time.Minute)

		refuse = true
		b.nodes("main", "n4")
		b.after(300 * time.Millisecond)
		b.wantCalls(5, 2)
		b.wantState(StateApplied)
		b.nodes("main", "n5")
		b.after(300 * time.Millisecond)
		b.wantCalls(6, 2)
		b.wantFile(text("n5")) // a process that starts now runs with it
		b.wantState(StatePending)
		if s := b.status(); s.Error != "" {
			t.Errorf("waiting for the next reload is a fault: %q", s.Error)
		}
		b.after(5 * time.Second)
		b.wantCalls(7, 3)
		b.wantState(StateApplied)

		refuse = false
		b.nodes("main", "n6")
		b.after(300 * time.Millisecond)
		b.wantCalls(8, 3)
		if s := b.status(); s.Runtime != 4 || s.Reloads != 3 || s.State != StateApplied {
			t.Errorf("status %+v", s)
		}
		b.stop()
	})
}

// A process that failed half way may have anything; even the text from before
// needs a reload then.
func TestRuntimeFailureLeavesNothingKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.group.Runtime = true
		b.bring = func(context.Context, []byte, []byte) error { return errors.New("half of it") }
		b.nodes("main", "n1")
		b.start()
		b.after(time.Second)
		b.nodes("main", "n2")
		b.after(300 * time.Millisecond)
		b.wantFile(text("n2"))
		b.nodes("main", "n1") // as before, while the reload waits for its time
		b.after(300 * time.Millisecond)
		b.wantState(StatePending)
		b.after(5 * time.Second)
		b.wantFile(text("n1"))
		b.wantState(StateApplied)
		if s := b.status(); s.Reloads != 2 || s.Runtime != 0 {
			t.Errorf("status %+v", s)
		}
		b.stop()
	})
}
