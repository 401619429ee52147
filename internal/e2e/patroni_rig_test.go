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
	"sync"
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

// traffic is what applications do while something happens.
type traffic struct {
	p     *patroniRig
	begin time.Time
	idle  []<-chan time.Time // sessions that only wait, through HAProxy and Envoy
	// Sessions that last, through HAProxy and Envoy; a new one for each operation.
	kept, keptEnvoy, fresh, reads *lab.Load
}

// traffic starts clients of every kind on the present writer.
func (p *patroniRig) traffic(leader *lab.PatroniNode) *traffic {
	p.t.Helper()
	const patient = 8 * time.Second // a busy machine is no failure
	x := &traffic{p: p}
	for _, addr := range []string{p.write, p.envoyWrite} {
		x.idle = append(x.idle, watchEnd(p.t, p.session(addr, leader.Port())))
	}
	x.kept = p.lab.Load(p.write, lab.LoadOptions{Sessions: 4, Timeout: patient})
	x.keptEnvoy = p.lab.Load(p.envoyWrite, lab.LoadOptions{Timeout: patient})
	x.fresh = p.lab.Load(p.write, lab.LoadOptions{NewSession: true, Interval: 25 * time.Millisecond})
	x.reads = p.lab.Load(p.read, lab.LoadOptions{ReadOnly: true, NewSession: true, Timeout: patient, Interval: 25 * time.Millisecond})
	for _, l := range []*lab.Load{x.kept, x.keptEnvoy, x.fresh} {
		p.t.Cleanup(func() { l.Stop() })
		p.do(l.Wait(p.t.Context(), "a write", func(s lab.Sample) bool { return s.Op == lab.Write && s.Err == nil }))
	}
	p.t.Cleanup(func() { x.reads.Stop() })
	x.begin = time.Now()
	return x
}

// uncut fails the test when a session that lasts was cut, or an operation on it
// or a read failed.
func (x *traffic) uncut() {
	x.p.t.Helper()
	for i, c := range x.idle {
		select {
		case at := <-c:
			x.p.t.Errorf("idle session %d (0: HAProxy, 1: Envoy) was cut %s after the beginning", i, at.Sub(x.begin))
		default:
		}
	}
	x.p.unbroken("lasting sessions through HAProxy", x.kept.Samples())
	x.p.unbroken("lasting sessions through Envoy", x.keptEnvoy.Samples())
	x.p.unbroken("reads", x.reads.Samples())
}

// undisturbed is uncut, and new sessions were let in all the time.
func (x *traffic) undisturbed() {
	x.p.t.Helper()
	x.uncut()
	x.p.unbroken("new sessions", x.fresh.Samples())
}

// alive reports whether no idle session has ended. It takes no moment away.
func (x *traffic) alive() bool {
	for _, c := range x.idle {
		if len(c) > 0 {
			return false
		}
	}
	return true
}

// ends waits until every idle session has ended and returns when each did.
func (x *traffic) ends() []time.Time {
	x.p.t.Helper()
	var at []time.Time
	for i, c := range x.idle {
		x.p.until(fmt.Sprintf("the end of idle session %d (0: HAProxy, 1: Envoy)", i), func() bool { return len(c) > 0 })
		at = append(at, <-c)
	}
	return at
}

// never fails the test for each operation on a port that began in a time.
func (x *traffic) never(port int, from, until time.Time) {
	x.p.t.Helper()
	n := 0
	for _, l := range []*lab.Load{x.kept, x.keptEnvoy, x.fresh} {
		for _, s := range between(l.Samples(), from.Add(clockSlack), until) {
			if n++; s.Err == nil && s.Port == port {
				x.p.t.Errorf("%s at %s was on port %d, which was not the writer", s.Op, s.At.Format(time.StampMilli), port)
			}
		}
	}
	x.p.t.Logf("%d operations looked at for port %d", n, port)
}

// book records every view that was published, in order.
type book struct {
	mu    sync.Mutex
	views []*topology.View
}

// record writes down what the agent decides until the test ends.
func (p *patroniRig) record() *book {
	b := &book{}
	sub := p.agent.Views().Subscribe()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	views := p.agent.Views()
	go func() {
		defer close(done)
		defer sub.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case <-sub.Ready():
				sub.Take()
				b.mu.Lock()
				b.views = append(b.views, views.Get("main"))
				b.mu.Unlock()
			}
		}
	}()
	p.t.Cleanup(func() { cancel(); <-done })
	return b
}

// all returns what was recorded until now.
func (b *book) all() []*topology.View {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.views)
}

// saw reports whether a node had a verdict for a reason in a pool.
func (b *book) saw(pool, node string, want topology.Verdict, code topology.Code) bool {
	return slices.ContainsFunc(b.all(), func(v *topology.View) bool {
		p, _ := v.Snapshot.Pool(pool)
		n, _ := p.Verdict(node)
		return n.Verdict == want && n.Reason().Code == code
	})
}

// proven fails the test for a view in which a writer is not named by a current
// authority and writable by its own word.
func (b *book) proven(t *testing.T) {
	t.Helper()
	n := 0
	for _, v := range b.all() {
		w := v.Snapshot.Writer
		if w == "" {
			continue
		}
		n++
		f := v.Facts.Nodes[w]
		if v.Snapshot.Authority.Leader != w || f.InRecovery != topology.No || f.ReadOnly != topology.No {
			t.Errorf("generation %d has writer %s, while the authority (%s) names %q and its own word is in recovery: %s, read-only: %s",
				v.Snapshot.Generation, w, v.Snapshot.Authority.State, v.Snapshot.Authority.Leader, f.InRecovery, f.ReadOnly)
		}
	}
	t.Logf("%d views with a writer, all proven", n)
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
