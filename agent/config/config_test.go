package config

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the expected faults and delete those of files that are gone")

// TestBadFiles compares every file in testdata/bad with the faults beside it.
func TestBadFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no bad files: %v", err)
	}
	want := make(map[string]bool)
	for _, file := range files {
		golden := strings.TrimSuffix(file, ".yaml") + ".faults"
		want[golden] = true
		t.Run(filepath.Base(file), func(t *testing.T) { checkBadFile(t, file, golden) })
	}
	goldens, err := filepath.Glob("testdata/bad/*.faults")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range goldens {
		if want[g] {
			continue
		}
		if !*update {
			t.Errorf("%s belongs to no file; run with -update to delete it", g)
		} else if err := os.Remove(g); err != nil {
			t.Error(err)
		}
	}
}

func checkBadFile(t *testing.T, file, golden string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(file)
	c, err := Parse(name, text)
	faults, ok := err.(*Faults) //nolint:errorlint // the type is the promise under test
	if !ok || c != nil {
		t.Fatalf("Parse returned %v, %v (%T), want *Faults alone", c, err, err)
	}
	checkPositions(t, faults, text)
	got := faults.Detail()
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("faults differ (-want +got):\n%s", diff)
	}
}

// checkPositions wants every fault to stand inside the text, in order.
func checkPositions(t *testing.T, faults *Faults, text []byte) {
	t.Helper()
	lines := splitLines(string(text))
	line, column := 0, 0
	for _, f := range faults.List {
		if f.Line < 1 || f.Line > len(lines) || f.Column < 1 || f.Column > len([]rune(lines[f.Line-1]))+1 {
			t.Errorf("position outside of the text: %s", f)
		}
		if f.Line < line || f.Line == line && f.Column < column {
			t.Errorf("out of order: %s", f)
		}
		line, column = f.Line, f.Column
		if f.Text == "" {
			t.Errorf("a fault without text: %s", f)
		}
	}
}
