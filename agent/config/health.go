package config

// TLSListener is a listener that speaks TLS.
type TLSListener struct {
	Address ListenAddress `yaml:"address"` // empty: off
	// CertFile has the certificate, and those between it and its root.
	CertFile string `yaml:"cert_file" type:"file"`
	KeyFile  string `yaml:"key_file" type:"file"`
	// ClientCAFile has the certificates that a client's must be signed by; empty:
	// clients need none.
	ClientCAFile string `yaml:"client_ca_file" type:"file"`
}

// Health shapes the answers to health checks over HTTP.
type Health struct {
	Compat      HealthCompat `yaml:"compat"`
	DrainStatus DrainStatus  `yaml:"drain_status"`
}

// HealthCompat says whose answers Patroni's paths give.
type HealthCompat string

// The choices for HealthCompat.
const (
	HealthStrict   HealthCompat = "strict"
	HealthPatroni3 HealthCompat = "patroni3"
	HealthPatroni4 HealthCompat = "patroni4"
)

// DrainStatus says which status a pool's path has for drain.
type DrainStatus string

// The choices for DrainStatus.
const (
	DrainUnavailable DrainStatus = "unavailable" // 503
	DrainNotFound    DrainStatus = "not_found"   // 404, for HAProxy's disable-on-404
)

// check wants a certificate where there is an address, and the other way round.
func (l TLSListener) check(s scope) {
	for _, file := range []struct{ key, path string }{{"cert_file", l.CertFile}, {"key_file", l.KeyFile}} {
		if !l.Address.Off() && file.path == "" {
			s.fault(file.key, "%s is missing: TLS needs a certificate and its key", file.key)
		}
	}
	if l.Address.Off() && l.CertFile+l.KeyFile+l.ClientCAFile != "" && !s.written("address") {
		s.fault("address", "address is missing, so that nobody would use the files")
	}
}
