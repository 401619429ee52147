package e2e

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// explained waits for something, and prints meanwhile what explain says of the
// monitor's view of a node, twice a second. It returns all of that. What the monitor
// waits for is 3 s in a lab; PGSTEER_UNHEALTHY_TIMEOUT=20s makes it what it is elsewhere.
func (p *autoRig) explained(node, what string, ok func() bool) string {
	p.t.Helper()
	var b strings.Builder
	begin := time.Now()
	var next time.Duration
	p.until(what, func() bool {
		if passed := time.Since(begin); passed >= next {
			next = passed + 500*time.Millisecond
			var said []string
			for line := range strings.Lines(p.explain("main", node)) {
				if word := strings.Fields(line); len(word) > 0 && slices.Contains([]string{"keeper", "check", "started", "unhealthy", "promotion"}, word[0]) {
					said = append(said, strings.Join(word, " "))
				}
			}
			fmt.Fprintf(&b, "\n%8.3fs  %s", passed.Seconds(), strings.Join(said, " | "))
		}
		return ok()
	})
	p.t.Logf("what explain says of %s:%s", node, &b)
	return b.String()
}

// hastySettings are the settings of a lab's monitor as explain prints them when it
// could read each of them there.
func hastySettings() string {
	return fmt.Sprintf("node_considered_unhealthy_timeout %s, startup_grace_period 2s, health_check_period 500ms, _timeout 500ms, _max_retries 2, _retry_delay 100ms",
		cmp.Or(os.Getenv("PGSTEER_UNHEALTHY_TIMEOUT"), "3s"))
}
