package render

import (
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestHAProxyTime(t *testing.T) {
	for d, want := range map[time.Duration]string{
		time.Microsecond: "1us", 1500 * time.Microsecond: "1500us", 500 * time.Millisecond: "500ms",
		90 * time.Second: "90s", 30 * time.Minute: "30m", 48 * time.Hour: "48h", 0: "", -1: "", 25 * 24 * time.Hour: "",
	} {
		got, err := haproxyTime(d)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%v: %q, %v, want %q", d, got, err, want)
		}
	}
}

// FuzzHAProxyName: every name becomes a legal one, legal ones stay, and two
// that differ stay different.
func FuzzHAProxyName(f *testing.F) {
	f.Add("n1", "n2")
	f.Add("a/b", "a b")
	f.Add("10.0.0.1:5432", "é")
	f.Add("", strings.Repeat("x", 200))
	f.Fuzz(func(t *testing.T, a, b string) {
		na, nb := haproxyName(a), haproxyName(b)
		if err := topology.CheckName(na); err != nil {
			t.Errorf("%q became %q: %v", a, na, err)
		}
		if topology.CheckName(a) == nil && na != a {
			t.Errorf("the legal %q became %q", a, na)
		}
		if a != b && na == nb {
			t.Errorf("%q and %q both became %q", a, b, na)
		}
	})
}

// FuzzHAProxyQuote reads a quoted word back by HAProxy's rules: single quotes
// take everything literally, and the only double-quoted text is one quote.
func FuzzHAProxyQuote(f *testing.F) {
	for _, s := range []string{"", "a b", "it's", `"`, "$HOME", "#", `\n`, "a\nb", "{{", "%", "''", "\x00", "\u2028"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		q, err := haproxyQuote(s)
		if err != nil {
			return
		}
		if strings.ContainsAny(q, "\n\r\x00") {
			t.Fatalf("%q was quoted as %q", s, q)
		}
		var back strings.Builder
		for rest := q; rest != ""; {
			if r, ok := strings.CutPrefix(rest, `"'"`); ok {
				back.WriteByte('\'')
				rest = r
				continue
			}
			word, r, ok := strings.Cut(strings.TrimPrefix(rest, "'"), "'")
			if !ok || rest[0] != '\'' {
				t.Fatalf("%q was quoted as %q, which does not end", s, q)
			}
			back.WriteString(word)
			rest = r
		}
		if back.String() != s {
			t.Fatalf("%q was quoted as %q, which reads %q", s, q, back.String())
		}
	})
}
