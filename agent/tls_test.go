package agent

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/internal/logtest"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t}
	_, _, a.cert, a.key = a.issue(name, func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	return a
}

// issue makes a certificate that an authority signs; its own when it has none yet.
func (a *authority) issue(name string, more func(*x509.Certificate)) (certPEM, keyPEM []byte, cert *x509.Certificate, key *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	draft := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	more(draft)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = draft, key
	}
	der, err := x509.CreateCertificate(rand.Reader, draft, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		a.t.Fatal(err)
	}
	bytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: bytes}), cert, key
}

func (a *authority) pem() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// server makes a server's certificate for hosts and addresses.
func (a *authority) server(hosts ...string) tls.Certificate {
	a.t.Helper()
	c, k, _, _ := a.issue("server", func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		for _, h := range hosts {
			if ip := net.ParseIP(h); ip != nil {
				c.IPAddresses = append(c.IPAddresses, ip)
			} else {
				c.DNSNames = append(c.DNSNames, h)
			}
		}
	})
	pair, err := tls.X509KeyPair(c, k)
	if err != nil {
		a.t.Fatal(err)
	}
	return pair
}

// shake connects a client with a server and returns the client's error and the
// name in the client's certificate.
func shake(t *testing.T, client *tls.Config, server tls.Certificate) (name string, err error) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0") // a pipe without a buffer would hang on crossing alerts
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	done := make(chan string, 1)
	go func() {
		c, err := ln.Accept()
		if err != nil {
			done <- err.Error()
			return
		}
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{server}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12})
		_ = s.Handshake()
		name := ""
		if got := s.ConnectionState().PeerCertificates; len(got) > 0 {
			name = got[0].Subject.CommonName
		}
		_ = s.Close()
		done <- name
	}()
	raw, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	err = tls.Client(raw, client).HandshakeContext(t.Context())
	if err != nil {
		_ = raw.Close()
	}
	return <-done, err
}

func TestSSLModes(t *testing.T) {
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	root := filepath.Join(t.TempDir(), "root.pem")
	if err := os.WriteFile(root, []byte(ours.pem()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode   config.SSLMode
		root   string
		server tls.Certificate
		host   string
		want   string // a part of the error, "" for none
	}{
		{config.SSLPrefer, "", theirs.server("b.example"), "a.example", ""},
		{config.SSLRequire, "", theirs.server("b.example"), "a.example", ""},
		{config.SSLRequire, root, ours.server("b.example"), "a.example", ""},
		{config.SSLRequire, root, theirs.server("a.example"), "a.example", "unknown authority"},
		{config.SSLPrefer, root, theirs.server("a.example"), "a.example", "unknown authority"},
		{config.SSLVerifyCA, root, ours.server("b.example"), "a.example", ""},
		{config.SSLVerifyCA, root, theirs.server("a.example"), "a.example", "unknown authority"},
		{config.SSLVerifyCA, "", ours.server("a.example"), "a.example", "unknown authority"}, // not one of the system's
		{config.SSLVerifyFull, root, ours.server("a.example"), "a.example", ""},
		{config.SSLVerifyFull, root, ours.server("b.example"), "a.example", "not a.example"},
		{config.SSLVerifyFull, root, theirs.server("a.example"), "a.example", "unknown authority"},
		{config.SSLVerifyFull, root, ours.server("10.0.0.1"), "10.0.0.1", ""},
		{config.SSLVerifyFull, root, ours.server("10.0.0.2"), "10.0.0.1", "not 10.0.0.1"},
		{config.SSLVerifyFull, root, ours.server("fd00::1"), "fd00::1", ""},
	} {
		dress, err := tlsFor(config.Postgres{SSLMode: c.mode, SSLRootCert: c.root}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		_, err = shake(t, dress(c.host), c.server)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, root %t, to %s: %v, want %q", c.mode, c.root != "", c.host, err, c.want)
		}
	}
	for _, mode := range []config.SSLMode{config.SSLDisable, config.SSLAllow} {
		if dress, err := tlsFor(config.Postgres{SSLMode: mode}, slog.New(slog.DiscardHandler)); dress != nil || err != nil {
			t.Errorf("%s: %v, want no TLS", mode, err)
		}
	}
}

func TestCertificatesRotate(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, text []byte) string {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, name)
	}
	ours, next := newAuthority(t, "ours"), newAuthority(t, "next")
	client := func(a *authority, name string) (cert, key []byte) {
		cert, key, _, _ = a.issue(name, func(*x509.Certificate) {})
		return cert, key
	}
	c1, k1 := client(ours, "first")
	c2, k2 := client(next, "second")
	pg := config.Postgres{
		SSLMode: config.SSLVerifyCA, SSLRootCert: write("root.pem", []byte(ours.pem())),
		SSLCert: write("c.pem", c1), SSLKey: write("k.pem", k1),
	}
	var logged logtest.Log
	dress, err := tlsFor(pg, slog.New(slog.NewTextHandler(&logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	cfg := dress("a")
	try := func(server *authority, client string, good bool) {
		t.Helper()
		name, err := shake(t, cfg, server.server("a"))
		if (err == nil) != good || good && name != client {
			t.Errorf("as %q: %v; want good %t as %q", name, err, good, client)
		}
	}
	try(ours, "first", true)
	try(next, "", false)
	write("root.pem", []byte(next.pem()))
	write("c.pem", c2) // the key does not fit yet: the first pair serves on
	try(next, "first", true)
	try(ours, "", false)
	if l := logged.String(); strings.Count(l, "a changed file cannot be used") != 1 || !strings.Contains(l, "c.pem") {
		t.Errorf("logged %s", l)
	}
	write("k.pem", k2)
	try(next, "second", true)
	if err := os.Remove(pg.SSLRootCert); err != nil {
		t.Fatal(err)
	}
	try(next, "second", true)
	if l := logged.String(); !strings.Contains(l, "the file can be used again") || strings.Contains(l, "PRIVATE") {
		t.Errorf("logged %s", l)
	}
}

func TestAPasswordRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pw")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var logged logtest.Log
	write("first\r\n")
	r, err := newRotating(slog.New(slog.NewTextHandler(&logged, nil)), parsePassword, path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ text, want string }{{"first\n", "first"}, {"", "first"}, {"  sec ond", "  sec ond"}, {"\n", "  sec ond"}} {
		if write(c.text); r.get() != c.want {
			t.Errorf("a file of %q gives %q, want %q", c.text, r.get(), c.want)
		}
	}
	if l := logged.String(); strings.Contains(l, "first") || strings.Contains(l, "sec") {
		t.Errorf("the log holds a password: %s", l)
	}
	if _, err := newRotating(slog.New(slog.DiscardHandler), parsePassword, path); err == nil {
		t.Error("an empty file is a password at the start")
	}
}
