package topology

import "testing"

// FuzzSelector: what is accepted is written so that it reads as the same, and
// chooses the same nodes, whatever their tags. FuzzLSN, FuzzAddress and FuzzSize
// stand beside what they are about.
func FuzzSelector(f *testing.F) {
	f.Add("zone=eu, tier in (gold,silver), !rack", "zone", "eu")
	f.Add("rack!=a, nofailover", "nofailover", "false")
	f.Add("a notin (), b == c", "a", "")
	f.Add("a in (b=c)", "a", "b=c")
	f.Add("a in (!b)", "a", "!b")
	f.Fuzz(func(t *testing.T, text, key, value string) {
		sel, err := ParseSelector(text)
		if err != nil {
			return
		}
		back, err := ParseSelector(sel.String())
		if err != nil || back.String() != sel.String() {
			t.Fatalf("%q is %q, which is read as %q, %v", text, sel, back, err)
		}
		nodes := []Node{{}, {Tags: map[string]string{key: value}}, {Tags: map[string]string{key: "true", value: key}}}
		for _, n := range nodes {
			if sel.Matches(n) != back.Matches(n) {
				t.Errorf("%q and its own text %q do not choose alike: tags %q", text, sel, n.Tags)
			}
		}
	})
}
