package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// maxSocketPath is what the kernel allows, without the closing zero byte.
const maxSocketPath = 107

// StopMode is how a PostgreSQL node is stopped.
type StopMode int

// The modes of pg_ctl stop.
const (
	Fast      StopMode = iota // ends sessions, writes a checkpoint, lets standbys receive it
	Smart                     // waits until all sessions have ended by themselves
	Immediate                 // ends without a checkpoint, as after a crash
)

func (m StopMode) signal() syscall.Signal {
	switch m {
	case Smart:
		return syscall.SIGTERM
	case Immediate:
		return syscall.SIGQUIT
	default:
		return syscall.SIGINT
	}
}

// Node is one PostgreSQL server of a Cluster. Its port stays the same for life.
type Node struct {
	c    *Cluster
	name string
	port int
	dir  string

	slot
}

// Name returns the node's name, such as "n1".
func (n *Node) Name() string { return n.name }

// Host returns "127.0.0.1".
func (n *Node) Host() string { return "127.0.0.1" }

// Port returns the TCP port.
func (n *Node) Port() int { return n.port }

// Addr returns "127.0.0.1:port".
func (n *Node) Addr() string { return loopback(n.port) }

// DSN returns a connection URL of the database "postgres" for a role, with its
// password if the lab knows one.
func (n *Node) DSN(role string) string { return dsn(n.Addr(), role, n.c.Password(role)) }

func dsn(addr, role, password string) string {
	u := url.URL{Scheme: "postgres", Host: addr, Path: "/postgres", RawQuery: "sslmode=disable", User: url.User(role)}
	if password != "" {
		u.User = url.UserPassword(role, password)
	}
	return u.String()
}

// DataDir returns the data folder.
func (n *Node) DataDir() string { return filepath.Join(n.dir, "data") }

// LogFile returns the path of the server's log.
func (n *Node) LogFile() string { return filepath.Join(n.dir, "postgres.log") }

// PID returns the process number of the postmaster, or 0 if it does not run.
func (n *Node) PID() int {
	if p := n.process(); p.alive() {
		return p.pid()
	}
	return 0
}

// Conn opens a session as superuser. The caller closes it.
func (n *Node) Conn(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	conn, err := connect(ctx, n.DSN(Superuser))
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", n.name, err)
	}
	return conn, nil
}

// connect opens a session that never lingers: without a second dial there is no
// cancel request, which would wait for a server that does not answer.
func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	var once onceDialer
	cfg.DialFunc = once.dial
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	return conn, nil
}

// onceDialer dials a single time.
type onceDialer struct {
	mu   sync.Mutex
	used bool
}

func (d *onceDialer) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used {
		return nil, errors.New("one connection only")
	}
	d.used = true
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

// withConn runs f on a session of its own as superuser.
func (n *Node) withConn(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := n.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if err := f(conn); err != nil {
		return fmt.Errorf("lab: node %s: %w", n.name, err)
	}
	return nil
}

// Exec runs statements as superuser, one after another.
func (n *Node) Exec(ctx context.Context, statements ...string) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return n.withConn(ctx, func(conn *pgx.Conn) error {
		for _, s := range statements {
			if _, err := conn.Exec(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	})
}

// writeTimeline returns the timeline that the node writes, or 0 in recovery.
func (n *Node) writeTimeline(ctx context.Context) (int64, error) {
	const q = `SELECT CASE WHEN pg_is_in_recovery() THEN 0
		ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int8 END`
	var tl int64
	err := n.withConn(ctx, func(conn *pgx.Conn) error { return conn.QueryRow(ctx, q).Scan(&tl) })
	return tl, err
}

func (n *Node) socket() string {
	return filepath.Join(n.c.lab.sockets, fmt.Sprintf(".s.PGSQL.%d", n.port))
}

// Start starts the node as what it was, primary or standby, and returns when it
// accepts sessions. It does nothing if the node runs.
func (n *Node) Start(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	s := spec{
		name: "postgres " + n.c.name + "/" + n.name, path: filepath.Join(n.c.bin, "postgres"),
		args: []string{"-D", n.DataDir()}, dir: n.DataDir(), log: n.LogFile(), drop: true,
	}
	return n.start(ctx, n.c.lab, s, readiness{"node " + n.name + " accepts sessions", func(p *process) (bool, error) {
		status := postmasterStatus(n.DataDir(), p.pid())
		return status == "ready", fmt.Errorf("status %q", status)
	}})
}

// postmasterStatus reads what pg_ctl reads: "starting", "ready" and so on; it
// is empty if the file is missing or written by another process.
func postmasterStatus(data string, pid int) string {
	b, err := os.ReadFile(filepath.Join(data, "postmaster.pid"))
	lines := strings.Split(string(b), "\n")
	if err != nil || len(lines) < 8 || strings.TrimSpace(lines[0]) != strconv.Itoa(pid) {
		return ""
	}
	return strings.TrimSpace(lines[7])
}

// Stop stops the node. If ctx ends first, the node is killed and an error
// returned. A frozen node is killed at once.
func (n *Node) Stop(ctx context.Context, mode StopMode) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return n.process().stop(ctx, mode.signal())
}

// Kill kills the postmaster and all its children by SIGKILL, as when the machine
// loses its power, except that the kernel closes the connections.
func (n *Node) Kill() error { return n.process().kill() }

// Freeze stops the postmaster and all its children by SIGSTOP: connections stay
// open and new ones are still completed by the kernel, but nothing answers.
func (n *Node) Freeze() error {
	p := n.process()
	if !p.alive() {
		return n.notRunning("freezing")
	}
	return p.freeze()
}

// FreezePostmaster stops the postmaster alone: sessions go on, new ones hang.
func (n *Node) FreezePostmaster() error {
	p := n.process()
	if !p.alive() {
		return n.notRunning("freezing the postmaster of")
	}
	p.frozen.Store(true)
	return freezeOne(p.pid())
}

// Thaw undoes Freeze and FreezePostmaster.
func (n *Node) Thaw() error {
	p := n.process()
	if !p.alive() {
		return n.notRunning("thawing")
	}
	return p.thaw()
}

func (n *Node) notRunning(doing string) error {
	return fmt.Errorf("lab: %s node %s: it does not run", doing, n.name)
}

// PauseReplay makes a standby keep what it receives without showing it, and
// returns when replay has stopped.
func (n *Node) PauseReplay(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return n.withConn(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "SELECT pg_wal_replay_pause()"); err != nil {
			return err
		}
		return poll(ctx, "replay is paused", pollEvery, func() (ok bool, err error) {
			err = conn.QueryRow(ctx, "SELECT pg_get_wal_replay_pause_state() = 'paused'").Scan(&ok)
			return ok, err
		})
	})
}

// ResumeReplay undoes PauseReplay.
func (n *Node) ResumeReplay(ctx context.Context) error {
	return n.Exec(ctx, "SELECT pg_wal_replay_resume()")
}

// StopReceiver ends a standby's streaming by an empty primary_conninfo, and
// returns when the receiver is gone.
func (n *Node) StopReceiver(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return n.withConn(ctx, func(conn *pgx.Conn) error {
		if err := setConninfo(ctx, conn, ""); err != nil {
			return err
		}
		return poll(ctx, "the receiver is gone", pollEvery, func() (ok bool, err error) {
			err = conn.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE pid IS NOT NULL)").Scan(&ok)
			return ok, err
		})
	})
}

// StartReceiver makes a standby stream from the present primary, and returns
// when it does.
func (n *Node) StartReceiver(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	primary, err := n.c.primary(ctx, n)
	if err != nil {
		return err
	}
	return n.follow(ctx, primary)
}

// follow points a running standby at a primary.
func (n *Node) follow(ctx context.Context, primary *Node) error {
	err := n.withConn(ctx, func(conn *pgx.Conn) error { return setConninfo(ctx, conn, n.conninfo(primary)) })
	if err != nil {
		return err
	}
	return n.waitStreaming(ctx, primary)
}

func setConninfo(ctx context.Context, conn *pgx.Conn, conninfo string) error {
	for _, sql := range []string{
		"ALTER SYSTEM SET primary_conninfo = " + quoteLiteral(conninfo), "SELECT pg_reload_conf()",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// waitStreaming waits until the node streams from primary and has replayed all
// that primary had written when the wait began.
func (n *Node) waitStreaming(ctx context.Context, primary *Node) error {
	var target string
	err := primary.withConn(ctx, func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&target)
	})
	if err != nil {
		return err
	}
	const q = `SELECT r.status || ' at ' || coalesce(pg_last_wal_replay_lsn()::text, '?'),
			r.status = 'streaming' AND pg_last_wal_replay_lsn() >= $2::pg_lsn
		FROM pg_stat_wal_receiver r WHERE r.sender_port = $1`
	return n.withConn(ctx, func(conn *pgx.Conn) error {
		return poll(ctx, fmt.Sprintf("it streams from %s up to %s", primary.name, target), 2*pollEvery, func() (ok bool, err error) {
			var state string
			if err := conn.QueryRow(ctx, q, primary.port, target).Scan(&state, &ok); err != nil {
				return false, err
			}
			return ok, errors.New(state)
		})
	})
}
