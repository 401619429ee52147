package runtimeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"sync"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
	"github.com/pgsteer/pgsteer/agent/haproxycli"
)

// members changes which servers one HAProxy process has.
type members struct {
	at  haproxycli.Socket
	log *slog.Logger

	wire    sync.Mutex // held while one server is changed, and while a push looks and tells
	changed bool       // servers were changed since a push looked; guarded by wire

	mu      sync.Mutex // one change at a time
	process haproxycli.Process
	// retired are servers that were taken out and stand in maintenance, with their
	// settings. They are not deleted: before 2.9 that can crash HAProxy while a
	// session of theirs is just ending (haproxy #2298), and the next reload forgets
	// them anyway.
	retired map[haproxycfg.Ref]haproxycfg.Server
	spared  map[string][]string // what HAProxy took only without some setting, by the setting
}

// Bring brings every HAProxy of the sockets from one configuration, which it runs,
// to another, when only servers differ. Nil: what runs now equals the second one.
// After an error HAProxy has to be reloaded.
//
// A server that is new, or at a new address, takes no session before somebody says
// that it may. Sessions with servers that leave, and with the old address of those
// that move, end.
func (p *Pusher) Bring(ctx context.Context, before, after []byte) error {
	if len(p.sockets) == 0 {
		return errors.New("there is no haproxy.sockets over which servers could be changed")
	}
	old, err := haproxycfg.Parse(before)
	if err != nil {
		return fmt.Errorf("what runs is not understood: %w", err)
	}
	next, err := haproxycfg.Parse(after)
	if err != nil {
		return err
	}
	change, err := haproxycfg.Compare(old, next)
	if err != nil {
		return err
	}
	for _, s := range p.sockets {
		defer s.sayAgain() // also of what was done before an error
	}
	for _, s := range p.sockets {
		if err := s.members.bring(ctx, change, next); err != nil {
			return fmt.Errorf("HAProxy at %s: %w", s.at.Address, err)
		}
	}
	return nil
}

// running is a server as HAProxy has it.
type running struct {
	address     netip.AddrPort // invalid when it is none
	maintenance bool           // forced: by us, or by an operator
	agentOff    bool           // it has no agent check, or a disabled one
}

// retired reports whether Bring took the server out, now or in an earlier life.
func (r running) retired() bool { return r.maintenance && r.agentOff }

func (m *members) bring(ctx context.Context, change haproxycfg.Difference, next haproxycfg.File) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	process, has, err := m.look(ctx)
	if err != nil {
		return err
	}
	if m.retired == nil || process.Replaces(m.process) {
		m.retired = make(map[haproxycfg.Ref]haproxycfg.Server)
	}
	m.process = process
	defer m.logSpared()
	if err := m.apply(ctx, change, has); err != nil {
		return err
	}
	now, has, err := m.look(ctx)
	if err != nil {
		return err
	}
	if now.Replaces(process) {
		return errors.New("it was restarted or reloaded meanwhile")
	}
	return differs(next, has, change)
}

// look asks for the process and its servers.
func (m *members) look(ctx context.Context) (haproxycli.Process, map[haproxycfg.Ref]running, error) {
	answers, err := m.at.Answers(ctx, []string{"show info", "show cli level", "show servers state"})
	if err != nil {
		return haproxycli.Process{}, nil, err
	}
	p := haproxycli.ParseInfo(answers[0])
	switch {
	case p.PID == "":
		return p, nil, fmt.Errorf("it answers %q: %s", firstLine(answers[0]), explain(answers[0]))
	case p.Stopping:
		return p, nil, errStopping
	case answers[1] != "admin":
		return p, nil, &levelError{firstLine(answers[1])}
	}
	has, err := parseState(answers[2])
	return p, has, err
}

// parseState reads the answer to "show servers state" by the names of its header:
// versions differ in what they list.
func parseState(state string) (map[haproxycfg.Ref]running, error) {
	out := make(map[haproxycfg.Ref]running)
	column := map[string]int{}
	for line := range strings.Lines(state) {
		words := strings.Fields(line)
		if len(words) > 1 && words[0] == "#" {
			for i, name := range words[1:] {
				column[name] = i
			}
			continue
		}
		get := func(name string) string {
			if i, ok := column[name]; ok && i < len(words) {
				return words[i]
			}
			return ""
		}
		var admin, port uint
		if _, err := fmt.Sscan(get("srv_admin_state")+" "+get("srv_port"), &admin, &port); err != nil {
			continue // the version line
		}
		var r running
		if ip, err := netip.ParseAddr(get("srv_addr")); err == nil {
			r.address = netip.AddrPortFrom(ip.Unmap(), uint16(port))
		}
		r.maintenance = admin&1 != 0 // FMAINT
		if agent, err := strconv.ParseUint(get("srv_agent_state"), 10, 32); err == nil {
			r.agentOff = agent&4 == 0 // CHK_ST_ENABLED
		}
		out[haproxycfg.Ref{Backend: get("be_name"), Server: get("srv_name")}] = r
	}
	if len(column) == 0 {
		return nil, fmt.Errorf("it lists no servers but says %q", firstLine(state))
	}
	return out, nil
}

// differs says in what the running servers differ from those of a file. Servers
// that left stand in maintenance.
func differs(next haproxycfg.File, has map[haproxycfg.Ref]running, change haproxycfg.Difference) error {
	for _, ref := range haproxycfg.InOrder(next.Servers) {
		want, r := next.Servers[ref], has[ref]
		_, added := change.Add[ref]
		switch {
		case r.address != want.Address:
			return fmt.Errorf("server %s is at %s, not at %s", ref, r.address, want.Address)
		case added && r.retired(): // with admin words the first answer may be MAINT
			return fmt.Errorf("server %s stays in maintenance", ref)
		}
	}
	backends := next.Backends()
	for ref, r := range has {
		if _, listed := next.Servers[ref]; !listed && !next.Others[ref] && backends[ref.Backend] && !r.maintenance {
			return fmt.Errorf("it has a server %s that is in no file", ref)
		}
	}
	return nil
}
