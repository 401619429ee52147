package topology

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Mono is a moment on the agent's monotonic clock, counted from an origin that
// is fixed for the life of the process. It never jumps when the wall clock is
// set and is the only time that rules compare. Zero means "never".
type Mono time.Duration

// Sub returns m - o as a duration.
func (m Mono) Sub(o Mono) time.Duration { return time.Duration(m - o) }

// Add returns the moment d later.
func (m Mono) Add(d time.Duration) Mono { return m + Mono(d) }

// Clock is one reading of both clocks: Mono for rules, Wall for people.
type Clock struct {
	Mono Mono
	Wall time.Time
}

// WallAt translates a monotonic moment into wall time, by this reading.
func (c Clock) WallAt(m Mono) time.Time {
	if m == 0 {
		return time.Time{}
	}
	return c.Wall.Add(-c.Mono.Sub(m))
}

// Ticker reads the clocks. The agent makes one and hands it to whoever needs
// the time; nobody below the agent calls time.Now for a rule.
type Ticker func() Clock

// NewTicker returns a Ticker whose monotonic origin lies one second before the
// first reading, so that a real moment is never the zero "never".
func NewTicker(now func() time.Time) Ticker {
	origin := now().Add(-time.Second)
	return func() Clock {
		t := now()
		return Clock{Mono: Mono(t.Sub(origin)), Wall: t.Round(0)}
	}
}

// Tri is knowledge that may be missing.
type Tri uint8

// The three values of Tri. The zero value is Unknown.
const (
	Unknown Tri = iota
	No
	Yes
)

// Bool returns Yes for true and No for false.
func Bool(b bool) Tri {
	if b {
		return Yes
	}
	return No
}

func (t Tri) String() string {
	switch t {
	case Yes:
		return "yes"
	case No:
		return "no"
	default:
		return "unknown"
	}
}

// MarshalText writes yes, no or unknown.
func (t Tri) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads yes, no or unknown.
func (t *Tri) UnmarshalText(b []byte) error {
	switch string(b) {
	case "yes":
		*t = Yes
	case "no":
		*t = No
	case "unknown", "":
		*t = Unknown
	default:
		return fmt.Errorf("%q is none of yes, no, unknown", b)
	}
	return nil
}

// LSN is a position in PostgreSQL's write-ahead log, in bytes from 0/0.
// Zero means unknown: no server ever reports 0/0 as a position it has reached.
type LSN uint64

// ParseLSN reads PostgreSQL's pg_lsn text form, two hexadecimal numbers of at
// most 32 bits with a slash between ("0/3000060").
func ParseLSN(s string) (LSN, error) {
	hi, lo, _ := strings.Cut(s, "/")
	h, badHi := strconv.ParseUint(hi, 16, 32)
	l, badLo := strconv.ParseUint(lo, 16, 32)
	if badHi != nil || badLo != nil || len(hi) > 8 || len(lo) > 8 {
		return 0, fmt.Errorf("%q is not an LSN like 0/3000060", s)
	}
	return LSN(h<<32 | l), nil
}

func (l LSN) String() string { return fmt.Sprintf("%X/%X", uint32(l>>32), uint32(l)) }

// Timeline is a PostgreSQL timeline number. Zero means unknown.
type Timeline uint32

// Address is where a server listens: a host (a literal IP without brackets, or
// a name) and a port. It is comparable, so it can say "the same address".
type Address struct {
	Host string
	Port uint16
}

// ParseAddress reads host:port, [ipv6]:port. The port must be a number from 1
// to 65535; an IPv6 address without brackets is refused, since its last group
// cannot be told from a port (field report FR-24).
func ParseAddress(s string) (Address, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return Address{}, fmt.Errorf("%q is not host:port (an IPv6 address needs brackets)", s)
	}
	p, err := strconv.ParseUint(port, 10, 16)
	if err != nil || p == 0 {
		return Address{}, fmt.Errorf("%q: port %q is not a number from 1 to 65535", s, port)
	}
	a := Address{Host: host, Port: uint16(p)}
	if err := a.Check(); err != nil {
		return Address{}, fmt.Errorf("%q: %w", s, err)
	}
	return a, nil
}

// Check refuses hosts that are neither a literal IP nor a legal DNS name.
// Addresses come from outside and end up in other programs' configuration.
func (a Address) Check() error {
	if a.Port == 0 {
		return fmt.Errorf("port 0")
	}
	if ip, err := netip.ParseAddr(a.Host); err == nil {
		if ip.Zone() != "" {
			return fmt.Errorf("address %s has a zone, which balancers cannot route to", a.Host)
		}
		if ip.IsUnspecified() {
			return fmt.Errorf("address %s stands for every interface and cannot be routed to", a.Host)
		}
		return nil
	}
	if !isHostName(a.Host) {
		return fmt.Errorf("host %q is neither an IP address nor a DNS name", a.Host)
	}
	return nil
}

func isHostName(s string) bool {
	if s == "" || len(s) > 253 || strings.Trim(s, "0123456789.") == "" {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(s, "."), ".") {
		if label == "" || len(label) > 63 || strings.HasPrefix(label, "-") || strings.HasSuffix(label, "-") {
			return false
		}
		for i := range len(label) {
			c := label[i]
			if c != '-' && c != '_' && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') {
				return false
			}
		}
	}
	return true
}

// IsZero reports whether no address is known.
func (a Address) IsZero() bool { return a == Address{} }

// IP returns the literal address, and false when Host is a name.
func (a Address) IP() (netip.Addr, bool) {
	ip, err := netip.ParseAddr(a.Host)
	return ip, err == nil
}

func (a Address) String() string {
	if a.IsZero() {
		return ""
	}
	return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port)))
}

// MarshalText writes host:port.
func (a Address) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads what ParseAddress reads; an empty text is no address.
func (a *Address) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*a = Address{}
		return nil
	}
	v, err := ParseAddress(string(b))
	if err != nil {
		return err
	}
	*a = v
	return nil
}

// CheckName reports why s cannot name a cluster, pool or node. Legal names are
// up to 63 letters, digits, dots, underscores and dashes, beginning with a
// letter or digit: what HAProxy, Envoy and Consul take unquoted.
func CheckName(s string) error {
	if s == "" {
		return fmt.Errorf("a name is empty")
	}
	if len(s) > 63 {
		return fmt.Errorf("name %.20q… has %d characters, at most 63 are allowed", s, len(s))
	}
	for i := range len(s) {
		c := s[i]
		alnum := c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return fmt.Errorf("name %q: only letters, digits, '.', '_' and '-' are allowed, the first a letter or digit", s)
		}
	}
	return nil
}
