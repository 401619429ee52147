package near

import (
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"pools", "pools", 0},
		{"pools", "pool", 1},
		{"pool", "pools", 1},
		{"pools", "pooks", 1},
		{"pools", "poosl", 1}, // neighbours swapped
		{"max_lag", "maxlag", 1},
		{"a", "", 1},
		{"ab", "ba", 1},
		{"abc", "abc", 0},
		{"kitten", "sitting", 3},
		{"", "abc", 3},
		{"a", strings.Repeat("a", 40), 40},
	} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("%q to %q is %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
