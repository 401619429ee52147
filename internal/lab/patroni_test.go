package lab_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

func TestPatroni(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul, lab.NeedPatroni)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	consul := must(l.Consul(ctx))(t)
	c := must(l.Patroni(ctx, lab.PatroniOptions{
		Nodes: 2, Consul: consul, Tags: map[string]map[string]any{"n2": {"zone": "b"}},
	}))(t)
	if got := must(consul.Get(ctx, "service/main/leader"))(t); got != "n1" {
		t.Errorf("the leader in Consul is %q, want n1", got)
	}
	start := time.Now()
	if err := c.Switchover(ctx, "n2"); err != nil {
		t.Fatal(err)
	}
	t.Logf("switchover in %v", time.Since(start))
	conn := must(c.Node("n2").Conn(ctx))(t)
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, "INSERT INTO writes DEFAULT VALUES"); err != nil {
		t.Fatal(err)
	}

	// Patroni and PostgreSQL are killed and frozen apart from each other.
	n1 := c.Node("n1")
	pid := n1.Postgres().PID()
	if err := errors.Join(n1.Freeze(), n1.Thaw(), n1.Kill()); err != nil {
		t.Fatal(err)
	}
	if got := n1.Postgres().PID(); got != pid || pid == 0 {
		t.Errorf("PostgreSQL's pid is %d after Patroni was killed, before %d", got, pid)
	}
	if err := errors.Join(n1.Start(ctx), n1.Postgres().Kill()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Patroni starts PostgreSQL anew", func() bool { p := n1.Postgres().PID(); return p != 0 && p != pid })
	if err := c.WaitRunning(ctx); err != nil {
		t.Fatal(err)
	}
}

// A standby that has lost its primary by Patroni's own mistake streams again.
func TestPatroniStreams(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul, lab.NeedPatroni)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := must(l.Patroni(ctx, lab.PatroniOptions{Nodes: 2, Consul: must(l.Consul(ctx))(t)}))(t)
	if err := c.WaitStreaming(ctx); err != nil {
		t.Fatal(err)
	}
	// The server loses its primary and the file keeps its time, so that Patroni
	// goes on with what it has read before.
	n2 := c.Node("n2")
	file := filepath.Join(n2.DataDir(), "postgresql.conf")
	before := must(os.Stat(file))(t)
	text := regexp.MustCompile(`(?m)^primary_conninfo = .*$`).ReplaceAll(must(os.ReadFile(file))(t), []byte("primary_conninfo = ''"))
	conn := must(n2.Conn(ctx))(t)
	defer conn.Close(ctx)
	streams := func() (yes bool) {
		err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver)").Scan(&yes)
		return err != nil || yes
	}
	if err := errors.Join(os.WriteFile(file, text, 0o600), os.Chtimes(file, before.ModTime(), before.ModTime())); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_reload_conf()"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "n2 has no WAL receiver", func() bool { return !streams() })
	if err := c.WaitStreaming(ctx); err != nil {
		t.Fatal(err)
	}
	if !streams() {
		t.Error("n2 has no WAL receiver, want one")
	}
}

// A standby cluster of the other release, with a node that is started later, and
// the gates that make a node stand still.
func TestPatroniGates(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul, lab.NeedPatroni4)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	consul := must(l.Consul(ctx))(t)
	c := must(l.Patroni(ctx, lab.PatroniOptions{Nodes: 2, Idle: 1, Consul: consul, Release: lab.Patroni4}))(t)
	n1, n2 := c.Node("n1"), c.Node("n2")
	if pid := n2.Postgres().PID(); pid != 0 {
		t.Errorf("n2 runs as %d though it was left for later", pid)
	}
	far := must(l.Patroni(ctx, lab.PatroniOptions{Scope: "far", Nodes: 1, Consul: consul, Release: lab.Patroni4, StandbyOf: c}))(t)
	if got := rest(ctx, t, far.Node("n1")); got.Role != "standby_leader" || got.Patroni.Version != lab.Patroni4 {
		t.Errorf("far's leader says %+v", got)
	}
	archive := func(config map[string]any) {
		config["postgresql"].(map[string]any)["recovery_conf"] = map[string]any{"restore_command": n2.RestoreCommand()}
	}
	if err := errors.Join(n2.Reconfigure(archive), n2.Hold(lab.GateRestore), n2.Start(ctx)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "n2 waits for its archive", func() bool { return n2.Postgres().PID() != 0 && rest(ctx, t, n2).State == "starting" })
	if err := errors.Join(n2.Release(lab.GateRestore), c.WaitRunning(ctx), n2.Hold(lab.GatePromote)); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- c.Switchover(ctx, "n2") }()
	eventually(t, "n2 holds the key before it is promoted", func() bool {
		_, err := n2.REST(ctx, "GET", "/primary", "")
		return err == nil && rest(ctx, t, n2).Role == "replica"
	})
	if err := errors.Join(n2.Release(lab.GatePromote), <-done, n1.Hold(lab.GateStart), n1.Postgres().Kill()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "n1 waits before it starts", func() bool { return n1.Postgres().PID() == 0 && rest(ctx, t, n1).State == "starting" })
	if err := errors.Join(n1.Release(lab.GateStart), c.WaitRunning(ctx)); err != nil {
		t.Fatal(err)
	}
}

// said is what a node's Patroni says of itself.
type said struct {
	State, Role string
	Patroni     struct{ Version string }
}

func rest(ctx context.Context, t *testing.T, n *lab.PatroniNode) (s said) {
	t.Helper()
	text := must(n.REST(ctx, "GET", "/patroni", ""))(t)
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}
