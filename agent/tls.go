package agent

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"

	"github.com/pgsteer/pgsteer/agent/config"
)

// tlsConfig makes libpq's sslmode into a TLS configuration; nil means without.
// The client certificate is read anew for each login, so it can be rotated.
func tlsConfig(pg config.Postgres) (*tls.Config, error) {
	if pg.SSLMode == config.SSLDisable || pg.SSLMode == config.SSLAllow {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if pg.SSLRootCert != "" {
		pem, err := os.ReadFile(pg.SSLRootCert)
		if err != nil {
			return nil, fmt.Errorf("read sslrootcert: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("sslrootcert %s has no certificate", pg.SSLRootCert)
		}
	}
	if pg.SSLCert != "" {
		if _, err := tls.LoadX509KeyPair(pg.SSLCert, pg.SSLKey); err != nil {
			return nil, fmt.Errorf("sslcert %s with sslkey %s: %w", pg.SSLCert, pg.SSLKey, err)
		}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(pg.SSLCert, pg.SSLKey)
			return &pair, err
		}
	}
	switch pg.SSLMode {
	case config.SSLVerifyFull:
	case config.SSLVerifyCA:
		c.InsecureSkipVerify = true
		c.VerifyPeerCertificate = verifyChain(c.RootCAs)
	default: // prefer and require encrypt without knowing whom they talk to, as in libpq
		c.InsecureSkipVerify = true
	}
	return c, nil
}

// verifyChain checks the chain and leaves the host name out, as verify-ca does.
func verifyChain(roots *x509.CertPool) func([][]byte, [][]*x509.Certificate) error {
	return func(raw [][]byte, _ [][]*x509.Certificate) error {
		if len(raw) == 0 {
			return errors.New("the server sent no certificate")
		}
		leaf, err := x509.ParseCertificate(raw[0])
		if err != nil {
			return fmt.Errorf("the server's certificate: %w", err)
		}
		middle := x509.NewCertPool()
		for _, b := range raw[1:] {
			if c, err := x509.ParseCertificate(b); err == nil {
				middle.AddCert(c)
			}
		}
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: middle})
		return err
	}
}
