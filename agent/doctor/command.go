package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func switchoverCommands(_ context.Context, x *exam) []Result {
	var programs []string
	for _, cl := range x.Config.Clusters {
		if c := cl.Switchover.Command; len(c) > 0 && !slices.Contains(programs, c[0]) {
			programs = append(programs, c[0])
		}
	}
	var all []Result
	for _, p := range programs {
		all = append(all, runnable(p))
	}
	return all
}

// servicePath is where systemd lets a service find programs.
var servicePath = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// runnable looks at a program, and never runs it.
func runnable(program string) Result {
	r := Result{Subject: program, Level: Fail, Tried: "find it, and see by its mode and its first line whether this user may run it; it is not run"}
	path, err := exec.LookPath(program)
	if err != nil {
		r.Found, r.Do = err.Error(), "have it there, with the right to execute it for the agent's user, or correct switchover.command"
		return r
	}
	head, err := beginning(path)
	if err != nil {
		r.Level, r.Found = Warn, "this user may execute it and not read it, which is enough unless it is a script: "+err.Error()
		r.Do = "chmod 0755"
		return r
	}
	if fault := script(head); fault != "" {
		r.Found, r.Do = fault, "correct its first line, such as #!/bin/sh"
		return r
	}
	if !strings.Contains(program, "/") && !slices.Contains(servicePath, filepath.Dir(path)) {
		r.Level, r.Found = Warn, "it is "+path+" by the PATH of doctor; a service finds it only with that folder in its own PATH"
		r.Do = "write " + path + " in switchover.command"
		return r
	}
	r.Level, r.Found = OK, "this user may run "+path
	return r
}

// beginning is enough of a file to see what runs it.
func beginning(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 256)
	n, err := io.ReadFull(f, b)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return string(b[:n]), err
}

// script says what keeps a script from being run, from its beginning: the kernel's own
// error for a missing interpreter is that the script is not there. "" for nothing, and
// for what is no script.
func script(head string) string {
	line, is := strings.CutPrefix(head, "#!")
	if !is {
		binary := func(c rune) bool { return c < ' ' && !strings.ContainsRune("\t\n\r", c) }
		if !strings.ContainsFunc(head, binary) {
			return "it is empty, or a text whose first line names no interpreter (#!)"
		}
		return ""
	}
	line, _, _ = strings.Cut(line, "\n")
	words := strings.FieldsFunc(line, func(c rune) bool { return c == ' ' || c == '\t' }) // the end of a line of Windows stays
	if len(words) == 0 || !filepath.IsAbs(words[0]) {
		return fmt.Sprintf("its first line is %q, which names no interpreter by its whole path", "#!"+line)
	}
	programs := words[:1:1]
	if filepath.Base(words[0]) == "env" {
		for _, w := range words[1:] {
			if w == "-S" || w == "-i" || strings.Contains(w, "=") {
				continue
			}
			if !strings.HasPrefix(w, "-") { // else an option that may have an argument
				programs = append(programs, w)
			}
			break
		}
	}
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			if e, ok := errors.AsType[*exec.Error](err); ok {
				err = e.Err
			}
			return fmt.Sprintf("the interpreter %q of its first line cannot be run: %v", p, err)
		}
	}
	return ""
}
