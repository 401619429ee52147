package pgbouncer

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// Login is how to get at a PgBouncer's admin console.
type Login struct {
	// Address is the path of PgBouncer's UNIX socket, such as
	// /run/postgresql/.s.PGSQL.6432, or host:port.
	Address string
	// User is one of PgBouncer's admin_users.
	User string
	// Password returns the password of this moment. Nil: none is needed.
	Password func() string
	// TLS makes the TLS configuration for a host; nil: without TLS. With PlainToo a
	// PgBouncer that has none is spoken to without.
	TLS      func(host string) *tls.Config
	PlainToo bool
}

// adminDatabase is what PgBouncer calls its console.
const adminDatabase = "pgbouncer"

// console is a session at an admin console, which understands simple queries alone.
type console struct{ conn *pgconn.PgConn }

// errNoCancel keeps pgconn from sending cancel requests: PgBouncer answers one for a
// console with the end of an operator's own PAUSE (admin_handle_cancel, 1.18).
var errNoCancel = errors.New("no cancel request is sent to PgBouncer")

// Look is a session at a console that asks and never commands.
type Look struct{ c *console }

// Open logs in to a PgBouncer's console exactly as a Control does. The error says what
// was tried at which address, and wraps pgconn's.
func Open(ctx context.Context, l Login) (*Look, error) {
	c, err := dial(ctx, l)
	if err != nil {
		return nil, err
	}
	return &Look{c}, nil
}

// Rows asks for a table, such as SHOW POOLS, and returns each row by the names of its
// columns.
func (l *Look) Rows(ctx context.Context, show string) ([]map[string]string, error) {
	return l.c.rows(ctx, show)
}

// Close ends the session. It does not wait for PgBouncer.
func (l *Look) Close() { l.c.close() }

func dial(ctx context.Context, l Login) (*console, error) {
	c, err := pgconn.ParseConfig("host=replaced user=replaced dbname=replaced sslmode=disable")
	if err != nil {
		return nil, fmt.Errorf("settings of PgBouncer's console: %w", err)
	}
	if c.Host, c.Port, err = place(l.Address); err != nil {
		return nil, err
	}
	c.User, c.Database, c.Password = l.User, adminDatabase, ""
	if l.Password != nil {
		c.Password = l.Password()
	}
	c.Fallbacks, c.ValidateConnect, c.ConnectTimeout = nil, nil, 0
	c.RuntimeParams = map[string]string{"application_name": "pgsteer"}
	if l.TLS != nil && !strings.Contains(l.Address, "/") {
		c.TLSConfig = l.TLS(c.Host)
		if l.PlainToo {
			c.Fallbacks = []*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port}}
		}
	}
	var up atomic.Bool
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if up.Load() {
			return nil, errNoCancel
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	conn, err := pgconn.ConnectConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("log in to PgBouncer's console at %s as %s: %w", l.Address, l.User, err)
	}
	up.Store(true)
	return &console{conn}, nil
}

// place splits an address as pgconn wants it: of a socket it is the folder and the
// number at the end of the name.
func place(address string) (host string, port uint16, err error) {
	var text string
	if strings.Contains(address, "/") {
		const prefix = ".s.PGSQL."
		name := filepath.Base(address)
		if !strings.HasPrefix(name, prefix) {
			return "", 0, fmt.Errorf("%s is no socket of PgBouncer: its name does not begin with %s", address, prefix)
		}
		host, text = filepath.Dir(address), strings.TrimPrefix(name, prefix)
	} else if host, text, err = net.SplitHostPort(address); err != nil {
		return "", 0, fmt.Errorf("%s is neither a socket nor host:port", address)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return "", 0, fmt.Errorf("%s has no port", address)
	}
	return host, uint16(n), nil
}

// quoted is a database's name in a command.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// send sends commands in one packet, so that PgBouncer does nothing between them, and
// waits for all answers. The error is the first refusal.
func (c *console) send(ctx context.Context, commands ...string) error {
	for _, text := range commands {
		c.conn.Frontend().SendQuery(&pgproto3.Query{String: text})
	}
	if err := c.conn.Frontend().Flush(); err != nil {
		return c.broken(ctx, commands[0], err)
	}
	var refused error
	for answered := 0; answered < len(commands); {
		m, err := c.conn.ReceiveMessage(ctx)
		if err != nil {
			return c.broken(ctx, commands[answered], err)
		}
		switch m := m.(type) {
		case *pgproto3.ErrorResponse:
			refused = cmp.Or(refused, error(&refusal{commands[answered], m.Message}))
		case *pgproto3.ReadyForQuery:
			answered++
		}
	}
	return refused
}

// broken ends a session of which nobody knows how far it got.
func (c *console) broken(ctx context.Context, command string, err error) error {
	c.close()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("%s at PgBouncer's console: %w", command, err)
}

// refusal is PgBouncer's own word against a command.
type refusal struct{ command, text string }

func (r *refusal) Error() string { return fmt.Sprintf("PgBouncer refuses %s: %s", r.command, r.text) }

// Database is what PgBouncer says of one of its databases.
type Database struct {
	Name string
	// Host and Port are where its server connections go.
	Host, Port       string
	Paused, Disabled bool
}

// rows reads a table of the console, by the names of its columns.
func (c *console) rows(ctx context.Context, show string) ([]map[string]string, error) {
	results, err := c.conn.Exec(ctx, show).ReadAll()
	if err != nil {
		return nil, c.broken(ctx, show, err)
	}
	var all []map[string]string
	for _, r := range results {
		for _, values := range r.Rows {
			row := make(map[string]string, len(values))
			for i, v := range values {
				row[r.FieldDescriptions[i].Name] = string(v)
			}
			all = append(all, row)
		}
	}
	return all, nil
}

// databases lists PgBouncer's databases by name. Those of "*" are there once somebody
// has used them.
func (c *console) databases(ctx context.Context) (map[string]Database, error) {
	rows, err := c.rows(ctx, "SHOW DATABASES")
	if err != nil {
		return nil, err
	}
	all := make(map[string]Database, len(rows))
	for _, r := range rows {
		if _, ok := r["paused"]; !ok {
			return nil, errors.New("what answers at this address to SHOW DATABASES is no PgBouncer: there is no column paused")
		}
		all[r["name"]] = Database{
			Name: r["name"], Host: r["host"], Port: r["port"], Paused: r["paused"] != "0", Disabled: r["disabled"] != "0",
		}
	}
	return all, nil
}

// stale are the databases of want with a server connection to elsewhere that PgBouncer
// would keep.
func (c *console) stale(ctx context.Context, want map[string]string) (names []string, err error) {
	rows, err := c.rows(ctx, "SHOW SERVERS")
	for _, r := range rows {
		leads, ours := want[r["database"]]
		if ours && r["addr"]+":"+r["port"] != leads && !isLeaving(r) && !slices.Contains(names, r["database"]) {
			names = append(names, r["database"])
		}
	}
	return names, err
}

// isLeaving tells a server connection that is replaced as soon as it is free.
func isLeaving(server map[string]string) bool {
	return server["close_needed"] != "" && server["close_needed"] != "0"
}

// leaving counts server connections of databases that PgBouncer is to replace.
func (c *console) leaving(ctx context.Context, of []Entry) (n int, err error) {
	rows, err := c.rows(ctx, "SHOW SERVERS")
	for _, r := range rows {
		ours := slices.ContainsFunc(of, func(e Entry) bool { return e.Name == r["database"] })
		if ours && isLeaving(r) {
			n++
		}
	}
	return n, err
}

// loginRetry is how long PgBouncer waits after a connection to a server that failed,
// with all clients of that database; zero: it does not say.
func (c *console) loginRetry(ctx context.Context) (time.Duration, error) {
	rows, err := c.rows(ctx, "SHOW CONFIG")
	if err != nil {
		return 0, err
	}
	for _, r := range rows {
		if r["key"] == "server_login_retry" {
			seconds, err := strconv.ParseFloat(r["value"], 64)
			if err != nil {
				return 0, fmt.Errorf("server_login_retry of PgBouncer is %q: %w", r["value"], err)
			}
			return time.Duration(seconds * float64(time.Second)), nil
		}
	}
	return 0, nil
}

// close ends the session. It does not wait for PgBouncer.
func (c *console) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = c.conn.Close(ctx) // it is of no use any more
}

func (c *console) closed() bool { return c.conn.IsClosed() }
