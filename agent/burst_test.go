package agent

import "testing"

func TestBurstBudget(t *testing.T) {
	var b burstBudget
	for i, c := range []struct{ had, want, got int }{
		{0, 3, 3},
		{0, burstMost - 3, burstMost - 3}, // exactly the rest
		{0, 1, 0},                         // nothing is left
		{3, 4, 0},                         // more than it had does not fit, and what it had is free
		{0, 3, 3},
		{burstMost - 3, 0, 0},
		{3, 0, 0},
		{0, burstMost + 1, burstMost + 1}, // alone
		{0, 1, 0},
		{burstMost + 1, 0, 0},
		{0, 1, 1},
	} {
		if got := b.hold(c.had, c.want); got != c.got {
			t.Errorf("step %d: of %d, having had %d, it got %d, want %d", i, c.want, c.had, got, c.got)
		}
	}
}
