package topology

import (
	"math"
	"testing"
)

// TestParseSize holds the cases that were measured on PostgreSQL's and Patroni's
// own parsers.
func TestParseSize(t *testing.T) {
	good := map[string]Size{
		"0": 0, "100": 100, "-1": -1, "+7": 7, "16MB": 16 << 20, "1kB": 1024, "1 kB": 1024, " 1GB ": 1 << 30, "1TB": 1 << 40, "5B": 5,
		"0.1kB": 102, "0.11kB": 113, "1.0005MB": 1025 * 1024,
		"010": 8, "0x6e": 110, "0X6E": 110, "0x10kB": 16384, "010MB": 8 << 20,
		"1.1e2": 110, "1e3": 1000, "1E3kB": 1024000, ".5kB": 512, "1.": 1,
		"109.5": 110, "110.5": 110, "111.5": 112,
		"1e-1": 0, "-0.5kB": -512, "00": 0,
		"99999999999999999999999": math.MaxInt64, "-99999999999999999999999": math.MinInt64,
		"9223372036854775807TB": math.MaxInt64, "1e400": math.MaxInt64, "0xffffffffffffffffff": math.MaxInt64,
	}
	for s, want := range good {
		got, err := ParseSize(s)
		if err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", s, got, err, want)
		}
	}
	bad := []string{
		"1M", "1mb", "1KB", "1k", "1PB", "abc", "nan", "inf", "10MBx", "09", "",
		" ", "-", "+", ".", "e5", "MB", "1..2", "0x", "1 2", "--1", "1_000", "1,5MB", "١MB", "0b1", "0o7", "infinity", "0x1p3",
	}
	for _, s := range bad {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("%q: read as %d, want an error", s, got)
		}
	}
}

func TestSizeText(t *testing.T) {
	for v, want := range map[Size]string{0: "0B", 100: "100B", 16 << 20: "16MB", 1025: "1025B", 1 << 50: "1024TB", -2048: "-2kB"} {
		if got := v.String(); got != want {
			t.Errorf("%d is written %s, want %s", int64(v), got, want)
		}
		if back, err := ParseSize(want); err != nil || back != v {
			t.Errorf("%s is read as %d, %v", want, back, err)
		}
	}
	for v, want := range map[Size]string{
		0: "0B", 999: "999B", 1536: "1.5kB", 25 << 20: "25MB", 25<<20 + 1: "25MB", 1023<<20 + 1<<19: "1024MB", 5 << 40: "5TB", -1536: "-1.5kB",
	} {
		if got := v.Short(); got != want {
			t.Errorf("%d is shortened to %s, want %s", int64(v), got, want)
		}
	}
	var s Size
	if err := s.UnmarshalText([]byte("-1")); err == nil {
		t.Error("a negative size was read")
	}
	if err := s.UnmarshalText([]byte("64MB")); err != nil || s != 64<<20 {
		t.Errorf("64MB is %d, %v", s, err)
	}
}

func FuzzSize(f *testing.F) {
	for _, s := range []string{"1kB", "0x6e", "010", "1.1e2", "nan", "1e400", "0.11kB"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := ParseSize(s)
		if err != nil {
			return
		}
		if v == math.MaxInt64 || v == math.MinInt64 || v > 1<<53 || v < -1<<53 {
			return // beyond what a float can tell exactly
		}
		if back, err := ParseSize(v.String()); err != nil || back != v {
			t.Errorf("%q is %d, written %s, read as %d, %v", s, v, v, back, err)
		}
	})
}
