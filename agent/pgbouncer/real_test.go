package pgbouncer

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// A real PgBouncer, over its socket and over TCP with a password: what each order does
// to a client, and that a transaction which does not end is left alone by a hold.
func TestRealPgBouncer(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedPostgres, lab.NeedPgBouncer)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cluster, err := l.Cluster(ctx, lab.ClusterOptions{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.PgBouncer(ctx, lab.PgBouncerOptions{Node: cluster.Node("n1"), Settings: map[string]string{"pool_mode": "transaction"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, address := range map[string]string{"socket": b.Socket(), "TCP": b.Addr()} {
		t.Run(name, func(t *testing.T) {
			r := &realRig{t: t, ctx: ctx, at: b.Addr()}
			stop := r.run(Bouncer{Login: Login{Address: address, User: lab.PgBouncerAdmin, Password: b.AdminPassword}})
			r.client = r.enter()
			r.disabled()
			r.paused()
			r.busy()
			r.killed()
			r.settled()
			if n := r.c.Status()[0].Counters["failed"]; n < 1 || n > 2 { // the hold in vain; on a busy machine its end cuts a look too
				t.Errorf("%d exchanges have failed", n)
			}
			stop()
			if s := r.c.Status()[0]; s.Err != nil || len(s.Paused) > 0 {
				t.Errorf("at the end the status is %+v", s)
			}
		})
	}
	t.Run("a pause over a reload", func(t *testing.T) { testRealReload(ctx, t, l, cluster) })
}

// testRealReload: a reload that leads a paused database elsewhere ends no pause, and who
// waits in it is then served there.
func testRealReload(ctx context.Context, t *testing.T, l *lab.Lab, cluster *lab.Cluster) {
	t.Helper()
	file := filepath.Join(l.Dir(), "databases.ini")
	lead := func(to string) map[string]string {
		host, port, err := net.SplitHostPort(to)
		if err == nil {
			err = os.WriteFile(file, []byte("[databases]\npostgres = host="+host+" port="+port+"\n"), 0o644) //nolint:gosec // PgBouncer runs as another user
		}
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{"postgres": to}
	}
	link, err := l.Link(ctx, cluster.Node("n1").Addr())
	if err != nil {
		t.Fatal(err)
	}
	lead(link.Addr())
	b, err := l.PgBouncer(ctx, lab.PgBouncerOptions{Include: file, Settings: map[string]string{"pool_mode": "transaction"}})
	if err != nil {
		t.Fatal(err)
	}
	r := &realRig{t: t, ctx: ctx, at: b.Addr()}
	stop := r.run(Bouncer{Login: Login{Address: b.Addr(), User: lab.PgBouncerAdmin, Password: b.AdminPassword}, Templated: true, File: file})
	defer stop()
	r.client = r.enter()
	r.waiting(func() {
		if err := r.c.Reload(ctx, "edge", lead(cluster.Node("n1").Addr())); err != nil {
			t.Fatal(err)
		}
		if err := link.Refuse(); err != nil { // nobody is led to where it was
			t.Fatal(err)
		}
	})
}

// realRig is a client of a PgBouncer that a Control speaks to.
type realRig struct {
	t      *testing.T
	ctx    context.Context //nolint:containedctx // of the test
	at     string          // where clients come
	c      *Control
	client *pgx.Conn
}

func (r *realRig) run(b Bouncer) (stop func()) {
	r.t.Helper()
	var err error
	b.Name, b.Databases = "edge", []Entry{{"postgres", "main", "primary", topology.ModeWrite}}
	r.c, err = New(Options{
		Bouncers: []Bouncer{b},
		Views:    new(latest.Map[string, topology.View]), Now: topology.NewTicker(time.Now),
		Path: filepath.Join(r.t.TempDir(), "pgbouncer.json"), Recheck: 20 * time.Millisecond,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	done := make(chan error, 1)
	go func() { done <- r.c.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
	}
}

func (r *realRig) dial() (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(r.ctx, 10*time.Second)
	defer cancel()
	return pgx.Connect(ctx, "postgres://"+lab.AppUser+"@"+r.at+"/postgres?sslmode=disable&default_query_exec_mode=simple_protocol")
}

// enter is a new client that is served.
func (r *realRig) enter() *pgx.Conn {
	r.t.Helper()
	c, err := r.dial()
	if err == nil {
		err = r.says(c, "SELECT 1")
	}
	if err != nil {
		r.t.Fatalf("a new client: %v", err)
	}
	return c
}

func (r *realRig) says(c *pgx.Conn, sql string) error {
	ctx, cancel := context.WithTimeout(r.ctx, 20*time.Second)
	defer cancel()
	_, err := c.Exec(ctx, sql)
	return err
}

func (r *realRig) order(a Action) {
	r.t.Helper()
	if _, err := r.c.Act(r.ctx, "edge", Order{Action: a}); err != nil {
		r.t.Fatalf("%s: %v", a, err)
	}
}

// settled waits until what was wrong before the first client came is over.
func (r *realRig) settled() {
	r.t.Helper()
	for r.c.Status()[0].Err != nil {
		select {
		case <-r.ctx.Done():
			r.t.Fatalf("PgBouncer stays as it should not be: %v", r.c.Status()[0].Err)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// disabled: nobody new comes in, who is there goes on, also through a reconnect.
func (r *realRig) disabled() {
	r.t.Helper()
	r.order(Disable)
	if other, err := r.dial(); err == nil {
		_ = other.Close(r.ctx)
		r.t.Error("a new client came in although the database is disabled")
	}
	for _, a := range []Action{Reconnect, Enable, Reload} {
		r.order(a)
		if err := r.says(r.client, "SELECT 1"); err != nil {
			r.t.Errorf("a client that is there, after %s: %v", a, err)
		}
	}
}

// paused: clients wait, also over a reload of the files.
func (r *realRig) paused() {
	r.t.Helper()
	r.waiting(func() { r.order(Reload) })
}

// waiting pauses, and has a client wait over something until the pause ends.
func (r *realRig) waiting(over func()) {
	r.t.Helper()
	r.order(Pause)
	over()
	waits := make(chan error, 1)
	go func() { waits <- r.says(r.client, "SELECT 1") }()
	select {
	case err := <-waits:
		r.t.Fatalf("a client did not wait: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	r.order(Resume)
	if err := <-waits; err != nil {
		r.t.Errorf("after RESUME: %v", err)
	}
}

// busy: a transaction that runs keeps a hold from being complete, and outlives it.
func (r *realRig) busy() {
	r.t.Helper()
	if err := r.says(r.client, "BEGIN"); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
	defer cancel()
	if _, err := r.c.Hold(ctx, "main"); err == nil {
		r.t.Error("a hold is complete although a transaction runs")
	}
	if err := r.says(r.client, "COMMIT"); err != nil {
		r.t.Errorf("the transaction that a hold waited for: %v", err)
	}
}

// killed: sessions end, and clients come anew.
func (r *realRig) killed() {
	r.t.Helper()
	r.order(Kill)
	if err := r.says(r.client, "SELECT 1"); err == nil {
		r.t.Error("a client outlived KILL")
	}
	_ = r.enter().Close(r.ctx)
}
