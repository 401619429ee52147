package lab_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// TestCluster walks one cluster through all changes of roles.
func TestCluster(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedPostgres)
	c := must(l.Cluster(t.Context(), lab.ClusterOptions{Settings: map[string]string{"work_mem": "1MB"}}))(t)
	for _, step := range []struct {
		name string
		do   func(clusterStep)
	}{
		{"roles and passwords", clusterStep.roles},
		{"switchover", clusterStep.switchover},
		{"failover from a frozen primary", clusterStep.frozenFailover},
		{"kill and rejoin", clusterStep.killRejoin},
		{"receiver and replay", clusterStep.receiver},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(clusterStep{t, c}) }) {
			return
		}
	}
}

type clusterStep struct {
	*testing.T
	c *lab.Cluster
}

func (t clusterStep) roles() {
	if got := t.c.Primary(); got != t.c.Node("n1") {
		t.Fatalf("primary is %v, want n1", got)
	}
	t.write("")
	for _, n := range t.c.Nodes() {
		if got := query[string](t, n, "SHOW work_mem"); got != "1MB" {
			t.Errorf("%s: work_mem is %s", n.Name(), got)
		}
	}
	n1 := t.c.Node("n1")
	for dsn, ok := range map[string]bool{
		n1.DSN(t.c.ProbeUser()): true,
		n1.DSN(lab.AppUser):     true,
		strings.Replace(n1.DSN(t.c.ProbeUser()), t.c.Password(t.c.ProbeUser()), "wrong", 1): false,
	} {
		conn, err := pgx.Connect(t.Context(), dsn)
		if (err == nil) != ok {
			t.Errorf("%s: %v", dsn, err)
		}
		if err == nil {
			_ = conn.Close(t.Context())
		}
	}
}

func (t clusterStep) switchover() {
	tl, err := t.c.Switchover(t.Context(), "n2")
	if err != nil {
		t.Fatal(err)
	}
	if got := t.c.Primary(); got != t.c.Node("n2") {
		t.Fatalf("primary is %v, want n2", got)
	}
	if tl.OldStopped.Before(tl.OldStopping) || tl.NewWritable.Before(tl.OldStopped) || tl.Done.Before(tl.NewWritable) {
		t.Errorf("moments are out of order: %+v", tl)
	}
	t.Logf("no writer for %v, all of it %v", tl.Gap(), tl.Done.Sub(tl.Started))
	t.write("")
}

func (t clusterStep) frozenFailover() {
	old := t.c.Node("n2")
	if err := old.Freeze(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if conn, err := old.Conn(short); err == nil {
		t.Error("a frozen node answered")
		_ = conn.Close(short)
	}
	if _, err := t.c.Failover(t.Context(), "n3"); err != nil {
		t.Fatal(err)
	}
	t.write("n2")
	if err := old.Thaw(); err != nil {
		t.Fatal(err)
	}
	if query[bool](t, old, "SELECT pg_is_in_recovery()") {
		t.Error("the old primary is no primary any more after Thaw")
	}
	if got := t.c.Primary(); got != t.c.Node("n3") {
		t.Errorf("of two primaries %v was chosen, want n3", got)
	}
	if err := old.Exec(t.Context(), "INSERT INTO writes DEFAULT VALUES"); err != nil { // it diverges
		t.Fatal(err)
	}
	if err := t.c.Rejoin(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	t.write("")
}

func (t clusterStep) killRejoin() {
	if err := t.c.Node("n3").Kill(); err != nil {
		t.Fatal(err)
	}
	if t.c.Node("n3").PID() != 0 || t.c.Primary() != nil {
		t.Fatal("n3 lives on")
	}
	if _, err := t.c.Failover(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	t.write("n3")
	if err := t.c.Rejoin(t.Context(), "n3"); err != nil {
		t.Fatal(err)
	}
	t.write("")
}

func (t clusterStep) receiver() {
	n3 := t.c.Node("n3")
	var got []bool
	for _, f := range []func(context.Context) error{n3.PauseReplay, n3.ResumeReplay, n3.StopReceiver, n3.StartReceiver} {
		if err := f(t.Context()); err != nil {
			t.Fatal(err)
		}
		got = append(got, query[bool](t, n3, "SELECT pg_is_wal_replay_paused()"),
			query[bool](t, n3, "SELECT EXISTS (SELECT FROM pg_stat_wal_receiver)"))
	}
	want := []bool{true, true, false, true, false, false, false, true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paused, receiving after each step (-want +got):\n%s", diff)
	}
	t.write("")
}

// write writes one row on the primary and checks that all nodes show it, without
// the one that is named absent.
func (t clusterStep) write(absent string) {
	t.Helper()
	primary := t.c.Primary()
	if primary == nil {
		t.Fatal("there is no primary")
	}
	if err := primary.Exec(t.Context(), "INSERT INTO writes DEFAULT VALUES"); err != nil {
		t.Fatal(err)
	}
	if err := t.c.WaitStreaming(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := query[int64](t, primary, "SELECT max(id) FROM writes")
	for _, n := range t.c.Nodes() {
		if n.Name() == absent {
			continue
		}
		if got := query[int64](t, n, "SELECT max(id) FROM writes"); got != want {
			t.Errorf("%s shows row %d, want %d", n.Name(), got, want)
		}
	}
}

func query[T any](t clusterStep, n *lab.Node, sql string) (v T) {
	t.Helper()
	conn := must(n.Conn(t.Context()))(t.T)
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
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
	for end := time.After(30 * time.Second); !ok(); {
		select {
		case <-end:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}
