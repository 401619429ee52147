package engine_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/simulate"
)

// TestCases plays every case file: real trouble, and the behaviour owed.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no case in testdata: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			s, err := simulate.Load(file)
			if err != nil {
				t.Fatal(err)
			}
			r, err := s.Run()
			if err != nil {
				t.Fatal(err)
			}
			var table strings.Builder
			if len(r.Failures) > 0 {
				_ = simulate.WriteText(&table, r) // a builder takes everything
				t.Errorf("\n%s", table.String())
			}
			if r.Expectations == 0 {
				t.Error("the case expects nothing")
			}
		})
	}
}
