package runtimeapi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// swept is what a look at one old worker found and did.
type swept struct {
	found  Sessions
	doomed []string // sessions to servers that are down
	ended  uint64
}

// sweep ends, in one old worker, the sessions to servers that are down. Its proxies
// are stopped, so "shutdown sessions server" is refused there ("Proxy is disabled");
// what works is to list the sessions and to end each by its number. A number could
// be another session's by then, but an old worker takes no new ones.
func (m *master) sweep(ctx context.Context, pid int, verdict func(server) topology.Verdict) (w swept, err error) {
	to := fmt.Sprintf("@!%d ", pid)
	refusal := ""
	err = m.at.Lines(ctx, to+"show sess", func(line string) {
		id, srv, ok := parseSession(line)
		if !ok {
			if refusal == "" {
				refusal = line
			}
			return
		}
		v := verdict(srv)
		w.found.add(v, 1)
		if v == topology.Down {
			w.doomed = append(w.doomed, id)
		}
	})
	if err == nil {
		err = refused(refusal)
	}
	if err != nil || len(w.doomed) == 0 {
		return w, err
	}
	for _, part := range cut(w.doomed, func(id string) int { return len(to) + len("shutdown session ;") + len(id) }) {
		commands := make([]string, len(part))
		for i, id := range part {
			commands[i] = to + "shutdown session " + id
		}
		n, err := m.end(ctx, commands)
		w.ended += n
		if err != nil {
			return w, err
		}
	}
	m.log.Info("sessions to servers that are down were ended in an old worker of HAProxy", "pid", pid, "sessions", w.ended)
	return w, nil
}

// end carries out commands that end sessions and counts the good answers. A
// session, or the whole worker, may have ended by itself.
func (m *master) end(ctx context.Context, commands []string) (uint64, error) {
	n, refusal := 0, ""
	err := m.at.Lines(ctx, strings.Join(commands, ";"), func(line string) {
		switch {
		case line == "":
			n++
		case strings.Contains(line, "No such session"):
			n-- // its empty line follows
		case refusal == "":
			refusal = line
		}
	})
	if err == nil {
		err = refused(refusal)
	}
	if err != nil {
		return 0, err
	}
	return uint64(max(n, 0)), nil
}

// errMasterLevel: "show sess" may be asked by all, sessions are ended by admins.
var errMasterLevel = errors.New("the master's socket may not end sessions: start HAProxy with -S and its path alone, or with \",level,admin\" behind it")

// refused makes an error of a line that is no session and no success.
func refused(line string) error {
	switch {
	case line == "", strings.Contains(line, noSuchPID):
		return nil
	case strings.Contains(line, denied):
		return errMasterLevel
	}
	return fmt.Errorf("HAProxy's master answers %q about an old worker: %s", line, explain(line))
}

// verdicts are those on every server that may be believed now. A node that has
// left its cluster's list is down.
func verdicts(o *Options, rosters map[string]roster) map[server]topology.Verdict {
	out := make(map[server]topology.Verdict)
	now := o.Now().Mono
	for cluster, r := range rosters {
		v := o.Views.Get(cluster)
		if !v.Valid(now) {
			continue
		}
		for srv, w := range desired(o, v.Snapshot, r.note(o, v.Snapshot), func(server) bool { return false }) {
			out[srv] = w.verdict
		}
	}
	return out
}

// count counts the sessions that HAProxy's present process has with servers that
// are not up. Failing to costs a gauge and nothing else.
func (s *socket) count(ctx context.Context) {
	verdicts, present := verdicts(s.o, s.rosters), Sessions{}
	column := -1
	err := s.at.Lines(ctx, "show stat -1 4 -1", func(line string) { // every proxy, its servers alone
		fields := strings.SplitN(line, ",", 12)
		if strings.HasPrefix(line, "# ") {
			column = slices.Index(fields, "scur")
			return
		}
		if column < 2 || len(fields) <= column {
			return // the rest of a text with a line break in it
		}
		n, _ := strconv.Atoi(fields[column])
		present.add(verdicts[server{Backend: fields[0], Server: fields[1]}], n)
	})
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Sessions = present
}

// Sessions counts those with servers that are not up.
type Sessions struct {
	Down     int // no session should be there: they are being ended
	Draining int // they stay until they end by themselves
}

// add adds sessions with a server.
func (n *Sessions) add(v topology.Verdict, more int) {
	if v == topology.Down {
		n.Down += more
	}
	if v == topology.Drain {
		n.Draining += more
	}
}

// parseSession reads a row of "show sess": the number of a session, and the server
// it goes to. Rows of other kinds, and empty lines, name none.
func parseSession(line string) (id string, srv server, ok bool) {
	id, rest, _ := strings.Cut(line, ": ")
	if !strings.HasPrefix(id, "0x") {
		return "", server{}, line == ""
	}
	for word := range strings.FieldsSeq(rest) {
		switch key, value, _ := strings.Cut(word, "="); key {
		case "be":
			srv.Backend = value
		case "srv":
			srv.Server = value
			return id, srv, true
		}
	}
	return id, server{}, true
}
