// Package haproxytest has what HAProxy answers, by version, for tests of those who
// read it. The answers of 2.6 were recorded from Debian's 2.6.12. Those of the other
// versions are composed of what was measured on them, which is the columns, words
// and exit codes; the numbers are made up. Each file says what is its own.
package haproxytest

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

//go:embed answers/*.txtar
var files embed.FS

// Versions are those there are answers of, such as "2.6", oldest first.
func Versions(tb testing.TB) (versions []string) {
	tb.Helper()
	names, err := fs.Glob(files, "answers/*.txtar")
	if err != nil || len(names) == 0 {
		tb.Fatalf("no answers: %v", err)
	}
	for _, n := range names { // sorted, and no minor version has two digits
		versions = append(versions, strings.TrimSuffix(strings.TrimPrefix(n, "answers/"), ".txtar"))
	}
	return versions
}

// Answer is what a version answers to a command, or how its -c ends; false: there
// is no such answer.
func Answer(tb testing.TB, version, to string) (string, bool) {
	tb.Helper()
	b, err := files.ReadFile("answers/" + version + ".txtar")
	if err != nil {
		tb.Fatal(err)
	}
	for _, f := range txtar.Parse(b).Files {
		if f.Name == to {
			return string(f.Data), true
		}
	}
	return "", false
}

// Check is how "haproxy -c" of a version ends for a kind of file: valid, broken,
// empty, or "empty, with -S".
func Check(tb testing.TB, version, kind string) (output string, code int) {
	tb.Helper()
	text, ok := Answer(tb, version, "-c, "+kind)
	first, output, _ := strings.Cut(text, "\n")
	if _, err := fmt.Sscanf(first, "exit %d", &code); !ok || err != nil {
		tb.Fatalf("%s -c, %s: %q", version, kind, text)
	}
	return output, code
}
