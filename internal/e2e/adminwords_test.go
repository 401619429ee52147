package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// With admin_words: always standbys are in MAINT and alarm nobody; the writer is
// followed all the same, and what an operator sets at HAProxy lasts until the next
// agent check.
func TestHAProxyAdminWords(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{haproxy: true, top: "agent_check: {admin_words: always}\n"})
	// states are the servers of the write pool: operational state and administrative
	// bits, of which 1 is MAINT.
	states := func() string {
		out, err := f.haproxy.Command(t.Context(), "show servers state be_main_primary")
		if err != nil {
			return err.Error()
		}
		var got []string
		for line := range strings.Lines(out) {
			if w := strings.Fields(line); len(w) > 7 && w[1] == "be_main_primary" {
				got = append(got, fmt.Sprintf("%s %s/%s", w[3], w[5], w[6]))
			}
		}
		slices.Sort(got)
		return strings.Join(got, ", ")
	}
	is := func(want string) {
		t.Helper()
		f.until("servers to be "+want, func() bool { return states() == want })
	}
	is("n1 2/0, n2 0/1, n3 0/1")
	tr := f.clients(f.write, f.read)
	f.settled("start", tr, time.Now())
	tl := f.switchover("n2")
	f.settled("switchover", tr, tl.NewWritable)
	is("n1 0/1, n2 2/0, n3 0/1")
	for _, server := range []string{"n1", "n2", "n3"} { // an operator turns everything round
		word := map[bool]string{true: "maint", false: "ready"}[server == "n2"]
		if out, err := f.haproxy.Command(t.Context(), "set server be_main_primary/"+server+" state "+word); err != nil || strings.TrimSpace(out) != "" {
			t.Fatalf("%s: %q, %v", server, out, err)
		}
	}
	is("n1 0/1, n2 2/0, n3 0/1")
	f.onlyWriters("held sessions", tr.held.Stop())
	f.onlyWriters("new sessions", tr.fresh.Stop())
	f.unbroken("readers", tr.reads.Stop())
}
