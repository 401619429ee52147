package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// Probing leaves no line in PostgreSQL's log, neither while it goes on nor when
// the agent starts and stops; nor do HAProxy's own TCP checks, with and without the
// agent. PGSTEER_LOG_TEST=10m lengthens the test.
func TestProbingIsNotLogged(t *testing.T) {
	t.Parallel()
	length := 20 * time.Second
	if text := os.Getenv("PGSTEER_LOG_TEST"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("PGSTEER_LOG_TEST: %v", err)
		}
	}
	f := newFront(t, frontOptions{haproxy: true})
	f.until("HAProxy's checks of every node", func() bool { return f.checked() == 2*len(f.cluster.Nodes()) })
	sizes := make(map[*lab.Node]int)
	for _, n := range f.cluster.Nodes() {
		sizes[n] = len(f.log(n))
	}
	for _, start := range []func(){func() {}, f.upWithFlags} { // it runs already
		start()
		f.until("a writer", func() bool { v := f.view("main"); return v != nil && v.Snapshot.Writer == "n1" })
		f.pause(length / 2)
		f.until("a writer still", func() bool { return f.view("main").Snapshot.Writer == "n1" })
		f.down()
	}
	for _, n := range f.cluster.Nodes() {
		for line := range strings.Lines(f.log(n)[sizes[n]:]) {
			if !ownWork(line) {
				t.Errorf("%s logged: %s", n.Name(), line)
			}
		}
	}
}

// checked is the number of servers whose TCP check HAProxy has found good.
func (f *front) checked() int {
	out, err := f.haproxy.Command(f.t.Context(), "show stat")
	if err != nil {
		f.t.Fatal(err)
	}
	return strings.Count(out, ",L4OK,")
}

func (f *front) log(n *lab.Node) string {
	f.t.Helper()
	b, err := os.ReadFile(n.LogFile())
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

// ownWork: lines that PostgreSQL writes about itself every few minutes.
func ownWork(line string) bool {
	for _, word := range []string{"checkpoint starting:", "checkpoint complete:", "restartpoint starting:", "restartpoint complete:", "recovery restart point at"} {
		if strings.Contains(line, word) {
			return true
		}
	}
	return strings.Contains(line, "DETAIL:  Last completed transaction was at log time")
}
