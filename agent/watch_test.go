package agent

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/postgres"
)

func TestPortsOfPools(t *testing.T) {
	pool := func(port uint16, check topology.PortCheck) topology.Pool {
		return topology.Pool{Port: port, PortCheck: check}
	}
	const none, connect, bouncer = topology.PortCheckNone, topology.PortCheckConnect, topology.PortCheckPgBouncer
	for _, c := range []struct {
		name  string
		pools []topology.Pool
		want  postgres.Ports
	}{
		{"no port", []topology.Pool{pool(0, connect), pool(0, bouncer)}, postgres.Ports{}},
		{"not checked", []topology.Pool{pool(6432, none)}, postgres.Ports{}},
		{"unsaid", []topology.Pool{pool(6432, "")}, postgres.Ports{6432: connect}},
		{"two ports", []topology.Pool{pool(6432, connect), pool(6433, bouncer)}, postgres.Ports{6432: connect, 6433: bouncer}},
		{"one port, the closer look first", []topology.Pool{pool(6432, bouncer), pool(6432, connect), pool(6432, none)}, postgres.Ports{6432: bouncer}},
		{"one port, the closer look last", []topology.Pool{pool(6432, none), pool(6432, connect), pool(6432, bouncer)}, postgres.Ports{6432: bouncer}},
	} {
		if d := cmp.Diff(c.want, portsOf(c.pools)); d != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, d)
		}
	}
}

// oneNode is a cluster of one node: a pool's port is one server at each host.
func oneNode(n *node, more ...string) string {
	return fmt.Sprintf("  main:\n    nodes: {n1: %s}\n", n.addr) + strings.Join(more, "")
}

// A reload exchanges the checked ports of probers that run on.
func TestPortsOfPoolsAreChecked(t *testing.T) {
	n1, front := newNode(t, primary), newNode(t, replica)
	_, port, err := net.SplitHostPort(front.addr)
	if err != nil {
		t.Fatal(err)
	}
	pools := func(settings string) string { return "    pools: {primary: {" + settings + "}, replica: {}}\n" }
	r := newRig(t)
	r.write(base, listen(), "clusters:\n", oneNode(n1, pools("port: "+port+", port_check: pgbouncer")))
	r.up()
	r.writer("main", "n1")
	r.until("queries through the port", func() bool { return front.Counts().Ones >= 2 && front.Counts().Sessions == 1 })
	sessions := n1.Counts().Sessions

	r.write(base, listen(), "clusters:\n", oneNode(n1))
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.until("the end of the checks", func() bool { return front.Open() == 0 })

	before := front.Counts()
	r.write(base, listen(), "clusters:\n", oneNode(n1, pools("port: "+port)))
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.until("a connection to the port", func() bool { return front.Counts().Dials > before.Dials })
	if after := front.Counts(); after.Logins != before.Logins {
		t.Errorf("%d logins by a check that only connects", after.Logins-before.Logins)
	}
	if n := n1.Counts().Sessions; n != sessions {
		t.Errorf("the reloads made %d new sessions at n1, want the probers to run on", n-sessions)
	}
}

func TestTheWriterIsWrittenTo(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.write("state_dir: state\npostgres: {user: probe, sslmode: disable, login_every: 1h, write_probe: pgsteer.heartbeat}\n", listen(),
		"clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	r.until("a write", func() bool { return n1.Counts().Writes > 0 })
	if n := n2.Counts().Writes; n != 0 {
		t.Errorf("%d writes to a standby", n)
	}
}

// A node that has a name is known by its address from there on (field report FR-29).
func TestNodeByName(t *testing.T) {
	n1 := newNode(t, primary)
	_, port, err := net.SplitHostPort(n1.addr)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.write(base, listen(), fmt.Sprintf("clusters:\n  main:\n    nodes: {n1: localhost:%s}\n", port))
	r.up()
	r.writer("main", "n1")
	n := r.view("main").Snapshot.Nodes[0]
	if n.Address.String() != n1.addr || n.HostName != "localhost" {
		t.Errorf("n1 is at %s by the name %q, want %s, localhost", n.Address, n.HostName, n1.addr)
	}
}
