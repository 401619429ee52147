package config

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const manual = "../../docs/configuration.md"

// row matches a line of the manual's tables: key, type, default, meaning.
var row = regexp.MustCompile("^\\| `([^`]+)` \\| ([^|]+) \\| ([^|]*) \\| ([^|]+) \\|$")

// manualRows reads the tables of the manual: type, default and meaning by key.
func manualRows(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string][]string)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		m := row.FindStringSubmatch(line)
		if m == nil {
			if strings.HasPrefix(line, "| `") {
				t.Errorf("a row that cannot be read: %s", line)
			}
			continue
		}
		if rows[m[1]] != nil {
			t.Errorf("%s is described twice", m[1])
		}
		rows[m[1]] = []string{strings.TrimSpace(m[2]), strings.TrimSpace(m[3]), strings.TrimSpace(m[4])}
	}
	return rows
}

// TestManual wants one row in the manual for every key, with its type and
// default, and no row for a key that does not exist.
func TestManual(t *testing.T) {
	rows := manualRows(t)
	for _, k := range Keys() {
		r := rows[k.Path]
		delete(rows, k.Path)
		want := []string{k.Type, shown(k.Default)}
		switch {
		case r == nil:
			t.Errorf("%s is missing: | `%s` | %s | %s | … |", k.Path, k.Path, want[0], want[1])
		case !slices.Equal(want, r[:2]):
			t.Errorf("%s: the manual says %q, the program %q", k.Path, r[:2], want)
		}
	}
	for path := range rows {
		t.Errorf("%s is in the manual, but is no key", path)
	}
}

// TestMeanings: what the schema says about keys is what the manual says.
func TestMeanings(t *testing.T) {
	rows := manualRows(t)
	var want strings.Builder
	for _, path := range slices.Sorted(maps.Keys(rows)) {
		want.WriteString(path + "\t" + rows[path][2] + "\n")
	}
	if *update {
		if err := os.WriteFile("meanings.txt", []byte(want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(want.String(), "\n"), strings.Split(meanings, "\n")); diff != "" {
		t.Errorf("meanings.txt differs from %s (-manual +file); go test ./agent/config -run Meanings -update writes it anew\n%s", manual, diff)
	}
}

func shown(value string) string {
	if value == "" {
		return "–"
	}
	return "`" + value + "`"
}

// TestKeysAreReadable: each key of the list is one that Parse knows.
func TestKeysAreReadable(t *testing.T) {
	for _, k := range Keys() {
		parts := strings.Split(k.Path, ".")
		text := ""
		closing := ""
		for i, p := range parts {
			name, list := strings.CutSuffix(p, "[]")
			text += "{" + name + ": "
			closing = "}" + closing
			if list {
				text, closing = text+"[", "]"+closing
			}
			if i == len(parts)-1 {
				text += "~"
			}
		}
		_, err := Parse("k", []byte(text+closing))
		if err != nil && strings.Contains(err.Error(), "unknown key") {
			t.Errorf("%s: %v", k.Path, err)
		}
	}
}

// TestManualExamples parses every YAML block of the manual that is a whole file.
func TestManualExamples(t *testing.T) {
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 2 {
		t.Fatalf("only %d examples", len(blocks))
	}
	for _, b := range blocks {
		if _, err := Parse("example", []byte(b[1])); err != nil {
			t.Errorf("%v\nin\n%s", err, b[1])
		}
	}
}
