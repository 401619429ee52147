package runtimeapi

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// maxAnswer bounds what is read of one exchange; "show info" has about 2 kB.
const maxAnswer = 1 << 20

// exchange sends commands on a connection of their own and returns an answer for
// each, "" for plain success. Without an interactive prompt HAProxy closes after
// one line, so the answers are read to the end of the stream: one read alone may
// hold only a part of them.
func (s *socket) exchange(ctx context.Context, commands []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
	defer cancel()
	c, err := s.o.Dial(ctx, s.network, s.address)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(c, strings.Join(commands, ";")+"\n"); err != nil {
		return nil, fmt.Errorf("send %d commands: %w", len(commands), err)
	}
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite() // some versions keep the connection open otherwise
	}
	b, err := io.ReadAll(io.LimitReader(c, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read answers to %d commands: %w", len(commands), err)
	}
	answers := split(string(b))
	if len(answers) != len(commands) {
		return nil, fmt.Errorf("%d answers to %d commands, so it is not known which were carried out", len(answers), len(commands))
	}
	return answers, nil
}

// split cuts a stream into answers. Each ends with an empty line, so a plain
// success is nothing but that line.
func split(stream string) []string {
	var answers []string
	var lines []string
	for line := range strings.Lines(stream) {
		line = strings.TrimRight(line, "\r\n")
		if line != "" {
			lines = append(lines, line)
			continue
		}
		answers = append(answers, strings.Join(lines, "\n"))
		lines = nil
	}
	return answers
}

// process is HAProxy's process as "show info" describes it.
type process struct {
	pid    string
	uptime int // in seconds
}

func processOf(info string) (p process) {
	for line := range strings.Lines(info) {
		switch key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key {
		case "Pid":
			p.pid = value
		case "Uptime_sec":
			p.uptime, _ = strconv.Atoi(value) // without it the number alone tells
		}
	}
	return p
}

// replaces reports whether p came after another process. In a container the
// number may be the same at each start; then the one that is up for less long
// is the newer.
func (p process) replaces(old process) bool {
	return old.pid != "" && (p.pid != old.pid || p.uptime < old.uptime)
}

// explain says what an answer means for who runs HAProxy.
func explain(answer string) string {
	for _, known := range []struct{ part, means string }{
		{"No such server", "the running HAProxy does not have this server: its file is older than the list of nodes, or it was not reloaded yet"},
		{"No such backend", "the running HAProxy does not have this backend: its file does not come from the same configuration"},
		{"Permission denied", "the socket lacks \"level admin\" in HAProxy's file"},
		{"agent checks are not enabled", "the server has no agent-check in HAProxy's file, or an operator disabled it"},
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
