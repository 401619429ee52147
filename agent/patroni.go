package agent

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/pgsteer/pgsteer/agent/config"
)

// patroniTLS returns a function that makes the TLS configuration for a member of
// Patroni by its host. Certificates are read anew for each connection, so they
// can be replaced while the agent runs. The server's chain and name are always
// checked: there is no mode in which they are not.
func patroniTLS(p config.Patroni, log *slog.Logger) (func(host string) *tls.Config, error) {
	roots := func() *x509.CertPool { return nil } // the system's
	if p.CAFile != "" {
		r, err := newRotating(log, parseRoots, p.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file of Patroni: %w", err)
		}
		roots = r.get
	}
	var own func(*tls.CertificateRequestInfo) (*tls.Certificate, error)
	if p.CertFile != "" {
		r, err := newRotating(log, parsePair, p.CertFile, p.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cert_file of Patroni with key_file %s: %w", p.KeyFile, err)
		}
		own = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return r.get(), nil } //nolint:unparam // as crypto/tls wants it
	}
	return func(host string) *tls.Config {
		name := host
		if p.ServerName != "" {
			name = p.ServerName
		}
		// As for PostgreSQL, verify does the checks.
		c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true, GetClientCertificate: own} //nolint:gosec // see above
		if _, err := netip.ParseAddr(name); err != nil {
			c.ServerName = name // what the server is told; addresses are not
		}
		c.VerifyConnection = func(s tls.ConnectionState) error { return verify(s.PeerCertificates, roots(), name) }
		return c
	}, nil
}
