package xds

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// TestEnvoyFollowsItsCertificate: a certificate that is renewed by a link, as in a
// volume of Kubernetes, and an authority that is moved into place are used by a running
// Envoy for its next connection, and end no session.
func TestEnvoyFollowsItsCertificate(t *testing.T) {
	c, ca, dir := newCluster(t), newAuthority(t), t.TempDir()
	files := BootstrapTLS{
		CAFile: filepath.Join(dir, "ca.pem"), CertFile: filepath.Join(dir, "own.pem"), KeyFile: filepath.Join(dir, "own.key"),
		ServerName: "127.0.0.1", Secrets: dir,
	}
	for path, text := range files.SecretFiles() {
		place(t, path, text)
	}
	place(t, files.CAFile, ca.PEM())
	for _, name := range []string{"own.pem", "own.key"} {
		link(t, "..data/"+name, filepath.Join(dir, name))
	}
	renew := func() []byte {
		own, volume := issue(t, ca, "envoy-7"), t.TempDir()
		place(t, filepath.Join(volume, "own.pem"), own.pem.Cert)
		place(t, filepath.Join(volume, "own.key"), own.pem.Key)
		link(t, volume, filepath.Join(dir, "..data"))
		return own.pair.Certificate[0]
	}
	var wanted atomic.Value // the only certificate that the agent takes
	wanted.Store(renew())
	agent := func(by *lab.Authority, addr string) *rig {
		own, roots := issue(t, by, "127.0.0.1"), x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(ca.PEM()))
		return newRigAt(t, Options{Settings: c.settings, Views: c.rig.views, TLS: &tls.Config{
			MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{own.pair}, ClientCAs: roots, ClientAuth: tls.RequireAndVerifyClientCert,
			VerifyConnection: func(s tls.ConnectionState) error {
				if !slices.Equal(s.PeerCertificates[0].Raw, wanted.Load().([]byte)) {
					return errors.New("another certificate")
				}
				return nil
			},
		}}, addr)
	}
	c.rig.stop()
	c.rig = agent(ca, "127.0.0.1:0")
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{NodeID: "envoy-7", Servers: []topology.Address{mustParse(t, c.rig.addr)}, TLS: files})
	held := c.reachAll("n1", 5)

	c.rig.stop()
	wanted.Store(renew())
	c.rig = agent(ca, c.rig.addr)
	c.asked("after its certificate was renewed")
	c.live("after the certificate was renewed", held)

	c.rig.stop()
	next := newAuthority(t)
	place(t, files.CAFile, ca.PEM()+next.PEM())
	c.rig = agent(next, c.rig.addr)
	c.asked("after the agents' authority changed")
	c.live("after the authority changed", held)
	c.decide("", down, up)
	c.reach("n2")
}

// asked waits until Envoy is subscribed.
func (c *cluster) asked(when string) {
	c.t.Helper()
	until(c.t, "Envoy asks "+when, func() bool {
		s := c.rig.server.Status().Streams
		return len(s) == 1 && len(s[0].Types) == int(kinds)
	})
}

// issued is a certificate with its key.
type issued struct {
	pem  lab.Certificate
	pair tls.Certificate
}

func issue(t *testing.T, ca *lab.Authority, names ...string) issued {
	t.Helper()
	c, err := ca.Issue(names...)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair([]byte(c.Cert), []byte(c.Key))
	if err != nil {
		t.Fatal(err)
	}
	return issued{c, pair}
}

// link moves a link into place.
func link(t *testing.T, to, path string) {
	t.Helper()
	if err := errors.Join(os.Symlink(to, path+".new"), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}

// place moves a file into place, as whoever renews certificates does.
func place(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatal(err)
	}
}
