package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PgBouncerOptions says what PgBouncer stands in front of. Node or Include is required.
type PgBouncerOptions struct {
	// Node is the server behind it, for every database.
	Node *Node
	// Include is a file with the section [databases], which must be there already, and
	// Passwords are the roles of the servers that it names.
	Include   string
	Passwords map[string]string
	// Settings are added to the section [pgbouncer].
	Settings map[string]string
}

// PgBouncerAdmin is the role that may use the admin console.
const PgBouncerAdmin = "steer"

// PgBouncer is a running PgBouncer. It knows the roles of the servers behind it with
// their passwords, and before one node serves every database. Logging stays as
// PgBouncer ships it, which means a line for each login and its end.
type PgBouncer struct {
	lab   *Lab
	bin   string
	name  string
	dir   string
	port  int
	admin string // password of PgBouncerAdmin

	slot
}

// PgBouncer starts PgBouncer and returns when it accepts connections. The server
// behind it is first asked when somebody logs in.
func (l *Lab) PgBouncer(ctx context.Context, o PgBouncerOptions) (*PgBouncer, error) {
	bin, err := findPgBouncer()
	if err != nil {
		return nil, err
	}
	port, err := l.FreePort()
	if err != nil {
		return nil, err
	}
	name := l.unique("pgbouncer")
	b := &PgBouncer{lab: l, bin: bin, name: name, dir: filepath.Join(l.dir, name), port: port, admin: rand.Text()}
	if err := l.mkdir(b.dir); err != nil {
		return nil, err
	}
	if err := b.writeConfig(o); err != nil {
		return nil, err
	}
	l.onClose(func() error { return b.process().close(syscall.SIGTERM) })
	if err := b.Start(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func (b *PgBouncer) writeConfig(o PgBouncerOptions) error {
	settings := map[string]string{
		"listen_addr": "127.0.0.1", "listen_port": strconv.Itoa(b.port), "unix_socket_dir": b.lab.sockets, "admin_users": PgBouncerAdmin,
		"auth_type": "hba", "auth_hba_file": b.file("hba.conf"), "auth_file": b.file("users.txt"),
	}
	maps.Copy(settings, o.Settings)
	var ini strings.Builder
	passwords := maps.Clone(o.Passwords)
	if o.Include != "" {
		fmt.Fprintf(&ini, "%%include %s\n\n[pgbouncer]\n", o.Include)
	} else {
		fmt.Fprintf(&ini, "[databases]\n* = host=%s port=%d\n\n[pgbouncer]\n", o.Node.Host(), o.Node.Port())
		passwords = maps.Clone(o.Node.c.passwords)
	}
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&ini, "%s = %s\n", k, settings[k])
	}
	var users strings.Builder
	fmt.Fprintf(&users, "%q \"\"\n%q %q\n", AppUser, PgBouncerAdmin, b.admin)
	for _, role := range slices.Sorted(maps.Keys(passwords)) {
		fmt.Fprintf(&users, "%q %q\n", role, passwords[role])
	}
	hba := "host all " + AppUser + " 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\nlocal all all scram-sha-256\n"
	return errors.Join(
		b.lab.write(b.file("pgbouncer.ini"), ini.String()),
		b.lab.write(b.file("users.txt"), users.String()),
		b.lab.write(b.file("hba.conf"), hba),
	)
}

func (b *PgBouncer) file(name string) string { return filepath.Join(b.dir, name) }

// Port returns the TCP port.
func (b *PgBouncer) Port() int { return b.port }

// Addr returns "127.0.0.1:port".
func (b *PgBouncer) Addr() string { return loopback(b.port) }

// Socket returns the path of the UNIX socket.
func (b *PgBouncer) Socket() string {
	return filepath.Join(b.lab.sockets, ".s.PGSQL."+strconv.Itoa(b.port))
}

// AdminPassword returns the password of PgBouncerAdmin.
func (b *PgBouncer) AdminPassword() string { return b.admin }

// Console opens a session at the admin console. It understands simple queries alone.
func (b *PgBouncer) Console(ctx context.Context) (*pgx.Conn, error) {
	c, err := pgx.ParseConfig(dsn(b.Addr(), PgBouncerAdmin, b.admin))
	if err != nil {
		return nil, fmt.Errorf("lab: %w", err)
	}
	c.Database, c.DefaultQueryExecMode = "pgbouncer", pgx.QueryExecModeSimpleProtocol
	return pgx.ConnectConfig(ctx, c)
}

// LogFile returns the path of PgBouncer's log.
func (b *PgBouncer) LogFile() string { return b.file("pgbouncer.log") }

// Start starts PgBouncer after Stop or Kill, on the same port, and returns when
// it accepts connections. It does nothing if it runs.
func (b *PgBouncer) Start(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	s := spec{name: b.name, path: b.bin, args: []string{b.file("pgbouncer.ini")}, dir: b.dir, log: b.LogFile(), drop: true}
	return b.start(ctx, b.lab, s, readiness{b.name + " accepts connections", func(*process) (bool, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", b.Addr())
		if err != nil {
			return false, fmt.Errorf("lab: %w", err)
		}
		return c.Close() == nil, nil
	}})
}

// Stop ends PgBouncer at once, with its sessions.
func (b *PgBouncer) Stop(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	return b.process().stop(ctx, syscall.SIGTERM)
}

// Kill ends PgBouncer by SIGKILL.
func (b *PgBouncer) Kill() error { return b.process().kill() }

// Freeze stops PgBouncer by SIGSTOP: the kernel still completes new connections,
// but nothing answers.
func (b *PgBouncer) Freeze() error { return b.process().freeze() }

// Thaw undoes Freeze.
func (b *PgBouncer) Thaw() error { return b.process().thaw() }
