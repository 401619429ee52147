package haproxycfg

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Bind is a place at which HAProxy listens for streams, by a bind or a stats socket.
type Bind struct {
	Line Line
	Text string // as the line has it, such as ipv4@*:5000-5003
	// Path is that of a UNIX socket; the next three fields say nothing then.
	Path string
	// Host is the address; 0.0.0.0 and :: are all addresses. Invalid: not known, maybe
	// all.
	Host netip.Addr
	// First and Last are the ports, 0 and 65535 when they are not known.
	First, Last uint16
	// V6Only and V4V6 are the words v6only and v4v6 of the line.
	V6Only, V4V6 bool
	// Vague: from the text alone nobody can tell what is bound where, or whether
	// anything is. Its other fields then cover everything that it may be.
	Vague bool
}

// Overlaps reports whether two places may take something from each other.
func (b Bind) Overlaps(o Bind) bool {
	if b.Path != "" || o.Path != "" {
		return b.Path == o.Path
	}
	if b.First > o.Last || o.First > b.Last {
		return false
	}
	all := func(a netip.Addr) bool { return !a.IsValid() || a.IsUnspecified() }
	return all(b.Host) || all(o.Host) || b.Host.Unmap() == o.Host.Unmap()
}

// Same reports whether two places overlap others alike.
func (b Bind) Same(o Bind) bool {
	return b.Path == o.Path && b.Host == o.Host && b.First == o.First && b.Last == o.Last
}

// Binds lists the places of a whole configuration, whose files' lines follow one
// another as HAProxy reads them. Datagrams, abstract sockets and socket pairs are
// left out: they take no port of TCP and no file.
func Binds(lines []Line) (all []Bind) {
	prefix := socketPrefix(lines)
	begun, off, offByDefault := 0, false, false // off: the section is disabled
	for _, l := range lines {
		if sections[l.Words[0]] {
			begun, off = len(all), offByDefault
		}
		switch {
		case l.Words[0] == "disabled" && l.Section == "defaults":
			offByDefault = true
		case l.Words[0] == "disabled":
			off = true
			for i := range all[begun:] {
				all[begun+i].Vague = true
			}
		case l.Section == "global" && l.Begins("stats", "socket") && len(l.Words) > 2:
			all = append(all, bindsOf(l, l.Words[2], l.Words[3:], "")...)
		case l.Words[0] == "bind" && l.Section != "" && len(l.Words) > 1:
			for _, b := range bindsOf(l, l.Words[1], l.Words[2:], prefix) {
				// Other sections, such as peers, bind only if they are used.
				b.Vague = b.Vague || off || l.Section != "frontend" && l.Section != "listen"
				all = append(all, b)
			}
		}
	}
	return all
}

// socketPrefix is what stands before the path of every socket of a bind.
func socketPrefix(lines []Line) (prefix string) {
	for _, l := range lines {
		if i := slices.Index(l.Words, "prefix"); l.Words[0] == "unix-bind" && i > 0 && i+1 < len(l.Words) {
			prefix = l.Words[i+1]
		}
	}
	return prefix
}

// elsewhere are words of a bind by which the kernel judges it otherwise than by its
// address alone.
var elsewhere = []string{"namespace", "interface", "transparent"}

// bindsOf reads the addresses of one line, as HAProxy's configuration manual says
// below "Address formats".
func bindsOf(l Line, addresses string, params []string, prefix string) (all []Bind) {
	for text := range strings.SplitSeq(addresses, ",") {
		b, ok := bindAt(text, prefix)
		if !ok {
			continue
		}
		b.Line, b.Text = l, text
		b.V6Only, b.V4V6 = slices.Contains(params, "v6only"), slices.Contains(params, "v4v6")
		far := slices.ContainsFunc(elsewhere, func(w string) bool { return slices.Contains(params, w) })
		b.Vague = b.Vague || far || l.Conditional
		all = append(all, b)
	}
	return all
}

// unknown may be any place.
var unknown = Bind{Last: 65535, Vague: true}

// bindAt reads one address; not ok: it is none of TCP or of the file system.
func bindAt(text, prefix string) (b Bind, ok bool) {
	if strings.ContainsAny(text+prefix, "$\"'\\") {
		return unknown, true // HAProxy replaces variables in addresses, quoted or not
	}
	family, rest, is := strings.Cut(text, "@")
	if !is {
		family, rest = "", text
	}
	switch family {
	case "":
		if strings.HasPrefix(rest, "/") {
			return Bind{Path: prefix + rest}, true
		}
		return tcpAt(rest, netip.IPv4Unspecified()), true
	case "unix", "uxst":
		return Bind{Path: prefix + rest}, true
	case "ipv4", "tcp4", "ip", "tcp":
		return tcpAt(rest, netip.IPv4Unspecified()), true
	case "ipv6", "tcp6":
		return tcpAt(rest, netip.IPv6Unspecified()), true
	case "abns", "abnsz", "sockpair", "udp", "udp4", "udp6", "uxdg", "quic4", "quic6", "rhttp", "rev":
		return Bind{}, false
	}
	return unknown, true // fd@, and what later versions bring
}

// tcpAt reads host:ports; every is what no host, or *, stands for.
func tcpAt(text string, every netip.Addr) Bind {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return unknown
	}
	first, last, isRange := strings.Cut(text[i+1:], "-")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 16)
	to, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || from == 0 || to < from {
		return unknown
	}
	b := Bind{First: uint16(from), Last: uint16(to)}
	switch host := strings.TrimSuffix(strings.TrimPrefix(text[:i], "["), "]"); host {
	case "", "*":
		b.Host = every
	default:
		b.Host, err = netip.ParseAddr(host)
		if err != nil || b.Host.Zone() != "" {
			b.Host, b.Vague = netip.Addr{}, true // a name
		}
	}
	return b
}
