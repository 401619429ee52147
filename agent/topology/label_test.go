package topology

import (
	"strings"
	"testing"
)

func TestCheckServiceTag(t *testing.T) {
	for tag, good := range map[string]bool{
		"blue": true, "a": true, "a-1": true, strings.Repeat("a", 63): true, strings.Repeat("a", 64): false, "": false, "a.b": false, "A": false,
		"a_b": false, "-a": false, "a-": false, "primary": false, "master": false, "sync": false, "zone-a": false, "ä": false, "a\n": false,
	} {
		if err := CheckServiceTag(tag); (err == nil) != good {
			t.Errorf("tag %q: %v", tag, err)
		}
	}
}
