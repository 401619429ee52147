package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/healthapi"
)

// certificate writes a server's certificate and key into a folder.
func (a *authority) certificate(dir string) {
	a.t.Helper()
	cert, key, _, _ := a.issue("server", func(c *x509.Certificate) {
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	})
	for name, text := range map[string][]byte{"cert.pem": cert, "key.pem": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// client is a client's TLS that trusts the authority, with a certificate of by's
// unless that is nil.
func (a *authority) client(by *authority) *tls.Config {
	a.t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	c.RootCAs.AddCert(a.cert)
	if by != nil {
		cert, key, _, _ := by.issue("client", func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		})
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			a.t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// echo answers on a TLS listener with what it reads, and returns its address.
func echo(t *testing.T, c *tls.Config) string {
	t.Helper()
	ln, err := tls.Listen("tcp", "127.0.0.1:0", c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(conn, conn)
				_ = conn.Close()
			}()
		}
	}()
	return ln.Addr().String()
}

// talk says something over a connection and wants to hear it back.
func talk(conn net.Conn) error {
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return err
	}
	b := make([]byte, 5)
	_, err := io.ReadFull(conn, b)
	return err
}

func TestListenerTLSFollowsItsFiles(t *testing.T) {
	dir := t.TempDir()
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	first.certificate(dir)
	l, err := newListenerTLS(config.TLSListener{
		CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	addr := echo(t, l.config())
	dial := func(trusts *authority) (*tls.Conn, error) { return tls.Dial("tcp", addr, trusts.client(nil)) }
	kept, err := dial(first)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kept.Close() }()
	made := l.now.Load()
	if l.look(); l.now.Load() != made {
		t.Error("files that did not change made another configuration, so that no client can resume")
	}

	second.certificate(dir)
	l.look()
	for range 2 { // and once more after a file that cannot be used
		c, err := dial(second)
		if err != nil {
			t.Fatal(err)
		}
		if err := talk(c); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		if _, err := dial(first); err == nil {
			t.Error("the old certificate is still shown")
		}
		if err := os.WriteFile(filepath.Join(dir, "cert.pem"), []byte("half a certif"), 0o600); err != nil {
			t.Fatal(err)
		}
		l.look()
	}
	if err := talk(kept); err != nil {
		t.Errorf("a connection of before was ended: %v", err)
	}
	if end := time.Until(time.Unix(int64(l.expires()), 0)); end < 59*time.Minute || end > 61*time.Minute {
		t.Errorf("the certificate ends in %s, want an hour", end)
	}
}

func TestListenerTLSWantsClientsCertificates(t *testing.T) {
	dir := t.TempDir()
	server, clients, others := newAuthority(t, "server"), newAuthority(t, "clients"), newAuthority(t, "others")
	server.certificate(dir)
	ca := filepath.Join(dir, "ca.pem")
	write := func(a *authority) {
		t.Helper()
		if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(clients)
	l, err := newListenerTLS(config.TLSListener{
		CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"), ClientCAFile: ca,
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	addr := echo(t, l.config())
	expect := func(want map[*authority]bool) {
		t.Helper()
		for by, good := range want {
			c, err := tls.Dial("tcp", addr, server.client(by))
			if err == nil {
				err = talk(c) // TLS 1.3 tells a client of its refusal at its first read
				_ = c.Close()
			}
			if (err == nil) != good {
				t.Errorf("client of %v: %v, want good %t", by, err, good)
			}
		}
	}
	expect(map[*authority]bool{nil: false, clients: true, others: false})
	write(others)
	l.look()
	expect(map[*authority]bool{nil: false, clients: false, others: true})
}

func TestListenerTLSLooksEveryTwoSeconds(t *testing.T) {
	dir := t.TempDir()
	a := newAuthority(t, "a")
	a.certificate(dir)
	l, err := newListenerTLS(config.TLSListener{
		CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		go l.follow(ctx, time.NewTicker(lookEvery))
		made := l.now.Load()
		a.certificate(dir)
		time.Sleep(2*time.Second - time.Nanosecond)
		synctest.Wait()
		if l.now.Load() != made {
			t.Error("the files were looked at too soon")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if l.now.Load() == made {
			t.Error("the files were not looked at")
		}
		cancel()
		synctest.Wait()
	})
}

func TestListenerTLSRefusesUnusableFiles(t *testing.T) {
	dir := t.TempDir()
	newAuthority(t, "a").certificate(dir)
	empty := filepath.Join(dir, "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for want, l := range map[string]config.TLSListener{
		"cert_file with key_file " + key: {CertFile: empty, KeyFile: key},
		"empty.pem":                      {CertFile: cert, KeyFile: empty},
		"client_ca_file":                 {CertFile: cert, KeyFile: key, ClientCAFile: empty},
	} {
		if _, err := newListenerTLS(l, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", l, err, want)
		}
	}
}

// secureRig is a settled agent whose health checks are answered with and without
// TLS. text is its configuration with something added.
func secureRig(t *testing.T) (r *rig, a *authority, text func(added string) string) {
	t.Helper()
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r, a = newRig(t), newAuthority(t, "a")
	a.certificate(r.dir)
	text = func(added string) string {
		return base + "local: main/n1\n" + strings.TrimSuffix(listen(), "}\n") +
			", health_tls: {address: \"127.0.0.1:0\", cert_file: cert.pem, key_file: key.pem}}\n" + added + "clusters:\n" + clusterText("main", n1, n2)
	}
	r.write(text(""))
	r.up()
	r.settled("main", "n1", "n2")
	return r, a, text
}

// Both listeners answer; a reload changes whose answers they give and keeps the
// sockets.
func TestHealthChecksOverTLSBesideThePlainPort(t *testing.T) {
	r, a, text := secureRig(t)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: a.client(nil)}, Timeout: patience}
	defer client.CloseIdleConnections()
	secure := func(path string) int {
		res, err := client.Get("https://" + r.addr(partHealthTLS) + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	plain := func(path string) int {
		code, _ := r.get(partHealth, path)
		return code
	}
	at := r.addr(partHealthTLS)
	for health, unknown := range map[string]int{"": 404, "health: {compat: patroni4}\n": 503} {
		r.write(text(health))
		if err := r.reload(); err != nil {
			t.Fatal(err)
		}
		for _, get := range []func(string) int{secure, plain} {
			if p, u := get("/primary"), get("/nosuch"); p != 200 || u != unknown {
				t.Errorf("with %q /primary is %d and /nosuch %d, want 200 and %d", health, p, u, unknown)
			}
		}
	}
	if r.addr(partHealthTLS) != at {
		t.Error("a reload moved the listener")
	}
}

// A client without TLS on the TLS port is told so and counted, not logged.
func TestFailedHandshakesAreCounted(t *testing.T) {
	r, _, _ := secureRig(t)
	if code, _ := r.get(partHealthTLS, "/primary"); code != http.StatusBadRequest {
		t.Errorf("without TLS on the TLS port: %d, want 400", code)
	}
	r.until("the failed handshake to be counted", func() bool {
		return r.metric(`pgsteer_sink_events_total{event="failed_handshakes",sink="healthapi-tls"}`) == "1"
	})
	if strings.Contains(r.log.String(), "handshake") {
		t.Error("a failed handshake is logged")
	}
	if end := r.metric(`pgsteer_sink_present{sink="healthapi-tls",what="certificate_expires_timestamp_seconds"}`); end == "" || end == "0" {
		t.Errorf("the certificate's end is %q", end)
	}
}

// A configuration whose certificate cannot be used is refused before it runs.
func TestCheckReadsTheListenersCertificate(t *testing.T) {
	r, _, _ := secureRig(t)
	r.file("cert.pem", "no certificate")
	cfg, err := config.Load(r.path)
	if err := errors.Join(err, Check(cfg)); err == nil || !strings.Contains(err.Error(), "cert.pem") {
		t.Errorf("Check: %v, want the certificate's fault", err)
	}
}

func TestHealthSettings(t *testing.T) {
	cfg := config.Default()
	cfg.Local = config.NodeRef{Cluster: "main", Node: "n1"}
	want := healthapi.Settings{Local: healthapi.NodeRef{Cluster: "main", Node: "n1"}, Compat: healthapi.Strict, DrainStatus: 503}
	if got := healthSettings(cfg); got != want {
		t.Errorf("by default %+v, want %+v", got, want)
	}
	cfg.Health = config.Health{Compat: config.HealthPatroni3, DrainStatus: config.DrainNotFound}
	want.Compat, want.DrainStatus = healthapi.Patroni3, 404
	if got := healthSettings(cfg); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
