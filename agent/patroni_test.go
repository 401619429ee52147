package agent

import (
	"crypto/tls"
	"fmt"
	golog "log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/patronitest"
)

// patroniRig is an agent without any Consul, on two scripted servers and their
// Patroni, whose certificate a test may exchange.
type patroniRig struct {
	*rig
	cluster *patronitest.Cluster
	nodes   map[string]*node
	cert    atomic.Pointer[tls.Certificate]
	urls    []string
}

func newPatroniRig(t *testing.T, ca *authority) *patroniRig {
	t.Helper()
	p := &patroniRig{
		rig: newRig(t), cluster: patronitest.New("prod", "n1", "n2"),
		nodes: map[string]*node{"n1": newNode(t, primary), "n2": newNode(t, replica)},
	}
	p.present(ca)
	p.cluster.Member(func(m *patronitest.Member) { m.SystemID, m.Timeline = "7", 1 })
	for _, name := range []string{"n1", "n2"} {
		srv := httptest.NewUnstartedServer(p.cluster.Handler(name))
		srv.Config.ErrorLog = golog.New(t.Output(), "", 0)
		srv.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{Certificates: []tls.Certificate{*p.cert.Load()}, MinVersion: tls.VersionTLS12}, nil
		}, MinVersion: tls.VersionTLS12}
		srv.StartTLS()
		t.Cleanup(srv.Close)
		p.urls = append(p.urls, srv.URL)
		at, err := topology.ParseAddress(p.nodes[name].addr)
		if err != nil {
			t.Fatal(err)
		}
		p.cluster.Change(func(s *patronitest.Store) {
			s.History = "[]"
			s.Members[name] = patronitest.Entry{APIURL: srv.URL + "/patroni", Host: at.Host, Port: int(at.Port), State: "running", Timeline: 1}
		})
	}
	return p
}

// present exchanges the certificate of both members.
func (p *patroniRig) present(ca *authority) {
	pair := ca.server("127.0.0.1")
	p.cert.Store(&pair)
}

func (p *patroniRig) authority(state string) {
	p.t.Helper()
	p.until("the authority to be "+state, func() bool {
		v := p.view("main")
		return v != nil && v.Snapshot.Authority.State == state
	})
}

// Nodes and leader come from the members' REST interface alone.
func TestPatroniREST(t *testing.T) {
	ours, next := newAuthority(t, "ours"), newAuthority(t, "next")
	p := newPatroniRig(t, ours)
	root := p.file("ca.pem", ours.pem())
	write := func(consul string) {
		p.write(base, listen(), fmt.Sprintf(`consul: {address: %q}
clusters:
  main:
    authority: patroni
    patroni: {source: rest, scope: prod, endpoints: [%q], ca_file: %s}
`, consul, p.urls[0], filepath.Base(root)))
	}
	write("http://127.0.0.1:1")
	p.up()
	p.settled("main", "n1", "n2")
	p.authority(topology.AuthorityStateCurrent)
	if text := p.statusText(); !strings.Contains(text, "patroni current, names n1") {
		t.Errorf("status:\n%s", text)
	}

	// Consul is no matter of this cluster, so another one restarts nothing.
	write("http://127.0.0.1:2")
	if err := p.reload(); err != nil {
		t.Fatal(err)
	}
	if l := p.log.String(); !strings.Contains(l, `msg="configuration taken" started="" stopped=""`) {
		t.Errorf("the reload restarted something: %s", l)
	}

	// Another certificate than one of ours: the authority is lost, and nobody is cut.
	p.present(next)
	p.authority(topology.AuthorityStateLost)
	if w := p.view("main").Snapshot.Writer; w != "n1" {
		t.Errorf("the writer is %q while Patroni's certificate is wrong, want n1", w)
	}
	if text := p.statusText(); !strings.Contains(text, "certificate signed by unknown authority") {
		t.Errorf("status does not say why:\n%s", text)
	}
	if err := os.WriteFile(root, []byte(next.pem()), 0o600); err != nil {
		t.Fatal(err)
	}
	p.authority(topology.AuthorityStateCurrent)

	// A switchover.
	demoted, promoted := replica, primary
	demoted.Timeline, promoted.Timeline = 2, 2
	p.nodes["n1"].Set(func(s *pgState) { s.Probe = demoted })
	p.nodes["n2"].Set(func(s *pgState) { s.Probe = promoted })
	p.cluster.Lead("n2")
	p.settled("main", "n2", "n1")
}

// Files that cannot be used are faults of the configuration.
func TestPatroniRESTRefusesFiles(t *testing.T) {
	for name, keys := range map[string]string{
		"ca_file":   `ca_file: bad.pem`,
		"cert_file": `cert_file: bad.pem, key_file: bad.pem`,
	} {
		r := newRig(t)
		r.file("bad.pem", "no certificate")
		r.write(base, listen(), fmt.Sprintf(`clusters:
  main: {authority: patroni, patroni: {source: rest, endpoints: ["https://127.0.0.1:1"], %s}}
`, keys))
		if _, err := r.new(); err == nil || !strings.Contains(err.Error(), name+" of Patroni") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
