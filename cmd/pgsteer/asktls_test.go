package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// The agent is asked over TLS by --ca-file, with one's own certificate if there is one.
func TestAskOverTLS(t *testing.T) {
	dir := t.TempDir()
	issue := func(name string) (authority, cert, key string) {
		t.Helper()
		a, err := lab.NewAuthority()
		if err != nil {
			t.Fatal(err)
		}
		c, err := a.Issue("127.0.0.1", "localhost")
		if err != nil {
			t.Fatal(err)
		}
		for file, text := range map[string]string{name + ".ca": a.PEM(), name + ".crt": c.Cert, name + ".key": c.Key} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		base := filepath.Join(dir, name)
		return base + ".ca", base + ".crt", base + ".key"
	}
	ca, cert, key := issue("ours")
	otherCA, otherCert, otherKey := issue("theirs")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := os.ReadFile(ca)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			who = r.TLS.PeerCertificates[0].Subject.CommonName
		}
		_, _ = io.WriteString(w, `{"records":[],"trouble":"seen as `+who+`"}`)
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12}
	srv.StartTLS()
	defer srv.Close()
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--ca-file", ca, "--cert-file", cert, "--key-file", key}, 0, "seen as 127.0.0.1"},
		{[]string{"--ca-file", ca}, 0, "seen as nobody"},
		{[]string{"--ca-file", otherCA}, 1, "is not one that --ca-file " + otherCA + " signs"},
		{[]string{"--ca-file", ca, "--cert-file", otherCert, "--key-file", otherKey}, 1, "it refuses --cert-file " + otherCert},
		{[]string{"--ca-file", ca, "--cert-file", otherCert, "--key-file", key}, 1, "--cert-file " + otherCert + " with --key-file " + key},
		{[]string{"--ca-file", key}, 1, "there is no certificate in " + key},
		{[]string{"--ca-file", filepath.Join(dir, "none")}, 1, "none: no such file"},
		{nil, 1, "400"},
	} {
		var out, err bytes.Buffer
		args := append([]string{"maintenance", "list", "--address", srv.Listener.Addr().String()}, tt.args...)
		if code := run(args, streams{&out, &err}); code != tt.code || !strings.Contains(out.String()+err.String(), tt.want) {
			t.Errorf("%v: %d %s%s, want %d %q", tt.args, code, &out, &err, tt.code, tt.want)
		}
		if strings.Contains(err.String(), "is it running") {
			t.Errorf("%v: a fault of files is told as an agent's: %s", tt.args, &err)
		}
	}
}
