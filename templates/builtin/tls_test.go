package builtin_test

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/templates/render"
)

// certificate is one for 127.0.0.1 that signed itself, and its PEM file with key.
func certificate(t *testing.T) (cert tls.Certificate, file string) {
	t.Helper()
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	cert = server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	text = append(text, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	file = filepath.Join(t.TempDir(), "it's a $HOME #1.pem") // a path is data
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return cert, file
}

// Clients and nodes that begin with TLS (PostgreSQL 17's sslnegotiation=direct,
// with ALPN "postgresql") are served, and nobody else is.
func TestServesTLSFromTheFirstByte(t *testing.T) {
	cert, file := certificate(t)
	nodes := snapshot("main", 3, "").Nodes
	for i, n := range nodes {
		say := saying(n.Name)
		nodes[i].Address = addressOf(answering(t, "tcp4", func(c net.Conn) {
			s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"postgresql"}})
			if s.Handshake() == nil && s.ConnectionState().NegotiatedProtocol == "postgresql" {
				say(s)
			}
		}))
	}
	s := &served{primary: free(t)}
	s.on(t, snapshotOf("main", nodes, "n1"), render.Settings{
		Agent:   answering(t, "tcp4", s.agent.answer),
		Listen:  map[render.PoolID][]netip.AddrPort{{Cluster: "main", Pool: "primary"}: {s.primary}},
		Options: render.Options{AgentInterval: 50 * time.Millisecond, BindCertificate: file, ServerCAFile: file},
	})
	s.agent.set(map[string]string{"n1": "down", "n2": "up 100%", "n3": "down"}, nil, "down #writer n2")
	s.start(t)

	roots := x509.NewCertPool()
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(leaf)
	eventually(t, "a client that begins with TLS reaches n2", func() bool {
		d := &net.Dialer{Timeout: time.Second}
		c, err := tls.DialWithDialer(d, "tcp", s.primary.String(), &tls.Config{RootCAs: roots, NextProtos: []string{"postgresql"}})
		if err != nil {
			return false
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		line, _ := bufio.NewReader(c).ReadString('\n')
		return strings.TrimSpace(line) == "n2" && c.ConnectionState().NegotiatedProtocol == "postgresql"
	})
	if got := ask(s.primary); got != "" {
		t.Errorf("a client without TLS got %q", got)
	}
}
