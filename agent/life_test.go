package agent

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestASourceThatEndsIsNotSilent(t *testing.T) {
	for name, end := range map[string]error{"by itself": nil, "with an error": errors.New("out of cheese")} {
		t.Run(name, func(t *testing.T) {
			n1, n2 := newNode(t, primary), newNode(t, replica)
			r := newRig(t)
			r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2), clusterText("odd", n1, n2))
			a, err := r.new()
			if err != nil {
				t.Fatal(err)
			}
			cl, _ := a.cfg.Load().Cluster("odd")
			w, err := newWatch(cl, nil, a.now, a.log)
			if err != nil {
				t.Fatal(err)
			}
			over := make(chan struct{})
			w.add(topology.SourceID{Kind: topology.SourceFile, Name: "odd"}, ending{over, end})
			c := a.newCluster(a.cfg.Load(), cl, w)
			a.parts[partCluster+"odd"] = &part{
				name: partCluster + "odd", begin: func() { a.adopt(c) },
				run: func(ctx context.Context) error { return runCluster(ctx, c) },
			}
			r.agent = a
			done := make(chan error, 1)
			go func() { done <- a.Run(context.Background()) }()
			r.writer("main", "n1")
			close(over)
			select {
			case err := <-done:
				for _, want := range []string{"cluster/odd: source file/odd: ", "balancers stay as they were told last"} {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("Run says %v, which lacks %q", err, want)
					}
				}
				if end != nil && !errors.Is(err, end) {
					t.Errorf("Run says %v, want the source's own error", err)
				}
			case <-time.After(patience):
				t.Fatal("the agent goes on without the source")
			}
			if _, err := net.Dial("tcp", r.addr(partHealth)); err == nil {
				t.Error("a listener is still open")
			}
		})
	}
}

// ending is a source that ends when told to.
type ending struct {
	over chan struct{}
	err  error
}

func (e ending) Run(context.Context, func(topology.Observation)) error {
	<-e.over
	return e.err
}

func TestAPartThatDoesNotStopIsLeftBehindAndNamed(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	a := &Agent{failed: make(chan error, 1)}
	parts := map[string]*part{
		"good":  {name: "good", run: func(ctx context.Context) error { <-ctx.Done(); return nil }},
		"stuck": {name: "stuck", run: func(context.Context) error { <-hang; return nil }},
		"hung":  {name: "hung", run: func(context.Context) error { <-hang; return nil }},
	}
	a.start(t.Context(), parts)
	begin := time.Now()
	err := stop(parts)
	if err == nil || !strings.Contains(err.Error(), "stuck did not stop") || !strings.Contains(err.Error(), "hung did not stop") || strings.Contains(err.Error(), "good") {
		t.Errorf("stop says %v", err)
	}
	if d := time.Since(begin); d > 2*stopPatience {
		t.Errorf("stopping took %s, the parts were waited for one after another", d)
	}
}

func TestARestartHoldsWhatStoodAndKnowsItsVerdicts(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.write(base, listen(), "local: main/n1\nclusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	r.down()
	for _, n := range []*node{n1, n2} {
		n.Set(func(s *pgState) { s.HangLogin = true })
	}
	r.up()
	r.until("a first decision", func() bool { return r.view("main") != nil })
	if s := r.view("main").Snapshot; s.Held != "n1" || s.Writer != "" {
		t.Errorf("held %q, writer %q", s.Held, s.Writer)
	}
	if got := r.ask("main primary n1"); got != "" {
		t.Errorf("the agent check is answered %q before anything is known", got)
	}
	if code, body := r.get(partHealth, "/primary"); code != 200 {
		t.Errorf("Patroni's path repeats the saved verdict with %d: %s", code, body)
	}
	if code, _ := r.get(partHealth, "/clusters/main/nodes/n2/primary"); code != 503 {
		t.Errorf("the saved replica is a primary: %d", code)
	}
	if code, body := r.get(partStatus, "/livez"); code != 200 {
		t.Errorf("livez is %d: %s", code, body)
	}
	for _, n := range []*node{n1, n2} {
		n.Set(func(s *pgState) { s.HangLogin = false })
	}
	r.settled("main", "n1", "n2")
}

func TestAllClustersSilentAtOnceIsOurOwnTrouble(t *testing.T) {
	var nodes []*node
	for _, p := range []topology.Probe{primary, replica, primary, replica} {
		nodes = append(nodes, newNode(t, p))
	}
	r := newRig(t)
	policy := "    policy: {kill_after: 3s}\n"
	r.write(base, listen(), "clusters:\n", clusterText("main", nodes[0], nodes[1], policy), clusterText("two", nodes[2], nodes[3], policy))
	r.up()
	r.settled("main", "n1", "n2")
	r.settled("two", "n1", "n2")
	all := func(hang bool, which ...*node) {
		for _, n := range which {
			n.Set(func(s *pgState) { s.HangLogin, s.HangQuery = hang, hang })
		}
	}
	alarmed := func(cluster string) bool {
		for _, a := range r.view(cluster).Snapshot.Alarms {
			if a.Code == topology.CodeIsolated {
				return true
			}
		}
		return false
	}
	all(true, nodes...)
	r.until("both clusters to know", func() bool { return alarmed("main") && alarmed("two") })
	if s := r.statusText(); !strings.Contains(s, "! isolated: every cluster is silent") {
		t.Errorf("status is silent about it:\n%s", s)
	}
	// A cluster that begins now must know, too, and ends nothing.
	r.write(base, listen(), "clusters:\n", clusterText("main", nodes[0], nodes[1], policy, "    postgres: {interval: 900ms}\n"),
		clusterText("two", nodes[2], nodes[3], policy))
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.until("the new cluster to know", func() bool { return alarmed("main") })
	begin := time.Now()
	for time.Since(begin) < 5*time.Second {
		for _, c := range []string{"main", "two"} {
			p, _ := r.view(c).Snapshot.Pool("primary")
			if v, _ := p.Verdict("n1"); v.Verdict == topology.Down {
				t.Fatalf("%s/n1 is down: %s", c, v.Reason().Text)
			}
		}
		<-time.After(5 * time.Millisecond)
	}
	all(false, nodes[0], nodes[1])
	r.writer("main", "n1")
	r.until("silence to count again", func() bool {
		p, _ := r.view("two").Snapshot.Pool("replica")
		v, _ := p.Verdict("n2")
		return !alarmed("main") && !alarmed("two") && v.Verdict == topology.Down && v.Reason().Code == topology.CodeSilent
	})
	if n := strings.Count(r.log.String(), "every cluster is silent; the trouble"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
}

// notifySocket stands in for systemd's, for the rest of the test.
func notifySocket(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return l
}

func TestSystemdIsTold(t *testing.T) {
	l := notifySocket(t)
	next := func(want string) string {
		t.Helper()
		for {
			b := make([]byte, 4096)
			_ = l.SetReadDeadline(time.Now().Add(patience))
			n, err := l.Read(b)
			if err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
			if s := string(b[:n]); strings.HasPrefix(s, want) {
				return s
			} else if !strings.HasPrefix(s, "STATUS=") {
				t.Fatalf("told %q, want %s", s, want)
			}
		}
	}
	r := newRig(t)
	// Nothing answers, and yet the start is over: systemd must not end the agent.
	text := base + listen() + "clusters:\n  main: {nodes: {n1: " + freePort(t) + "}}\n"
	r.write(text)
	r.up()
	if s := next("READY=1"); !strings.Contains(s, "STATUS=clusters: 1, 1 without a writer (main)") {
		t.Errorf("told %q", s)
	}
	r.write("clusters: [")
	if r.reload() == nil {
		t.Fatal("a bad file was taken")
	}
	next("RELOADING=1\nMONOTONIC_USEC=")
	if s := next("READY=1"); !strings.Contains(s, "the last reload was refused") {
		t.Errorf("told %q", s)
	}
	r.write(text)
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	next("RELOADING=1")
	if s := next("READY=1"); strings.Contains(s, "refused") {
		t.Errorf("told %q", s)
	}
	r.down()
	next("STOPPING=1")
}

// Everything that asks the agent while it reloads must be answered: once a lock
// was held across the end of a part that asked for it.
func TestQuestionsDuringReloads(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	ports := []string{freePort(t), freePort(t)}
	write := func(i int) {
		r.write(base, listen("agent_check: "+ports[i%2]), "clusters:\n", clusterText("main", n1, n2))
	}
	write(0)
	r.up()
	r.settled("main", "n1", "n2")
	ctx, stop := context.WithCancel(t.Context())
	var askers sync.WaitGroup
	for _, addr := range ports {
		askers.Go(func() {
			for ctx.Err() == nil {
				c, err := net.DialTimeout("tcp", addr, time.Second)
				if err != nil {
					continue // the part listens at the other address now
				}
				_ = c.SetDeadline(time.Now().Add(time.Second))
				_, _ = c.Write([]byte("nobody knows this\n")) // the answer needs the clusters' names
				_, _ = c.Read(make([]byte, 100))
				_ = c.Close()
			}
		})
	}
	for i := range 20 {
		write(i)
		begin := time.Now()
		if err := r.reload(); err != nil {
			t.Error(err)
		}
		if d := time.Since(begin); d > 4*time.Second {
			t.Errorf("reload %d took %s", i, d)
		}
	}
	stop()
	askers.Wait()
	if strings.Contains(r.log.String(), "left behind") {
		t.Error("a part was left behind")
	}
}

func TestARunWithoutAFile(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	a, err := New(Options{Load: func() (*config.Config, error) {
		cfg, err := config.FromNodes([]string{"n1=" + n1.addr, "n2=" + n2.addr})
		if err != nil {
			return nil, err
		}
		cfg.StateDir = r.dir
		cfg.Listen = config.Listen{Status: "127.0.0.1:0"}
		return cfg, cfg.SetProbeRole("probe", "")
	}})
	if err != nil {
		t.Fatal(err)
	}
	r.run(a)
	r.settled("main", "n1", "n2")
	for _, p := range []string{partAgentCheck, partHealth, partXDS, partRuntime, "nonsense"} {
		if a := a.Addr(p); a != nil {
			t.Errorf("%s listens on %s", p, a)
		}
	}
	if err := r.reload(); err != nil {
		t.Error(err)
	}
}

// Views are renewed long before they end, whether nodes answer or not; an end
// means that the state goroutine stands still.
func TestViewsAreRenewedInTime(t *testing.T) {
	r := newRig(t)
	r.write(base, listen(), "clusters:\n  main: {nodes: {n1: "+freePort(t)+"}}\n")
	r.up()
	r.until("a view", func() bool { return r.view("main") != nil })
	least := viewLife
	for begin := time.Now(); time.Since(begin) < 3*time.Second; <-time.After(20 * time.Millisecond) {
		least = min(least, r.view("main").ValidUntil.Sub(r.agent.now().Mono))
	}
	if least < viewLife/4 {
		t.Errorf("a view was left with %s of its %s", least, viewLife)
	}
	t.Logf("views had %s left at least", least)
}
