package xds

import (
	"crypto/tls"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// databaseName is the name in the nodes' certificates.
const databaseName = "db.example.org"

func newAuthority(t *testing.T) *lab.Authority {
	t.Helper()
	ca, err := lab.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// newSecureBackend takes sessions as PostgreSQL 17 takes those that begin with TLS:
// with its ALPN word or not at all. It tells by which name it was asked for last.
func newSecureBackend(t *testing.T, ca *lab.Authority, name string, asked *atomic.Value) *backend {
	t.Helper()
	own := issue(t, ca, name, databaseName)
	const protocol = "postgresql"
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own.pair}, NextProtos: []string{protocol},
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			asked.Store(h.ServerName)
			if !slices.Equal(h.SupportedProtos, []string{protocol}) {
				return nil, fmt.Errorf("a client speaks %q", h.SupportedProtos)
			}
			return nil, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return newBackendAt(t, name, ln)
}

// TestEnvoySpeaksTLSToNodes: with server_ca_file Envoy begins with TLS, asks by the
// name that is set and lets sessions through to certificates that it trusts and to
// no others; its questions to the agent stay in the clear. Another authority or
// another name ends no session that is there.
func TestEnvoySpeaksTLSToNodes(t *testing.T) {
	for _, mode := range []resources.Sessions{resources.SessionsDrain, resources.SessionsHealthCheck} {
		t.Run(string(mode), func(t *testing.T) {
			findEnvoy(t)
			ca := newAuthority(t)
			secure := resources.ServerTLS{CA: ca.PEM(), Name: databaseName}
			var asked atomic.Value
			c := newClusterOf(t, mode, secure, newSecureBackend(t, ca, "n1", &asked), newSecureBackend(t, ca, "n2", &asked))
			c.decide("", up, down)
			startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
			held := c.reachAll("n1", 5)
			same(t, "name that is asked for", databaseName, asked.Load().(string))
			for what, bad := range map[string]resources.ServerTLS{
				"another authority": {CA: newAuthority(t).PEM(), Name: databaseName},
				"another name":      {CA: ca.PEM(), Name: "other.example.org"},
				"an address":        {CA: ca.PEM(), Name: "127.0.0.9"},
			} {
				other := c.settings
				other.ServerTLS = bad
				c.rig.server.Reconfigure(other)
				c.closed()
				c.live("with "+what, held)
				c.rig.server.Reconfigure(c.settings)
				held = append(held, c.reach("n1"))
			}
			if held := c.rig.server.Status().Held; len(held) > 0 {
				t.Errorf("listeners are held back: %v", held)
			}
			if mode == resources.SessionsHealthCheck {
				// Of sessions from before a change of the cluster Envoy asks nobody any more.
				held = c.reachAll("n1", 5)
			}
			c.decide("", down, up)
			c.cut(held, time.Now())
			c.reach("n2")
		})
	}
}
