package simulate

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

var update = flag.Bool("update", false, "write the expected texts anew")

func files(t *testing.T, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(pattern)
	if err != nil || len(all) == 0 {
		t.Fatalf("no file %s: %v", pattern, err)
	}
	return all
}

func play(t *testing.T, file string) *Result {
	t.Helper()
	s, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := s.Run()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func table(t *testing.T, r *Result) string {
	t.Helper()
	var b bytes.Buffer
	if err := WriteText(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// more is how many names a fault leaves out; it changes with every new one.
var more = regexp.MustCompile(`and \d+ more`)

func golden(t *testing.T, file, got string) {
	t.Helper()
	got = more.ReplaceAllString(got, "and some more")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("%s differs; if that is meant, run the test with -update (-want +got)\n%s", file, d)
	}
}

// TestGood: scenarios of what the program does, and the user's examples.
func TestGood(t *testing.T) {
	for _, file := range append(files(t, "testdata/good/*.yaml"), files(t, "../../examples/scenarios/*.yaml")...) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			r := play(t, file)
			if len(r.Failures) > 0 || r.Expectations == 0 {
				t.Error(table(t, r))
			}
		})
	}
}

// TestFailing: what a user sees of expectations that do not hold.
func TestFailing(t *testing.T) {
	for _, file := range files(t, "testdata/failing/*.yaml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			r := play(t, file)
			var b bytes.Buffer
			if err := WriteFailures(&b, r); err != nil {
				t.Fatal(err)
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", b.String())
			if len(r.Failures) != r.Expectations-silentlyGood(file) {
				t.Errorf("%d of %d expectations failed", len(r.Failures), r.Expectations)
			}
			for _, f := range r.Failures {
				if f.Line == 0 || f.What == "" || f.Want == f.Got {
					t.Errorf("a failure without place or difference: %+v", f)
				}
			}
		})
	}
}

// silentlyGood is how many expectations of a failing file hold, to prepare others.
func silentlyGood(file string) int {
	return map[string]int{"everything.yaml": 2, "order.yaml": 2}[filepath.Base(file)]
}

// TestBad: every fault of a file, with its place.
func TestBad(t *testing.T) {
	for _, file := range files(t, "testdata/bad/*.yaml") {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, err := Load(file)
			faults, ok := err.(*config.Faults) //nolint:errorlint // the type is the promise under test
			if !ok {
				t.Fatalf("got %v (%T), want *config.Faults", err, err)
			}
			for _, f := range faults.List {
				if f.Line == 0 || f.Column == 0 {
					t.Errorf("a fault without place: %v", f)
				}
			}
			golden(t, strings.TrimSuffix(file, ".yaml")+".txt", faults.Error()+"\n")
		})
	}
}

// TestWriteText: the table has a line for each change.
func TestWriteText(t *testing.T) {
	up, down := topology.Up, topology.Down
	at := Moment(12345 * time.Millisecond)
	got := table(t, &Result{
		File: "x.yaml", About: "two\nlines", Expectations: 2,
		Events: []Event{
			{At: 0, Note: "authority is current and names a"},
			{At: 0, Pool: "primary", Node: "a", Verdict: &up, Weight: 100, Reason: topology.CodeWriter, Text: "named"},
			{At: at, Pool: "rw", Node: "long", Verdict: &down, Reason: topology.CodeFenced},
			{At: at, Pool: "rw", Node: "long"},
		},
		Failures: []Failure{{File: "x.yaml", Line: 7, At: at, What: "writer", Want: "a", Got: "two\nlines"}},
	})
	want := `x.yaml
two
lines

    0.000s  -- authority is current and names a
    0.000s  primary  a     up 100%    writer: named
   12.345s  rw       long  down       fenced: -
   12.345s  rw       long  gone       not listed any more

x.yaml:7: at 12.345s: writer
	want a
	got  two
	     lines

x.yaml: 2 expectations, 1 failed
`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestWriteTextIsPlain: no text of a file reaches a terminal as a command.
func TestWriteTextIsPlain(t *testing.T) {
	down, evil := topology.Down, "a\x1b[2Jb\r\u202e\x00é"
	got := table(t, &Result{
		File: "x.yaml", About: evil, Expectations: 1,
		Events:   []Event{{Note: evil}, {Pool: "rw", Node: "a", Verdict: &down, Text: evil}},
		Failures: []Failure{{File: "x.yaml", Want: evil, Got: evil}},
	})
	if strings.ContainsAny(got, "\x1b\r\u202e\x00") || strings.Count(got, `a\x1b[2Jb\r\u202e\x00é`) != 5 {
		t.Errorf("got %q", got)
	}
	if !strings.HasSuffix(got, "x.yaml: 1 expectation, 1 failed\n") {
		t.Errorf("the last line of\n%s", got)
	}
}

// TestWriteJSON: -o json has the facts of the table.
func TestWriteJSON(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, []*Result{play(t, "testdata/failing/order.yaml")}); err != nil {
		t.Fatal(err)
	}
	var got []struct {
		File         string
		Expectations int
		Events       []struct {
			At      float64 `json:"at_seconds"`
			Verdict string
			Reason  string
		}
		Failures []struct {
			Line            int
			What, Want, Got string
		}
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	r := got[0]
	if len(got) != 1 || r.File != "testdata/failing/order.yaml" || r.Expectations != 4 || len(r.Failures) != 2 || r.Failures[0].Want != "a" || r.Failures[0].Line != 5 {
		t.Errorf("got %+v", r)
	}
	if e := r.Events[len(r.Events)-1]; e.At != 5 || e.Verdict != "up" || e.Reason != "fallback" {
		t.Errorf("the last event is %+v", e)
	}
}

// TestSameBytes: a file played twice gives the same texts.
func TestSameBytes(t *testing.T) {
	for _, file := range append(files(t, "testdata/good/*.yaml"), files(t, "testdata/failing/*.yaml")...) {
		both := func() string {
			r := play(t, file)
			var b bytes.Buffer
			if err := WriteJSON(&b, []*Result{r}); err != nil {
				t.Fatal(err)
			}
			return table(t, r) + b.String()
		}
		if d := cmp.Diff(both(), both()); d != "" {
			t.Errorf("%s: (-first +second)\n%s", file, d)
		}
	}
}

func TestLoadMissingFile(t *testing.T) {
	_, err := Load("testdata/nope.yaml")
	if err == nil || !strings.Contains(err.Error(), "read the scenario: open testdata/nope.yaml") {
		t.Errorf("got %v", err)
	}
}
