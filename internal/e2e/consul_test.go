package e2e

import (
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// consulConfig is a cluster whose nodes only Consul knows.
const consulConfig = `consul: {address: "http://%s"%s}
clusters:
  main: {authority: patroni, patroni: {scope: %s}}
`

// notReady waits until the agent runs and says why it is not ready, and fails
// the test for every word that status lacks.
func (r *rig) notReady(words ...string) {
	r.t.Helper()
	r.until("the agent to say that it is not ready", func() bool {
		code, body := r.get(r.status, "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "main")
	})
	r.until("status to say why", func() bool {
		text := r.statusText()
		for _, w := range words {
			if !strings.Contains(text, w) {
				return false
			}
		}
		return true
	})
	if code, body := r.get(r.status, "/livez"); code != http.StatusOK {
		r.t.Errorf("livez: %d %s", code, body)
	}
	if got := r.ask("main primary n1"); got != "" {
		r.t.Errorf("agent-check says %q of a name that nobody may know yet, want silence", got)
	}
}

// TestConsulOutOfReach: the agent starts, says what is wrong, and goes on by
// itself when Consul comes.
func TestConsulOutOfReach(t *testing.T) {
	r := newRig(t, lab.NeedConsul)
	consul, err := r.lab.Consul(t.Context())
	r.do(err)
	r.do(consul.Stop(t.Context()))
	r.configure(consulConfig, consul.Addr(), "", "main")
	r.up()
	r.notReady("authority patroni unknown", "stale: consul/main failing", consul.Addr(), "connection refused")
	r.do(consul.Start(t.Context()))
	r.do(consul.Put(t.Context(), "service/main/members/n1", `{"conn_url":"postgres://127.0.0.1:1/postgres","role":"replica","state":"running"}`))
	took := r.until("readiness", func() bool { code, _ := r.get(r.status, "/readyz"); return code == http.StatusOK })
	t.Logf("ready %s after Consul was there", took)
	if v := r.view("main"); len(v.Snapshot.Nodes) != 1 || v.Snapshot.Authority.State != topology.AuthorityStateCurrent {
		t.Errorf("nodes %v, authority %s; want n1 and current", v.Snapshot.Nodes, v.Snapshot.Authority.State)
	}
}

// TestConsulTokenFile: a token file that cannot be used is told before anything
// starts, with its place in the configuration.
func TestConsulTokenFile(t *testing.T) {
	r := newRig(t)
	for text, want := range map[string]string{"": "empty", "one\ntwo\n": "line", "-": "no such file"} {
		r.do(os.RemoveAll(r.file("token")))
		if text != "-" {
			r.replace("token", text)
		}
		r.configure(consulConfig, "127.0.0.1:8500", `, token_file: "`+r.file("token")+`"`, "main")
		_, err := agent.New(agent.Options{Load: func() (*config.Config, error) { return config.Load(r.path) }})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "pgsteer.yaml:3:") {
			t.Errorf("with the file %q the error is %v, want %q and the line", text, err, want)
		}
	}
}

// TestConsulScopeMissing: of a scope that does not exist nothing is invented.
func TestConsulScopeMissing(t *testing.T) {
	r := newRig(t, lab.NeedConsul)
	consul, err := r.lab.Consul(t.Context())
	r.do(err)
	r.configure(consulConfig, consul.Addr(), "", "mian")
	r.up()
	r.until("the authority's word", func() bool {
		v := r.view("main")
		return v != nil && v.Snapshot.Authority.State == topology.AuthorityStateCurrent
	})
	if v := r.view("main"); len(v.Snapshot.Nodes) != 0 || v.Snapshot.Writer != "" {
		t.Errorf("nodes %v, writer %q; want none", v.Snapshot.Nodes, v.Snapshot.Writer)
	}
	text := r.statusText()
	t.Log(text)
	if want := "no node is known: consul/mian lists none"; !strings.Contains(text, want) {
		t.Errorf("status does not say %q", want)
	}
	if got := r.ask("main primary n1"); !strings.HasPrefix(got, "down #unknown") {
		t.Errorf("agent-check says %q of a node that nobody lists, want down #unknown", got)
	}
}
