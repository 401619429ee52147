package runtimeapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// complaints are the answers of one push that were no success: about what, by
// the first line of the answer.
type complaints map[string][]string

func (c complaints) add(about, answer string) {
	line := firstLine(answer)
	c[line] = append(c[line], about)
}

// settle explains new answers, each once, and has everything told again later.
func (s *socket) settle(c complaints) {
	if len(c) == 0 {
		return
	}
	if s.repushAt == never {
		s.repushAt = s.now().Add(s.delay)
		s.delay = min(2*s.delay, time.Minute)
	}
	for _, line := range slices.Sorted(maps.Keys(c)) {
		about := some(c[line])
		s.setErr(fmt.Errorf("HAProxy answers %q about %s: %s", line, about, explain(line)))
		if !s.bad[line] {
			s.bad[line] = true
			s.log.Warn("HAProxy did not carry a command out; it is told again later, its agent checks go on",
				"about", about, "answer", line, "means", explain(line))
		}
	}
}

// some names the first few of many.
func some(names []string) string {
	const few = 3
	slices.Sort(names)
	names = slices.Compact(names)
	if rest := len(names) - few; rest > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), rest)
	}
	return strings.Join(names, ", ")
}

// Answers that are told apart.
const (
	noSuchServer = "No such server"
	noSuchPID    = "Can't find the target PID" // the master's, of a worker that has ended
	denied       = "Permission denied"
	notEnabled   = "agent checks are not enabled"
)

// explain says what an answer means for who runs HAProxy.
func explain(answer string) string {
	for _, known := range []struct{ part, means string }{
		{noSuchServer, "the running HAProxy does not have this server: its file is older than the list of nodes, or it was not reloaded yet"},
		{"No such backend", "the running HAProxy does not have this backend: its file does not come from the same configuration"},
		{denied, "the socket lacks \"level admin\" in HAProxy's file"},
		{notEnabled, "the server has no agent-check in HAProxy's file, or an operator disabled it"},
		{"static LB algorithm", "the backend's balance algorithm takes no weights; use first, leastconn or roundrobin"},
		{"Proxy is disabled", "the socket belongs to a HAProxy process that is about to end"},
		{"Unknown command", "the socket is not HAProxy's admin socket (the master's has other commands), or its version is too old"},
	} {
		if strings.Contains(answer, known.part) {
			return known.means
		}
	}
	return "HAProxy did not carry the command out"
}

// firstLine is enough of an answer for a log: "Unknown command" brings a manual.
func firstLine(answer string) string {
	line, _, _ := strings.Cut(answer, "\n")
	return line
}
