package e2e

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/xds"
)

// A real Envoy that knows two agents, through what happens to databases and to
// agents. Each part has clients of its own, held and new, and says how many of their
// sessions were on another node than the writer: none.
func TestEnvoyThroughTrouble(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{files: true, replica: ", max_lag: 4MB, max_lag_hard: 32MB"})
	twin := f.twin()
	f.startEnvoyBy(xds.BootstrapOptions{Servers: []topology.Address{f.serves(), twin.serves()}})
	f.trouble("the primary is killed", f.killed)
	f.trouble("replicas lag", f.lagging)
	f.trouble("an agent goes and the other decides", func(tr mix) { f.otherAgent(twin, tr) })
	f.trouble("Envoy starts from files while no agent runs", func(mix) { f.withoutAgent(twin) })
	f.trouble("an agent writes files again", func(tr mix) {
		f.up()
		f.decided(f.writer().Name())
		tl := f.switchover(f.aReplica().Name())
		f.settled("switchover by files", tr, tl.NewWritable)
	})
}

// trouble runs a part with clients of its own.
func (f *front) trouble(what string, part func(mix)) {
	f.t.Helper()
	f.t.Logf("--- %s", what)
	tr := f.clients(f.envoyWrite, f.envoyRead)
	f.settled("before", tr, time.Now())
	part(tr)
	f.onlyWriters(what+", held sessions", tr.held.Stop())
	f.onlyWriters(what+", new sessions", tr.fresh.Stop())
	tr.reads.Stop()
}

// twin starts a second agent of the same cluster, which writes no files.
func (f *front) twin() *rig {
	f.t.Helper()
	r, other := newRigIn(f.t, f.lab, "twin"), *f
	other.o.files = false
	r.configure("%s", other.config())
	r.up()
	return r
}

// killed: without a writer nobody is let in, and all held sessions end; with the next
// one they are back.
func (f *front) killed(tr mix) {
	f.t.Helper()
	old := f.writer()
	idle := watchEnd(f.t, f.session(f.envoyWrite, old.Port()))
	f.do(old.Kill())
	f.is("main", "primary", old.Name(), topology.Down, topology.CodeRefused)
	<-idle
	f.until("connections to be refused", func() bool { return f.refuses(f.envoyWrite) == nil })
	f.during(time.Second, "connections are refused while there is no writer", func() bool { return f.refuses(f.envoyWrite) == nil })
	tl := f.failover()
	f.settled("kill", tr, tl.NewWritable)
	f.rejoin(old)
	f.unbroken("readers once there is a writer again", between(tr.reads.Samples(), tl.NewWritable.Add(time.Second), time.Now()))
}

// replicas are the nodes that are not the writer.
func (f *front) replicas() []*lab.Node {
	return slices.DeleteFunc(f.cluster.Nodes(), func(n *lab.Node) bool { return n == f.writer() })
}

func (f *front) aReplica() *lab.Node { return f.replicas()[0] }

// lagging: a replica that lags takes no new readers; when all lag one still does,
// since the pool wants one, up to the hard limit; beyond it readers go to the writer,
// the fallback. Whoever reads already goes on reading where he is.
func (f *front) lagging(mix) {
	f.t.Helper()
	a, b := f.replicas()[0], f.replicas()[1]
	held := f.lab.Load(f.envoyRead, lab.LoadOptions{Sessions: 4, ReadOnly: true, Timeout: patient})
	fresh := f.lab.Load(f.envoyRead, lab.LoadOptions{NewSession: true, ReadOnly: true, Timeout: patient})
	onA := f.session(f.envoyRead, a.Port())
	reads := func(only ...*lab.Node) {
		f.t.Helper()
		since := time.Now()
		f.until("new readers to be led to those who may serve, for half a second", func() bool {
			port := f.reached(f.envoyRead)
			if !slices.ContainsFunc(only, func(n *lab.Node) bool { return n.Port() == port }) {
				since = time.Now()
			}
			return time.Since(since) > 500*time.Millisecond
		})
	}
	f.do(f.writer().Exec(f.t.Context(), "CREATE TABLE busy ()"))
	f.do(f.cluster.WaitStreaming(f.t.Context()))
	goOnA := f.stall(a)
	f.fallBehind(a.Name(), 6<<20)
	f.is("main", "replica", a.Name(), topology.Drain, topology.CodeLag)
	reads(b)
	goOnB := f.stall(b)
	f.fallBehind(b.Name(), 6<<20)
	f.during(4*time.Second, "one of them serves although both lag", func() bool { return f.serving(a) || f.serving(b) })
	reads(a, b)
	f.fallBehind(a.Name(), 40<<20)
	f.fallBehind(b.Name(), 40<<20)
	f.is("main", "replica", f.writer().Name(), topology.Up, topology.CodeFallback)
	reads(f.writer())
	if got := serverPort(onA); got != a.Port() {
		f.t.Errorf("a session on %s that was there before it lagged is on port %d", a.Name(), got)
	}
	goOnA()
	goOnB()
	f.is("main", "replica", a.Name(), topology.Up, topology.CodeReplica)
	f.is("main", "replica", b.Name(), topology.Up, topology.CodeReplica)
	f.readsReach(a.Name(), b.Name())
	if got := serverPort(onA); got != a.Port() {
		f.t.Errorf("a session on %s from before it lagged is on port %d", a.Name(), got)
	}
	f.unbroken("held readers while replicas lag", held.Stop())
	f.unbroken("new readers while replicas lag", fresh.Stop())
}

// serving reports whether a node is up in the read pool.
func (f *front) serving(n *lab.Node) bool {
	v, _ := f.verdict("main", "replica", n.Name())
	return v == topology.Up
}

// stall has a report on a standby keep it from replaying what the writer does, as
// reports do, until the function is called.
func (f *front) stall(n *lab.Node) (goOn func()) {
	f.t.Helper()
	f.do(n.Exec(f.t.Context(), "ALTER SYSTEM SET max_standby_streaming_delay = -1", "SELECT pg_reload_conf()"))
	c, err := n.Conn(f.t.Context())
	f.do(err)
	f.t.Cleanup(func() { closeConn(c) })
	_, err = c.Exec(f.t.Context(), "BEGIN; SELECT FROM busy")
	f.do(err)
	f.do(f.writer().Exec(f.t.Context(), "BEGIN; LOCK TABLE busy IN ACCESS EXCLUSIVE MODE; COMMIT"))
	return func() { closeConn(c) }
}

// otherAgent stops the agent that Envoy asks, and lets the writer change.
func (f *front) otherAgent(twin *rig, tr mix) {
	f.t.Helper()
	asked, other := f.rig, twin
	if !asked.streams() {
		asked, other = twin, f.rig
	}
	idle := watchEnd(f.t, f.session(f.envoyWrite, f.writer().Port()))
	asked.down()
	f.until("Envoy to ask the other agent", other.streams)
	f.during(500*time.Millisecond, "nobody is cut because an agent went", func() bool { return len(idle) == 0 })
	f.unbroken("held sessions when an agent goes", tr.held.Samples())
	next := f.aReplica()
	tl := f.switchover(next.Name())
	f.settled("switchover with the other agent", tr, tl.NewWritable)
	<-idle
	back := time.Now()
	asked.up()
	asked.until("the agent that was away to name the writer", func() bool {
		v := asked.view("main")
		return v != nil && v.Snapshot.Writer == next.Name()
	})
	f.pause(500 * time.Millisecond)
	f.unbroken("held sessions when it returns", between(tr.held.Samples(), back, time.Now()))
}

// streams reports whether an Envoy is subscribed to an agent.
func (r *rig) streams() bool {
	code, body := r.get(r.status, "/debug/xds")
	return code == http.StatusOK && strings.Contains(body, `"node"`)
}

// withoutAgent stops everybody but the databases, and starts Envoy from files.
func (f *front) withoutAgent(twin *rig) {
	f.t.Helper()
	f.do(f.envoy.Stop(f.t.Context()))
	f.down()
	twin.down()
	f.startEnvoyBy(xds.BootstrapOptions{Files: f.file(envoyFiles)})
	f.during(time.Second, "writes reach the writer and reads do not", func() bool {
		return f.reached(f.envoyWrite) == f.writer().Port() && f.reached(f.envoyRead) != f.writer().Port()
	})
}
