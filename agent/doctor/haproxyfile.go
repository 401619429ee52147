package doctor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/haproxycfg"
	"github.com/pgsteer/pgsteer/agent/preflight"
)

func haproxyFiles(_ context.Context, x *exam) []Result {
	files := slices.Clone(x.HAProxyFiles)
	for _, t := range x.Config.Templates {
		files = append(files, checkedFiles(t)...)
	}
	slices.Sort(files)
	var all []Result
	var text haproxyText
	for _, file := range slices.Compact(files) {
		b, err := os.ReadFile(file)
		if err != nil {
			all = append(all, Result{
				Subject: file, Level: Warn, Tried: "read it", Found: err.Error(), Do: "run doctor as a user who may read it, after the agent has written it once",
			})
			continue
		}
		text.add(file, b)
	}
	all = append(all, text.judge(x.Config.Clusters)...)
	mode := x.Config.Listen.SocketMode
	if l, ok := text.find("external-check", "command"); ok && mode&0o006 != 0o006 {
		all = append(all, Result{
			Subject: l.At(), Level: Warn, Tried: "compare it with listen.socket_mode",
			Found: "the agent's socket has mode " + mode.String() + ", and HAProxy runs the command as its own user",
			Do:    "socket_mode: 0666, or HAProxy's user in the agent's group",
		})
	}
	return all
}

// checkedFiles are the files that HAProxy reads by a template's check: each -f, the
// staged one by its final place.
func checkedFiles(t config.Template) []string {
	if len(t.Check) == 0 || !strings.Contains(filepath.Base(t.Check[0]), "haproxy") {
		return nil
	}
	files := slices.DeleteFunc(preflight.Files(t.Check), func(f string) bool { return strings.Contains(f, "{{") })
	for _, f := range t.Files {
		files = append(files, f.Destination)
	}
	return files
}

// haproxyText is HAProxy's configuration, as far as it is understood here.
type haproxyText struct {
	files []string
	lines []haproxycfg.Line
}

func (t *haproxyText) add(file string, text []byte) {
	t.files = append(t.files, file)
	t.lines = append(t.lines, haproxycfg.Lines(file, text)...)
}

// find is the first line that begins with these words.
func (t *haproxyText) find(words ...string) (haproxycfg.Line, bool) {
	return t.first(func(l haproxycfg.Line) bool { return l.Begins(words...) })
}

// holds is the first line with a word at any place.
func (t *haproxyText) holds(word string) (haproxycfg.Line, bool) {
	return t.first(func(l haproxycfg.Line) bool { return slices.Contains(l.Words, word) })
}

func (t *haproxyText) first(is func(haproxycfg.Line) bool) (haproxycfg.Line, bool) {
	if i := slices.IndexFunc(t.lines, is); i >= 0 {
		return t.lines[i], true
	}
	return haproxycfg.Line{}, false
}

// judge looks for what is known to go wrong (reports of haproxy/haproxy).
func (t *haproxyText) judge(clusters config.Clusters) []Result {
	if len(t.files) == 0 {
		return nil
	}
	var all []Result
	bad := func(level Level, l haproxycfg.Line, found, do string) {
		all = append(all, Result{Subject: l.At(), Level: level, Tried: "look for " + l.Words[0], Found: found, Do: do})
	}
	chroot := ""
	if l, ok := t.find("chroot"); ok {
		if chroot, ok = preflight.Chroot(l); ok && preflight.Missing(chroot) {
			bad(Fail, l, "the folder of chroot is not there: haproxy -c accepts that, and up to 3.0 a reload then ends every process", "make it, or drop the line")
		}
	}
	if l, ok := t.find("option", "pgsql-check"); ok {
		bad(Warn, l, "pgsql-check takes standbys, and servers without free slots, for good ones", "drop it: check, and agent-check, are enough")
	}
	if l, ok := t.holds("load-server-state-from-file"); ok {
		bad(Warn, l, "a state file brings servers up by their first TCP check, whatever pgsteer said before, and mixes up addresses that changed", "drop it")
	}
	for _, l := range t.lines {
		if slices.Contains(l.Words, "agent-check") && l.Words[0] == "server" && !slices.Contains(l.Words, "agent-send") && !slices.Contains(l.Words, "agent-port") {
			bad(Warn, l, "agent-check without agent-send: the common port is asked about nobody, and up to 2.6 each check takes 200 ms longer", "agent-send \"CLUSTER POOL NODE\\n\", or a port of agent_check.ports")
			break
		}
	}
	t.external(chroot, bad)
	all = append(all, t.slowPolls(clusters)...)
	if len(all) == 0 {
		all = append(all, Result{Subject: strings.Join(t.files, " "), Level: OK, Tried: "read them", Found: "nothing that is known to misroute"})
	}
	return all
}

// external looks at external-check: HAProxy says nothing when its command cannot
// run, but takes every server for dead.
func (t *haproxyText) external(chroot string, bad func(Level, haproxycfg.Line, string, string)) {
	l, ok := t.find("external-check", "command")
	if !ok {
		return
	}
	if !t.global("external-check") {
		bad(Fail, l, "there is no external-check in global: HAProxy does not start so", "external-check in global")
	}
	if !t.global("insecure-fork-wanted") {
		bad(Fail, l, "there is no insecure-fork-wanted in global: as another user than root the check cannot start, and every server is down", "insecure-fork-wanted in global")
	}
	if len(l.Words) < 3 {
		return
	}
	command := l.Words[2]
	info, err := os.Stat(filepath.Join(chroot, command))
	switch {
	case err != nil && chroot != "":
		bad(Fail, l, command+" is not inside of chroot "+chroot+": every server is down, and haproxy -c says nothing", "drop chroot; a check needs more than its own file there")
	case err != nil:
		bad(Fail, l, err.Error(), "name a program that is there, with its whole path")
	case info.IsDir() || info.Mode()&0o111 == 0:
		bad(Fail, l, command+" cannot be executed", "chmod 0755")
	}
	if chroot != "" && err == nil {
		bad(Warn, l, "with chroot "+chroot+" the command finds the agent's socket only if that is inside too", "drop chroot, or take agent-check")
	}
}

// global reports whether a setting stands alone on a line, as those of global do.
func (t *haproxyText) global(word string) bool {
	return slices.ContainsFunc(t.lines, func(l haproxycfg.Line) bool { return len(l.Words) == 1 && l.Words[0] == word })
}
