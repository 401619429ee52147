package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func info(version string) string {
	return "Name: HAProxy\nVersion: " + version + "\nPid: 7\nStopping: 0\n"
}

func TestHAProxySockets(t *testing.T) {
	const admin = "admin\n"
	for _, tt := range []struct {
		name    string
		answers map[string]string
		want    []string
	}{
		{"good", map[string]string{"show info": info("2.6.12-1"), "show cli level": admin}, []string{"OK /x: version 2.6.12; 6 known faults of it are avoided"}},
		{"level operator", map[string]string{"show info": info("3.2.1"), "show cli level": "operator\n"}, []string{
			"OK /x: version 3.2.1; 1 known faults of it are avoided", `FAIL /x: the socket has level "operator", which may not change servers`,
		}},
		{"unsafe", map[string]string{"show info": info("2.2.10"), "show cli level": admin}, []string{
			"OK /x: version 2.2.10; 4 known faults of it are avoided",
			"FAIL /x: version 2.2.10 may have this fault: an agent check that says up makes a server UP although its TCP check fails (haproxy#1176)",
		}},
		{"fault", map[string]string{"show info": info("2.8.3"), "show cli level": admin}, []string{
			"OK /x: version 2.8.3; 4 known faults of it are avoided",
			"WARN /x: version 2.8.3 may have this fault: a reload that cannot bind a port ends the master process, and all service with it (commit d76fa3753)",
		}},
		{"newer", map[string]string{"show info": info("3.6.0"), "show cli level": admin}, []string{"OK /x: version 3.6.0, newer than 3.4.0, the newest that was tried"}},
		{"no version", map[string]string{"show info": info("?"), "show cli level": admin}, []string{`WARN /x: the version cannot be read from "?"`}},
		{"old worker", map[string]string{"show info": strings.Replace(info("3.4.0"), "Stopping: 0", "Stopping: 1", 1), "show cli level": admin}, []string{
			"OK /x: version 3.4.0; 1 known faults of it are avoided", "WARN /x: process 7 answers, which a reload has replaced",
		}},
		{"the master's", map[string]string{"show info": "Unknown command: 'show info'\n"}, []string{`FAIL /x: the answer to show info is "Unknown command: 'show info'"`}},
		{"nobody", nil, []string{"FAIL /x: connection refused"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t, "haproxy: {sockets: [/x]}")
			o.Dial = haproxy(t, tt.answers)
			same(t, of(t, "haproxy-socket", o), tt.want...)
		})
	}
}

func TestHAProxyMasters(t *testing.T) {
	const head = "#<PID> <type> <reloads> <uptime> <version>\n"
	old := strings.Repeat("2 worker 1 0d 2.6\n", 1)
	many := ""
	for i := range manyOld + 1 {
		many += fmt.Sprintf("%d worker 1 0d 2.6\n", 10+i)
	}
	for _, tt := range []struct{ answer, want string }{
		{head + "1 master 0 [failed: 0] 0d 2.6\n# workers\n3 worker 0 0d 2.6\n# old workers\n" + old, "OK /m: it answers, with 1 old workers"},
		{head + "1 master 0 [failed: 2] 0d 2.6\n# workers\n3 worker 0 0d 2.6\n", "WARN /m: the last 2 reloads failed; the worker of before goes on"},
		{head + "1 master 0 0d 2.6\n# workers\n3 worker 0 0d 2.6\n# old workers\n" + many, "WARN /m: 6 old workers live on for their sessions"},
		{"Unknown command\n", "FAIL /m: /m lists no worker; is it the master's socket (haproxy -S)?"},
	} {
		o := options(t, "templates: [{name: h, files: [{source: t, destination: d}], master_socket: /m}]")
		o.Dial = haproxy(t, map[string]string{"show proc": tt.answer})
		same(t, of(t, "haproxy-master", o), tt.want)
	}
	o := options(t, "haproxy: {master_sockets: [/m]}\ntemplates: [{name: h, files: [{source: t, destination: d}], master_socket: /m}]")
	o.Dial = haproxy(t, map[string]string{"show proc": head + "1 master 0 0d 2.6\n# workers\n3 worker 0 0d 2.6\n"})
	same(t, of(t, "haproxy-master", o), "OK /m: it answers, with 0 old workers")
}

// HAProxy that systemd or a command reloads has a master's socket to be asked over.
func TestHAProxyReloadedByOthers(t *testing.T) {
	const group = `templates: [{name: lb, files: [{builtin: haproxy, destination: /x/h}], check: [haproxy, "{{.Staged}}"]`
	const blind = ": there is none, so what a reload by %s did is not asked of HAProxy's master: one that did nothing is not made good, and without one of haproxy.sockets in its files it counts as good"
	for settings, by := range map[string]string{
		", reload_unit: haproxy.service}]":         "haproxy.service",
		", reload: [systemctl, reload, haproxy]}]": "systemctl reload haproxy",
		"}]": "", // nobody reloads it
		", reload_unit: haproxy.service}, {name: other, files: [{source: s, destination: /x/o}], reload_unit: other.service}]": "haproxy.service",
	} {
		var want []string
		if by != "" {
			want = []string{"WARN template lb" + fmt.Sprintf(blind, by)}
		}
		same(t, of(t, "haproxy-master", options(t, group+settings)), want...)
	}
	o := options(t, group+", reload_unit: haproxy.service, master_socket: /m}]")
	o.Dial = haproxy(t, map[string]string{"show proc": "#<PID> <type>\n1 master 0 [failed: 0]\n# workers\n3 worker 0 0d 2.6\n"})
	same(t, of(t, "haproxy-master", o), "OK /m: it answers, with 0 old workers")
}

func TestHAProxyProgram(t *testing.T) {
	o := options(t, "haproxy: {sockets: [/x]}")
	o.Dial = haproxy(t, nil)
	var ran string
	o.Output = func(_ context.Context, name string, args ...string) (string, error) {
		ran = name + " " + strings.Join(args, " ")
		return "HAProxy version 3.0.0-7a59afa 2024/05/29 - https://haproxy.org/\nStatus: long-term\n", nil
	}
	same(t, of(t, "haproxy-program", o), "OK haproxy: version 3.0.0; 3 known faults of it are avoided")
	if ran != "haproxy -v" {
		t.Errorf("ran %q", ran)
	}
	o.Output = func(context.Context, string, ...string) (string, error) { return "", errors.New("not found") }
	same(t, of(t, "haproxy-program", o), "WARN haproxy: not found")
	o.Config.Templates = options(t, "templates: [{name: h, files: [{builtin: haproxy, destination: d}], check: [/opt/haproxy, -c, -f, \"{{.Staged}}\"]}]").Config.Templates
	same(t, of(t, "haproxy-program", o), "FAIL /opt/haproxy: not found")
	o.Config.Templates, o.Config.HAProxy.Sockets = nil, nil
	same(t, of(t, "haproxy-program", o))
}

func TestHAProxyFiles(t *testing.T) {
	chroot, command := t.TempDir(), write(t, "check", "#!/bin/sh\n", 0o755)
	inside := filepath.Join(chroot, "check")
	if err := os.WriteFile(inside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	const fork = "global\n  external-check\n  insecure-fork-wanted\n"
	external := func(command string) string {
		return "backend b\n option external-check\n external-check command " + command + "\n"
	}
	for _, tt := range []struct {
		name, text string
		want       []string // "LEVEL line: beginning of what was found"
	}{
		{"good", "global\n  stats socket /x level admin\nbackend b\n  server a 1.1.1.1:1 check agent-check agent-inter 500 agent-send \"a b c\\n\"\n", []string{"OK nothing that is known"}},
		{"comments count for nothing", "# load-server-state-from-file\nglobal # load-server-state-from-file\n", []string{"OK nothing that is known"}},
		{"agent-check without a name", "backend b\n  server a 1.1.1.1:1 agent-check\n", []string{"WARN 2: agent-check without agent-send", "WARN 2: without agent-inter HAProxy asks every 2s, which is above half of min_down 1s of cluster main"}},
		{"a port of its own", "backend b\n  server a 1.1.1.1:1 agent-check agent-port 7441 agent-inter 500ms\n", []string{"OK nothing that is known"}},
		{"pgsql-check", "backend b\n  option  pgsql-check user x\n", []string{"WARN 2: pgsql-check takes standbys"}},
		{"state file", "defaults\n  load-server-state-from-file global\n", []string{"WARN 2: a state file"}},
		{"no chroot there", "global\n  chroot /nowhere/at/all\n", []string{"FAIL 2: the folder of chroot is not there"}},
		{"external check", fork + external(command), []string{"OK nothing that is known"}},
		{"not allowed", external(command), []string{"FAIL 3: there is no external-check in global", "FAIL 3: there is no insecure-fork-wanted"}},
		{"no fork", "global\n  external-check\n" + external(command), []string{"FAIL 5: there is no insecure-fork-wanted"}},
		{"no such program", fork + external("/nowhere/check"), []string{"FAIL 6: stat /nowhere/check: no such file"}},
		{"no program", fork + external(write(t, "text", "", 0o644)), []string{"FAIL 6: "}},
		{"outside of chroot", "global\n  chroot " + chroot + "\n" + fork + external(command), []string{"FAIL 8: " + command + " is not inside of chroot"}},
		{"inside of chroot", "global\n  chroot " + chroot + "\n" + fork + external("/check"), []string{"WARN 8: with chroot "}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := options(t, "")
			file := write(t, "haproxy.cfg", tt.text, 0o644)
			o.HAProxyFiles = []string{file}
			got := of(t, "haproxy-file", o)
			if len(got) != len(tt.want) {
				t.Fatalf("got %q, want %q", got, tt.want)
			}
			for i, row := range got {
				row = strings.Join(strings.Fields(strings.ReplaceAll(row, file+":", "")), " ")
				if !strings.HasPrefix(row, tt.want[i]) {
					t.Errorf("got %q, want %q", row, tt.want[i])
				}
			}
		})
	}
}

// The files that a template's check reads are looked at, the staged one by its
// final place.
func TestHAProxyFilesOfTemplates(t *testing.T) {
	fork := write(t, "fork.cfg", "global\n  external-check\n  insecure-fork-wanted\nbackend b\n  external-check command /bin/sh\n", 0o644)
	group := options(t, "listen: {socket_mode: 0660}")
	group.HAProxyFiles = []string{fork}
	same(t, of(t, "haproxy-file", group)[1:], "WARN "+fork+":5: the agent's socket has mode 0660, and HAProxy runs the command as its own user")
	own := write(t, "haproxy.cfg", "global\n", 0o644)
	o := options(t, "templates: [{name: h, files: [{builtin: haproxy, destination: /nowhere/pgsteer.cfg}], check: [haproxy, -c, -f, "+own+", -f, \"{{.Staged}}\"]}]")
	same(t, of(t, "haproxy-file", o), "WARN /nowhere/pgsteer.cfg: open /nowhere/pgsteer.cfg: no such file or directory", "OK "+own+": nothing that is known to misroute")
	o.Config.Templates[0].Check[0] = "pgbouncer"
	same(t, of(t, "haproxy-file", o))
}
