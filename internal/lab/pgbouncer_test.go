package lab_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// TestPgBouncer: every role of the cluster gets through, also after a stop and a
// kill, and a frozen PgBouncer accepts and answers nothing.
func TestPgBouncer(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedPostgres, lab.NeedPgBouncer)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := must(l.Cluster(ctx, lab.ClusterOptions{Nodes: 1}))(t)
	b := must(l.PgBouncer(ctx, lab.PgBouncerOptions{Node: c.Node("n1"), Settings: map[string]string{"pool_mode": "transaction"}}))(t)
	query := func(ctx context.Context, role string) (port int, err error) {
		dsn := fmt.Sprintf("host=127.0.0.1 port=%d dbname=postgres sslmode=disable user=%s password='%s'", b.Port(), role, c.Password(role))
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return 0, err
		}
		defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
		err = conn.QueryRow(ctx, "SELECT inet_server_port()").Scan(&port)
		return port, err
	}
	for _, role := range []string{lab.AppUser, lab.Superuser, c.ProbeUser()} {
		if port, err := query(ctx, role); err != nil || port != c.Node("n1").Port() {
			t.Errorf("role %s got to port %d, %v; want that of n1", role, port, err)
		}
	}
	for _, stop := range []func() error{func() error { return b.Stop(ctx) }, b.Kill} {
		addr := b.Addr()
		if err := errors.Join(stop(), b.Start(ctx)); err != nil {
			t.Fatal(err)
		}
		if _, err := query(ctx, lab.AppUser); err != nil || b.Addr() != addr {
			t.Errorf("after a start at %s (before: %s): %v", b.Addr(), addr, err)
		}
	}
	if err := b.Freeze(); err != nil {
		t.Fatal(err)
	}
	short, cancelShort := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancelShort()
	if _, err := query(short, lab.AppUser); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen PgBouncer gave %v", err)
	}
	if err := b.Thaw(); err != nil {
		t.Fatal(err)
	}
}
