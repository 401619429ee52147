package lab

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PatroniNode is one Patroni with its PostgreSQL. Its methods are about the
// Patroni process; Postgres gives the other.
type PatroniNode struct {
	c    *Patroni
	name string
	dir  string
	pg   int // port
	rest int // port

	slot
}

// Name returns the node's name, such as "n1".
func (n *PatroniNode) Name() string { return n.name }

// Port returns PostgreSQL's TCP port.
func (n *PatroniNode) Port() int { return n.pg }

// Addr returns PostgreSQL's address, "127.0.0.1:port".
func (n *PatroniNode) Addr() string { return loopback(n.pg) }

// RESTAddr returns the address of Patroni's REST API, "127.0.0.1:port".
func (n *PatroniNode) RESTAddr() string { return loopback(n.rest) }

// DSN returns a connection URL of the database "postgres" for a role.
func (n *PatroniNode) DSN(role string) string { return dsn(n.Addr(), role, n.c.passwords[role]) }

// DataDir returns PostgreSQL's data folder.
func (n *PatroniNode) DataDir() string { return filepath.Join(n.dir, "data") }

// ConfigFile returns the path of Patroni's configuration, also for patronictl.
func (n *PatroniNode) ConfigFile() string { return filepath.Join(n.dir, "patroni.yml") }

// LogFile returns the path of the log of Patroni and PostgreSQL.
func (n *PatroniNode) LogFile() string { return filepath.Join(n.dir, "patroni.log") }

// Conn opens a session as superuser. The caller closes it.
func (n *PatroniNode) Conn(ctx context.Context) (*pgx.Conn, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	conn, err := connect(ctx, n.DSN(Superuser))
	if err != nil {
		return nil, fmt.Errorf("patroni %s/%s: %w", n.c.scope, n.name, err)
	}
	return conn, nil
}

// REST sends a request to Patroni's REST API and returns the body. A status
// other than 200 and 202 is an error.
func (n *PatroniNode) REST(ctx context.Context, method, path, body string) (string, error) {
	out, status, err := request(ctx, method, "http://"+n.RESTAddr()+path, body)
	if err == nil && status != http.StatusOK && status != http.StatusAccepted {
		err = fmt.Errorf("lab: patroni %s/%s: %s %s: status %d: %s", n.c.scope, n.name, method, path, status, out)
	}
	return out, err
}

// Start starts Patroni and returns when its REST API answers, which is before
// PostgreSQL runs: see Patroni.WaitRunning. It does nothing if Patroni runs.
func (n *PatroniNode) Start(ctx context.Context) error {
	ctx, cancel := bound(ctx, patroniTimeout)
	defer cancel()
	s := spec{
		name: "patroni " + n.c.scope + "/" + n.name, path: n.c.program.path, args: slices.Concat(n.c.program.args, []string{n.ConfigFile()}),
		dir: n.dir, log: n.LogFile(), drop: true,
	}
	return n.start(ctx, n.c.lab, s, readiness{s.name + " answers", func(*process) (bool, error) {
		_, err := n.REST(ctx, http.MethodGet, "/liveness", "")
		return err == nil, err
	}})
}

// Stop ends Patroni by SIGTERM; unless the cluster is paused it stops
// PostgreSQL first. If ctx ends first, Patroni is killed and an error returned.
func (n *PatroniNode) Stop(ctx context.Context) error {
	ctx, cancel := bound(ctx, patroniTimeout)
	defer cancel()
	return n.process().stop(ctx, syscall.SIGTERM)
}

// Kill ends Patroni alone by SIGKILL. PostgreSQL goes on.
func (n *PatroniNode) Kill() error {
	p := n.process()
	if !p.alive() {
		return nil
	}
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("lab: killing %s: %w", p.name, err)
	}
	<-p.done
	return nil
}

// Freeze stops Patroni alone by SIGSTOP. PostgreSQL goes on.
func (n *PatroniNode) Freeze() error {
	p := n.process()
	if !p.alive() {
		return fmt.Errorf("lab: freezing patroni %s/%s: it does not run", n.c.scope, n.name)
	}
	p.frozen.Store(true)
	return freezeOne(p.pid())
}

// Thaw undoes Freeze.
func (n *PatroniNode) Thaw() error {
	p := n.process()
	if !p.alive() {
		return fmt.Errorf("lab: thawing patroni %s/%s: it does not run", n.c.scope, n.name)
	}
	return p.thaw()
}

// Postgres returns the PostgreSQL of this node.
func (n *PatroniNode) Postgres() Postmaster { return Postmaster{data: n.DataDir()} }

// Postmaster is a PostgreSQL that somebody else started.
type Postmaster struct{ data string }

// PID returns the process number of the postmaster, or 0 if it does not run.
func (p Postmaster) PID() int {
	b, err := os.ReadFile(filepath.Join(p.data, "postmaster.pid"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(b), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	// The file may be left over: only a process that works in the folder counts.
	cwd, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid))
	if err != nil || cwd != p.data {
		return 0
	}
	return pid
}

func (p Postmaster) running(doing string) (int, error) {
	if pid := p.PID(); pid != 0 {
		return pid, nil
	}
	return 0, fmt.Errorf("lab: %s PostgreSQL in %s: it does not run", doing, p.data)
}

// Stop has PostgreSQL stop and returns when it has.
func (p Postmaster) Stop(ctx context.Context, mode StopMode) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	pid := p.PID()
	if pid == 0 {
		return nil
	}
	if err := syscall.Kill(pid, mode.signal()); err != nil {
		return fmt.Errorf("lab: stopping PostgreSQL in %s: %w", p.data, err)
	}
	return poll(ctx, "PostgreSQL in "+p.data+" has stopped", pollEvery, func() (bool, error) { return p.PID() != pid, nil })
}

// Kill kills the postmaster and its children by SIGKILL.
func (p Postmaster) Kill() error {
	pid := p.PID()
	if pid == 0 {
		return nil
	}
	return killTree(pid)
}

// Freeze stops the postmaster and its children by SIGSTOP.
func (p Postmaster) Freeze() error {
	pid, err := p.running("freezing")
	if err != nil {
		return err
	}
	return freezeTree(pid)
}

// Thaw undoes Freeze.
func (p Postmaster) Thaw() error {
	pid, err := p.running("thawing")
	if err != nil {
		return err
	}
	return thawTree(pid)
}

// FreezeReplay stops the startup process alone by SIGSTOP: a standby receives what
// it is sent and replays nothing of it. Patroni would resume a paused replay.
func (p Postmaster) FreezeReplay() error {
	pid, err := p.startup()
	if err != nil {
		return err
	}
	return freezeOne(pid)
}

// ThawReplay undoes FreezeReplay.
func (p Postmaster) ThawReplay() error {
	pid, err := p.startup()
	if err != nil {
		return err
	}
	return thawTree(pid)
}

// startup returns the process that replays WAL.
func (p Postmaster) startup() (int, error) {
	pid, err := p.running("finding the startup process of")
	if err != nil {
		return 0, err
	}
	for _, child := range children(pid) {
		title, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
		if err == nil && strings.Contains(string(title), " startup ") {
			return child, nil
		}
	}
	return 0, fmt.Errorf("lab: PostgreSQL in %s has no startup process: it is no standby", p.data)
}
