package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A command that switches over must be a program that can be run, which is looked at
// when a file is loaded: in the middle of a switchover it would be an outage.
func TestSwitchoverProgram(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"good": 0o755, "plain": 0o644} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	for program, want := range map[string]string{
		filepath.Join(dir, "good"):  "",
		"sh":                        "",
		filepath.Join(dir, "plain"): "must be a program that can be run: exec: \"" + filepath.Join(dir, "plain") + "\": permission denied",
		filepath.Join(dir, "gone"):  "no such file or directory",
		"no-such-program-at-all":    "executable file not found in $PATH",
		"./good":                    "`./good` is relative, and commands run in the folder /: give the whole path",
		dir[1:] + "/good":           "is relative",
	} {
		file := filepath.Join(dir, "pgsteer.yaml")
		text := fmt.Sprintf("clusters:\n  main: {nodes: {n1: \"10.0.0.1:5432\"}, switchover: {command: [%q, \"{{.To}}\"]}}\n", program)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(file)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", program, err, want)
		}
	}
}
