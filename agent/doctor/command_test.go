package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSwitchoverCommand(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	for _, tt := range []struct {
		name, text string
		mode       os.FileMode
		want       string // level and a part of what was found
		do         string
	}{
		{"script", "#!/bin/sh\n: >" + ran + "\n", 0o755, "OK this user may run ", ""},
		{"with env", "#!/usr/bin/env sh\n: >" + ran + "\n", 0o755, "OK this user may run ", ""},
		{"with options of env", "#!/usr/bin/env -S -i A=b sh -eu\n", 0o755, "OK this user may run ", ""},
		{"other options of env", "#!/usr/bin/env -S -u sh-that-is-not-there sh\n", 0o755, "OK this user may run ", ""},
		{"mode 0644", "#!/bin/sh\n", 0o644, "FAIL permission denied", "switchover.command"},
		{"no interpreter", "#!/opt/gone/python3 -u\nx\n", 0o755, `FAIL the interpreter "/opt/gone/python3" of its first line cannot be run: `, "first line"},
		{"no program of env", "#!/usr/bin/env python-that-is-gone\n", 0o755, `FAIL the interpreter "python-that-is-gone" of its first line cannot be run: `, "first line"},
		{"written on Windows", "#!/bin/sh\r\n:\r\n", 0o755, `FAIL the interpreter "/bin/sh\r" of its first line cannot be run: `, "first line"},
		{"a name alone", "#!sh\n", 0o755, `FAIL its first line is "#!sh", which names no interpreter by its whole path`, "first line"},
		{"nothing named", "#!\n", 0o755, `FAIL its first line is "#!", which`, "first line"},
		{"no first line", "echo switch\n", 0o755, "FAIL it is empty, or a text whose first line names no interpreter", "#!/bin/sh"},
		{"empty", "", 0o755, "FAIL it is empty, or a text", "#!/bin/sh"},
		{"program", "\x7fELF\x02\x01\x01\x00", 0o755, "OK this user may run ", ""},
	} {
		path := filepath.Join(dir, strings.ReplaceAll(tt.name, " ", "-"))
		if err := os.WriteFile(path, []byte(tt.text), tt.mode); err != nil {
			t.Fatal(err)
		}
		// Of two clusters with one program there is one row.
		o := options(t, "clusters:\n  a: &c {nodes: {n1: 10.0.0.1:5432}}\n  b: {nodes: {n1: 10.0.0.2:5432}}\n  c: {nodes: {n1: 10.0.0.3:5432}}")
		o.Config.Clusters[0].Switchover.Command = []string{path, "{{.To}}"}
		o.Config.Clusters[1].Switchover.Command = []string{path}
		level, found, _ := strings.Cut(tt.want, " ")
		got := of(t, "switchover-command", o)
		if len(got) != 1 || !strings.HasPrefix(got[0], level+" "+path+": ") || !strings.Contains(got[0], found) {
			t.Errorf("%s: %q, want %s", tt.name, got, tt.want)
		}
		for _, r := range Run(t.Context(), o) {
			if r.Check == "switchover-command" && !strings.Contains(r.Do, tt.do) {
				t.Errorf("%s: do %q, which lacks %q", tt.name, r.Do, tt.do)
			}
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the program was run")
	}
	same(t, of(t, "switchover-command", options(t, "")))
}

// A name is found by a PATH, and that of a service is another one than a shell's.
func TestSwitchoverCommandByPath(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "switch-it"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	o := options(t, "")
	o.Config.Clusters[0].Switchover.Command = []string{"switch-it"}
	same(t, of(t, "switchover-command", o), "WARN switch-it: it is "+dir+"/switch-it by the PATH of doctor; a service finds it only with that folder in its own PATH")
	o.Config.Clusters[0].Switchover.Command = []string{"env"}
	if got := of(t, "switchover-command", o); len(got) != 1 || !strings.HasPrefix(got[0], "OK env: this user may run /") {
		t.Errorf("%q", got)
	}
	o.Config.Clusters[0].Switchover.Command = []string{"gone-from-here"}
	if got := of(t, "switchover-command", o); len(got) != 1 || !strings.HasPrefix(got[0], "FAIL gone-from-here: ") {
		t.Errorf("%q", got)
	}
}

// What may be executed and not read is enough for a program, not for a script.
func TestSwitchoverCommandUnread(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read every file")
	}
	path := write(t, "switch", "#!/bin/sh\n", 0o111)
	o := options(t, "")
	o.Config.Clusters[0].Switchover.Command = []string{path}
	got := of(t, "switchover-command", o)
	if len(got) != 1 || !strings.HasPrefix(got[0], "WARN "+path+": this user may execute it and not read it") {
		t.Errorf("%q", got)
	}
}
