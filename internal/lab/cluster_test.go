package lab_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// TestCluster walks one cluster through all changes of roles.
func TestCluster(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedPostgres)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	c := must(l.Cluster(ctx, lab.ClusterOptions{Settings: map[string]string{"work_mem": "1MB"}}))(t)

	for _, step := range []struct {
		name string
		do   func(t *testing.T, ctx context.Context, c *lab.Cluster)
	}{
		{"roles and passwords", testRoles},
		{"switchover", testSwitchover},
		{"failover from a frozen primary", testFrozenFailover},
		{"kill and rejoin", testKillRejoin},
		{"receiver and replay", testReceiver},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(t, ctx, c) }) {
			return
		}
	}
}

func testRoles(t *testing.T, ctx context.Context, c *lab.Cluster) {
	n1, n2 := c.Node("n1"), c.Node("n2")
	if got := c.Primary(); got != n1 {
		t.Fatalf("primary is %v, want n1", got)
	}
	write(t, ctx, c, "")
	for _, n := range []*lab.Node{n1, n2} {
		if got := query[string](t, ctx, n, "SHOW work_mem"); got != "1MB" {
			t.Errorf("%s: work_mem is %s", n.Name(), got)
		}
	}
}

func testSwitchover(t *testing.T, ctx context.Context, c *lab.Cluster) {
	tl, err := c.Switchover(ctx, "n2")
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Primary(); got != c.Node("n2") {
		t.Fatalf("primary is %v, want n2", got)
	}
	if tl.OldStopped.Before(tl.OldStopping) || tl.NewWritable.Before(tl.OldStopped) || tl.Done.Before(tl.NewWritable) {
		t.Errorf("moments are out of order: %+v", tl)
	}
	t.Logf("no writer for %v, all of it %v", tl.Gap(), tl.Done.Sub(tl.Started))
	write(t, ctx, c, "")
}

func testFrozenFailover(t *testing.T, ctx context.Context, c *lab.Cluster) {
	old := c.Node("n2")
	if err := old.Freeze(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if conn, err := old.Conn(short); err == nil {
		t.Error("a frozen node answered")
		_ = conn.Close(ctx)
	}
	if _, err := c.Failover(ctx, "n3"); err != nil {
		t.Fatal(err)
	}
	write(t, ctx, c, "n2")
	if err := old.Thaw(); err != nil {
		t.Fatal(err)
	}
	if query[bool](t, ctx, old, "SELECT pg_is_in_recovery()") {
		t.Error("the old primary is no primary any more after Thaw")
	}
	if got := c.Primary(); got != c.Node("n3") {
		t.Errorf("of two primaries %v was chosen, want n3", got)
	}
	if err := old.Exec(ctx, "INSERT INTO writes DEFAULT VALUES"); err != nil { // it diverges
		t.Fatal(err)
	}
	if err := c.Rejoin(ctx, "n2"); err != nil {
		t.Fatal(err)
	}
	write(t, ctx, c, "")
}

func testKillRejoin(t *testing.T, ctx context.Context, c *lab.Cluster) {
	if err := c.Node("n3").Kill(); err != nil {
		t.Fatal(err)
	}
	if c.Node("n3").PID() != 0 || c.Primary() != nil {
		t.Fatal("n3 lives on")
	}
	if _, err := c.Failover(ctx, "n1"); err != nil {
		t.Fatal(err)
	}
	write(t, ctx, c, "n3")
	if err := c.Rejoin(ctx, "n3"); err != nil {
		t.Fatal(err)
	}
	write(t, ctx, c, "")
}

func testReceiver(t *testing.T, ctx context.Context, c *lab.Cluster) {
	n3 := c.Node("n3")
	steps := []func(context.Context) error{n3.PauseReplay, n3.ResumeReplay, n3.StopReceiver, n3.StartReceiver}
	var got []bool
	for _, f := range steps {
		if err := f(ctx); err != nil {
			t.Fatal(err)
		}
		got = append(got, query[bool](t, ctx, n3, "SELECT pg_is_wal_replay_paused()"),
			query[bool](t, ctx, n3, "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver)"))
	}
	want := []bool{true, true, false, true, false, false, false, true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paused, receiving after each step (-want +got):\n%s", diff)
	}
	write(t, ctx, c, "")
}

// write writes one row on the primary and checks that all nodes show it, without
// the one that is named absent.
func write(t *testing.T, ctx context.Context, c *lab.Cluster, absent string) {
	t.Helper()
	primary := c.Primary()
	if primary == nil {
		t.Fatal("there is no primary")
	}
	if err := primary.Exec(ctx, "INSERT INTO writes DEFAULT VALUES"); err != nil {
		t.Fatal(err)
	}
	if err := c.WaitStreaming(ctx); err != nil {
		t.Fatal(err)
	}
	want := query[int64](t, ctx, primary, "SELECT max(id) FROM writes")
	for _, n := range c.Nodes() {
		if n.Name() == absent {
			continue
		}
		if got := query[int64](t, ctx, n, "SELECT max(id) FROM writes"); got != want {
			t.Errorf("%s shows row %d, want %d", n.Name(), got, want)
		}
	}
}

func query[T any](t *testing.T, ctx context.Context, n *lab.Node, sql string) (v T) {
	t.Helper()
	conn := must(n.Conn(ctx))(t)
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, sql).Scan(&v); err != nil {
		t.Fatalf("%s on %s: %v", sql, n.Name(), err)
	}
	return v
}

// must unpacks a result whose error ends the test.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// eventually polls for ten seconds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(10 * time.Second); !ok(); {
		select {
		case <-end:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}
