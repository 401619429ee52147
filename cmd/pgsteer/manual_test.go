package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

// TestManual holds the page of the manual that lists every command, which is
// made of the program's own help.
func TestManual(t *testing.T) {
	const path = "../../docs/commands.md"
	want := commandsPage(t)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(string(got), "\n")); d != "" {
		t.Errorf("docs/commands.md differs from the program (-program +page); go test ./cmd/pgsteer -run Manual -update writes it anew\n%s", d)
	}
}

func commandsPage(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# Commands

Exit codes: 0 is good, 1 an error (its text says what was tried, on what, and what happens next), 2 a wrong command line,
and also what ` + "`render --diff`" + ` and ` + "`consul-init`" + ` return when something would change, and ` + "`simulate`" + ` when a file cannot be played. ` + "`run`" + ` ends with 0 on SIGTERM and SIGINT, within two seconds; a
second signal ends it at once. SIGHUP, and a change of the configuration file, reload it. Under systemd use
` + "`Type=notify` with `ExecReload=/bin/kill -HUP $MAINPID`, or from systemd 253 on `Type=notify-reload`" + `: the start is over when every listener is bound and every cluster has been decided once, be it that
everything is undecided; a database or Consul that is away keeps no unit from starting. This page is generated from the
program's help.

## pgsteer check in HAProxy, Consul and shells

` + "`check`" + ` asks the running agent over its socket and ends with 0 or, when the check fails, with 1 (` + "`--code`" + `), within a second
(` + "`--timeout`" + `); a wrong command line ends with 2 here too, so that Consul, for which 1 passes, does not pass it. It needs no PATH, no HOME, and dies on SIGTERM.

* **HAProxy**: agent-check is better, since it can drain and costs no process; ` + "`external-check`" + ` is for proxies that allow nothing else.
  HAProxy gives its command no argument, so the program is called by a link named ` + "`pgsteer-check`" + `, and asks about the backend
  ` + "`be_CLUSTER_POOL`" + ` and the server that stand in its environment. It prints nothing then. ` + "`global`" + ` needs ` + "`external-check`" + ` and
  ` + "`insecure-fork-wanted`" + `, and may have no ` + "`chroot`" + `, or every server is down without a word; ` + "`pgsteer doctor`" + ` looks for that.

  ` + "```" + `
  ln -s /usr/local/bin/pgsteer /usr/local/bin/pgsteer-check
  backend be_main_primary
    option external-check
    external-check command /usr/local/bin/pgsteer-check
    default-server check inter 2s fall 2 rise 1 on-marked-down shutdown-sessions
  ` + "```" + `

  For other flags, such as ` + "`--unknown pass --drain pass`" + ` in a read pool, a script takes the link's place. The ` + "`exec`" + ` matters: HAProxy ends
  the script alone, and what it left behind would pile up.

  ` + "```" + `
  #!/bin/sh
  exec /usr/local/bin/pgsteer check --unknown pass --drain pass
  ` + "```" + `

* **Consul**: ` + "`\"args\": [\"pgsteer\", \"check\", \"main/primary/n1\", \"--code\", \"2\"], \"interval\": \"2s\", \"timeout\": \"2s\"`" + `; Consul takes 1 for a warning, which still passes.
* **Shells**: ` + "`pgsteer check main/primary/n1 -q && …`" + `; ` + "`-o json`" + ` has verdict, weight, reasons and ` + "`passes`" + `.
`)
	parser, err := newParser()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range parser.Model.Leaves(false) {
		fmt.Fprintf(&b, "\n## %s\n\n```\n%s\n```\n", words(c), strings.TrimSpace(helpOf(t, words(c))))
	}
	return b.String()
}

// words are a command as one types it.
func words(c *kong.Node) string { return strings.TrimPrefix(c.Path(), "pgsteer ") }

func helpOf(t *testing.T, command string) string {
	t.Helper()
	t.Setenv("COLUMNS", "100")
	var out, errs bytes.Buffer
	if code := run(append(strings.Fields(command), "--help"), streams{&out, &errs}); code != 0 || errs.Len() > 0 {
		t.Fatalf("%s --help: code %d: %s", command, code, &errs)
	}
	return out.String()
}

// TestHelpIsComplete: every command, argument and flag says what it is for.
func TestHelpIsComplete(t *testing.T) {
	parser, err := newParser()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range parser.Model.Leaves(false) {
		if c.Help == "" || c.Parent.Help == "" {
			t.Errorf("%s has no help", words(c))
		}
		for _, f := range c.Flags {
			if f.Help == "" {
				t.Errorf("%s --%s has no help", words(c), f.Name)
			}
		}
		for _, p := range c.Positional {
			if p.Help == "" {
				t.Errorf("%s %s has no help", words(c), p.Name)
			}
		}
	}
}
