package agent

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"

	"github.com/pgsteer/pgsteer/agent/config"
)

// tlsFor turns libpq's sslmode into a function that makes the TLS configuration
// of a node by its host; nil means without TLS. Certificates are read anew for
// each login, so they can be replaced while the agent runs.
//
// As in libpq, a root certificate is checked against whatever the mode: require
// with sslrootcert is verify-ca, and prefer then goes on without TLS when the
// server's certificate does not hold.
func tlsFor(pg config.Postgres, log *slog.Logger) (func(host string) *tls.Config, error) {
	if pg.SSLMode == config.SSLDisable || pg.SSLMode == config.SSLAllow {
		return nil, nil
	}
	roots := func() *x509.CertPool { return nil } // the system's
	if pg.SSLRootCert != "" {
		r, err := newRotating(log, parseRoots, pg.SSLRootCert)
		if err != nil {
			return nil, fmt.Errorf("sslrootcert: %w", err)
		}
		roots = r.get
	}
	var own *rotating[*tls.Certificate]
	if pg.SSLCert != "" {
		r, err := newRotating(log, parsePair, pg.SSLCert, pg.SSLKey)
		if err != nil {
			return nil, fmt.Errorf("sslcert with sslkey %s: %w", pg.SSLKey, err)
		}
		own = r
	}
	chain := pg.SSLRootCert != "" || pg.SSLMode == config.SSLVerifyCA || pg.SSLMode == config.SSLVerifyFull
	return func(host string) *tls.Config {
		// crypto/tls cannot check a chain without a name, nor by roots that change,
		// so it is told to check nothing and verify does.
		c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true} //nolint:gosec // see above
		if own != nil {
			c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.get(), nil }
		}
		if chain {
			name := ""
			if pg.SSLMode == config.SSLVerifyFull {
				name = host
			}
			c.VerifyConnection = func(s tls.ConnectionState) error { return verify(s.PeerCertificates, roots(), name) }
		}
		return c
	}, nil
}

// verify checks a server's chain, and that it was issued for name unless that is
// empty. Certificates of IP addresses are checked too, for which crypto/tls keeps
// no ServerName in the connection's state.
func verify(chain []*x509.Certificate, roots *x509.CertPool, name string) error {
	if len(chain) == 0 {
		return errors.New("the server sent no certificate")
	}
	middle := x509.NewCertPool()
	for _, c := range chain[1:] {
		middle.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{DNSName: name, Roots: roots, Intermediates: middle})
	if err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: chain, Err: err}
	}
	return nil
}

func parseRoots(texts [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(texts[0]) {
		return nil, errors.New("there is no certificate in it")
	}
	return pool, nil
}

func parsePair(texts [][]byte) (*tls.Certificate, error) {
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	return &pair, err
}

// parsePassword wants one line that is not empty: a file that is just being
// written must not log anybody in without a password.
func parsePassword(texts [][]byte) (string, error) {
	text := string(bytes.TrimRight(texts[0], "\r\n"))
	if text == "" {
		return "", errors.New("it is empty")
	}
	return text, nil
}
