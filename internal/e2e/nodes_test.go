package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// ways is what each way of asking says: the writer, then the readers.
type ways map[string]string

// all is when every way says the same.
func all(writer, readers string) ways {
	say := writer + " | " + readers
	return ways{"agent-check": say, "node paths": say, "pool paths": say, "status": say, "explain": say, "xDS": say}
}

// everybody puts the same question to each.
func (f *front) everybody(ads *adsClient) ways {
	f.t.Helper()
	return ways{
		"agent-check": f.said(func(pool, node string) bool {
			line := f.ask("main " + pool + " " + node)
			return strings.HasPrefix(line, "up ") && !strings.HasPrefix(line, "up 0%")
		}),
		"node paths": f.said(func(pool, node string) bool { return f.yes("/clusters/main/nodes/" + node + "/" + pool) }),
		"pool paths": f.said(func(pool, node string) bool { return f.yes("/clusters/main/pools/" + pool + "/nodes/" + node) }),
		"status":     f.said(f.statusSays),
		"explain": f.said(func(pool, node string) bool {
			return strings.Contains(f.explain("main", node), "\npool "+pool+" ("+mode(pool)+"): up\n")
		}),
		"xDS": ads.pool("main/primary") + " | " + ads.pool("main/replica"),
	}
}

func mode(pool string) string {
	if pool == "primary" {
		return "write"
	}
	return "read"
}

// said asks for each node and pool whether new sessions may go there.
func (f *front) said(up func(pool, node string) bool) string {
	var out []string
	for _, pool := range []string{"primary", "replica"} {
		var names []string
		for _, n := range f.cluster.Nodes() {
			if up(pool, n.Name()) {
				names = append(names, n.Name())
			}
		}
		out = append(out, strings.Join(names, " "))
	}
	return strings.Join(out, " | ")
}

// yes reports whether a health path says yes.
func (r *rig) yes(path string) bool {
	code, _ := r.get(r.health, path)
	return code == http.StatusOK
}

func (f *front) statusSays(pool, node string) bool {
	for _, c := range f.report().Clusters {
		for _, n := range c.Nodes {
			for _, v := range n.Verdicts {
				if n.Name == node && v.Pool == pool {
					return v.Verdict == topology.Up
				}
			}
		}
	}
	return false
}

// agree waits until every way of asking says the same.
func (f *front) agree(ads *adsClient, writer, readers string) {
	f.t.Helper()
	var diff string
	f.t.Cleanup(func() {
		if f.t.Failed() && diff != "" {
			f.t.Logf("the last answers (-want +got):\n%s", diff)
		}
	})
	took := f.until(fmt.Sprintf("everybody to say that %s writes and %s read", writer, readers), func() bool {
		diff = cmp.Diff(all(writer, readers), f.everybody(ads))
		return diff == ""
	})
	f.t.Logf("everybody says %s | %s after %s", writer, readers, took)
	for _, n := range f.cluster.Nodes() {
		if !f.yes("/clusters/main/nodes/"+n.Name()+"/health") || !f.yes("/clusters/main/nodes/"+n.Name()+"/read-only") {
			f.t.Errorf("/health and /read-only of %s do not say yes", n.Name())
		}
	}
}

// Whoever is asked, and however the nodes were given, the answer is the same.
func TestEverybodyAgrees(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*front){
		"file":  func(f *front) { f.up() },
		"flags": (*front).upWithFlags,
	} {
		t.Run(name, func(t *testing.T) {
			f := newFront(t, frontOptions{external: start})
			ads := f.subscribe()
			f.agree(ads, "n1", "n2 n3")
			if name == "file" { // nodes given by flags have no addresses for balancers
				f.chains(ads, "n1")
			}
			if got := f.ask("main primary n9"); !strings.HasPrefix(got, "down #unknown") {
				t.Errorf("an unknown node is answered with %q", got)
			}
			f.switchover("n2")
			f.agree(ads, "n2", "n1 n3")
			if name == "file" {
				f.chains(ads, "n2")
			}
		})
	}
}

func (f *front) chains(ads *adsClient, writer string) {
	f.t.Helper()
	f.until("the listeners", func() bool {
		return ads.chain("main/primary") == "writer/"+writer && ads.chain("main/replica") == "read"
	})
}

// upWithFlags starts the agent as `pgsteer run --node …` does, but for the fixed
// ports of its listeners.
func (f *front) upWithFlags() {
	f.t.Helper()
	f.upWith(func() (*config.Config, error) {
		var flags []string
		for name, addr := range f.addresses() {
			flags = append(flags, name+"="+addr)
		}
		slices.Sort(flags)
		cfg, err := config.FromNodes(flags)
		if err != nil {
			return nil, err
		}
		cfg.StateDir = f.file("state")
		cfg.Listen = config.Listen{
			AgentCheck: config.ListenAddress(f.check), Health: config.ListenAddress(f.health),
			Status: config.ListenAddress(f.status), XDS: config.ListenAddress(f.xds),
		}
		return cfg, cfg.SetProbeRole(f.cluster.ProbeUser(), f.file("probe.pw"))
	})
}

// everywhere checks a verdict and its reason by agent-check, HTTP and explain.
func (f *front) everywhere(pool, node, line string, code topology.Code) {
	f.t.Helper()
	if got := f.ask("main " + pool + " " + node); !strings.HasPrefix(got, line) {
		f.t.Errorf("agent-check says %q of %s/%s, not %q", got, pool, node, line)
	}
	status, body := f.get(f.health, "/clusters/main/pools/"+pool+"/nodes/"+node)
	if status != http.StatusServiceUnavailable || !strings.Contains(body, `"`+string(code)+`"`) {
		f.t.Errorf("HTTP says %d %s of %s/%s, not 503 because of %s", status, body, pool, node, code)
	}
	if text := f.explain("main", node); !strings.Contains(text, "rule    "+string(code)+": ") {
		f.t.Errorf("explain does not name %s as the rule:\n%s", code, text)
	}
}

func TestReplicaKilled(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{})
	f.is("main", "replica", "n3", topology.Up, topology.CodeReplica)
	f.do(f.node("n3").Kill())
	killed := time.Now()
	f.within(3*time.Second, "n3 to be down in the read pool", func() bool {
		v, c := f.verdict("main", "replica", "n3")
		return v == topology.Down && c == topology.CodeRefused
	})
	t.Logf("kill -9 of a replica to its verdict: %s", time.Since(killed))
	f.within(time.Second, "n3 to be down for the same reason in the write pool", func() bool {
		v, c := f.verdict("main", "primary", "n3")
		return v == topology.Down && c == topology.CodeRefused
	})
	f.everywhere("replica", "n3", "down #connection refused", topology.CodeRefused)
	f.everywhere("primary", "n3", "down #connection refused", topology.CodeRefused)
	for _, path := range []string{"health", "replica", "read-only"} {
		if f.yes("/clusters/main/nodes/n3/" + path) {
			t.Errorf("/%s says yes of a dead node", path)
		}
	}
	if v, _ := f.verdict("main", "primary", "n1"); v != topology.Up {
		t.Errorf("the writer is %s because a replica died", v)
	}
	f.do(f.node("n3").Start(t.Context()))
	f.is("main", "replica", "n3", topology.Up, topology.CodeReplica)
}

// A frozen server keeps its connections, and nothing answers.
func TestPrimaryFrozen(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{policy: "kill_after: 5s"})
	f.is("main", "primary", "n1", topology.Up, topology.CodeWriter)
	frozen := time.Now()
	f.do(f.node("n1").Freeze())
	f.within(4*time.Second, "n1 to drain", func() bool {
		v, _ := f.verdict("main", "primary", "n1")
		return v != topology.Up
	})
	took := time.Since(frozen)
	t.Logf("frozen to drain: %s", took)
	if took < time.Second {
		t.Errorf("drained after %s: it had answered at most one interval (1 s) before, and 2 s of silence are allowed", took)
	}
	if v, c := f.verdict("main", "primary", "n1"); v != topology.Drain || c != topology.CodeSilent {
		t.Errorf("a silent writer is %s (%s), not drained as silent", v, c)
	}
	f.everywhere("primary", "n1", "up 0% #no answer since", topology.CodeSilent)
	for _, n := range []string{"n2", "n3"} {
		if v, c := f.verdict("main", "replica", n); v != topology.Up {
			t.Errorf("replica %s is %s (%s) because the writer is silent", n, v, c)
		}
	}
	f.within(10*time.Second, "n1 to be down", func() bool {
		v, _ := f.verdict("main", "primary", "n1")
		return v == topology.Down
	})
	took = time.Since(frozen)
	t.Logf("frozen to down: %s", took)
	if took < 4*time.Second {
		t.Errorf("down after %s, kill_after is 5 s", took)
	}
	f.everywhere("primary", "n1", "down #no answer since", topology.CodeSilent)
	f.do(f.node("n1").Thaw())
	f.is("main", "primary", "n1", topology.Up, topology.CodeWriter)
	f.is("main", "replica", "n3", topology.Up, topology.CodeReplica)
}

// A paused replica lags: it leaves a pool with a small limit after lag_grace, and
// every pool after 5 s of lag.
func TestReplayPaused(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{replica: "}\n      near: {mode: read, max_lag: 1MB"})
	f.is("main", "near", "n2", topology.Up, topology.CodeReplica)
	writes := f.lab.Load(f.node("n1").Addr(), lab.LoadOptions{Interval: 50 * time.Millisecond})
	f.do(f.node("n2").PauseReplay(t.Context()))
	paused := time.Now()
	f.fallBehind("n2", 1<<20)
	f.is("main", "near", "n2", topology.Drain, topology.CodeLag)
	lagging := time.Now()
	t.Logf("paused to drained by lag: %s", lagging.Sub(paused))
	if v, c := f.verdict("main", "replica", "n2"); v != topology.Up && c != topology.CodePaused {
		t.Errorf("in a pool with a limit of 64MB n2 is %s (%s)", v, c)
	}
	f.lagEverywhere()
	f.fallBehind("n2", f.lag("n2")+1<<20)
	f.is("main", "replica", "n2", topology.Drain, topology.CodePaused)
	took := time.Since(paused)
	t.Logf("paused to drained in a pool with a large limit: %s, lag %s", took, f.lag("n2").Short())
	if took < 5*time.Second {
		t.Errorf("drained %s after the pause, 5 s of lag are allowed", took)
	}
	f.everywhere("replica", "n2", "up 0% #replay paused; lag ", topology.CodePaused)
	f.is("main", "near", "n2", topology.Drain, topology.CodePaused)
	writes.Stop()

	f.do(f.node("n2").ResumeReplay(t.Context()))
	f.is("main", "replica", "n2", topology.Drain, topology.CodeReturning)
	good := time.Now()
	f.is("main", "replica", "n2", topology.Up, topology.CodeReplica)
	took = time.Since(good)
	t.Logf("good again to back: %s", took)
	if took < 1800*time.Millisecond {
		t.Errorf("back after %s of good answers, 2 s are asked for", took)
	}
	f.is("main", "near", "n2", topology.Up, topology.CodeReplica)
}

// fallBehind has the writer write until a paused replica is that far behind, in steps so
// small that the other one can keep up.
func (f *front) fallBehind(node string, by topology.Size) {
	f.t.Helper()
	const step = "SELECT pg_logical_emit_message(false, 'pgsteer', repeat('x', 128 << 10))"
	f.until("lag of "+node, func() bool {
		f.do(f.writer().Exec(f.t.Context(), step))
		return f.lag(node) > by
	})
}

// lag is a node's lag as pgsteer knows it; -1: not known.
func (f *front) lag(node string) topology.Size {
	if v := f.view("main"); v != nil && v.Facts.Nodes[node].Lag.Known == topology.Yes {
		return v.Facts.Nodes[node].Lag.Bytes
	}
	return -1
}

func (f *front) lagEverywhere() {
	f.t.Helper()
	if line := f.ask("main near n2"); !strings.HasPrefix(line, "up 0% #lag ") || !strings.HasSuffix(line, " > 1MB") {
		f.t.Errorf("agent-check says %q of a lagging replica", line)
	}
	if f.yes("/clusters/main/nodes/n2/replica?lag=1MB") {
		f.t.Errorf("/replica?lag=1MB says yes of a replica that lags by %s", f.lag("n2").Short())
	}
	if !f.yes("/clusters/main/nodes/n3/replica?lag=1MB") {
		f.t.Error("/replica?lag=1MB says no of a replica that does not lag")
	}
}

// Nodes of an inventory come and go while the agent runs.
func TestInventory(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{inventory: []string{"n1", "n2"}})
	f.is("main", "primary", "n1", topology.Up, topology.CodeWriter)
	f.is("main", "replica", "n2", topology.Up, topology.CodeReplica)
	f.unknown("n3")

	f.list("n1", "n2", "n3")
	t.Logf("node added: %s", f.is("main", "replica", "n3", topology.Up, topology.CodeReplica))
	if got := f.ask("main replica n3"); got != "up 100%" {
		t.Errorf("agent-check says %q of the new node", got)
	}

	f.list("n1", "n3")
	took := f.until("n2 to be unknown", func() bool { return strings.HasPrefix(f.ask("main replica n2"), "down #unknown") })
	t.Logf("node removed: %s", took)
	f.unknown("n2")
	f.during(time.Second, "n1 writes and n3 reads", func() bool {
		w, _ := f.verdict("main", "primary", "n1")
		r, _ := f.verdict("main", "replica", "n3")
		return w == topology.Up && r == topology.Up
	})
	f.silentProbe("n2")
}

// unknown: a name that nobody knows is kept out, and said to be nobody's.
func (f *front) unknown(node string) {
	f.t.Helper()
	for _, pool := range []string{"primary", "replica"} {
		if got := f.ask("main " + pool + " " + node); !strings.HasPrefix(got, "down #unknown") {
			f.t.Errorf("agent-check says %q of %s/%s", got, pool, node)
		}
		if code, body := f.get(f.health, "/clusters/main/pools/"+pool+"/nodes/"+node); code != http.StatusServiceUnavailable || !strings.Contains(body, "unknown") {
			f.t.Errorf("HTTP says %d %s of %s/%s", code, body, pool, node)
		}
	}
}

// silentProbe: a node that is listed no more has no probe session either.
func (f *front) silentProbe(node string) {
	f.t.Helper()
	f.until("the probe session on "+node+" to end", func() bool {
		c, err := f.node(node).Conn(f.t.Context())
		if err != nil {
			return false
		}
		defer func() { _ = c.Close(context.Background()) }()
		n := -1
		err = c.QueryRow(f.t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE usename = $1", f.cluster.ProbeUser()).Scan(&n)
		return err == nil && n == 0
	})
}
