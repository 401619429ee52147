package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// joinAgent starts a client agent of a server of the same lab.
func joinAgent(t *testing.T, server *lab.Consul) *lab.Consul {
	t.Helper()
	c, err := server.Client(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// realConsul starts a Consul with the keys of a cluster alpha that a leads.
func realConsul(t *testing.T, o lab.ConsulOptions) *lab.Consul {
	t.Helper()
	l := labtest.ForTest(t, lab.NeedConsul)
	c, err := l.ConsulWith(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	putScope(t, c, alpha, "a")
	return c
}

func putScope(t *testing.T, c *lab.Consul, prefix, leader string) {
	t.Helper()
	for key, value := range map[string]string{
		"leader": leader, "members/a": member("replica", "192.0.2.11:5432"), "members/b": member("replica", "192.0.2.12:5432"),
	} {
		if err := c.Put(t.Context(), prefix+key, value); err != nil {
			t.Fatal(err)
		}
	}
}

// newToken makes a token with rights in HCL.
func newToken(t *testing.T, c *lab.Consul, rules string) (id, secret string) {
	t.Helper()
	name := fmt.Sprintf("p%d", time.Now().UnixNano())
	policy, err := json.Marshal(map[string]string{"Name": name, "Rules": rules})
	if err != nil {
		t.Fatal(err)
	}
	call(t, c, "acl/policy", string(policy))
	out, err := c.API(t.Context(), http.MethodPut, "acl/token", fmt.Sprintf(`{"Policies":[{"Name":%q}]}`, name))
	if err != nil {
		t.Fatal(err)
	}
	var token struct{ AccessorID, SecretID string }
	if err := json.Unmarshal([]byte(out), &token); err != nil {
		t.Fatal(err)
	}
	return token.AccessorID, token.SecretID
}

// The life of a token: none, one without rights, the right one, and its end.
func TestTokensOfConsul(t *testing.T) {
	server := realConsul(t, lab.ConsulOptions{ACL: true})
	file := filepath.Join(t.TempDir(), "token")
	writeFile(t, file, []byte("1ab00000-0000-0000-0000-00000000dead"))
	obs := observe(t, newClient(t, ClientOptions{Address: server.Addr(), TokenFile: file}))
	denied := failed(topology.FailDenied)
	until(t, obs, 5*time.Second, "an unknown token is refused", denied)
	_, other := newToken(t, server, `key_prefix "service/beta/" { policy = "read" }`)
	writeFile(t, file, []byte(other))
	until(t, obs, 10*time.Second, "a token for other keys is denied by what is left out", func(o topology.Observation) bool {
		return denied(o) && strings.Contains(o.Failure.Text, "filtered by ACLs")
	})
	id, secret := newToken(t, server, `key_prefix "service/alpha/" { policy = "read" }`)
	writeFile(t, file, []byte(secret))
	until(t, obs, 5*time.Second, "the right token is used", leads("a"))
	if _, err := server.API(t.Context(), http.MethodDelete, "acl/token/"+id, ""); err != nil {
		t.Fatal(err)
	}
	until(t, obs, 10*time.Second, "the deleted token is refused", denied)
	_, secret = newToken(t, server, `key_prefix "service/" { policy = "read" }`)
	writeFile(t, file, []byte(secret))
	until(t, obs, 5*time.Second, "another one is used", leads("a"))

	anonymous := observe(t, newClient(t, ClientOptions{Address: server.Addr()}))
	until(t, anonymous, 5*time.Second, "without a token", denied)
}

func TestTLSOfConsul(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	ours, other := newAuthority(t), newAuthority(t)
	ours.write(t, path("ca"))
	other.write(t, path("other"))
	issue := func(file, name string, ca *authority) {
		cert, key := ca.issue(t, name)
		writeFile(t, path(file), cert)
		writeFile(t, path(file+".key"), key)
	}
	issue("server", "server.dc1.consul", ours)
	issue("client", "client", ours)
	issue("stranger", "client", other)
	server := realConsul(t, lab.ConsulOptions{CertFile: path("server"), KeyFile: path("server.key"), CAFile: path("ca")})
	options := func(ca, pair, name string) ClientOptions {
		o := ClientOptions{Address: "https://" + server.HTTPSAddr(), CAFile: path(ca), ServerName: name}
		if pair != "" {
			o.CertFile, o.KeyFile = path(pair), path(pair+".key")
		}
		return o
	}
	for _, c := range []struct {
		name string
		o    ClientOptions
		want topology.FailureClass // empty: it is let in
	}{
		{"right", options("ca", "client", "server.dc1.consul"), ""},
		{"another name", options("ca", "client", "server.dc2.consul"), topology.FailTLS},
		{"another authority", options("other", "client", "server.dc1.consul"), topology.FailTLS},
		{"no client certificate", options("ca", "", "server.dc1.consul"), topology.FailTLS},
		{"a stranger's client certificate", options("ca", "stranger", "server.dc1.consul"), topology.FailTLS},
	} {
		t.Run(c.name, func(t *testing.T) {
			ok := leads("a")
			if c.want != "" {
				ok = failed(c.want)
			}
			until(t, observe(t, newClient(t, c.o)), 10*time.Second, c.name, ok)
		})
	}
	// A certificate that was exchanged is used without a restart.
	obs := observe(t, newClient(t, options("ca", "stranger", "server.dc1.consul")))
	until(t, obs, 10*time.Second, "the stranger is refused", failed(topology.FailTLS))
	issue("stranger", "client", ours)
	until(t, obs, 10*time.Second, "with another certificate it is let in", leads("a"))
}

func TestDatacentersAndTenantsOfConsul(t *testing.T) {
	server := realConsul(t, lab.ConsulOptions{})
	for _, c := range []struct {
		name string
		o    ClientOptions
		text string // of the failure; empty: none
	}{
		{"its own datacenter", ClientOptions{Datacenter: "dc1"}, ""},
		{"another datacenter", ClientOptions{Datacenter: "elsewhere"}, "No path to datacenter"},
		{"a namespace", ClientOptions{Namespace: "team"}, "Namespaces are a Consul Enterprise feature"},
		{"a partition", ClientOptions{Partition: "az1"}, "Partitions are a Consul Enterprise feature"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Address = server.Addr()
			until(t, observe(t, newClient(t, c.o)), 5*time.Second, c.name, func(o topology.Observation) bool {
				if c.text == "" {
					return o.Failure == nil
				}
				return o.Failure != nil && o.Failure.Class == topology.FailStore && strings.Contains(o.Failure.Text, c.text)
			})
		})
	}
}

// observeCatalog runs a source over service pg.
func observeCatalog(t *testing.T, c *Client) <-chan topology.Observation {
	t.Helper()
	source, err := NewCatalog(CatalogOptions{Cluster: "main", Service: "pg", Client: c, Now: topology.NewTicker(time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out, done := make(chan topology.Observation, 1000), make(chan struct{})
	go func() {
		defer close(done)
		_ = source.Run(ctx, func(o topology.Observation) { out <- o })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return out
}
