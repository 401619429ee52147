package consul

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// defaultPort is PostgreSQL's, for connection addresses that name none.
const defaultPort = 5432

// parseMember reads the value of a member key. What can be read is kept; each
// thing that cannot is one error. A value that is no JSON object and no legacy
// address gives a member of which only the name is known, as for Patroni.
func parseMember(name string, value []byte) (topology.Member, []error) {
	m := topology.Member{Name: name}
	if text := strings.TrimSpace(string(value)); strings.HasPrefix(text, "postgres") {
		return parseLegacyMember(m, text)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(value, &fields); err != nil {
		return m, []error{errors.New("its value is no JSON object")}
	}
	var faults faultList
	m.Role = foldRole(faults.text(fields, "role"))
	m.State = faults.text(fields, "state")
	m.APIURL = faults.text(fields, "api_url")
	m.Timeline = topology.Timeline(faults.number(fields, "timeline", 32))
	m.LSN = topology.LSN(faults.number(fields, "xlog_location", 64))
	if m.LSN == 0 {
		m.LSN = topology.LSN(faults.number(fields, "replay_lsn", 64))
	}
	m.Tags = faults.tags(fields)
	if u := faults.text(fields, "conn_url"); u != "" {
		m.Address = faults.address(u)
	} else if raw, ok := fields["conn_kwargs"]; ok && string(raw) != "null" {
		m.Address = faults.kwargs(raw)
	}
	return m, faults
}

// parseLegacyMember reads the form of early Patroni versions: the connection
// address itself, with the API's address as application_name.
func parseLegacyMember(m topology.Member, value string) (topology.Member, []error) {
	var faults faultList
	addr, query, _ := strings.Cut(value, "?")
	m.Address = faults.address(addr)
	if q, err := url.ParseQuery(query); err == nil {
		m.APIURL = q.Get("application_name")
	}
	return m, faults
}

// parseConnURL reads the server's address out of a connection address. An IPv6
// host needs brackets: without them its last group cannot be told from a port.
func parseConnURL(s string) (topology.Address, error) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok || scheme != "postgres" && scheme != "postgresql" {
		return topology.Address{}, errors.New("conn_url does not begin with postgres://")
	}
	tail := ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest, tail = rest[:i], rest[i:]
	}
	hostport := rest[strings.LastIndexByte(rest, '@')+1:] // errors must not show a password
	if hostport == rest && strings.Contains(rest, ":") && strings.Contains(tail, "@") {
		if _, err := topology.ParseAddress(withPort(hostport)); err != nil {
			return topology.Address{}, errors.New("conn_url has an unescaped / ? or # in its login, so its host cannot be told")
		}
	}
	if strings.Contains(hostport, ",") {
		return topology.Address{}, fmt.Errorf("conn_url names several hosts: %s", watchers.Clip(hostport))
	}
	a, err := topology.ParseAddress(withPort(hostport))
	if err == nil {
		a, err = oneSpelling(a)
	}
	if err != nil {
		return topology.Address{}, fmt.Errorf("conn_url: %w", err)
	}
	return a, nil
}

// oneSpelling checks an address and spells it as every other of the same
// server: addresses are compared as values.
func oneSpelling(a topology.Address) (topology.Address, error) {
	if ip, err := netip.ParseAddr(a.Host); err == nil {
		a.Host = ip.Unmap().String()
	}
	return a, a.Check()
}

// withPort adds the default port where there clearly is none.
func withPort(hostport string) string {
	bracketed := strings.HasPrefix(hostport, "[") && strings.HasSuffix(hostport, "]")
	if bracketed || hostport != "" && !strings.Contains(hostport, ":") {
		return hostport + ":" + strconv.Itoa(defaultPort)
	}
	return hostport
}

// foldRole gives Patroni's older word for a primary its newer name.
func foldRole(role string) string {
	if role == "master" {
		return "primary"
	}
	return role
}

// faultList collects what is wrong with the fields of one value.
type faultList []error

func (f *faultList) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

func (f *faultList) address(s string) topology.Address {
	a, err := parseConnURL(s)
	if err != nil {
		*f = append(*f, err)
	}
	return a
}

// kwargs reads the address out of conn_kwargs, which Patroni takes where there
// is no conn_url.
func (f *faultList) kwargs(raw json.RawMessage) topology.Address {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		f.add("conn_kwargs is no JSON object: %s", watchers.Clip(string(raw)))
		return topology.Address{}
	}
	a := topology.Address{Host: f.text(fields, "host"), Port: uint16(f.number(fields, "port", 16))}
	return f.server(a, "conn_kwargs")
}

// server checks an address and gives it its one spelling; a port of 0 is
// PostgreSQL's.
func (f *faultList) server(a topology.Address, what string) topology.Address {
	if a.Port == 0 {
		a.Port = defaultPort
	}
	a, err := oneSpelling(a)
	if err != nil {
		f.add("%s: %w", what, err)
		return topology.Address{}
	}
	return a
}

// text reads a string; absent and null are empty.
func (f *faultList) text(fields map[string]json.RawMessage, key string) string {
	raw, ok := fields[key]
	if !ok {
		return ""
	}
	var s *string
	if err := json.Unmarshal(raw, &s); err != nil {
		f.add("%s is no string: %s", key, watchers.Clip(string(raw)))
	}
	if s == nil {
		return ""
	}
	return *s
}

// number reads a whole number, also as a string; absent and null are 0.
func (f *faultList) number(fields map[string]json.RawMessage, key string, bits int) uint64 {
	raw, ok := fields[key]
	if !ok || string(raw) == "null" {
		return 0
	}
	n, err := strconv.ParseUint(strings.Trim(string(raw), `" `), 10, bits)
	if err != nil {
		f.add("%s is no whole number: %s", key, watchers.Clip(string(raw)))
		return 0
	}
	return n
}

// tags reads Patroni's tags as texts: true becomes "true", 10 becomes "10".
// A tag that is null is absent.
func (f *faultList) tags(fields map[string]json.RawMessage) map[string]string {
	raw, ok := fields["tags"]
	if !ok {
		return nil
	}
	var values map[string]json.RawMessage
	if err := json.Unmarshal(raw, &values); err != nil {
		f.add("tags are no JSON object: %s", watchers.Clip(string(raw)))
		return nil
	}
	if len(values) == 0 {
		return nil
	}
	tags := make(map[string]string, len(values))
	for k, v := range values {
		if text, ok := tagText(v); ok {
			tags[k] = text
		}
	}
	return tags
}

func tagText(raw json.RawMessage) (string, bool) {
	text := strings.TrimSpace(string(raw))
	if text == "null" {
		return "", false
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, true
	}
	return text, true
}
