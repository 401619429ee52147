package topology

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is an amount of bytes, written as PostgreSQL writes sizes: units B, kB,
// MB, GB, TB, case-sensitive, in steps of 1024; a bare number is bytes.
type Size int64

var sizeUnits = []struct {
	name  string
	bytes float64
}{{"B", 1}, {"kB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}, {"TB", 1 << 40}}

// ParseSize reads a size the way PostgreSQL reads a memory setting (and Patroni
// its lag parameter): an integer in C notation (decimal, 0x hexadecimal, leading
// 0 octal) or a decimal fraction, an optional unit, blanks allowed around it.
// With a unit above B a fraction is rounded to whole units of the next smaller
// one, as PostgreSQL's convert_to_base_unit does. Numbers too large for a Size
// saturate.
func ParseSize(s string) (Size, error) {
	t := strings.Trim(s, " \t\n\v\f\r")
	num, unit := splitNumber(t)
	unit = strings.TrimLeft(unit, " \t\n\v\f\r")
	scale, step := 1.0, 1.0
	if unit != "" {
		scale = 0
		for i, u := range sizeUnits {
			if u.name == unit {
				scale = u.bytes
				step = sizeUnits[max(i-1, 0)].bytes
			}
		}
		if scale == 0 {
			return 0, fmt.Errorf("size %q: unit %q is none of B, kB, MB, GB, TB (case matters)", s, unit)
		}
	}
	v, err := parseNumber(num)
	if err != nil {
		return 0, fmt.Errorf("size %q: %w", s, err)
	}
	b := math.RoundToEven(v*scale/step) * step
	switch {
	case b >= math.MaxInt64:
		return math.MaxInt64, nil
	case b <= math.MinInt64:
		return math.MinInt64, nil
	}
	return Size(b), nil
}

// splitNumber cuts the leading number off, in the way strtol and strtod would.
func splitNumber(s string) (num, rest string) {
	i := 0
	if i < len(s) && (s[i] == '+' || s[i] == '-') {
		i++
	}
	if len(s) > i+2 && s[i] == '0' && s[i+1]|0x20 == 'x' && isHex(s[i+2]) {
		for i += 2; i < len(s) && isHex(s[i]); i++ {
		}
		return s[:i], s[i:]
	}
	for i < len(s) && (isDigit(s[i]) || s[i] == '.') {
		i++
	}
	if i < len(s) && s[i]|0x20 == 'e' {
		j := i + 1
		if j < len(s) && (s[j] == '+' || s[j] == '-') {
			j++
		}
		if j < len(s) && isDigit(s[j]) {
			for ; j < len(s) && isDigit(s[j]); j++ {
			}
			i = j
		}
	}
	return s[:i], s[i:]
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isHex(c byte) bool   { return isDigit(c) || c|0x20 >= 'a' && c|0x20 <= 'f' }

func parseNumber(s string) (float64, error) {
	if s == "" || s == "+" || s == "-" {
		return 0, fmt.Errorf("no number")
	}
	neg := s[0] == '-'
	digits := strings.TrimLeft(s, "+-")
	var v float64
	var err error
	if strings.ContainsAny(digits, ".eE") && !strings.HasPrefix(strings.ToLower(digits), "0x") {
		v, err = strconv.ParseFloat(digits, 64)
	} else {
		var u uint64
		u, err = strconv.ParseUint(digits, 0, 64) // base 0 is C's notation
		v = float64(u)
	}
	if err != nil && !errors.Is(err, strconv.ErrRange) { // what is too large saturates
		return 0, fmt.Errorf("%q is no number", s)
	}
	if neg {
		v = -v
	}
	return v, nil
}

// String writes the size in the largest unit that divides it ("16MB", "100B").
func (s Size) String() string {
	if s == 0 {
		return "0B"
	}
	v, i := int64(s), 0
	for i < len(sizeUnits)-1 && v%1024 == 0 {
		v /= 1024
		i++
	}
	return strconv.FormatInt(v, 10) + sizeUnits[i].name
}

// Short writes the size rounded to at most three digits, for people ("25MB").
func (s Size) Short() string {
	v, i := float64(s), 0
	for i < len(sizeUnits)-1 && math.Abs(v) >= 1024 {
		v /= 1024
		i++
	}
	if i > 0 && math.Abs(v) < 10 {
		return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + sizeUnits[i].name
	}
	return strconv.FormatFloat(math.Round(v), 'f', -1, 64) + sizeUnits[i].name
}

// MarshalText writes String.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what ParseSize reads and refuses negative sizes.
func (s *Size) UnmarshalText(b []byte) error {
	v, err := ParseSize(string(b))
	if err != nil {
		return err
	}
	if v < 0 {
		return fmt.Errorf("size %q is negative", b)
	}
	*s = v
	return nil
}
