package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// FuzzParse: no text makes Parse, ParseInventory or Decode panic, faults stand inside
// the text, and what is accepted is valid.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("about: x\ncluster: {nodes: {a: h:1}}\nwords: {x: bad}\nsteps: [{at: 0s}]\naway: {a: {for: 1s}}\nports: {1: x}"))
	f.Add([]byte("a: \u2028b\u0085: c\r: d"))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Parse("f.yaml", text)
		checkFuzzed(t, err, text)
		if err == nil {
			if err := c.Validate(); err != nil {
				t.Errorf("accepted, but not valid: %v", err)
			}
		}
		_, err = ParseInventory("f.yaml", text)
		checkFuzzed(t, err, text)
		checkFuzzed(t, Decode("f.yaml", text, new(play)), text)
	})
}

func checkFuzzed(t *testing.T, err error, text []byte) {
	t.Helper()
	if err == nil {
		return
	}
	var faults *Faults
	if !errors.As(err, &faults) || len(faults.List) == 0 {
		t.Fatalf("%T is not *Faults with a fault", err)
	}
	checkPositions(t, faults, text)
	_ = faults.Detail()
}
