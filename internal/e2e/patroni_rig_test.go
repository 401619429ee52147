package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// patroniRig is a Patroni cluster of three nodes on a real Consul, with HAProxy
// and Envoy before it. pgsteer reaches Consul through a link of its own and
// learns of the nodes from there alone.
type patroniRig struct {
	*front
	consul  *lab.Consul
	link    *lab.Link
	patroni *lab.Patroni
	whole   *testing.T // the test that all steps belong to
	policy  string
}

// newPatroniRig starts everything and returns when the balancers obey.
func newPatroniRig(t *testing.T) *patroniRig {
	t.Helper()
	f := &front{
		rig: newRig(t, lab.NeedConsul, lab.NeedPatroni, lab.NeedHAProxy, lab.NeedEnvoy),
		o:   frontOptions{haproxy: true, envoy: true},
	}
	f.write, f.read = f.addr(), f.addr()
	f.envoyWrite, f.envoyRead = atEnvoy(f.write), atEnvoy(f.read)
	p := &patroniRig{front: f, whole: t}
	begin := time.Now()
	var err error
	p.consul, err = p.lab.Consul(t.Context())
	p.do(err)
	p.link, err = p.lab.Link(t.Context(), p.consul.Addr())
	p.do(err)
	p.patroni, err = p.lab.Patroni(t.Context(), lab.PatroniOptions{Consul: p.consul})
	p.do(err)
	t.Logf("Consul and Patroni run after %s", time.Since(begin))
	p.writeConfig()
	p.up()
	p.startHAProxy()
	p.startEnvoy()
	return p
}

// writeConfig names no node: Consul does.
func (p *patroniRig) writeConfig() {
	p.t.Helper()
	p.configure(`consul: {address: "http://%s"}
postgres: {user: %s, password_file: %q}
envoy: {listen_host: %s}
haproxy: {sockets: [%q]}
clusters:
  main:
    authority: patroni
    policy: {%s}
    pools:
      primary: {mode: write, listen: %q}
      replica: {mode: read, listen: %q}
templates:
  - name: haproxy
    files: [{builtin: haproxy, destination: %q}]
    check: [haproxy, -c, -q, -f, "{{.Staged}}"]
    master_socket: %q
`, p.link.Addr(), p.patroni.ProbeUser(), p.password(p.patroni.Password(p.patroni.ProbeUser())), envoyHost,
		p.lab.SocketPath("admin.sock"), p.policy, p.write, p.read,
		p.file("haproxy.cfg"), p.lab.SocketPath("haproxy-master.sock"))
}

// setPolicy gives the running agent another policy.
func (p *patroniRig) setPolicy(text string) {
	p.t.Helper()
	p.policy = text
	p.writeConfig()
	p.do(p.agent.Reload(p.t.Context()))
}

// step runs a part of the test on a settled cluster, whatever the part before
// it did, and gives it the leader. An HAProxy that was reloaded fails it.
func (p *patroniRig) step(name string, part func(leader *lab.PatroniNode)) {
	p.whole.Helper()
	p.whole.Run(name, func(t *testing.T) {
		p.t = t
		defer func() { p.t = p.whole }()
		leader := p.settled()
		worker, begin := p.worker(), time.Now()
		part(leader)
		if w := p.worker(); w != worker {
			t.Errorf("HAProxy was reloaded: its worker was %d and is %d", worker, w)
		}
		t.Logf("done after %s", time.Since(begin))
	})
}

// settled waits until everything is as it should be and returns the leader.
func (p *patroniRig) settled() *lab.PatroniNode {
	p.t.Helper()
	p.do(p.link.Heal())
	if p.stop == nil {
		p.restart()
	}
	p.do(p.consul.Start(p.t.Context()))
	for _, n := range p.patroni.Nodes() {
		p.do(n.Start(p.t.Context()))
		p.do(n.Thaw())
		if n.Postgres().PID() != 0 {
			p.do(n.Postgres().Thaw())
		}
	}
	p.do(p.patroni.WaitRunning(p.t.Context()))
	p.do(p.patroni.WaitStreaming(p.t.Context()))
	leader, err := p.patroni.Leader(p.t.Context())
	p.do(err)
	p.plain()
	p.routed(leader)
	return leader
}

// plain undoes what a step changed in the dynamic configuration.
func (p *patroniRig) plain() {
	p.t.Helper()
	text, err := p.consul.Get(p.t.Context(), key("config"))
	p.do(err)
	if !strings.Contains(text, "pause") && !strings.Contains(text, "failsafe_mode") {
		return
	}
	p.dynamic(`{"pause": null, "failsafe_mode": null}`)
	p.touch()
	p.knows("that neither pause nor failsafe mode is on", func(a *topology.Authority) bool {
		return a.Pause != topology.Yes && a.Failsafe != topology.Yes
	})
}

// routed waits until a node gets the writes and the two others the reads.
func (p *patroniRig) routed(leader *lab.PatroniNode) {
	p.t.Helper()
	p.until(leader.Name()+" to be the writer and the others to serve reads", func() bool {
		v := p.view("main")
		if v == nil || v.Snapshot.Authority.State != topology.AuthorityStateCurrent || v.Snapshot.Writer != leader.Name() {
			return false
		}
		reads, _ := v.Snapshot.Pool("replica")
		return len(reads.Up()) == 2 && !reads.Fallback
	})
	p.until("HAProxy to obey", func() bool { return p.reached(p.write) == leader.Port() && p.reached(p.read) != 0 })
	p.until("Envoy to obey", func() bool { return p.reached(p.envoyWrite) == leader.Port() && p.reached(p.envoyRead) != 0 })
}

// restart starts the agent again; its log outlives the step.
func (p *patroniRig) restart() {
	p.t.Helper()
	t := p.t
	p.t = p.whole
	p.up()
	p.t = t
}

// others are the nodes but one, in the order of their names.
func (p *patroniRig) others(not *lab.PatroniNode) []*lab.PatroniNode {
	return slices.DeleteFunc(p.patroni.Nodes(), func(n *lab.PatroniNode) bool { return n == not })
}

// key is the full name of one of the cluster's keys.
func key(name string) string { return "service/main/" + name }

// consulDo sends a request to Consul, beside the agent's link.
func (p *patroniRig) consulDo(method, path, body string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+p.consul.Addr()+"/v1/"+path, strings.NewReader(body))
	p.do(err)
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	p.do(err)
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	p.do(err)
	if res.StatusCode != http.StatusOK || strings.TrimSpace(string(b)) == "false" {
		p.t.Fatalf("%s %s: status %d: %s", method, path, res.StatusCode, b)
	}
	return string(b)
}

// entry is a key with the session that holds it.
type entry struct {
	Key, Session string
	Value        []byte
	Flags        uint64
}

func (p *patroniRig) entry(name string) entry {
	p.t.Helper()
	var e []entry
	p.do(json.Unmarshal([]byte(p.consulDo(http.MethodGet, "kv/"+key(name), "")), &e))
	return e[0]
}

// put writes a key as Patroni does: held by its session.
func (p *patroniRig) put(e entry) {
	p.t.Helper()
	p.consulDo(http.MethodPut, "kv/"+e.Key+"?acquire="+e.Session, string(e.Value))
}

// touch changes the flags of the leader key, which means nothing to Patroni and
// makes pgsteer read all keys now. It stays held by its session.
func (p *patroniRig) touch() {
	p.t.Helper()
	e := p.entry("leader")
	p.consulDo(http.MethodPut, fmt.Sprintf("kv/%s?acquire=%s&flags=%d", e.Key, e.Session, e.Flags+1), string(e.Value))
}

// still freezes every Patroni (not PostgreSQL), so that keys change only when
// the test changes them. Ending it is for the returned function.
func (p *patroniRig) still() (thaw func()) {
	p.t.Helper()
	for _, n := range p.patroni.Nodes() {
		p.do(n.Freeze())
	}
	return func() {
		for _, n := range p.patroni.Nodes() {
			p.do(n.Thaw())
		}
	}
}

// without removes a key for as long as a function runs and puts it back as it
// was; no Patroni notices.
func (p *patroniRig) without(name string, meanwhile func()) {
	p.t.Helper()
	thaw := p.still()
	defer thaw()
	e := p.entry(name)
	p.do(p.consul.Delete(p.t.Context(), e.Key))
	defer p.put(e)
	meanwhile()
}

// dynamic changes the cluster's dynamic configuration.
func (p *patroniRig) dynamic(format string, args ...any) {
	p.t.Helper()
	leader, err := p.patroni.Leader(p.t.Context())
	p.do(err)
	_, err = leader.REST(p.t.Context(), http.MethodPatch, "/config", fmt.Sprintf(format, args...))
	p.do(err)
}

// knows waits until pgsteer's picture of Patroni's keys is such.
func (p *patroniRig) knows(what string, ok func(*topology.Authority) bool) {
	p.t.Helper()
	p.until("pgsteer to know "+what, func() bool {
		a := p.view("main").Facts.Authority
		return a != nil && ok(a)
	})
}

// tags replaces a node's tags and has Patroni take them.
func (p *patroniRig) tags(n *lab.PatroniNode, tags map[string]any) {
	p.t.Helper()
	b, err := os.ReadFile(n.ConfigFile())
	p.do(err)
	var c map[string]any
	p.do(json.Unmarshal(b, &c))
	c["tags"] = tags
	b, err = json.MarshalIndent(c, "", "  ")
	p.do(err)
	p.do(os.WriteFile(n.ConfigFile(), b, 0o600))
	// It answers 202, which the lab takes for an error.
	_, err = n.REST(p.t.Context(), http.MethodPost, "/reload", "")
	if err != nil && !strings.Contains(err.Error(), "status 202") {
		p.t.Fatal(err)
	}
}

// asWriter waits until a node takes writes when asked directly, and returns when.
func (p *patroniRig) asWriter(n *lab.PatroniNode) time.Time {
	p.t.Helper()
	var c *pgx.Conn
	p.until("a session on "+n.Name(), func() bool {
		var err error
		c, err = n.Conn(p.t.Context())
		return err == nil
	})
	defer func() { _ = c.Close(context.Background()) }()
	p.until(n.Name()+" to take writes", func() bool {
		var standby bool
		return c.QueryRow(p.t.Context(), "SELECT pg_is_in_recovery()").Scan(&standby) == nil && !standby
	})
	return time.Now()
}

// election removes the leader key of a leader that cannot take it back and
// returns who took it.
func (p *patroniRig) election(old *lab.PatroniNode) *lab.PatroniNode {
	p.t.Helper()
	p.do(p.consul.Delete(p.t.Context(), key("leader")))
	var next *lab.PatroniNode
	p.until("another leader", func() bool {
		name, err := p.consul.Get(p.t.Context(), key("leader"))
		next = p.patroni.Node(name)
		return err == nil && next != nil && next != old
	})
	return next
}

// metric is the value of a series in /metrics, "" when it is not there.
func (r *rig) metric(series string) string {
	r.t.Helper()
	_, body := r.get(r.status, "/metrics")
	for line := range strings.Lines(body) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			return v
		}
	}
	return ""
}
