package agent

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// consulRig is a rig with a fake Consul, in whose catalog nodes are.
type consulRig struct {
	*rig
	consul *consultest.Agent
	url    string
}

func newConsulRig(t *testing.T) *consulRig {
	t.Helper()
	r := &consulRig{rig: newRig(t), consul: consultest.New()}
	srv := httptest.NewServer(r.consul)
	t.Cleanup(srv.Close)
	r.url = srv.URL
	// Before the server is closed, which waits for the answers to held queries.
	t.Cleanup(func() { r.down(); r.consul.Stop() })
	return r
}

func (r *consulRig) register(service, name string, n *node, tags ...string) {
	r.t.Helper()
	at, err := topology.ParseAddress(n.addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.consul.Register(consultest.Service{
		Node: "host", Address: at.Host, ServiceID: service + "/" + name, ServiceName: service, ServicePort: int(at.Port), ServiceTags: tags,
	})
}

func (r *consulRig) configure(more string, clusters ...string) {
	r.t.Helper()
	text := fmt.Sprintf("consul: {address: %q%s}\nclusters:\n", r.url, more)
	for _, c := range clusters {
		text += fmt.Sprintf("  %s: {consul_service: {name: %s, node_names: id}}\n", c, c)
	}
	r.write(base, listen(), text)
}

// The instances of a service are probed and served like nodes that are listed.
func TestNodesOutOfConsul(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newConsulRig(t)
	r.register("main", "n1", n1, "primary")
	r.configure("", "main")
	r.up()
	r.writer("main", "n1")
	r.register("main", "n2", n2, "replica", "zone=b")
	r.settled("main", "n1", "n2")
	nodes := r.view("main").Snapshot.Nodes
	if len(nodes) != 2 || nodes[1].Tags["zone"] != "b" || len(nodes[0].Tags) != 0 {
		t.Errorf("nodes are %+v", nodes)
	}
	// A Consul that is away changes nothing.
	r.consul.Stop()
	r.until("the failure", func() bool { return r.metric(`pgsteer_source_up{cluster="main",source="catalog/main"}`) == "0" })
	r.settled("main", "n1", "n2")
}

// Clusters that come with a reload share the client of those that run; a changed
// address gives all of them another one.
func TestClustersShareOneConsulClient(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newConsulRig(t)
	for _, service := range []string{"main", "other"} {
		r.register(service, "n1", n1)
		r.register(service, "n2", n2)
	}
	r.configure("", "main")
	r.up()
	r.settled("main", "n1", "n2")
	client := func() any {
		if len(r.agent.consuls) == 0 {
			t.Fatal("there is no client")
		}
		cfg := r.agent.cfg.Load()
		return r.agent.consuls[madeOf(cfg)]
	}
	first := client()
	r.configure("", "main", "other")
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.settled("other", "n1", "n2")
	if client() != first || len(r.agent.consuls) != 1 {
		t.Errorf("%d clients after a cluster came, want the same one", len(r.agent.consuls))
	}
	r.configure(", datacenter: dc2", "main", "other")
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	if client() == first {
		t.Error("the client is the same after its settings changed")
	}
	r.until("a request for the other datacenter", func() bool {
		all := r.consul.Requests()
		return all[len(all)-1].Query.Get("dc") == "dc2"
	})
	r.configure(", ca_file: missing.pem", "main")
	if err := r.reload(); err == nil {
		t.Error("a missing file is taken")
	}
	r.settled("main", "n1", "n2")
}
