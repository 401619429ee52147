package config

import "net/netip"

// EnvoySessions says what becomes of a pool's sessions through Envoy when their
// node leaves the pool; the words are those of package xds/resources.
type EnvoySessions string

// The choices for EnvoySessions.
const (
	EnvoyDrain       EnvoySessions = "drain"
	EnvoyHealthCheck EnvoySessions = "health-check"
	EnvoyKeep        EnvoySessions = "keep"
)

// NodeIdentity says whether an Envoy may claim any node id.
type NodeIdentity string

// The choices for NodeIdentity.
const (
	IdentityCertificate NodeIdentity = "certificate" // one of those in its certificate
	IdentityAny         NodeIdentity = "any"
)

// EnvoyTLS makes listen.xds speak TLS.
type EnvoyTLS struct {
	// CertFile has the certificate, and those between it and its root. Empty: no TLS.
	CertFile string `yaml:"cert_file" type:"file"`
	KeyFile  string `yaml:"key_file" type:"file"`
	// ClientCAFile has the certificates that an Envoy's must be signed by; empty:
	// Envoys need none.
	ClientCAFile string       `yaml:"client_ca_file" type:"file"`
	NodeIdentity NodeIdentity `yaml:"node_identity"` // with ClientCAFile
}

// On reports whether there is TLS.
func (t EnvoyTLS) On() bool { return t.CertFile != "" }

// Checks is where Envoy asks about nodes: check_address, else listen.health.
func (c *Config) Checks() ListenAddress {
	if !c.Envoy.CheckAddress.Off() {
		return c.Envoy.CheckAddress
	}
	return c.Listen.Health
}

// check is given the scope of the whole file.
func (e Envoy) check(file scope, c *Config) {
	s := file.in("envoy")
	s.positive("connect_timeout", e.ConnectTimeout)
	s.positive("check_interval", e.CheckInterval)
	if err := checkHost(e.ListenHost); err != nil {
		s.fault("listen_host", "%v", err)
	}
	e.TLS.check(s.in("tls"))
	if e.ServerName != "" && e.ServerCAFile == "" {
		s.fault("server_name", "server_name has no effect without server_ca_file: Envoy then lets the bytes of clients pass as they are")
	}
	if e.Files != "" && c.Listen.XDS.Off() {
		s.fault("files", "files are written by the server for Envoys, which `listen.xds: off` switches off")
	}
	for _, cl := range c.Clusters {
		for _, p := range cl.Pools {
			if p.EnvoySessions == EnvoyHealthCheck && !reachable(c.Checks()) {
				file.in("clusters").in(cl.Name).in("pools").in(p.Name).fault("envoy_sessions", "health-check needs an address at which Envoy asks this agent, a literal IP and a port: set envoy.check_address, since listen.health is %s", quote(string(c.Listen.Health)))
			}
		}
	}
}

// reachable reports whether Envoy can be sent to an address.
func reachable(a ListenAddress) bool {
	if a.Off() {
		return false
	}
	host, port := a.HostPort()
	ip, err := netip.ParseAddr(host)
	return err == nil && !ip.IsUnspecified() && port != 0
}

func (t EnvoyTLS) check(s scope) {
	s.pair("cert_file", "key_file", t.CertFile, t.KeyFile)
	if t.ClientCAFile != "" && !t.On() && t.KeyFile == "" {
		s.fault("client_ca_file", "client_ca_file has no effect without cert_file and key_file")
	}
	if t.ClientCAFile == "" && s.written("node_identity") {
		s.fault("node_identity", "node_identity has no effect without client_ca_file: Envoys then show no certificate")
	}
}
