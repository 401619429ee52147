package simulate

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// manual is the page of the format, by its headings.
func manual(t *testing.T) map[string]string {
	t.Helper()
	b, err := os.ReadFile("../../docs/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := make(map[string]string)
	for part := range strings.SplitSeq(string(b), "\n## ") {
		title, text, _ := strings.Cut(part, "\n")
		sections[title] = text
	}
	return sections
}

var word = regexp.MustCompile("`([^`]+)`")

// rows are the names in the first column of a section's tables with so many columns.
func rows(section string, columns int) []string {
	var out []string
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if strings.HasPrefix(line, "| ") && len(cells) == columns {
			for _, m := range word.FindAllStringSubmatch(cells[0], -1) {
				out = append(out, m[1])
			}
		}
	}
	return sorted(out)
}

// keysOf are the keys of a struct of the file.
func keysOf[T any]() []string {
	var out []string
	for f := range reflect.TypeFor[T]().Fields() {
		if key := f.Tag.Get("yaml"); key != "" && key != "-" {
			out = append(out, key)
		}
	}
	return sorted(out)
}

// TestManual: the page has every key and word of the format, and no other.
func TestManual(t *testing.T) {
	m := manual(t)
	probe := m["What a probe finds"]
	words := []string{ok, "hangs"}
	for _, c := range failureClasses {
		words = append(words, string(c))
	}
	for _, tt := range []struct {
		name      string
		code, doc []string
	}{
		{"file", keysOf[file](), rows(m["The file"], 2)},
		{"steps", keysOf[stepFile](), rows(m["Steps"], 2)},
		{"kv", sorted(keyNames), rows(m["Patroni's keys"], 2)},
		{"failures", sorted(words), slices.DeleteFunc(rows(probe, 2), func(s string) bool { return s == "consul" || isState(s) })},
		{"sql", sortedKeys(serverKeys), rows(probe, 3)},
		{"expect", sortedKeys(expectKeys), rows(m["Expectations"], 2)},
		{"observe", keysOf[observationFile](), rows(m["Raw observations"], 2)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.code, tt.doc); d != "" {
				t.Errorf("docs/simulate.md (-code +page):\n%s", d)
			}
		})
	}
}

// TestManualNamesFields: what stands within a map of the file is named too.
func TestManualNamesFields(t *testing.T) {
	m := manual(t)
	for section, keys := range map[string][][]string{
		"The file":           {keysOf[probing](), keysOf[startFile](), keysOf[savedFile](), keysOf[worldFile](), keysOf[alwaysFile](), keysOf[flipsFile]()},
		"Steps":              {keysOf[maintenance]()},
		"What a probe finds": {keysOf[replicaRow](), receiverStates},

		"pg_auto_failover's monitor": {sortedKeys(rowKeys), sortedKeys(rowHealth)},
		"Raw observations": {
			keysOf[failureFile](), keysOf[probeFile](), keysOf[receiverFile](), keysOf[standbyFile](), keysOf[nodesFile](), keysOf[nodeFile](),
			keysOf[authorityFile](), keysOf[memberFile](), keysOf[localFile](), keysOf[portFile](),
			keysOf[monitorFile](), keysOf[assignedFile](),
		},
	} {
		for _, key := range slices.Concat(keys...) {
			if !strings.Contains(m[section], "`"+key+"`") {
				t.Errorf("section %q does not name %s", section, key)
			}
		}
	}
	for _, a := range agentWords {
		if !strings.Contains(m["Steps"], "`"+a+"`") {
			t.Errorf("section Steps does not name %s", a)
		}
	}
}

// TestManualExample: the page's own scenario does what it says.
func TestManualExample(t *testing.T) {
	b, err := os.ReadFile("../../docs/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "```yaml\n")
	example, _, _ := strings.Cut(rest, "```")
	s, err := Parse("docs/simulate.md", []byte(example))
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Failures) > 0 || r.Expectations != 2 {
		t.Error(table(t, r))
	}
}

// TestEveryKeyIsPlayed: each key of the format stands in a scenario here.
func TestEveryKeyIsPlayed(t *testing.T) {
	var all strings.Builder
	for _, file := range append(files(t, "testdata/good/*.yaml"), files(t, "testdata/failing/*.yaml")...) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	for _, key := range slices.Concat(keysOf[file](), keysOf[stepFile](), keysOf[probing](), keysOf[startFile](), keyNames,
		sortedKeys(serverKeys), sortedKeys(rowKeys), sortedKeys(expectKeys)) {
		if !regexp.MustCompile(`(?m)(^|[ {])` + key + `:`).MatchString(all.String()) {
			t.Errorf("no scenario of testdata has %s", key)
		}
	}
}
