package lab_test

import (
	"context"
	"errors"
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
