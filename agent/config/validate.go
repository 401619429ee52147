package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Validate checks a configuration that was built or changed in code. Load and
// Parse have done so already. Errors are *Faults that name keys, not lines.
func (c *Config) Validate() error {
	d := newDecoder("configuration", nil)
	d.root = c
	c.check(scope{d, ""})
	return d.err()
}

// scope is a place in the configuration that is being checked for sense.
type scope struct {
	d  *decoder
	at path
}

// in goes to a value below; an empty key is the place itself.
func (s scope) in(key string) scope {
	if key == "" {
		return s
	}
	return scope{s.d, s.at.child(key)}
}

// written reports whether the file sets a key.
func (s scope) written(key string) bool {
	_, ok := s.d.marks[s.in(key).at]
	return ok
}

// fault reports that a key makes no sense. It stands at the key, or at what
// encloses it when the key is not written. Nothing is reported where a fault of
// form was, since what is wrong there is known already.
func (s scope) fault(key, format string, args ...any) {
	if p := s.in(key).at; !s.d.unsound[p] {
		s.report(p, fmt.Sprintf(format, args...))
	}
}

// faultOf is fault for what is wrong with a section as a whole, such as that it has no
// effect: a fault of form in it has no part in that, and does not hide it.
func (s scope) faultOf(key, format string, args ...any) {
	if p := s.in(key).at; !s.d.faulty[p] {
		s.report(p, fmt.Sprintf(format, args...))
	}
}

// report adds a fault at a path, unless what encloses it could not be read.
func (s scope) report(p path, text string) {
	var where mark
	for q, done := p, false; !done; q = q.parent() {
		if s.d.opaque[q] {
			return
		}
		if where == (mark{}) {
			where = s.d.marks[q]
		}
		done = q == ""
	}
	if where == (mark{}) && p != "" {
		text = p.String() + ": " + text
	}
	s.d.add(where, text)
}

// positive refuses a duration of zero.
func (s scope) positive(key string, v time.Duration) {
	if v <= 0 {
		s.fault(key, "%s must be above zero", key)
	}
}

// pair refuses one of two keys without the other.
func (s scope) pair(a, b, av, bv string) {
	if (av == "") == (bv == "") {
		return
	}
	if bv == "" {
		a, b = b, a
	}
	s.fault(b, "%s needs %s beside it", b, a)
}

func (c *Config) check(s scope) {
	if len(c.Clusters) == 0 {
		s.fault("clusters", "no cluster is configured: `clusters` needs at least one")
	}
	c.checkListeners(s)
	c.checkEnvoyListeners(s)
	c.checkNodePorts(s)
	c.Listen.HealthTLS.check(s.in("listen").in("health_tls"))
	c.Listen.StatusTLS.check(s.in("listen").in("status_tls"))
	c.Consul.check(s.in("consul"))
	c.Maintenance.check(s.in("maintenance"))
	c.checkNames(s.in("maintenance"))
	c.Postgres.check(s.in("postgres"))
	c.Clusters.check(s)
	c.checkZone(s)
	c.checkLocal(s)
	c.checkMesh(s)
	c.checkAgentCheck(s.in("agent_check"))
	c.checkRefusals(s)
	c.HAProxy.check(s.in("haproxy"))
	c.Envoy.check(s, c)
	c.checkTemplates(s)
	c.checkMinDown(s)
	c.checkPgBouncers(s.in("pgbouncers"))
}

// listener is one address that something binds.
type listener struct {
	in   scope
	key  string
	what string
	at   ListenAddress
}

func (c *Config) listeners(s scope) []listener {
	l := s.in("listen")
	all := []listener{
		{l, "agent_check", "listen.agent_check", c.Listen.AgentCheck},
		{l, "health", "listen.health", c.Listen.Health},
		{l.in("health_tls"), "address", "listen.health_tls", c.Listen.HealthTLS.Address},
		{l, "status", "listen.status", c.Listen.Status},
		{l.in("status_tls"), "address", "listen.status_tls", c.Listen.StatusTLS.Address},
		{l, "xds", "listen.xds", c.Listen.XDS},
	}
	all = append(all, listener{s.in("haproxy").in("file"), "stats_listen", "haproxy.file.stats_listen", c.HAProxy.File.StatsListen})
	for i, p := range c.AgentCheck.Ports {
		in := s.in("agent_check").in("ports").in(strconv.Itoa(i))
		all = append(all, listener{in, "listen", "agent_check.ports for " + p.Server.String(), p.Listen})
	}
	for _, cl := range c.Clusters {
		for _, p := range cl.Pools {
			in := s.in("clusters").in(cl.Name).in("pools").in(p.Name)
			what := "pool " + p.Name + " of cluster " + cl.Name
			all = append(all, listener{in, "listen", what, p.Listen}, listener{in, "refuse", "refuse of " + what, p.Refuse})
		}
	}
	return all
}

// checkListeners refuses an address that is used twice. Pools count, since a
// balancer on this host binds theirs, and one balancer binds all of them.
func (c *Config) checkListeners(s scope) {
	byPort := make(map[uint16][]listener)
	for _, l := range c.listeners(s) {
		_, port := l.at.HostPort()
		if port == 0 {
			continue // off, as most pools are, or chosen by the system
		}
		for _, other := range byPort[port] {
			if !l.at.overlaps(other.at) {
				continue
			}
			here, there := l, other
			if !here.in.written(here.key) && there.in.written(there.key) {
				here, there = there, here
			}
			here.in.fault(here.key, "%s is taken by %s already (%s)", here.at, there.what, there.at)
			break
		}
		byPort[port] = append(byPort[port], l)
	}
}

// checkEnvoyListeners refuses addresses at which Envoy would offer no pool. Without a
// section of its own Envoy is only one of those that may offer them.
func (c *Config) checkEnvoyListeners(s scope) {
	h := c.Envoy.ListenHost
	if h == "" && !s.written("envoy") || checkHost(h) != nil {
		return
	}
	if h != "" && !literal(h) {
		s.in("envoy").fault("listen_host", "%s is no IP address, and Envoy listens nowhere else", quote(h))
		return
	}
	byPort := make(map[uint16]listener) // where listen_host makes one host of all
	for _, cl := range c.Clusters {
		for _, p := range cl.Pools {
			at := c.EnvoyListen(p)
			host, port := at.HostPort()
			l := listener{s.in("clusters").in(cl.Name).in("pools").in(p.Name), "listen", "pool " + p.Name + " of cluster " + cl.Name, p.Listen}
			other, taken := byPort[port]
			switch {
			case at.Off():
			case !literal(host) || port == 0:
				l.in.fault(l.key, "Envoy listens at an IP address and a port only, and %s is none: the pool would have no listener there; set envoy.listen_host, which replaces the host for Envoy", quote(string(at)))
			case h == "" || taken && l.at.overlaps(other.at): // which checkListeners refuses
			case taken:
				l.in.fault(l.key, "envoy.listen_host makes this %s, which %s has there already", at, other.what)
			default:
				byPort[port] = l
			}
		}
	}
}

func literal(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

func (c Consul) check(s scope) {
	s.pair("cert_file", "key_file", c.CertFile, c.KeyFile)
	u, err := url.Parse(c.Address)
	switch {
	case strings.Contains(c.Address, "@"):
		s.fault("address", "the address may not hold a user or password, use `token_file`")
		s.d.hide(s.d.marks[s.in("address").at], 0)
	case err != nil || u.Scheme == "" || strings.ContainsAny(u.Scheme, ".0123456789") || u.Opaque != "":
		s.fault("address", "%s is not a URL such as http://127.0.0.1:8500 or unix:///run/consul.sock", quote(c.Address))
	case u.Scheme == "unix":
		if u.Host != "" || u.Path == "" {
			s.fault("address", "%s: a UNIX socket is written with three slashes, unix:///run/consul.sock", quote(c.Address))
		}
	case u.Scheme != "http" && u.Scheme != "https":
		s.fault("address", "scheme %s is none of http, https, unix", quote(u.Scheme))
	case u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		s.fault("address", "%s must be a scheme, a host and a port only", quote(c.Address))
	case u.Scheme == "http" && c.CAFile+c.CertFile+c.KeyFile != "":
		s.fault("address", "the address begins with http://, so that the certificates beside it would not be used; write https://")
	}
}

func (p Postgres) check(s scope) {
	if p.User == "" {
		s.fault("user", "user is empty")
	}
	if p.Database == "" {
		s.fault("database", "database is empty")
	}
	s.pair("sslcert", "sslkey", p.SSLCert, p.SSLKey)
	s.positive("interval", p.Interval)
	s.positive("connect_timeout", p.ConnectTimeout)
	s.positive("query_timeout", p.QueryTimeout)
	s.positive("login_every", p.LoginEvery)
	if p.DNSTTLMax < time.Second {
		s.fault("dns_ttl_max", "dns_ttl_max is below a second: that many questions would only burden the resolver")
	}
	if err := checkTable(p.WriteProbe); err != nil {
		s.fault("write_probe", "%v", err)
	}
}

// identifier is a name that SQL takes without quotes and as it is written.
var identifier = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// checkTable accepts nothing, a table, or schema.table.
func checkTable(name string) error {
	if name == "" {
		return nil
	}
	parts := strings.Split(name, ".")
	for _, part := range parts {
		if !identifier.MatchString(part) || len(parts) > 2 {
			return fmt.Errorf("%s is no table such as pgsteer.heartbeat: one or two names of lower-case letters, digits and underscores", quote(name))
		}
	}
	return nil
}

// checkZone refuses a preference for a zone that nobody named.
func (c *Config) checkZone(s scope) {
	if c.Zone != "" {
		return
	}
	for _, cl := range c.Clusters {
		for _, p := range cl.Pools {
			in := s.in("clusters").in(cl.Name).in("pools").in(p.Name)
			if p.PreferZone && p.Mode == topology.ModeRead && in.written("prefer_zone") && !s.d.unsound["zone"] {
				in.fault("prefer_zone", "prefer_zone has no effect without `zone` at the top of the file, which says where this host stands")
			}
		}
	}
}

func (c *Config) checkLocal(s scope) {
	if c.Local == (NodeRef{}) {
		return
	}
	cl, ok := c.Cluster(c.Local.Cluster)
	if !ok {
		if s.d.legible("clusters") {
			s.fault("local", "no such cluster: %s", UnknownWord(c.Local.Cluster, c.ClusterNames()))
		}
		return
	}
	cl.checkNode(s, "local", c.Local.Node)
}

func (h HAProxy) check(s scope) {
	s.positive("timeout", h.Timeout)
	h.File.check(s.in("file"))
	seen := make(map[string]bool)
	checkSockets(s.in("sockets"), h.Sockets, seen)
	checkSockets(s.in("master_sockets"), h.MasterSockets, seen)
}

// checkSockets wants each once: a worker's socket is never its master's.
func checkSockets(s scope, sockets []string, seen map[string]bool) {
	for i, socket := range sockets {
		if seen[socket] {
			s.fault(strconv.Itoa(i), "socket %s is listed already", socket)
		}
		if socket == "" {
			s.fault(strconv.Itoa(i), "a socket is empty")
		}
		seen[socket] = true
	}
}
