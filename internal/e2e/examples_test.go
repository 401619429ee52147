package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// example reads a file of an example and puts the test's addresses and paths in
// place of its own, each of which must be there.
func example(tb testing.TB, name string, places map[string]string) string {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "examples", name))
	if err != nil {
		tb.Fatal(err)
	}
	text := string(b)
	for from, to := range places {
		if !strings.Contains(text, from) {
			tb.Errorf("%s does not say %s any more", name, from)
		}
		text = strings.ReplaceAll(text, from, to)
	}
	return text
}

// The files of examples/haproxy, as a user would copy them.
func TestExampleHAProxy(t *testing.T) {
	t.Parallel()
	f := &front{rig: newRig(t, lab.NeedHAProxy), o: frontOptions{haproxy: true}}
	f.write, f.read = f.addr(), f.addr()
	// The role is what the example makes, so the lab's own has another name.
	f.cluster = f.newCluster(lab.ClusterOptions{ProbeUser: "other"})
	f.reigns = []reign{{node: f.node("n1")}}
	f.do(f.node("n1").Exec(t.Context(), example(t, "haproxy/probe-role.sql", map[string]string{"'change me'": "'secret'"})))
	for _, name := range []string{"n2", "n3"} { // an agent that is refused here asks again in a minute only
		f.until("the probe role to reach "+name, func() bool {
			return f.node(name).Exec(t.Context(), "SELECT 1/count(*) FROM pg_roles WHERE rolname = 'pgsteer' AND pg_has_role(oid, 'pg_monitor', 'member')") == nil
		})
	}

	f.exampleConfig("")
	f.up()
	f.exampleHAProxy()
	if got := f.reached(f.write); got != f.node("n1").Port() {
		t.Errorf("a write session reached port %d, not n1's", got)
	}
	worker := f.worker()
	tr := f.clients(f.write, f.read)
	tl := f.switchover("n2")
	f.settled("switchover", tr, tl.NewWritable)
	f.is("main", "replica", "n1", topology.Up, topology.CodeReplica)
	f.onlyWriters("held sessions", tr.held.Stop())
	f.onlyWriters("new sessions", tr.fresh.Stop())
	if now := f.worker(); now != worker {
		t.Errorf("HAProxy's worker was %d and is %d: it was reloaded", worker, now)
	}
	f.exampleNodes(worker)
	old := f.sink("runtimeapi old workers of " + f.lab.SocketPath("haproxy-master.sock"))
	if _, counted := old.Gauges["old_workers"]; old.State != status.SinkOK || !counted {
		t.Errorf("old workers: %+v", old)
	}
}

// exampleNodes takes n3 out of the example's file and puts it in again. HAProxy is
// told at runtime.
func (f *front) exampleNodes(worker int) {
	f.t.Helper()
	for i, drop := range []string{"n3", ""} {
		f.exampleConfig(drop)
		f.do(f.agent.Reload(f.t.Context()))
		f.until("the nodes to change without a reload", func() bool {
			s := f.sink("template haproxy")
			return s.State == "applied" && s.Counters["runtime"] == uint64(i+1)
		})
		state, err := f.haproxy.Command(f.t.Context(), "show stat be_main_replica 4 -1")
		out := !strings.Contains(state, "be_main_replica,n3,") || strings.Contains(state, "MAINT")
		if err != nil || out != (drop == "n3") {
			f.t.Errorf("without %q HAProxy has %s (%v)", drop, state, err)
		}
		if now := f.worker(); now != worker {
			f.t.Errorf("HAProxy's worker was %d and is %d: it was reloaded", worker, now)
		}
	}
	f.is("main", "replica", "n3", topology.Up, topology.CodeReplica)
	f.until("n3 to serve again", func() bool { return f.reached(f.read) == f.node("n3").Port() })
}

// exampleConfig writes the example's file, without one node if it is named.
func (f *front) exampleConfig(drop string) {
	f.t.Helper()
	text := example(f.t, "haproxy/pgsteer.yaml", map[string]string{
		"10.0.0.1:5432": f.node("n1").Addr(), "10.0.0.2:5432": f.node("n2").Addr(), "10.0.0.3:5432": f.node("n3").Addr(),
		"0.0.0.0:5000": f.write, "0.0.0.0:5001": f.read,
		"/etc/pgsteer/probe.pw":    f.password("secret"),
		"/etc/haproxy/haproxy.cfg": f.file("haproxy.cfg"), "/etc/haproxy/pgsteer.cfg": f.file("pgsteer.cfg"),
		"/run/haproxy/admin.sock":  f.lab.SocketPath("admin.sock"),
		"/run/haproxy-master.sock": f.lab.SocketPath("haproxy-master.sock"),
	})
	if drop != "" {
		text = regexp.MustCompile(`(?m)^ +`+drop+`: .*\n`).ReplaceAllString(text, "")
	}
	f.configure("%s", text)
}

// exampleHAProxy runs HAProxy with the example's file and its extra options.
func (f *front) exampleHAProxy() {
	f.t.Helper()
	base := example(f.t, "haproxy/haproxy.cfg", nil)
	if os.Geteuid() != 0 { // only root can become another user
		base = regexp.MustCompile(`(?m)^  (user|group) .*\n`).ReplaceAllString(base, "")
	}
	f.replace("haproxy.cfg", base)
	f.until("pgsteer.cfg", func() bool {
		_, err := os.Stat(f.file("pgsteer.cfg"))
		return err == nil
	})
	options := example(f.t, "haproxy/haproxy.default", map[string]string{
		"/etc/haproxy/pgsteer.cfg": f.file("pgsteer.cfg"), " -S /run/haproxy-master.sock": "", // the lab's own is the same
	})
	options = regexp.MustCompile(`EXTRAOPTS="(.*)"`).FindStringSubmatch(options)[1]
	var err error
	f.haproxy, err = f.lab.HAProxy(f.t.Context(), lab.HAProxyOptions{
		ConfigFile: f.file("haproxy.cfg"), AdminSocket: f.lab.SocketPath("admin.sock"), Args: strings.Fields(options),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.until("the template to be applied", func() bool { return f.sink("template haproxy").State == "applied" })
	f.until("HAProxy to let writes and reads through", func() bool { return f.reached(f.write) != 0 && f.reached(f.read) != 0 })
}
