package agent

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestNewBindsEverythingOrLeavesNothingOpen(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	r := newRig(t)
	check, health, at := freePort(t), freePort(t), freePort(t)
	r.write(base, listen("agent_check: "+check, "health: "+health, "status: "+at, "xds: "+taken.Addr().String()),
		"clusters:\n  main: {nodes: {n1: "+freePort(t)+"}}\n")
	_, err = r.new()
	if err == nil || !strings.Contains(err.Error(), "xds cannot listen on "+taken.Addr().String()) || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("New says %v, want what cannot listen where, and why", err)
	}
	for _, a := range []string{check, health, at} {
		l, err := net.Listen("tcp", a)
		if err != nil {
			t.Fatalf("New left %s open: %v", a, err)
		}
		_ = l.Close()
	}
}

func TestNewNamesEveryFault(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	r := newRig(t)
	r.file("no.pem", "nothing\n")
	r.write("state_dir: state\npostgres: {sslmode: verify-full, sslrootcert: no.pem}\n", listen("health: "+taken.Addr().String()),
		"clusters:\n  main: {nodes: {n1: 127.0.0.1:1}}\n")
	_, err = r.new()
	for _, want := range []string{"healthapi cannot listen", "cluster main cannot be watched", "no.pem", "no certificate"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New says %v, which lacks %q", err, want)
		}
	}
}

func TestARefusedReloadChangesNothing(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	good := []string{base, listen(), "clusters:\n", clusterText("main", n1, n2)}
	r.write(good...)
	r.up()
	r.settled("main", "n1", "n2")
	foreign, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = foreign.Close() }()
	taken := foreign.Addr().String()
	r.file("bad.tmpl", "{{ nonsense")
	r.file("no.pem", "nothing\n")
	for _, c := range []struct{ name, text, want string }{
		{"no YAML", "clusters: [", "pgsteer.yaml:1"},
		{"unknown key", strings.Join(good, "") + "polcy: 1\n", "polcy"},
		{"port in use", base + listen("health: "+taken) + "clusters:\n" + clusterText("main", n1, n2), "healthapi cannot listen on " + taken + " (listen.health)"},
		{"template that does not parse", strings.Join(good, "") + "templates: [{name: x, files: [{source: bad.tmpl, destination: x.cfg}]}]\n", "bad.tmpl"},
		{"template that is missing", strings.Join(good, "") + "templates: [{name: x, files: [{source: none.tmpl, destination: x.cfg}]}]\n", "none.tmpl"},
		{"source that cannot be built", strings.Join(good, "") + "  two: {nodes: {a: 127.0.0.1:1}, postgres: {sslmode: verify-ca, sslrootcert: no.pem}}\n", "cluster two cannot be watched"},
		{"another state folder", strings.Replace(strings.Join(good, ""), "state_dir: state", "state_dir: other", 1), "state_dir cannot change"},
		{"another log format", strings.Join(good, "") + "log: {format: json}\n", "log.format cannot change"},
		{"no file", "", "no such file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			before, addr, sessions := r.view("main").Snapshot, r.addr(partHealth), n1.Counts().Sessions
			r.write(c.text)
			if c.text == "" {
				_ = os.Remove(r.path)
			}
			err := r.reload()
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("Reload says %v, want %q", err, c.want)
			}
			if s := r.statusText(); !strings.Contains(s, "! the last reload was refused") || !strings.Contains(s, c.want) {
				t.Errorf("status does not tell of the refusal:\n%s", s)
			}
			if m := r.metric("pgsteer_config_last_reload_success"); m != "0" {
				t.Errorf("the metric of the reload is %q", m)
			}
			if !strings.Contains(r.log.String(), "the configuration was not taken; what runs goes on unchanged") {
				t.Error("the refusal was not logged")
			}
			if r.view("main").Snapshot != before || r.addr(partHealth) != addr || n1.Counts().Sessions != sessions || r.view("two") != nil {
				t.Error("the refused configuration changed something")
			}
			r.write(good...)
			if err := r.reload(); err != nil {
				t.Fatal(err)
			}
			if s, m := r.statusText(), r.metric("pgsteer_config_last_reload_success"); strings.Contains(s, "refused") || m != "1" {
				t.Errorf("a good reload does not clear the refusal: metric %s, status\n%s", m, s)
			}
		})
	}
}

func TestAChangedPolicyRestartsNothing(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	generation, sessions := r.generation("main"), n1.Counts().Sessions+n2.Counts().Sessions
	policy := "    policy: {silent_after: 4s, kill_after: 33s}\n    pools:\n      primary: {mode: write}\n      replica: {mode: read, max_lag: 1MB}\n"
	r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2, policy))
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	if _, e := r.get(partStatus, "/api/v1/explain/main/n1"); !strings.Contains(e, "after 4s of silence") {
		t.Errorf("the new policy does not hold: %s", e)
	}
	// A verdict that the new policy changes does change.
	r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2, "    pools:\n      primary: {mode: write}\n      ro: {mode: read}\n"))
	if r.generation("main") != generation {
		t.Errorf("generation went from %d to %d, although no verdict changed", generation, r.generation("main"))
	}
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.until("the pool ro", func() bool { _, ok := r.view("main").Snapshot.Pool("ro"); return ok })
	if n := n1.Counts().Sessions + n2.Counts().Sessions; n != sessions {
		t.Errorf("%d sessions were opened for changed policies", n-sessions)
	}
}

func TestAChangedListenerMovesAndAnUnchangedOneStays(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	first, second := freePort(t), freePort(t)
	r.write(base, listen("agent_check: "+first), "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	kept, err := net.Dial("tcp", r.addr(partXDS))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kept.Close() }()

	var dialers sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for _, part := range []string{partHealth, partStatus, partXDS} {
		addr := r.addr(part)
		dialers.Go(func() { keepDialing(ctx, t, part, addr) })
	}
	for i := range 8 {
		at := first
		if i%2 == 0 {
			at = second
		}
		local := []string{"local: main/n1\n", "local: main/n2\n", ""}[i%3]
		more := []string{"", "    pools: {primary: {listen: \"127.0.0.1:7\"}}\n"}[i%2]
		r.write(base, local, listen("agent_check: "+at), "envoy: {connect_timeout: "+[]string{"1s", "2s"}[i%2]+"}\nclusters:\n", clusterText("main", n1, n2, more))
		if err := r.reload(); err != nil {
			t.Fatal(err)
		}
		if got := r.ask("main primary n1"); r.addr(partAgentCheck) != at || !strings.HasPrefix(got, "up") {
			t.Fatalf("after the move to %s, %s answers %q", at, r.addr(partAgentCheck), got)
		}
		want := map[string]int{"local: main/n1\n": 200, "local: main/n2\n": 503, "": 404}[local]
		if code, body := r.get(partHealth, "/primary"); code != want {
			t.Errorf("with %q /primary answers %d: %s", local, code, body)
		}
	}
	stop()
	dialers.Wait()
	if c, err := net.Dial("tcp", second); err == nil {
		_ = c.Close()
		t.Errorf("the old address %s still accepts", second)
	}
	_ = kept.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	b := make([]byte, 1024)
	for {
		if _, err := kept.Read(b); err != nil {
			if !os.IsTimeout(err) {
				t.Errorf("the connection to an unchanged listener was ended: %v", err)
			}
			return
		}
	}
}

// keepDialing connects all the time and fails the test at the first refusal.
func keepDialing(ctx context.Context, t *testing.T, part, addr string) {
	n := 0
	for ; ctx.Err() == nil; n++ {
		c, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			t.Errorf("%s at %s refused connection %d: %v", part, addr, n, err)
			return
		}
		_ = c.Close()
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
	t.Logf("%s took %d connections during the reloads", part, n)
}

func TestAnAddressThatOurOwnListenerBlocksIsExplained(t *testing.T) {
	r := newRig(t)
	at := freePort(t)
	_, port, _ := net.SplitHostPort(at)
	r.write(base, listen("health: "+at), "clusters:\n  main: {nodes: {n1: 127.0.0.1:1}}\n")
	r.up()
	r.write(base, listen("health: 0.0.0.0:"+port), "clusters:\n  main: {nodes: {n1: 127.0.0.1:1}}\n")
	err := r.reload()
	if err == nil || !strings.Contains(err.Error(), "this agent's own healthapi listens on "+at+" until it is restarted") {
		t.Errorf("Reload says %v", err)
	}
}

func TestClustersComeAndGo(t *testing.T) {
	n1, n2, m1, m2 := newNode(t, primary), newNode(t, replica), newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	one := []string{base, listen(), "clusters:\n", clusterText("main", n1, n2)}
	r.write(one...)
	r.up()
	r.settled("main", "n1", "n2")
	if got := r.ask("two primary n1"); !strings.HasPrefix(got, "down") {
		t.Errorf("a cluster that nobody knows is answered %q", got)
	}
	r.write(append(one, clusterText("two", m1, m2))...)
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.settled("two", "n1", "n2")
	if got := r.ask("two primary n1"); !strings.HasPrefix(got, "up") {
		t.Errorf("the new cluster is answered %q", got)
	}
	r.write(one...)
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	if r.view("two") != nil || m1.Open()+m2.Open() > 0 {
		t.Errorf("the removed cluster lives on: view %v, %d sessions", r.view("two"), m1.Open()+m2.Open())
	}
	if got := r.ask("two primary n1"); !strings.HasPrefix(got, "down") {
		t.Errorf("the removed cluster is answered %q", got)
	}
	r.until("the memory of the removed cluster on disk", func() bool {
		_, err := os.Stat(filepath.Join(r.dir, "state", "cluster-two.json"))
		return err == nil
	})
	r.write(append(one, clusterText("two", m1, m2))...)
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.settled("two", "n1", "n2")
}

// A cluster that goes and comes back counts its generations on: to a sink that did not
// notice, a lower one is of before.
func TestAClusterThatComesBackCountsOn(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	m1, m2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	one := []string{base, listen(), "clusters:\n", clusterText("main", n1, n2)}
	r.write(append(one, clusterText("two", m1, m2))...)
	r.up()
	var all []uint64
	for range 4 {
		r.settled("two", "n1", "n2")
		all = append(all, r.generation("two"))
		for _, texts := range [][]string{one, append(one, clusterText("two", m1, m2))} {
			r.write(texts...)
			if err := r.reload(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i, g := range all[1:] {
		if g <= all[i] {
			t.Fatalf("its generations were %d when it was settled", all)
		}
	}
}

// A cluster that could not be stopped in a reload, and goes on later, publishes nothing beside
// its successor.
func TestAClusterLeftBehindSaysNothing(t *testing.T) {
	r := newRig(t)
	r.write(base, listen(), "clusters:\n", clusterText("main", newNode(t, primary), newNode(t, replica)))
	r.up()
	r.settled("main", "n1", "n2")
	changes := r.agent.views.Subscribe()
	defer changes.Close()
	changes.Take()
	<-changes.Ready()
	cfg := r.agent.cfg.Load()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		p, err := r.agent.buildCluster(cfg, cfg.Clusters[0], nil)
		if err != nil {
			t.Fatal(err)
		}
		p.begin()
		if err := p.run(over); err != nil {
			t.Fatal(err)
		}
	}
	if names := changes.Take(); len(names) > 0 {
		t.Errorf("%v was published by one whose time was over", names)
	}
}

func TestAChangedSourceRestartsThatClusterAloneAndHoldsItsWriter(t *testing.T) {
	n1, n2, m1, m2 := newNode(t, primary), newNode(t, replica), newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2), clusterText("two", m1, m2))
	r.up()
	r.settled("main", "n1", "n2")
	r.settled("two", "n1", "n2")
	other, sessions := r.view("two").Snapshot, m1.Counts().Sessions+m2.Counts().Sessions

	ctx, stop := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { watchWriter(ctx, t, r.agent, "main", "n1") })
	for _, interval := range []string{"500ms", "700ms"} {
		before := r.generation("main")
		n := n1.Counts().Sessions
		r.until("the state to be written, and then taken away: what the process knows is enough", func() bool {
			return os.Rename(filepath.Join(r.dir, "state"), filepath.Join(r.dir, "away-"+interval)) == nil
		})
		r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2, "    postgres: {interval: "+interval+"}\n"), clusterText("two", m1, m2))
		if err := r.reload(); err != nil {
			t.Fatal(err)
		}
		r.until("another session on n1", func() bool { return n1.Counts().Sessions > n })
		r.until("a later generation", func() bool { return r.generation("main") > before })
		r.settled("main", "n1", "n2")
	}
	stop()
	watch.Wait()
	if r.view("two").Snapshot != other || m1.Counts().Sessions+m2.Counts().Sessions != sessions {
		t.Error("the other cluster was touched")
	}
	if l := r.log.String(); strings.Contains(l, "verdict=down was=up") || strings.Contains(l, "verdict=drain was=up") {
		t.Error("the log tells of a node that was taken out")
	}
}

// watchWriter fails the test when the writer is taken out, another one is up, or
// a generation runs backwards.
func watchWriter(ctx context.Context, t *testing.T, a *Agent, cluster, writer string) {
	sub := a.views.Subscribe()
	defer sub.Close()
	var last uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.Ready():
			sub.Take()
		}
		s := a.views.Get(cluster).Snapshot
		if s.Generation < last {
			t.Errorf("generation %d follows %d", s.Generation, last)
		}
		last = s.Generation
		p, _ := s.Pool("primary")
		v, _ := p.Verdict(writer)
		if v.Verdict == topology.Down || v.Verdict == topology.Drain || s.Writer != "" && s.Writer != writer || s.Writer == "" && s.Held != writer {
			t.Errorf("generation %d: %s is %s (%s), writer %q, held %q", s.Generation, writer, v.Verdict, v.Reason().Text, s.Writer, s.Held)
		}
	}
}

// A node that is added or taken away disturbs nobody else: no verdict of the
// others is forgotten on the way.
func TestNodesOfTheConfigurationFollowAReload(t *testing.T) {
	n1, n2, n3 := newNode(t, primary), newNode(t, replica), newNode(t, replica)
	r := newRig(t)
	r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2))
	r.up()
	r.settled("main", "n1", "n2")
	sessions := n1.Counts().Sessions

	r.write(base, listen(), "clusters:\n", strings.Replace(clusterText("main", n1, n2), "}", ", n3: "+n3.addr+"}", 1))
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.until("n3 takes reads", func() bool {
		pool, _ := r.view("main").Snapshot.Pool("replica")
		primaries, _ := r.view("main").Snapshot.Pool("primary")
		if v, _ := primaries.Verdict("n1"); v.Verdict != topology.Up {
			t.Fatalf("n1 is %v meanwhile", v.Verdict)
		}
		v, _ := pool.Verdict("n3")
		return v.Verdict == topology.Up
	})
	r.write(base, listen(), "clusters:\n", clusterText("main", n1, n2))
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.until("n3 is gone", func() bool { return len(r.view("main").Snapshot.Nodes) == 2 })
	r.settled("main", "n1", "n2")
	if n := n1.Counts().Sessions; n != sessions {
		t.Errorf("n1's probe has opened %d sessions more", n-sessions)
	}
}
