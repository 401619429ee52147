package agent

import (
	"runtime/debug"
	"testing"
)

func TestGOGCOfTheEnvironmentWins(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	for given, want := range map[string]int{"": gcPercent, "80": 77, "off": 77} {
		debug.SetGCPercent(77)
		boundGarbage(func(name string) string {
			if name == "GOGC" {
				return given
			}
			return ""
		})
		if got := debug.SetGCPercent(77); got != want {
			t.Errorf("GOGC=%q: %d, want %d", given, got, want)
		}
	}
}
