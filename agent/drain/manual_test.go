package drain

import (
	"os"
	"regexp"
	"slices"
	"testing"
)

// The manual has every phase.
func TestManual(t *testing.T) {
	b, err := os.ReadFile("../../docs/maintenance.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []Phase
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| [A-Z][^|]*\\. \\|$").FindAllStringSubmatch(string(b), -1) {
		if p := Phase(m[1]); slices.Contains(phases, p) {
			got = append(got, p)
		}
	}
	if !slices.Equal(got, phases) {
		t.Errorf("the manual has the phases %v, the program %v", got, phases)
	}
	for _, p := range phases {
		if want := slices.Index(phases, p) > 2; p.Over() != want {
			t.Errorf("%s is over: %t", p, p.Over())
		}
	}
}

var phases = []Phase{Settling, Waiting, Ending, Done, Left, Stopped, Failed}
