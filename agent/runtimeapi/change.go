package runtimeapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
)

// ask sends one command that must be answered by success, which is nothing, or a
// text that has one of some parts in it.
func (m *members) ask(ctx context.Context, command string, good ...string) error {
	answer, err := m.at.Ask(ctx, command)
	if err != nil {
		return err
	}
	if answer == "" || slices.ContainsFunc(good, func(part string) bool { return strings.Contains(answer, part) }) {
		return nil
	}
	return fmt.Errorf("it answers %q to %q", firstLine(answer), firstWords(command))
}

// firstWords is what a command does, and to which server.
func firstWords(command string) string {
	w := strings.Fields(command)
	return strings.Join(w[:min(len(w), 3)], " ")
}

// remove takes a server out: its checks first, since an answer that is under way may
// say "ready", which ends a maintenance (2.6 hears none of a disabled agent check); then
// maintenance, so that nobody comes in, and then its sessions.
func (m *members) remove(ctx context.Context, ref haproxycfg.Ref, s haproxycfg.Server) error {
	r := ref.String()
	for _, command := range []string{
		"disable agent " + r, "disable health " + r, // succeed without such a check too
		"set server " + r + " state maint", "shutdown sessions server " + r,
	} {
		if err := m.ask(ctx, command); err != nil {
			return err
		}
	}
	m.retired[ref] = s
	return nil
}

// move gives a server another address. What was said of the old one does not hold
// there: it is down until it is judged, and the sessions with the old one end.
// Its agent check asks about the old address, and so hears down, until the new one is
// there; only then it is given the new question.
func (m *members) move(ctx context.Context, ref haproxycfg.Ref, to haproxycfg.Server) error {
	r := ref.String()
	if err := m.ask(ctx, "set server "+r+" agent down", notEnabled); err != nil {
		return err
	}
	if err := m.address(ctx, ref, to); err != nil {
		return err
	}
	if err := m.question(ctx, ref, to); err != nil {
		return err
	}
	return m.ask(ctx, "shutdown sessions server "+r)
}

func (m *members) address(ctx context.Context, ref haproxycfg.Ref, to haproxycfg.Server) error {
	set := fmt.Sprintf("set server %s addr %s port %d", ref, to.Address.Addr(), to.Address.Port())
	return m.ask(ctx, set, " changed from ", "no need to change")
}

// question sets what the agent check of a server sends, if it sends anything.
func (m *members) question(ctx context.Context, ref haproxycfg.Ref, s haproxycfg.Server) error {
	send, has := s.AgentSend()
	if !has {
		return nil
	}
	word, err := cliWord(send)
	if err != nil {
		return fmt.Errorf("server %s: %w", ref, err)
	}
	return m.ask(ctx, "set server "+ref.String()+" agent-send "+word)
}

// add adds a server. HAProxy begins with its checks off and in maintenance; it is
// left down by its agent check, which lets it in. (2.6 begins with an agent that is
// down; nothing promises that.)
func (m *members) add(ctx context.Context, ref haproxycfg.Ref, s haproxycfg.Server, has map[haproxycfg.Ref]running) error {
	if !slices.Contains(s.Words, "agent-check") {
		return fmt.Errorf("server %s has no agent-check, so nobody could let it in", ref)
	}
	var err error
	if old, there := has[ref]; !there {
		err = m.register(ctx, ref, s)
	} else if was, ours := m.retired[ref]; ours && old.maintenance && was.SameSettings(s) {
		err = m.back(ctx, ref, s)
	} else {
		err = fmt.Errorf("server %s is still there from before", ref)
	}
	if err != nil {
		return err
	}
	r := ref.String()
	commands := []string{"enable agent " + r, "set server " + r + " agent down", "enable server " + r}
	if slices.Contains(s.Words, "check") {
		commands = append([]string{"enable health " + r}, commands...)
	}
	for _, command := range commands {
		if err := m.ask(ctx, command); err != nil {
			return err
		}
	}
	delete(m.retired, ref)
	return nil
}

// back gives a server that was taken out its new address. Its agent must be enabled
// before its question can be set; it asks nothing while the server is in maintenance.
func (m *members) back(ctx context.Context, ref haproxycfg.Ref, s haproxycfg.Server) error {
	if err := m.address(ctx, ref, s); err != nil {
		return err
	}
	if err := m.ask(ctx, "enable agent "+ref.String()); err != nil {
		return err
	}
	return m.question(ctx, ref, s)
}

// spare are settings, with the number of words that follow, that some versions
// refuse for servers added at runtime and without which a server takes the same
// sessions: tcp-ut, by which the kernel gives up on a silent peer (2.6). The next
// reload brings them.
var spare = map[string]int{"tcp-ut": 1}

// register is "add server", which is answered by a sentence.
func (m *members) register(ctx context.Context, ref haproxycfg.Ref, s haproxycfg.Server) error {
	words := slices.Clone(s.Words)
	for {
		parts := []string{"add server", ref.String(), s.Address.String()}
		for _, w := range words {
			word, err := cliWord(w)
			if err != nil {
				return fmt.Errorf("server %s: %w", ref, err)
			}
			parts = append(parts, word)
		}
		command := strings.Join(parts, " ")
		answer, err := m.at.Ask(ctx, command)
		if err != nil || strings.Contains(answer, "New server registered") {
			return err
		}
		i := refusedWord(words, answer)
		if i < 0 {
			return fmt.Errorf("it answers %q to %q", firstLine(answer), firstWords(command))
		}
		if m.spared == nil {
			m.spared = make(map[string][]string)
		}
		m.spared[words[i]] = append(m.spared[words[i]], ref.String())
		words = slices.Delete(words, i, min(i+1+spare[words[i]], len(words)))
	}
}

// logSpared says once for all servers which settings they do without.
func (m *members) logSpared() {
	for _, setting := range slices.Sorted(maps.Keys(m.spared)) {
		m.log.Info("HAProxy takes a setting only from its file; servers that were added do without it until the next reload",
			"setting", setting, "servers", some(m.spared[setting]))
	}
	clear(m.spared)
}

// refusedWord is where the setting stands that HAProxy refuses and a server can do
// without; -1: none.
func refusedWord(words []string, answer string) int {
	return slices.IndexFunc(words, func(w string) bool {
		_, ok := spare[w]
		return ok && strings.Contains(answer, "'"+w+"'")
	})
}

// cliWord writes a word for HAProxy's command line, which knows no quotes. A line
// break cannot be written: agent-send goes without the one at its end, and pgsteer
// answers an unterminated question as well.
func cliWord(w string) (string, error) {
	w = strings.TrimSuffix(w, "\n")
	if w == "" || strings.ContainsFunc(w, func(r rune) bool { return r < ' ' || r == 127 }) || strings.HasPrefix(w, "<<") {
		return "", fmt.Errorf("%q cannot be written on HAProxy's command line", w)
	}
	return strings.NewReplacer(`\`, `\\`, " ", `\ `, ";", `\;`).Replace(w), nil
}
