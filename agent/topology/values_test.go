package topology

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func TestLSN(t *testing.T) {
	good := map[string]LSN{
		"0/0": 0, "0/3000060": 0x3000060, "16/B374D848": 0x16_B374D848,
		"ffffffff/FFFFFFFF": 1<<64 - 1, "00000001/00000000": 1 << 32,
	}
	for s, want := range good {
		got, err := ParseLSN(s)
		if err != nil || got != want {
			t.Errorf("%s: %X, %v, want %X", s, uint64(got), err, uint64(want))
		}
	}
	for _, s := range []string{"", "/", "0", "0/", "/0", "0/0/0", "g/0", "0/x", "100000000/0", "0/000000001", "+1/0", "-1/0", " 0/0", "0/0 ", "0x1/0"} {
		if got, err := ParseLSN(s); err == nil {
			t.Errorf("%q: read as %s, want an error", s, got)
		}
	}
	if got := LSN(0x16_B374D848).String(); got != "16/B374D848" {
		t.Errorf("written as %s", got)
	}
}

func TestAddress(t *testing.T) {
	good := map[string]Address{
		"192.0.2.1:5432":          {"192.0.2.1", 5432},
		"[2001:db8::12]:5433":     {"2001:db8::12", 5433},
		"[::ffff:192.0.2.1]:5432": {"::ffff:192.0.2.1", 5432},
		"db-1.example.net:1":      {"db-1.example.net", 1},
		"db_1:65535":              {"db_1", 65535},
		"db1.example.net.:5432":   {"db1.example.net.", 5432},
	}
	for s, want := range good {
		got, err := ParseAddress(s)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v, want %v", s, got, err, want)
		}
		if got.String() != s {
			t.Errorf("%s: written as %s", s, got)
		}
	}
	bad := []string{
		"", ":5432", "a", "a:", "a:0", "a:65536", "a:-1", "a:x", "a:5432:1",
		"2001:db8::13:5432",         // its last group cannot be told from a port (FR-24)
		"[fe80::1%eth0]:5432",       // a zone
		"0.0.0.0:5432", "[::]:5432", // every interface
		"1.2.3:5432", "256.1.1.1:5432", "a b:5432", "a\nb:5432", "-a:5432", "a-:5432", "a..b:5432", "ä:5432",
		"a;reload:5432", strings.Repeat("a", 64) + ":1", strings.Repeat("a.", 127) + "aa:1",
	}
	for _, s := range bad {
		if got, err := ParseAddress(s); err == nil {
			t.Errorf("%q: read as %v, want an error", s, got)
		}
	}
	if ip, ok := (Address{"2001:db8::12", 1}).IP(); !ok || ip.String() != "2001:db8::12" {
		t.Errorf("IP is %s, %t", ip, ok)
	}
	if _, ok := (Address{"db1", 1}).IP(); ok {
		t.Error("a name is no IP")
	}
}

func TestAddressText(t *testing.T) {
	var a Address
	if err := a.UnmarshalText(nil); err != nil || !a.IsZero() || a.String() != "" {
		t.Errorf("an empty text is %v, %v", a, err)
	}
	if err := a.UnmarshalText([]byte("nonsense")); err == nil {
		t.Error("nonsense was read")
	}
	b, err := json.Marshal(map[string]Address{"x": {"::1", 5432}})
	if err != nil || string(b) != `{"x":"[::1]:5432"}` {
		t.Errorf("written as %s, %v", b, err)
	}
}

func TestCheckName(t *testing.T) {
	for _, s := range []string{"a", "A1", "n1.eu-west_2", "10.0.0.1", strings.Repeat("x", 63)} {
		if err := CheckName(s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []string{"", "-a", ".a", "_a", "a b", "a/b", "a:b", "a,b", "ä", "a\n", "a\x00", strings.Repeat("x", 64)} {
		if err := CheckName(s); err == nil {
			t.Errorf("%q is taken, want an error", s)
		}
	}
}

func TestTri(t *testing.T) {
	var zero Tri
	if zero != Unknown || Bool(true) != Yes || Bool(false) != No {
		t.Fatal("zero is not unknown, or booleans are mixed up")
	}
	for _, v := range []Tri{Unknown, No, Yes} {
		b, err := v.MarshalText()
		var back Tri
		if err != nil || back.UnmarshalText(b) != nil || back != v {
			t.Errorf("%s is read as %s", b, back)
		}
	}
	v := Yes
	if err := v.UnmarshalText([]byte("true")); err == nil {
		t.Error("true was read as a Tri")
	}
	if err := v.UnmarshalText(nil); err != nil || v != Unknown {
		t.Errorf("an empty text is %s, %v", v, err)
	}
}

func TestClock(t *testing.T) {
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := Clock{Mono: Mono(10 * time.Second), Wall: wall}
	if !c.WallAt(0).IsZero() {
		t.Error("never has a time of day")
	}
	if got := c.WallAt(Mono(7 * time.Second)); !got.Equal(wall.Add(-3 * time.Second)) {
		t.Errorf("three seconds ago is %s", got)
	}
	now := wall
	tick := NewTicker(func() time.Time { return now })
	if m := tick().Mono; m != Mono(time.Second) {
		t.Errorf("the first moment is %d, want one second", m)
	}
	now = now.Add(time.Minute)
	if m := tick().Mono; m.Sub(Mono(time.Second)) != time.Minute {
		t.Errorf("a minute later is %d", m)
	}
}

func TestHasTag(t *testing.T) {
	for value, want := range map[string]bool{
		"true": true, "True": true, "1": true, "yes": true, "1h": true,
		"": false, "false": false, "False": false, "0": false, "no": false, "off": false,
	} {
		if got := (Node{Tags: map[string]string{"x": value}}).HasTag("x"); got != want {
			t.Errorf("tag %q is %t, want %t", value, got, want)
		}
	}
	if (Node{}).HasTag("x") {
		t.Error("no tags, and yet one is set")
	}
}

func FuzzLSN(f *testing.F) {
	for _, s := range []string{"0/0", "16/B374D848", "x", "1/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		l, err := ParseLSN(s)
		if err != nil {
			return
		}
		if back, err := ParseLSN(l.String()); err != nil || back != l {
			t.Errorf("%q is %s, which is read as %s, %v", s, l, back, err)
		}
	})
}

func FuzzAddress(f *testing.F) {
	for _, s := range []string{"a:1", "[::1]:5432", "192.0.2.1:65535", "a b:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddress(s)
		if err != nil {
			return
		}
		if strings.ContainsAny(a.Host, " \t\r\n\"'\\;,/#{}%") {
			t.Errorf("%q has a host that other programs may not take literally", s)
		}
		if back, err := ParseAddress(a.String()); err != nil || back != a {
			t.Errorf("%q is %v, which is read as %v, %v", s, a, back, err)
		}
	})
}
