package lab

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// AutoFailoverNode is one pg_autoctl with its PostgreSQL: the monitor, or a node
// with its keeper. Its methods are about both; Postgres gives the server alone.
type AutoFailoverNode struct {
	c    *AutoFailover
	name string
	port int
	dir  string

	slot
}

// Name returns the node's name, such as "n1".
func (n *AutoFailoverNode) Name() string { return n.name }

// Port returns PostgreSQL's TCP port.
func (n *AutoFailoverNode) Port() int { return n.port }

// Addr returns PostgreSQL's address, "127.0.0.1:port".
func (n *AutoFailoverNode) Addr() string { return loopback(n.port) }

// DSN returns a connection URL of the database "postgres" for a role.
func (n *AutoFailoverNode) DSN(role string) string { return dsn(n.Addr(), role, "") }

// DataDir returns PostgreSQL's data folder.
func (n *AutoFailoverNode) DataDir() string { return filepath.Join(n.dir, "data") }

// LogFile returns the path of the log of pg_autoctl and PostgreSQL.
func (n *AutoFailoverNode) LogFile() string { return filepath.Join(n.dir, "pg_autoctl.log") }

// Postgres returns the server of this node.
func (n *AutoFailoverNode) Postgres() Postmaster { return Postmaster{data: n.DataDir()} }

// Conn opens a session. The caller closes it.
func (n *AutoFailoverNode) Conn(ctx context.Context, role, database string) (*pgx.Conn, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	conn, err := connect(ctx, strings.Replace(n.DSN(role), "/postgres?", "/"+database+"?", 1))
	if err != nil {
		return nil, fmt.Errorf("pg_auto_failover %s: %w", n.name, err)
	}
	return conn, nil
}

func (n *AutoFailoverNode) withConn(ctx context.Context, role, database string, f func(*pgx.Conn) error) error {
	conn, err := n.Conn(ctx, role, database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := f(conn); err != nil {
		return fmt.Errorf("lab: pg_auto_failover %s: %w", n.name, err)
	}
	return nil
}

// Exec runs statements as superuser, one after another.
func (n *AutoFailoverNode) Exec(ctx context.Context, database string, statements ...string) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return n.withConn(ctx, Superuser, database, func(conn *pgx.Conn) error {
		for _, s := range statements {
			if _, err := conn.Exec(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	})
}

// spec is pg_autoctl with its arguments. Where it keeps its files is told by the
// environment; PostgreSQL's sockets go to the lab's folder.
func (n *AutoFailoverNode) spec(args ...string) spec {
	return spec{
		name: "pg_autoctl " + n.name, path: n.c.program, args: args, dir: n.dir, log: n.LogFile(), drop: true,
		env: []string{
			"PATH=" + n.c.bin + ":/usr/bin:/bin", "XDG_CONFIG_HOME=" + filepath.Join(n.dir, "config"), "XDG_DATA_HOME=" + filepath.Join(n.dir, "share"),
			"XDG_RUNTIME_DIR=" + n.dir, "PG_REGRESS_SOCK_DIR=" + n.c.lab.sockets, "PGHOST=" + n.c.lab.sockets,
		},
	}
}

// create makes the node's files, and registers it at the monitor.
func (n *AutoFailoverNode) create(ctx context.Context, kind string, more ...string) error {
	args := append([]string{
		"create", kind, "--pgdata", n.DataDir(), "--pgport", strconv.Itoa(n.port), "--pgctl", filepath.Join(n.c.bin, "pg_ctl"),
		"--hostname", "127.0.0.1", "--auth", "trust", "--no-ssl",
	}, more...)
	_, err := n.c.lab.run(ctx, n.spec(args...))
	return err
}

// Start starts pg_autoctl and returns when PostgreSQL has been started by it, in
// whatever role. It does nothing if pg_autoctl runs.
func (n *AutoFailoverNode) Start(ctx context.Context) error {
	ctx, cancel := bound(ctx, autoFailoverTimeout)
	defer cancel()
	return n.start(ctx, n.c.lab, n.spec("run", "--pgdata", n.DataDir()), readiness{n.name + " runs", func(*process) (bool, error) {
		pid := n.Postgres().PID()
		return pid != 0 && postmasterStatus(n.DataDir(), pid) == "ready", fmt.Errorf("postmaster %d", pid)
	}})
}

// Stop ends pg_autoctl and PostgreSQL in an orderly way.
func (n *AutoFailoverNode) Stop(ctx context.Context) error {
	ctx, cancel := bound(ctx, autoFailoverTimeout)
	defer cancel()
	return n.process().stop(ctx, syscall.SIGINT)
}

// Kill kills pg_autoctl, PostgreSQL and all their children by SIGKILL, as when the
// machine loses its power, except that the kernel closes the connections.
func (n *AutoFailoverNode) Kill() error { return n.process().kill() }

// Freeze stops all of them by SIGSTOP.
func (n *AutoFailoverNode) Freeze() error { return n.process().freeze() }

// Thaw undoes Freeze.
func (n *AutoFailoverNode) Thaw() error { return n.process().thaw() }

// superuser makes the role postgres where the servers' owner has another name, so
// that its first superuser is called otherwise.
func (n *AutoFailoverNode) superuser(ctx context.Context) error {
	owner, err := n.c.lab.accountName()
	if err != nil || owner == Superuser {
		return err
	}
	return n.withConn(ctx, owner, "postgres", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE ROLE "+Superuser+" LOGIN SUPERUSER")
		return err
	})
}
