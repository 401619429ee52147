package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// dial opens a session as an application would that may be behind a PgBouncer.
func (r *rig) dial(addr string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Second)
	defer cancel()
	return pgx.Connect(ctx, "postgres://app@"+addr+"/postgres?sslmode=disable&default_query_exec_mode=simple_protocol")
}

// reached opens a session and returns the port of the server that it reached; 0: none.
func (r *rig) reached(addr string) int {
	c, err := r.dial(addr)
	if err != nil {
		return 0
	}
	defer func() { _ = c.Close(context.Background()) }()
	return serverPort(c)
}

// serverPort asks a session which server it is on; 0: it does not answer.
func serverPort(c *pgx.Conn) (port int) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := c.QueryRow(ctx, "SELECT inet_server_port()").Scan(&port); err != nil {
		return 0
	}
	return port
}

// session opens a session that ends with the test, on a server of a port (0: any).
func (r *rig) session(addr string, port int) *pgx.Conn {
	r.t.Helper()
	var found *pgx.Conn
	r.until(fmt.Sprintf("a session through %s to port %d", addr, port), func() bool {
		c, err := r.dial(addr)
		if err != nil {
			return false
		}
		if p := serverPort(c); p == 0 || port != 0 && p != port {
			_ = c.Close(context.Background())
			return false
		}
		found = c
		return true
	})
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = found.Close(ctx)
	})
	return found
}

// watchEnd reports the moment at which an idle session ends. The session is of
// no other use afterwards.
func watchEnd(tb testing.TB, c *pgx.Conn) <-chan time.Time {
	tb.Helper()
	ended := make(chan time.Time, 1)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := c.WaitForNotification(ctx); err != nil && ctx.Err() == nil {
			ended <- time.Now()
		}
	}()
	tb.Cleanup(func() { cancel(); <-done })
	return ended
}

// closeConn ends a session, if there is one; a peer that does not answer cannot hold it up.
func closeConn(c *pgx.Conn) {
	if c != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Close(ctx)
	}
}
