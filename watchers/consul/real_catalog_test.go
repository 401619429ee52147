package consul

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

func lists(word string) func(topology.Observation) bool {
	return func(o topology.Observation) bool { return listed(o) == word }
}

func call(t *testing.T, c *lab.Consul, path, body string) {
	t.Helper()
	if _, err := c.API(t.Context(), http.MethodPut, path, body); err != nil {
		t.Fatal(err)
	}
}

func registerNode(t *testing.T, c *lab.Consul, n int, more string) {
	t.Helper()
	call(t, c, "catalog/register", fmt.Sprintf(`{"Node":"db%d","Address":"192.0.2.%d","Service":{"ID":"pg","Service":"pg","Port":5432%s}}`, n, n, more))
}

// Nodes that come, change, go and are all gone, in a real catalog.
func TestCatalogOfConsul(t *testing.T) {
	server := realConsul(t, lab.ConsulOptions{})
	obs := observeCatalog(t, newClient(t, ClientOptions{Address: server.Addr()}))
	const soon = 3 * time.Second
	until(t, obs, soon, "nothing is there", lists("(empty, confirmed true)"))
	registerNode(t, server, 1, "")
	until(t, obs, soon, "a node comes", lists("db1=192.0.2.1:5432"))
	registerNode(t, server, 2, `,"Tags":["replica","reports"],"Meta":{"zone":"b"},"Address":"2001:db8::2"`)
	until(t, obs, soon, "another one", lists("db1=192.0.2.1:5432 db2=[2001:db8::2]:5432,reports:true,zone:b"))
	registerNode(t, server, 2, `,"Tags":["primary"]`)
	until(t, obs, soon, "it changes", lists("db1=192.0.2.1:5432 db2=192.0.2.2:5432"))
	call(t, server, "catalog/deregister", `{"Node":"db1"}`)
	until(t, obs, soon, "one goes", lists("db2=192.0.2.2:5432"))
	if err := server.Freeze(); err != nil {
		t.Fatal(err)
	}
	if err := server.Thaw(); err != nil {
		t.Fatal(err)
	}
	call(t, server, "catalog/deregister", `{"Node":"db2","ServiceID":"pg"}`)
	until(t, obs, soon, "the last goes", lists("(empty, confirmed true)"))
}

// A restart of the server is told as a failure, and never as a shorter list.
func TestCatalogWhileConsulRestarts(t *testing.T) {
	server := realConsul(t, lab.ConsulOptions{})
	registerNode(t, server, 1, "")
	registerNode(t, server, 2, "")
	obs := observeCatalog(t, newClient(t, ClientOptions{Address: server.Addr()}))
	both := lists(twoNodes)
	until(t, obs, 3*time.Second, "both nodes", both)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	until(t, obs, 10*time.Second, "the dead server is noticed", failed(topology.FailRefused))
	if err := server.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, obs, 10*time.Second, "both nodes, and no list before", func(o topology.Observation) bool {
		if o.Nodes != nil && !both(o) {
			t.Errorf("told %s on the way", listed(o))
		}
		return both(o)
	})
}

// A client agent that is stopped takes its services with it, and brings them back:
// the list becomes shorter, and it is the engine that keeps who is missing.
func TestCatalogWhileAnAgentRestarts(t *testing.T) {
	server := realConsul(t, lab.ConsulOptions{})
	agent := joinAgent(t, server)
	registerNode(t, server, 1, "")
	call(t, agent, "agent/service/register", `{"ID":"pg","Name":"pg","Address":"192.0.2.9","Port":5432}`)
	obs := observeCatalog(t, newClient(t, ClientOptions{Address: server.Addr()}))
	both := lists("consul-2=192.0.2.9:5432 db1=192.0.2.1:5432")
	until(t, obs, 10*time.Second, "the agent's service", both)
	if err := agent.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, obs, 10*time.Second, "it left", lists(oneNode))
	if err := agent.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, obs, 30*time.Second, "it is back", both)
}

// What a token may not see is a failure, be it all or some.
func TestCatalogFilteredByConsul(t *testing.T) {
	server := realConsul(t, lab.ConsulOptions{ACL: true})
	registerNode(t, server, 1, "")
	registerNode(t, server, 2, "")
	file := filepath.Join(t.TempDir(), "token")
	give := func(rules string) {
		_, secret := newToken(t, server, rules)
		writeFile(t, file, []byte(secret))
	}
	give(`service "pg" { policy = "read" } node_prefix "" { policy = "read" }`)
	obs := observeCatalog(t, newClient(t, ClientOptions{Address: server.Addr(), TokenFile: file}))
	both := lists(twoNodes)
	until(t, obs, 5*time.Second, "both nodes", both)
	for name, rules := range map[string]string{
		"one Consul node":  `service "pg" { policy = "read" } node "db1" { policy = "read" }`,
		"no Consul node":   `service "pg" { policy = "read" }`,
		"no service":       `node_prefix "" { policy = "read" }`,
		"another one only": `service "other" { policy = "read" } node_prefix "" { policy = "read" }`,
	} {
		give(rules)
		// The query under way was perhaps put with the token before.
		registerNode(t, server, 9, "")
		three, denied := lists(twoNodes+" db9=192.0.2.9:5432"), failed(topology.FailDenied)
		done := false
		until(t, obs, 10*time.Second, name+": the first answer", func(o topology.Observation) bool {
			done = denied(o)
			return done || three(o)
		})
		call(t, server, "catalog/deregister", `{"Node":"db9"}`)
		for !done {
			until(t, obs, 10*time.Second, name, func(o topology.Observation) bool {
				if o.Nodes != nil {
					t.Errorf("%s: told %s", name, listed(o))
				}
				done = denied(o)
				return true
			})
		}
		give(`service "pg" { policy = "read" } node_prefix "" { policy = "read" }`)
		until(t, obs, 10*time.Second, "all rights again", both)
	}
}
