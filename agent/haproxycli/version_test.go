package haproxycli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]string{
		"2.6.12-1+deb12u4": "2.6.12",
		"HAProxy version 2.6.12-1+deb12u4 2025/04/16 - https://haproxy.org/": "2.6.12",
		"HA-Proxy version 2.2.9-2+deb11u6 2023/12/22 - https://haproxy.org/": "2.2.9",
		"3.2.0-e134140d2": "3.2.0", "3.4-dev12-4dbaa7d": "3.4-dev12", "2.4": "2.4.0",
		"": "unknown", "garbage 1.2": "unknown", "9999999999999999999999.1.1": "unknown",
	} {
		v, ok := ParseVersion(text)
		if v.String() != want || ok != (want != "unknown") {
			t.Errorf("%q is %s, %t, want %s", text, v, ok, want)
		}
	}
}

func TestVersionsInOrder(t *testing.T) {
	order := []string{"2.2.0", "2.6.9", "2.6.12", "3.4-dev1", "3.4-dev12", "3.4.0", "3.4.1", "3.5-dev2"}
	for i, a := range order {
		for j, b := range order {
			va, _ := ParseVersion(a)
			vb, _ := ParseVersion(b)
			if va.Before(vb) != (i < j) {
				t.Errorf("%s before %s: %t", a, b, va.Before(vb))
			}
		}
	}
}

// Known faults of the versions that were measured, and at the edges of ranges.
func TestKnown(t *testing.T) {
	for text, want := range map[string]string{
		"2.0.29":   "",
		"2.2.10":   "haproxy#1176 haproxy#1839 haproxy#1508 haproxy#2784 commit b500e84e2",
		"2.3.99":   "haproxy#1176 haproxy#1839 haproxy#1508 haproxy#2784 commit b500e84e2",
		"2.4.0":    "haproxy#1302 haproxy#1839 haproxy#1508 haproxy#2784 haproxy#2298 commit b500e84e2",
		"2.6.12":   "haproxy#1839 haproxy#1508 haproxy#2784  haproxy#2298 commit b500e84e2",
		"2.8.0":    "commit d76fa3753 haproxy#2784  haproxy#2298 commit b500e84e2",
		"3.0.0":    "haproxy#2784  commit b500e84e2",
		"3.2.0":    "haproxy#3229",
		"3.4.0":    "commit 7aec1e6d9",
		"3.5-dev1": "commit 7aec1e6d9",
		"3.5-dev2": "",
		"":         "",
	} {
		v, _ := ParseVersion(text)
		var got []string
		for _, f := range Known(v) {
			got = append(got, f.Issue)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("%s: %q, want %q", text, s, want)
		}
	}
	if f := Known(V(2, 0, 0)); len(f) != 1 || !f[0].Unsafe {
		t.Errorf("2.0: %v, want that it was never tried", f)
	}
	if Known(V(2, 3, 99))[0].Unsafe != true || Known(Oldest)[0].Unsafe {
		t.Error("2.3 must be unsafe, the oldest supported version must not")
	}
}

// Every fault can be read without this file.
func TestFaultsAreWhole(t *testing.T) {
	for _, f := range Faults {
		if f.What == "" || f.Do == "" || !f.From.Before(f.Below) || f.Unsafe && f.Avoided != "" {
			t.Errorf("%+v", f)
		}
	}
}

func TestWarn(t *testing.T) {
	for version, want := range map[string]string{
		"2.2.10":           "report=haproxy#1176",
		"2.8.0-abc":        "report=\"commit d76fa3753\"",
		"2.6.12-1+deb12u4": "", // all of its faults are avoided
		"3.6.1":            "newer than any that was tried",
		"3.4.7":            "",
		"?":                "",
	} {
		var b bytes.Buffer
		Warn(slog.New(slog.NewTextHandler(&b, nil)), version)
		if got := b.String(); !strings.Contains(got, want) || (want == "") != (got == "") {
			t.Errorf("%s: logged %q, want %q", version, got, want)
		}
	}
}
