package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/config"
)

// shown is a PgBouncer's console that answers with tables; what is asked beyond them is
// an error.
type shown struct {
	tables map[string][]map[string]string
	err    error
	asked  []string
	closed int
}

func (s *shown) Rows(_ context.Context, show string) ([]map[string]string, error) {
	s.asked = append(s.asked, show)
	rows, known := s.tables[show]
	if !known && s.err == nil {
		return nil, fmt.Errorf("unexpected: %s", show)
	}
	return rows, s.err
}

func (s *shown) Close() { s.closed++ }

// settings of a good PgBouncer, whose databases are these.
func goodBouncer(databases ...string) *shown {
	s := &shown{tables: map[string][]map[string]string{
		"SHOW VERSION":   {{"version": "PgBouncer 1.18.0"}},
		"SHOW CONFIG":    {{"key": "admin_users", "value": "postgres, steer"}, {"key": "server_login_retry", "value": "1"}},
		"SHOW DATABASES": {},
	}}
	for _, d := range databases {
		s.tables["SHOW DATABASES"] = append(s.tables["SHOW DATABASES"], map[string]string{"name": d, "paused": "0", "disabled": "0"})
	}
	return s
}

func (s *shown) set(key, value string) {
	s.tables["SHOW CONFIG"][0], s.tables["SHOW CONFIG"][1] = map[string]string{"key": "server_login_retry", "value": "1"}, map[string]string{"key": key, "value": value}
}

const bouncing = `pgbouncers: [{name: edge, address: %s, user: %s, databases: [{name: app, pool: main/primary}, {name: ro, pool: main/replica}]}]`

func TestPgBouncer(t *testing.T) {
	const at, has = "edge 10.0.0.5:6432: ", "OK edge 10.0.0.5:6432: PgBouncer 1.18.0; steer is one of its admin_users"
	for _, tt := range []struct {
		name, user string
		change     func(*shown)
		want       string // rows, joined by |
		do         string // in what to do of the last trouble
	}{
		{"good", "steer", func(*shown) {}, has, ""},
		{
			"no admin", "ste", func(*shown) {},
			"FAIL " + at + "ste may look and do no more: it is not one of admin_users (postgres, steer), so that PAUSE, RESUME, RECONNECT and RELOAD are refused", "add ste to admin_users",
		},
		{
			"nobody is told", "steer", func(s *shown) { s.set("x", "") },
			"WARN " + at + "it does not say who its admin_users are", "admin_users",
		},
		{
			"no RECONNECT", "steer", func(s *shown) { s.tables["SHOW VERSION"][0]["version"] = "PgBouncer 1.8.1" },
			strings.Replace(has, "1.18.0", "1.8.1", 1) + "|FAIL " + at + "PgBouncer 1.8.1 has no RECONNECT: it cannot be turned to a new writer", "1.18 or later",
		},
		{
			"old", "steer", func(s *shown) { s.tables["SHOW VERSION"][0]["version"] = "PgBouncer 1.9.0" },
			strings.Replace(has, "1.18.0", "1.9.0", 1) + "|WARN " + at + "PgBouncer 1.9.0 is older than 1.18, with which pgsteer was tried", "1.18 or later",
		},
		{
			"new", "steer", func(s *shown) { s.tables["SHOW VERSION"][0]["version"] = "PgBouncer 2.0.0" },
			strings.Replace(has, "1.18.0", "2.0.0", 1), "",
		},
		{
			"no version", "steer", func(s *shown) { s.tables["SHOW VERSION"] = nil },
			"OK " + at + "steer is one of its admin_users|WARN " + at + `the version cannot be read from ""`, "pgbouncer --version",
		},
		{
			"long retry", "steer", func(s *shown) { s.tables["SHOW CONFIG"][1]["value"] = "2.5" },
			has + "|WARN " + at + "server_login_retry is 2.5 s: so long all clients of a database wait after a connection to its server that failed", "server_login_retry = 1",
		},
		{"retry of 2 s", "steer", func(s *shown) { s.tables["SHOW CONFIG"][1]["value"] = "2" }, has, ""},
		{"broken", "steer", func(s *shown) { s.err = errors.New("broken") }, "FAIL " + at + "broken", "its log"},
	} {
		s := goodBouncer("app", "ro")
		tt.change(s)
		o := options(t, fmt.Sprintf(bouncing, "10.0.0.5:6432", tt.user))
		o.Console = func(context.Context, config.PgBouncer) (Console, error) { return s, nil }
		same(t, of(t, "pgbouncer", o), strings.Split(tt.want, "|")...)
		if s.closed != 1 || len(s.asked) > 3 || slices.ContainsFunc(s.asked, func(c string) bool { return !strings.HasPrefix(c, "SHOW ") }) {
			t.Errorf("%s: asked %q, closed %d times", tt.name, s.asked, s.closed)
		}
		do := ""
		for _, r := range Run(t.Context(), o) {
			if r.Check == "pgbouncer" {
				do = r.Do
			}
		}
		if !strings.Contains(do, tt.do) {
			t.Errorf("%s: do %q, which lacks %q", tt.name, do, tt.do)
		}
	}
	// PgBouncer's own user may do all over its socket, and nobody can ask whether it is so.
	for address, want := range map[string]string{
		"/run/.s.PGSQL.6432": "WARN edge /run/.s.PGSQL.6432: pgbouncer is not one of its admin_users, and may do all only where it comes from PgBouncer's own user of this host, which cannot be found out",
		"10.0.0.5:6432":      "FAIL " + at + "pgbouncer may look and do no more: it is not one of admin_users (postgres, steer), so that PAUSE, RESUME, RECONNECT and RELOAD are refused",
	} {
		o := options(t, fmt.Sprintf(bouncing, address, "pgbouncer"))
		o.Console = func(context.Context, config.PgBouncer) (Console, error) { return goodBouncer(), nil }
		same(t, of(t, "pgbouncer", o), want)
	}
	o := options(t, fmt.Sprintf(bouncing, "10.0.0.5:6432", "steer"))
	same(t, of(t, "pgbouncer", o)) // nobody asks
	o.Console = func(context.Context, config.PgBouncer) (Console, error) { return nil, errors.New("no\nroute") }
	same(t, of(t, "pgbouncer", o), "FAIL "+at+"no route")
	same(t, of(t, "pgbouncer-databases", o))
}

// What to do about a login that failed names the setting that decides it.
func TestPgBouncerRemedy(t *testing.T) {
	for _, tt := range []struct {
		err  error
		mode config.SSLMode
		do   string
	}{
		{&pgconn.PgError{Code: "3D000"}, config.SSLPrefer, "another server than PgBouncer"},
		{&pgconn.PgError{Message: "not allowed"}, config.SSLPrefer, "add steer to admin_users"},
		{&pgconn.PgError{Message: "no such user"}, config.SSLPrefer, "auth_file"},
		{&net.DNSError{Name: "pool1"}, config.SSLPrefer, "correct the name pool1"},
		{&tls.CertificateVerificationError{Err: errors.New("unknown authority")}, config.SSLVerifyCA, "compare sslrootcert with its client_tls_cert_file: unknown authority"},
		{errors.New("server refused TLS connection"), config.SSLRequire, "client_tls_sslmode"},
		{errors.Join(errors.New("server refused TLS connection"), syscall.EPIPE), config.SSLPrefer, "its log"},
		{&net.OpError{Op: "dial", Err: syscall.EACCES}, config.SSLPrefer, "unix_socket_mode"},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, config.SSLPrefer, "listen_addr"},
		{&net.OpError{Op: "dial", Err: syscall.ENOENT}, config.SSLPrefer, "unix_socket_dir"},
		{context.DeadlineExceeded, config.SSLPrefer, "firewall"},
	} {
		b := bouncer{PgBouncer: config.PgBouncer{Name: "edge", User: "steer", SSLMode: tt.mode}, failure: fmt.Errorf("log in: %w", tt.err)}
		if do := b.remedy(); !strings.Contains(do, tt.do) {
			t.Errorf("%v: do %q, which lacks %q", tt.err, do, tt.do)
		}
	}
}

func TestPgBouncerDatabases(t *testing.T) {
	const at = "edge 10.0.0.5:6432: "
	const template = "\ntemplates: [{name: edge, roles: true, pgbouncer: edge, files: [{builtin: pgbouncer, destination: /etc/pgb.ini}]}]"
	for _, tt := range []struct {
		there        []string
		paused, yaml string
		want, do     string
	}{
		{[]string{"app", "ro", "other"}, "", "", "OK " + at + "it has app, ro", ""},
		{[]string{"ro"}, "", "", "FAIL " + at + "it has no database app", `not by "*" alone`},
		{nil, "", template, "FAIL " + at + "it has no database app, ro", "`%include /etc/pgb.ini`"},
		{[]string{"app", "ro"}, "app", "", "WARN " + at + "clients wait, since this is paused: app", "pgsteer pgbouncer resume edge app"},
		{[]string{"ro"}, "ro", "", "FAIL " + at + "it has no database app|WARN " + at + "clients wait, since this is paused: ro", "pgsteer pgbouncer resume edge ro"},
	} {
		s := goodBouncer(tt.there...)
		for _, d := range s.tables["SHOW DATABASES"] {
			if d["name"] == tt.paused {
				d["paused"] = "1"
			}
		}
		o := options(t, fmt.Sprintf(bouncing, "10.0.0.5:6432", "steer")+tt.yaml)
		o.Console = func(context.Context, config.PgBouncer) (Console, error) { return s, nil }
		same(t, of(t, "pgbouncer-databases", o), strings.Split(tt.want, "|")...)
		do := ""
		for _, r := range Run(t.Context(), o) {
			if r.Check == "pgbouncer-databases" {
				do = r.Do
			}
		}
		if !strings.Contains(do, tt.do) {
			t.Errorf("%v: do %q, which lacks %q", tt.there, do, tt.do)
		}
	}
}
