package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/agent/doctor"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// bouncerRig is a real PgBouncer, and PostgreSQL behind it, at which doctor looks.
type bouncerRig struct {
	t       *testing.T
	dir     string
	cluster *lab.Cluster
	b       *lab.PgBouncer
}

func newBouncerRig(t *testing.T, settings map[string]string) *bouncerRig {
	t.Helper()
	l := labtest.ForTest(t, lab.NeedPostgres, lab.NeedPgBouncer)
	c, err := l.Cluster(t.Context(), lab.ClusterOptions{Name: "main", Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	settings["stats_users"] = c.ProbeUser()
	b, err := l.PgBouncer(t.Context(), lab.PgBouncerOptions{Node: c.Nodes()[0], Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	return &bouncerRig{t: t, dir: t.TempDir(), cluster: c, b: b}
}

// look returns the rows about PgBouncer as "LEVEL check: found", and what to do.
func (r *bouncerRig) look(address, user, password, more string) (rows, do string) {
	r.t.Helper()
	pw, file := filepath.Join(r.dir, "pw"), filepath.Join(r.dir, "pgsteer.yaml")
	probe := filepath.Join(r.dir, "probe")
	for name, text := range map[string]string{
		pw: password + "\n", probe: r.cluster.Password(r.cluster.ProbeUser()) + "\n",
		file: fmt.Sprintf(doctorBouncer, r.dir, r.cluster.ProbeUser(), probe, r.cluster.Nodes()[0].Addr(), address, user, pw, more),
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	var out, errs bytes.Buffer
	run([]string{"doctor", "-c", file, "-o", "json"}, streams{&out, &errs})
	var all []doctor.Result
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		r.t.Fatalf("%v: %s%s", err, &out, &errs)
	}
	var found, todo []string
	for _, row := range all {
		if strings.HasPrefix(row.Check, "pgbouncer") {
			found = append(found, string(row.Level)+" "+row.Check+": "+row.Found)
			if row.Level != doctor.OK {
				todo = append(todo, row.Do)
			}
		}
	}
	return strings.Join(found, "|"), strings.Join(todo, "|")
}

func (r *bouncerRig) command(command string) {
	r.t.Helper()
	c, err := r.b.Console(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := c.Exec(r.t.Context(), command); err != nil {
		r.t.Fatal(err)
	}
	if err := c.Close(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
}

const doctorBouncer = `
state_dir: %s
listen: {agent_check: "127.0.0.1:0", health: "127.0.0.1:0", status: "127.0.0.1:0", xds: off}
postgres: {user: %q, password_file: %s}
clusters: {main: {nodes: {n1: %q}}}
pgbouncers:
  - {name: edge, address: %q, user: %q, password_file: %s, databases: [{name: postgres, pool: main/primary}]%s}
`

// TestDoctorPgBouncer looks at a PgBouncer without fault and with one after the other:
// as another user, at another address, away, frozen, and without the database.
func TestDoctorPgBouncer(t *testing.T) {
	r := newBouncerRig(t, map[string]string{"server_login_retry": "1"})
	probe, admin, password := r.cluster.ProbeUser(), lab.PgBouncerAdmin, r.b.AdminPassword()
	const (
		good = "OK pgbouncer: PgBouncer 1."
		is   = "; steer is one of its admin_users"
		none = "FAIL pgbouncer-databases: it has no database postgres"
		name = `not by "*" alone`
	)
	look := func(address, user, password, more string, wants ...string) {
		t.Helper()
		rows, do := r.look(address, user, password, more)
		for _, want := range wants {
			if !strings.Contains(rows+"|"+do+"|", want) {
				t.Errorf("%s as %s%s: %s\n%s\ndoes not say %q", address, user, more, rows, do, want)
			}
		}
		if password != "x" && strings.Contains(rows+do, password) {
			t.Errorf("%s as %s tells the password: %s\n%s", address, user, rows, do)
		}
	}
	for _, at := range []string{r.b.Addr(), r.b.Socket()} {
		look(at, admin, password, "", good, is, none, name)
	}
	look(r.b.Addr(), admin, "nonsense", "", "FAIL pgbouncer: the login is refused: SASL", "auth_file")
	look(r.b.Addr(), lab.AppUser, "x", "", "FAIL pgbouncer: the login is refused: not allowed", "|add app to admin_users in its pgbouncer.ini, and RELOAD it|")
	look(r.b.Addr(), probe, r.cluster.Password(probe), "", "FAIL pgbouncer: "+probe+" may look and do no more: it is not one of admin_users (steer)", "add "+probe+" to admin_users", none)
	look(r.b.Addr(), admin, password, ", sslmode: require", "FAIL pgbouncer: ", "refused TLS", "client_tls_sslmode")
	look(r.cluster.Nodes()[0].Addr(), probe, r.cluster.Password(probe), "", `FAIL pgbouncer: the login is refused: database "pgbouncer" does not exist`, "another server than PgBouncer")
	look(filepath.Join(r.dir, ".s.PGSQL.6432"), admin, password, "", "FAIL pgbouncer: ", "no such file", "unix_socket_dir")

	c, err := pgx.Connect(t.Context(), "postgres://"+lab.AppUser+"@"+r.b.Addr()+"/postgres?sslmode=disable&default_query_exec_mode=simple_protocol")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	const has = "|OK pgbouncer-databases: it has postgres|"
	look(r.b.Addr(), admin, password, "", good, is+has)
	for _, tt := range [][3]string{
		{"PAUSE postgres", "RESUME postgres", "WARN pgbouncer-databases: clients wait, since this is paused: postgres|unless somebody is at it, pgsteer pgbouncer resume edge postgres|"},
		{"DISABLE postgres", "ENABLE postgres", "WARN pgbouncer-databases: new clients are turned away, since this is disabled: postgres|unless somebody is at it, pgsteer pgbouncer enable edge postgres|"},
	} {
		r.command(tt[0])
		look(r.b.Addr(), admin, password, "", tt[2])
		look(r.b.Addr(), admin, password, "", tt[2]) // a look ends nothing
		r.command(tt[1])
	}
	look(r.b.Addr(), admin, password, "", is+has)

	r.command("SET server_login_retry = '15'")
	look(r.b.Addr(), admin, password, "", is+"|WARN pgbouncer: server_login_retry is 15", "server_login_retry = 1 in its pgbouncer.ini")
	if err := r.b.Freeze(); err != nil {
		t.Fatal(err)
	}
	look(r.b.Addr(), admin, password, "", "FAIL pgbouncer: ", "does not hang")
	if err := errors.Join(r.b.Thaw(), r.b.Kill()); err != nil {
		t.Fatal(err)
	}
	look(r.b.Addr(), admin, password, "", "FAIL pgbouncer: ", "connection refused", "see that PgBouncer runs")
}
