package consul

import "testing"

// FuzzHistory: whatever the history key holds, no timeline is made up: it is the
// one after an entry's, and a value that cannot be read leaves what members say.
func FuzzHistory(f *testing.F) {
	f.Add(`[[1,25623960,"no recovery target specified","2026-01-01T00:00:00+00:00"],[2,50000000,"x"]]`)
	f.Add(`[[4294967295]]`)
	f.Add(`[[],[1e3],["2"],[-1]]`)
	f.Add(`{}`)
	f.Fuzz(func(t *testing.T, value string) {
		s := parseScope("p/", keys("p/", "history", value, "members/n1", `{"timeline":7}`))
		if s.authority.Timeline < 7 {
			t.Errorf("%q: timeline %d, though a member is on 7", value, s.authority.Timeline)
		}
		alone := parseScope("p/", keys("p/", "history", value))
		if want := max(alone.authority.Timeline, 7); s.authority.Timeline != want {
			t.Errorf("%q: timeline %d beside a member, %d alone", value, s.authority.Timeline, alone.authority.Timeline)
		}
	})
}
