package rules

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// TestPages holds every page that says what its claims are shown by against the
// tree: a test that was renamed or removed must not go on proving something.
func TestPages(t *testing.T) {
	pages, err := filepath.Glob(root + "/docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	tests, found := testsOf(t), 0
	for _, page := range pages {
		for _, line := range lines(t, page) {
			n, faults := tests.check(line)
			found += n
			for _, f := range faults {
				t.Errorf("%s: %s", page, f)
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d names were found in %d pages: what they look like has changed", found, len(pages))
	}
}

// shown finds what a line says that something is shown by: tests and scenarios by
// their names, and behind names of tests the folder in which they are.
var shown = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`|`((?:fr|er|rs|paf)[0-9]*-[0-9a-z-]+)`|\\(([a-z]+(?:/[a-z0-9]+)*)[:)]")

// testNames are the tests, fuzz tests and benchmarks of the tree, by folder.
type testNames map[string][]string

// check counts the names in a line and says which of them stand for nothing.
func (n testNames) check(line string) (found int, faults []string) {
	var waiting []string // tests whose folder comes
	for _, m := range shown.FindAllStringSubmatch(line, -1) {
		test, scenario, folder := m[1], m[2], m[3]
		switch {
		case test != "":
			waiting = append(waiting, test)
			found++
		case scenario != "":
			found++
			if _, err := os.Stat(root + "/agent/engine/testdata/" + scenario + ".yaml"); err != nil {
				faults = append(faults, "there is no scenario "+scenario)
			}
		case n[folder] != nil:
			for _, w := range waiting {
				if !slices.Contains(n[folder], w) {
					faults = append(faults, fmt.Sprintf("%s is not in %s", w, folder))
				}
			}
			waiting = nil
		}
	}
	for _, w := range waiting {
		faults = append(faults, "it is not said in which folder "+w+" is")
	}
	return found, faults
}

// TestHAProxyPage: the page for HAProxy has a row with tests for each of the
// nineteen cases that it promises, and its settings exist.
func TestHAProxyPage(t *testing.T) {
	row := regexp.MustCompile(`^\| (\d+) \| .+ \| (.+) \| .+ \|$`)
	settings := regexp.MustCompile("^\\| (`[a-z_.]+`(?:, `[a-z_.]+`)*) \\| ")
	keys := strings.Join(lines(t, root+"/docs/configuration.md"), "\n") // it is generated
	cases, named := 0, 0
	for _, line := range lines(t, root+"/docs/haproxy.md") {
		if m := row.FindStringSubmatch(line); m != nil {
			if cases++; m[1] != strconv.Itoa(cases) {
				t.Errorf("case %s stands where %d is due", m[1], cases)
			}
			if !strings.Contains(m[2], "`Test") {
				t.Errorf("case %s is shown by no test: %s", m[1], m[2])
			}
		}
		if m := settings.FindStringSubmatch(line); m != nil {
			for key := range strings.SplitSeq(m[1], ", ") {
				named++
				if !strings.Contains(keys, "`haproxy.file."+strings.Trim(key, "`")+"`") {
					t.Errorf("there is no setting haproxy.file.%s", key)
				}
			}
		}
	}
	if cases != 19 || named < 5 {
		t.Errorf("%d cases and %d settings, want 19 and some", cases, named)
	}
}

func testsOf(t *testing.T) testNames {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	out := make(testNames)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(root, filepath.Dir(path))
		for _, m := range declared.FindAllSubmatch(text, -1) {
			out[folder] = append(out[folder], string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func lines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}
