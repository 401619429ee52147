package render

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// maxHAProxyTime is the longest time that HAProxy takes, 2^31 ms less a margin.
const maxHAProxyTime = 24 * 24 * time.Hour

// quoted shows outside text in a message: short and on one line.
func quoted(s string) string {
	if len(s) > 80 {
		s = strings.ToValidUTF8(s[:77], "") + "..."
	}
	return strconv.Quote(s)
}

// hasControl reports whether s has a character that could end a line or a word
// in some program's file: controls, Unicode's line separators, broken UTF-8.
func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' || r == unicode.ReplacementChar
	})
}

// haproxyName makes a legal name for a server, backend or frontend. A legal name
// stays as it is. Another one has its illegal characters replaced and a hash of
// the whole added, so that two different ones stay different.
func haproxyName(s string) string {
	if topology.CheckName(s) == nil {
		return s
	}
	clean := strings.Map(func(r rune) rune {
		if r < 128 && topology.CheckName("x"+string(r)) == nil {
			return r
		}
		return '-'
	}, s)
	clean = "x" + clean[:min(len(clean), 50)]
	sum := sha256.Sum256([]byte(s))
	return clean + "-" + hex.EncodeToString(sum[:4])
}

// haproxyQuote makes one word of any text that has no line break. Single quotes
// are HAProxy's only form in which nothing is interpreted, neither "$" nor "#"
// nor "\"; a single quote itself is put between double quotes.
func haproxyQuote(s string) (string, error) {
	if hasControl(s) {
		return "", fmt.Errorf("%s has a control character, which HAProxy cannot quote", quoted(s))
	}
	return "'" + strings.ReplaceAll(s, "'", `'"'"'`) + "'", nil
}

// haproxySocket checks the path of a Unix socket. HAProxy expands "$" and splits
// at "," in addresses even inside quotes, so only plain paths pass.
func haproxySocket(p string) (string, error) {
	plain := func(r rune) bool {
		return r < 128 && (unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/._+-", r))
	}
	if !path.IsAbs(p) || strings.ContainsFunc(p, func(r rune) bool { return !plain(r) }) {
		return "", fmt.Errorf("%s is no path for a socket: absolute, of letters, digits and /._+-", quoted(p))
	}
	return p, nil
}

// haproxyTime writes a duration in HAProxy's units. Times that HAProxy would
// refuse or read as "none" are errors.
func haproxyTime(d time.Duration) (string, error) {
	if d < time.Microsecond || d > maxHAProxyTime {
		return "", fmt.Errorf("time %v: HAProxy takes 1us to %v", d, maxHAProxyTime)
	}
	for _, u := range []struct {
		size time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d%u.size == 0 {
			return strconv.FormatInt(int64(d/u.size), 10) + u.name, nil
		}
	}
	return strconv.FormatInt(d.Microseconds(), 10) + "us", nil
}

// agentSend is the quoted line by which a server asks for its verdict. The
// names are checked here too, since they stand inside double quotes, where "$"
// and "\" have a meaning.
// address, where there is one, is the server's, in the forms that hostport takes: for
// a server at another address than its node pgsteer answers down.
func agentSend(cluster, pool, node string, address ...any) (string, error) {
	for _, n := range []string{cluster, pool, strings.TrimPrefix(node, "!")} {
		if err := topology.CheckName(n); err != nil {
			return "", fmt.Errorf("agent-send: %w", err)
		}
	}
	if len(address) > 0 {
		at, err := hostport(address...)
		if err != nil {
			return "", fmt.Errorf("agent-send: %w", err)
		}
		node += " " + at
	}
	return `"` + cluster + " " + pool + " " + node + `\n"`, nil
}

// hostport writes where a server is, IPv6 in brackets. It takes a server, an
// address, or a host and a port. A host name is refused: a balancer that
// resolves names fails its whole configuration when DNS does.
func hostport(args ...any) (string, error) {
	a, err := addrPort(args)
	if err != nil {
		return "", err
	}
	if a.Addr().IsUnspecified() {
		return "", fmt.Errorf("address %s: balancers take it for the client's own destination", a)
	}
	return a.String(), nil
}

// bindAddress writes where to listen. Other than hostport it takes 0.0.0.0 and [::].
func bindAddress(a netip.AddrPort) (string, error) {
	if err := routable(a); err != nil {
		return "", err
	}
	return a.String(), nil
}

// hostOnly writes the host of an address, IPv6 in brackets.
func hostOnly(a netip.AddrPort) (string, error) {
	if err := routable(a); err != nil {
		return "", err
	}
	if a.Addr().Is6() {
		return "[" + a.Addr().String() + "]", nil
	}
	return a.Addr().String(), nil
}

func routable(a netip.AddrPort) error {
	switch {
	case !a.Addr().IsValid():
		return fmt.Errorf("no literal IP address is known")
	case a.Port() == 0:
		return fmt.Errorf("address %s has port 0", a)
	case a.Addr().Zone() != "":
		return fmt.Errorf("address %s has a zone, which balancers cannot route to", quoted(a.String()))
	}
	return nil
}

func addrPort(args []any) (netip.AddrPort, error) {
	var a netip.AddrPort
	what := fmt.Sprint(args...)
	switch len(args) {
	case 1:
		switch x := args[0].(type) {
		case netip.AddrPort:
			a = x
		case Server:
			a, what = x.Address, "node "+x.Cluster+"/"+x.Name+" at "+x.Host
		case string:
			a, _ = netip.ParseAddrPort(x) // the invalid zero value is refused below
		}
	case 2:
		a, _ = netip.ParseAddrPort(joined(fmt.Sprint(args[0]), fmt.Sprint(args[1])))
	}
	if err := routable(a); err != nil {
		return a, fmt.Errorf("%s: %w (host names are not resolved here)", quoted(what), err)
	}
	return a, nil
}

func joined(host, port string) string {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + port
}

// pgbouncerQuote makes a quoted value of PgBouncer's [databases] section.
func pgbouncerQuote(s string) (string, error) {
	if hasControl(s) {
		return "", fmt.Errorf("%s has a control character, which PgBouncer cannot quote", quoted(s))
	}
	return "'" + strings.ReplaceAll(s, "'", "''") + "'", nil
}

// pgbouncerName checks the name of an entry of PgBouncer's [databases]. Other than its
// manual says, 1.18 knows no quotes there (measured): what is not plain, it does not
// load, and the whole file with it.
func pgbouncerName(s string) (string, error) {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
	if s == "" || len(s) > 63 || strings.Trim(s, plain) != "" {
		return "", fmt.Errorf("%s cannot stand in PgBouncer's file: up to 63 letters, digits, '_', '.' and '-'", quoted(s))
	}
	return s, nil
}

// pgDSN makes a libpq connection string of names and values, in the given order.
func pgDSN(pairs ...any) (string, error) {
	if len(pairs)%2 != 0 {
		return "", fmt.Errorf("pgDSN takes pairs of a keyword and a value, got %d arguments", len(pairs))
	}
	var words []string
	for i := 0; i < len(pairs); i += 2 {
		key, value := fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1])
		if strings.Trim(key, "abcdefghijklmnopqrstuvwxyz_") != "" || key == "" || hasControl(value) {
			return "", fmt.Errorf("%s=%s cannot stand in a connection string", quoted(key), quoted(value))
		}
		value = strings.ReplaceAll(strings.ReplaceAll(value, `\`, `\\`), "'", `\'`)
		words = append(words, key+"='"+value+"'")
	}
	return strings.Join(words, " "), nil
}
