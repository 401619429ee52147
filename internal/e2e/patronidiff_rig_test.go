package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// diffRig is a Patroni cluster and others beside it on one Consul, with two agents:
// one that answers as a release of Patroni does, and a strict one.
type diffRig struct {
	t        *testing.T
	whole    *testing.T
	release  string // of Patroni, as in lab.PatroniOptions
	v4       bool
	lab      *lab.Lab
	consul   *lab.Consul
	clusters map[string]*lab.Patroni // by scope; "main" is always there
	agents   map[string]*rig         // by mode
	secure   map[string]string       // addresses of the agents' listeners with TLS, by mode
	identity identity
	manual   []intended
	want     map[string]string // rows of the present state, by node
	gone     bool              // Consul is away
	results  []result
}

// modes are the two ways in which an agent answers.
const (
	strict = "strict"
	compat = "compat"
)

// newDiffRig starts Consul.
func newDiffRig(t *testing.T, release string) *diffRig {
	t.Helper()
	needs := []string{lab.NeedConsul, lab.NeedPatroni}
	if release != "" {
		needs[1] = lab.NeedPatroni4
	}
	r := newRig(t, needs...)
	d := &diffRig{
		t: t, whole: t, release: release, v4: release != "", lab: r.lab, manual: readManual(t), identity: newIdentity(t, r.lab.Dir()),
		agents: map[string]*rig{strict: r, compat: r.beside()}, secure: map[string]string{strict: r.addr(), compat: r.addr()},
		clusters: map[string]*lab.Patroni{},
	}
	var err error
	d.consul, err = d.lab.Consul(t.Context())
	d.do(err)
	return d
}

// agentsUp starts the agents, beside the clusters that there are.
func (d *diffRig) agentsUp() {
	d.t.Helper()
	for mode, r := range d.agents {
		d.configure(mode, local)
		r.up()
	}
}

// begin starts clusters, all at once. The agents learn of them with the next local.
func (d *diffRig) begin(all ...lab.PatroniOptions) {
	d.t.Helper()
	started := make([]*lab.Patroni, len(all))
	var g errgroup.Group
	for i, o := range all {
		o.Consul, o.Release = d.consul, d.release
		g.Go(func() (err error) {
			started[i], err = d.lab.Patroni(d.t.Context(), o)
			return err
		})
	}
	d.do(g.Wait())
	for i, o := range all {
		d.clusters[o.Scope] = started[i]
	}
}

// running waits until clusters have a leader and all their nodes run.
func (d *diffRig) running(scopes ...string) {
	d.t.Helper()
	for _, s := range scopes {
		d.do(d.clusters[s].WaitRunning(d.t.Context()))
	}
}

// beside returns another rig in the same lab.
func (r *rig) beside() *rig {
	r.t.Helper()
	b := &rig{t: r.t, lab: r.lab, path: filepath.Join(r.lab.Dir(), "beside", "pgsteer.yaml")}
	for _, a := range []*string{&b.check, &b.health, &b.status, &b.xds} {
		*a = b.addr()
	}
	b.do(os.MkdirAll(filepath.Dir(b.path), 0o755))
	r.t.Cleanup(b.down)
	return b
}

// configure writes the configuration of an agent. Its policy waits for little:
// Patroni waits for nothing, and settled states are what is compared.
func (d *diffRig) configure(mode, local string) {
	d.t.Helper()
	r, as := d.agents[mode], strict
	if mode == compat {
		as = "patroni" + cmp.Or(d.release, "3")[:1]
	}
	const policy = `{return_after: 100ms, streaming_grace: 1s, paused_grace: 1s, lag_grace: 100ms, lag_return_after: 100ms,
      min_dwell: 100ms, slow_start: 0s, flap: {count: 0}}`
	text := fmt.Sprintf(`state_dir: %s
local: %s
health: {compat: %s}
listen: {agent_check: %q, health: %q, status: %q, xds: %q, health_tls: {address: %q, cert_file: %q, key_file: %q, client_ca_file: %[12]q}}
consul: {address: "http://%[11]s"}
clusters:
`, filepath.Join(filepath.Dir(r.path), "state"), local, as, r.check, r.health, r.status, r.xds,
		d.secure[mode], d.identity.certFile, d.identity.keyFile, d.consul.Addr(), d.identity.caFile)
	for scope, c := range d.clusters {
		secret := filepath.Join(filepath.Dir(r.path), scope+".pw")
		d.do(os.WriteFile(secret, []byte(c.Password(c.ProbeUser())), 0o600))
		text += fmt.Sprintf("  %s: {authority: patroni, postgres: {user: %s, password_file: %q}, policy: %s}\n", scope, c.ProbeUser(), secret, policy)
	}
	d.do(os.WriteFile(r.path+".new", []byte(text), 0o600))
	d.do(os.Rename(r.path+".new", r.path))
}

// local has both agents answer the short paths for another node.
func (d *diffRig) local(node string) {
	d.t.Helper()
	for mode, r := range d.agents {
		d.configure(mode, node)
		d.do(r.agent.Reload(d.t.Context()))
	}
}

func (d *diffRig) do(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// step runs a part of the test; parts that follow go on from where it ended.
func (d *diffRig) step(name string, part func()) {
	d.whole.Helper()
	d.whole.Run(name, func(t *testing.T) {
		d.t = t
		for _, r := range d.agents {
			r.t = t
		}
		defer func() {
			d.t = d.whole
			for _, r := range d.agents {
				r.t = d.whole
			}
		}()
		begin := time.Now()
		part()
		t.Logf("done after %s", time.Since(begin).Round(time.Millisecond))
	})
}

// until waits for something that Patroni or PostgreSQL must come to.
func (d *diffRig) until(what string, ok func() bool) {
	d.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); {
		if <-tick.C; time.Now().After(end) {
			d.t.Fatalf("waited %s for %s", patience, what)
		}
	}
}

// node finds a node by "main/n1".
func (d *diffRig) node(ref string) *lab.PatroniNode {
	scope, name, _ := strings.Cut(ref, "/")
	return d.clusters[scope].Node(name)
}

// nodes does the same to several nodes at once.
func (d *diffRig) nodes(refs []string, do func(*lab.PatroniNode) error) {
	d.t.Helper()
	var g errgroup.Group
	for _, ref := range refs {
		g.Go(func() error { return do(d.node(ref)) })
	}
	d.do(g.Wait())
}

// dynamic changes the dynamic configuration of a cluster.
func (d *diffRig) dynamic(scope, body string) {
	d.t.Helper()
	_, err := d.node(scope+"/n1").REST(d.t.Context(), http.MethodPatch, "/config", body)
	d.do(err)
}

// tag replaces a node's tags.
func (d *diffRig) tag(ref string, tags map[string]any) {
	d.t.Helper()
	d.do(d.node(ref).Reconfigure(func(c map[string]any) { c["tags"] = tags }))
}

// exec runs statements as superuser.
func (d *diffRig) exec(ref string, statements ...string) {
	d.t.Helper()
	c, err := d.node(ref).Conn(d.t.Context())
	d.do(err)
	defer func() { _ = c.Close(context.Background()) }()
	for _, s := range statements {
		_, err := c.Exec(d.t.Context(), s)
		d.do(err)
	}
}

// text is the single value that a query returns, "" when it fails.
func (d *diffRig) text(ref, query string) (value string) {
	ctx, cancel := context.WithTimeout(d.t.Context(), 5*time.Second)
	defer cancel()
	c, err := d.node(ref).Conn(ctx)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close(context.Background()) }()
	if c.QueryRow(ctx, query).Scan(&value) != nil {
		return ""
	}
	return value
}

// consulDo sends a request to Consul and decodes the answer, if into is not nil.
func (d *diffRig) consulDo(method, path, body string, into any) {
	d.t.Helper()
	if !d.consulAsk(method, path, body, into) {
		d.t.Fatalf("%s %s fails", method, path)
	}
}

// consulAsk is consulDo that may fail.
func (d *diffRig) consulAsk(method, path, body string, into any) bool {
	raw := fmt.Sprintf("%s /v1/%s HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", method, path, len(body), body)
	r := tell(d.consul.Addr(), raw, 5*time.Second)
	return r.status == http.StatusOK && !strings.HasPrefix(string(r.body), "false") && (into == nil || json.Unmarshal(r.body, into) == nil)
}

// leaderKey is a cluster's leader key, without a session when there is none.
func (d *diffRig) leaderKey(scope string) entry {
	var keys []entry
	if !d.consulAsk(http.MethodGet, "kv/service/"+scope+"/leader", "", &keys) || len(keys) == 0 {
		return entry{}
	}
	return keys[0]
}

// touch changes the flags of the leader keys, which means nothing to Patroni and
// makes pgsteer read all keys now, not within its ten seconds.
func (d *diffRig) touch() {
	for scope := range d.clusters {
		if e := d.leaderKey(scope); e.Session != "" {
			d.consulAsk(http.MethodPut, fmt.Sprintf("kv/%s?acquire=%s&flags=%d", e.Key, e.Session, e.Flags+1), string(e.Value), nil)
		}
	}
}
