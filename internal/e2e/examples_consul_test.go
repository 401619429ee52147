package e2e

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// The files of examples/consul-mesh, as a user would copy them: an agent and a
// sidecar at each node, and an application whose upstreams name roles. Everything
// follows a switchover; a session that was there stays where it is, which a mesh
// cannot change; and with no replica left the reads reach the primary.
func TestExampleConsulMesh(t *testing.T) {
	t.Parallel()
	m := newConsulMesh(t)
	m.local()
	m.app()
	m.leads("n1")
	m.reads("n2", "n3")
	held := m.session(m.write, m.node("n1").Port())
	t.Logf("after a switchover, since the decision: %v", m.moved("n2"))
	m.leads("n2")
	m.reads("n1", "n3")
	if port := serverPort(held); port != 0 && port != m.node("n1").Port() {
		t.Errorf("a held session is at port %d", port)
	}
	for _, name := range []string{"n1", "n3"} {
		m.do(m.node(name).Kill())
	}
	m.reads("n2")
}

// leads wants every way to lead to a node, and goes on to want it for a while.
func (m *consulMesh) leads(node string) {
	m.t.Helper()
	port := strconv.Itoa(m.node(node).Port())
	for way, ask := range m.answers() {
		m.until(way+" leads to "+node, func() bool { return ask() == port })
	}
	m.during(500*time.Millisecond, "all lead there", func() bool {
		for _, ask := range m.answers() {
			if ask() != port {
				return false
			}
		}
		return true
	})
}

// One agent publishes databases that have neither Consul agents nor sidecars, and a
// terminating gateway reaches them: upstreams choose by role there too. What differs is
// a subset whose instances are all critical: the gateway's Envoy uses it all the same.
func TestConsulGateway(t *testing.T) {
	t.Parallel()
	m := newConsulMesh(t)
	m.agents = []*rig{m.rig}
	m.replace("operator.token", operator+"\n")
	m.configure("maintenance: {admin_token_file: operator.token}\n%s", m.configuration("mode: local, sidecar: true", "mode: external", "local: main/n1\n", ""))
	m.initialize("--gateway", "pg-gateway")
	m.up()
	m.proxy("gateway.sh", m.addr(), nil)
	m.app()
	m.leads("n1")
	m.reads("n2", "n3")
	t.Logf("after a switchover, since the decision: %v", m.moved("n2"))
	m.leads("n2")
	m.reads("n1", "n3")
	for _, out := range []string{"n1", "n3"} {
		m.maintained("POST", "main/"+out, `{"reason":"kernel","force":true}`)
		m.is("main", "replica", out, topology.Drain, topology.CodeMaintenance)
	}
	for _, name := range []string{"replica.main.service", "main-ro.query"} {
		m.until(name+" leads where the read pool falls back to", func() bool { return m.named(name) == strconv.Itoa(m.node("n2").Port()) })
	}
	m.during(time.Second, "reads go on", func() bool { return m.reached(m.read) != 0 && m.reached(m.read) != m.node("n2").Port() })
}

// BenchmarkConsulGap is the time from a decision to the first answer that leads to
// the new primary: of DNS, of a prepared query, and of a new session through an
// upstream of the service mesh, each asked every 2 ms. An iteration is a switchover.
func BenchmarkConsulGap(b *testing.B) {
	m := newConsulMesh(b)
	m.local()
	m.app()
	m.leads("n1")
	took := make(map[string][]time.Duration)
	next := "n2"
	for b.Loop() {
		for way, d := range m.moved(next) {
			took[way] = append(took[way], d)
		}
		next = map[string]string{"n1": "n2", "n2": "n1"}[next]
	}
	b.ReportMetric(0, "ns/op") // the switchover itself
	for way, all := range took {
		slices.Sort(all)
		for _, q := range []int{50, 99} {
			b.ReportMetric(all[min(len(all)*q/100, len(all)-1)].Seconds()*1000, way+"-p"+strconv.Itoa(q)+"-ms")
		}
	}
}
