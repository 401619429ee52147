package pgbouncer

import (
	"context"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
)

// How often an address is asked whether a server is behind it, how many answers in a
// row count, and how long one may take. A balancer that has just been told of a new
// writer may still have an older answer of its own checks under way.
const (
	askEvery  = 20 * time.Millisecond
	askInARow = 3
	askWithin = 500 * time.Millisecond
)

// Open returns once there is a server behind every address that databases of a hold
// lead to: a connection that fails ends PgBouncer's waiting clients (measured: "server
// login has been failing"). An address where this host found nobody before the pause
// is PgBouncer's own affair, and so is one that a template names.
func (h *Hold) Open(ctx context.Context) error {
	for _, address := range h.paths {
		for good := 0; good < askInARow; {
			err := answers(ctx, address)
			good++
			if err != nil {
				good = 0
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("no server answers at %s, where PgBouncer leads: %w", address, context.Cause(ctx))
			case <-time.After(askEvery):
			}
		}
	}
	return nil
}

// answers asks for encryption with GSSAPI, which a PostgreSQL answers before any login,
// and does not log.
func answers(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	network := "tcp"
	if strings.HasPrefix(address, "/") {
		network = "unix"
	}
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	b, err := (&pgproto3.GSSEncRequest{}).Encode(nil)
	if err != nil {
		return err
	}
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err = io.ReadFull(c, b[:1])
	return err
}

// path is the address of a database's servers as a dialer wants it.
func (d Database) path() string {
	if strings.HasPrefix(d.Host, "/") {
		return filepath.Join(d.Host, ".s.PGSQL."+d.Port)
	}
	return net.JoinHostPort(d.Host, d.Port)
}
