package config

// RefusalTLS has the certificate for clients that insist on TLS before they hear
// why they are refused.
type RefusalTLS struct {
	// CertFile has the certificate, and those between it and its root. Empty: no TLS.
	CertFile string `yaml:"cert_file" type:"file"`
	KeyFile  string `yaml:"key_file" type:"file"`
}

// On reports whether there is TLS.
func (t RefusalTLS) On() bool { return t.CertFile != "" }

// checkRefusals wants addresses to which balancers can send a session, and a use
// for the certificate.
func (c *Config) checkRefusals(s scope) {
	used := !s.d.legible("clusters")
	for _, cl := range c.Clusters {
		pools := s.in("clusters").in(cl.Name).in("pools")
		for _, p := range cl.Pools {
			in := pools.in(p.Name)
			used = used || !p.Refuse.Off() || s.d.unsound[in.in("refuse").at] || !s.d.legible(in.at)
			if !p.Refuse.Off() && !reachable(p.Refuse) {
				in.fault("refuse", "%s is no address to which a balancer can send a session: write a literal IP and a port", quote(string(p.Refuse)))
			}
		}
	}
	t := s.in("listen").in("refusal_tls")
	t.pair("cert_file", "key_file", c.Listen.RefusalTLS.CertFile, c.Listen.RefusalTLS.KeyFile)
	if t.written("") && !used {
		t.faultOf("", "refusal_tls has no effect: no pool has `refuse`")
	}
}
