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
	"sync"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// diffRig is a Patroni cluster and a standby cluster of it on one Consul, with two
// agents beside them: one that answers as a release of Patroni does, and a strict one.
type diffRig struct {
	t       *testing.T
	whole   *testing.T
	version string // of Patroni
	v4      bool
	lab     *lab.Lab
	consul  *lab.Consul
	main    *lab.Patroni
	far     *lab.Patroni
	agents  map[string]*rig // by mode
	manual  []intended
	want    map[string]string // rows of the present state, by node
	gone    bool              // Consul is away
	results []result
}

// modes are the two ways in which an agent answers.
const (
	strict = "strict"
	compat = "compat"
)

// newDiffRig starts n1 of the main cluster alone, and the agents.
func newDiffRig(t *testing.T, release string) *diffRig {
	t.Helper()
	needs := []string{lab.NeedConsul, lab.NeedPatroni}
	if release != "" {
		needs[1] = lab.NeedPatroni4
	}
	r := newRig(t, needs...)
	d := &diffRig{t: t, whole: t, version: cmp.Or(release, "3"), v4: release != "", lab: r.lab, manual: readManual(t), agents: map[string]*rig{strict: r}}
	var err error
	d.consul, err = d.lab.Consul(t.Context())
	d.do(err)
	d.main, err = d.lab.Patroni(t.Context(), lab.PatroniOptions{
		Consul: d.consul, Release: release, Nodes: 3, Idle: 2, Tags: map[string]map[string]any{
			"n2": {"zone": "b", "weight": 10, "ratio": 1.4, "fast": true, "slow": false},
			"n3": {"nofailover": true, "nosync": true},
		},
	})
	d.do(err)
	d.agents[compat] = r.beside()
	for mode := range d.agents {
		d.configure(mode, "main/n1")
		d.agents[mode].up()
	}
	return d
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
		as = "patroni" + d.version[:1]
	}
	const policy = `{return_after: 100ms, streaming_grace: 1s, paused_grace: 1s, lag_grace: 100ms, lag_return_after: 100ms,
      min_dwell: 100ms, slow_start: 0s, flap: {count: 0}}`
	secret := d.main.Password(d.main.ProbeUser())
	text := fmt.Sprintf(`state_dir: %s
local: %s
health: {compat: %s}
listen: {agent_check: %q, health: %q, status: %q, xds: %q}
consul: {address: "http://%s"}
postgres: {user: %s, password_file: %q}
clusters:
  main: {authority: patroni, policy: %s}
  far: {authority: patroni, policy: %s}
`, filepath.Join(filepath.Dir(r.path), "state"), local, as, r.check, r.health, r.status, r.xds, d.consul.Addr(),
		d.main.ProbeUser(), r.password(secret), policy, policy)
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
	cluster, name, _ := strings.Cut(ref, "/")
	if cluster == "far" {
		return d.far.Node(name)
	}
	return d.main.Node(name)
}

// nodes does the same to several nodes at once.
func (d *diffRig) nodes(refs []string, do func(*lab.PatroniNode) error) {
	d.t.Helper()
	errs := make([]error, len(refs))
	var wg sync.WaitGroup
	for i, ref := range refs {
		wg.Go(func() { errs[i] = do(d.node(ref)) })
	}
	wg.Wait()
	for _, err := range errs {
		d.do(err)
	}
}

// dynamic changes the dynamic configuration of both clusters.
func (d *diffRig) dynamic(body string) {
	d.t.Helper()
	for _, ref := range []string{"main/n1", "far/n1"} {
		_, err := d.node(ref).REST(d.t.Context(), http.MethodPatch, "/config", body)
		d.do(err)
	}
}

// tag replaces a node's tags.
func (d *diffRig) tag(ref string, tags map[string]any) {
	d.t.Helper()
	d.do(d.node(ref).Reconfigure(d.t.Context(), func(c map[string]any) { c["tags"] = tags }))
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

// touch changes the flags of the leader keys, which means nothing to Patroni and
// makes pgsteer read all keys now, not within its ten seconds.
func (d *diffRig) touch() {
	for _, scope := range []string{"main", "far"} {
		var keys []entry
		if !d.consulAsk(http.MethodGet, "kv/service/"+scope+"/leader", "", &keys) || keys[0].Session == "" {
			continue
		}
		e := keys[0]
		d.consulAsk(http.MethodPut, fmt.Sprintf("kv/%s?acquire=%s&flags=%d", e.Key, e.Session, e.Flags+1), string(e.Value), nil)
	}
}
