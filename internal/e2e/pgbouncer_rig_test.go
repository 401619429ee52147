package e2e

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/switchover"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// bouncerRig is a cluster with a PgBouncer before it that pgsteer speaks to. Clients
// reach the database postgres at bouncer.Addr().
type bouncerRig struct {
	*front
	o       bouncerOptions
	bouncer *lab.PgBouncer
	patroni *lab.Patroni
	consul  *lab.Consul
}

// bouncerOptions shape a bouncerRig.
type bouncerOptions struct {
	// patroni has Patroni decide in place of SQL evidence alone.
	patroni bool
	// behindHAProxy has PgBouncer lead to HAProxy's port instead of to the writer that a
	// template names.
	behindHAProxy bool
	// reads has PgBouncer lead to the pool replica, behind HAProxy alone.
	reads bool
	// switchover is that section of the cluster.
	switchover string
	// settings are PgBouncer's.
	settings map[string]string
	timeout  string // pgbouncers[].timeout; "": 2s
	external bool   // the test starts the agent
}

func newBouncerRig(tb testing.TB, o bouncerOptions) *bouncerRig {
	tb.Helper()
	needs := []string{lab.NeedPgBouncer}
	if o.patroni {
		needs = append(needs, lab.NeedConsul, lab.NeedPatroni)
	}
	if o.behindHAProxy {
		needs = append(needs, lab.NeedHAProxy)
	}
	b := &bouncerRig{front: &front{rig: newRig(tb, needs...), o: frontOptions{haproxy: o.behindHAProxy}}, o: o}
	b.write, b.read = b.addr(), b.addr()
	b.replace("operator.token", operator+"\n")
	first, passwords := b.startCluster()
	if o.behindHAProxy {
		first = b.write
	}
	if o.reads {
		first = b.read
	}
	host, port, _ := strings.Cut(first, ":")
	b.replace("databases.ini", fmt.Sprintf("[databases]\npostgres = host=%s port=%s\n", host, port))
	b.do(os.Chmod(b.file("databases.ini"), 0o644)) // PgBouncer runs as another user
	settings := map[string]string{"pool_mode": "transaction", "server_login_retry": "1", "max_client_conn": "500", "default_pool_size": "20"}
	maps.Copy(settings, o.settings)
	var err error
	b.bouncer, err = b.lab.PgBouncer(tb.Context(), lab.PgBouncerOptions{Include: b.file("databases.ini"), Passwords: passwords, Settings: settings})
	b.do(err)
	b.replace("console.pw", b.bouncer.AdminPassword()+"\n")
	b.writeConfig()
	if o.external {
		return b
	}
	b.up()
	if o.behindHAProxy {
		b.startHAProxy()
	} else {
		b.until("the template to be applied", func() bool { return b.sink("template edge").State == "applied" })
	}
	b.until("PgBouncer to lead to the writer", func() bool { return b.reached(b.bouncer.Addr()) != 0 })
	return b
}

// startCluster returns where the first writer is, and the roles.
func (b *bouncerRig) startCluster() (first string, passwords map[string]string) {
	b.t.Helper()
	if !b.o.patroni {
		b.cluster = b.newCluster(lab.ClusterOptions{})
		b.reigns = []reign{{node: b.cluster.Primary(), from: time.Now()}}
		return b.cluster.Primary().Addr(), map[string]string{b.cluster.ProbeUser(): b.cluster.Password(b.cluster.ProbeUser())}
	}
	var err error
	b.consul, err = b.lab.Consul(b.t.Context())
	b.do(err)
	b.patroni, err = b.lab.Patroni(b.t.Context(), lab.PatroniOptions{Consul: b.consul})
	b.do(err)
	return b.patroni.Node("n1").Addr(), map[string]string{b.patroni.ProbeUser(): b.patroni.Password(b.patroni.ProbeUser())}
}

func (b *bouncerRig) writeConfig() {
	b.t.Helper()
	var top, nodes, user, password string
	if b.o.patroni {
		top, nodes = fmt.Sprintf("consul: {address: \"http://%s\"}\n", b.consul.Addr()), "authority: patroni"
		user, password = b.patroni.ProbeUser(), b.patroni.Password(b.patroni.ProbeUser())
	} else {
		nodes = "nodes: " + nodeMap(b.addresses())
		user, password = b.cluster.ProbeUser(), b.cluster.Password(b.cluster.ProbeUser())
	}
	templates := fmt.Sprintf("templates:\n  - {name: edge, roles: true, pgbouncer: edge, files: [{builtin: pgbouncer, destination: %q, mode: \"0644\"}]}\n", b.file("databases.ini"))
	if b.o.behindHAProxy {
		templates = b.haproxyConfig()
	}
	pool := "primary"
	if b.o.reads {
		pool = "replica"
	}
	b.configure(`%smaintenance: {admin_token_file: operator.token, sessions: {user: %s}}
postgres: {user: %s, password_file: %q}
clusters:
  main:
    %s
    switchover: {%s}
    pools:
      primary: {mode: write, listen: %q}
      replica: {mode: read, listen: %q}
pgbouncers:
  - {name: edge, address: %q, user: %s, password_file: console.pw, timeout: %s, databases: [{name: postgres, pool: main/%s}]}
%s`, top, user, user, b.password(password), nodes, b.o.switchover, b.write, b.read, b.bouncer.Socket(), lab.PgBouncerAdmin, cmp.Or(b.o.timeout, "2s"), pool, templates)
}

// switched is the answer to a planned switchover.
type switched struct {
	code   int
	events []switchover.Event
	result switchover.Result
}

func (s switched) text() string {
	var all []string
	for _, e := range s.events {
		all = append(all, e.At.Format("05.000 ")+e.Text)
	}
	return strings.Join(all, "\n")
}

// switchOver asks for one, and waits for the end; ctx ends it as Ctrl-C does.
func (r *rig) switchOver(ctx context.Context, body string) (s switched) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.status+"/admin/switchover/main", strings.NewReader(body))
	r.do(err)
	req.Header.Set("Authorization", "Bearer "+operator)
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return s
	}
	defer func() { _ = res.Body.Close() }()
	s.code = res.StatusCode
	in := bufio.NewScanner(res.Body)
	for in.Scan() {
		var e switchover.Event
		if s.code != http.StatusOK {
			e.Text = in.Text()
		} else if json.Unmarshal(in.Bytes(), &e) != nil {
			r.t.Errorf("a line that is no event: %s", in.Text())
		}
		s.events = append(s.events, e)
		if e.Result != nil {
			s.result = *e.Result
		}
	}
	return s
}

// isPaused asks PgBouncer itself.
func (b *bouncerRig) isPaused() bool {
	b.t.Helper()
	return slices.ContainsFunc(b.console("SHOW DATABASES"), func(row map[string]string) bool {
		return row["name"] == "postgres" && row["paused"] == "1"
	})
}

// order has pgsteer say something to PgBouncer.
func (b *bouncerRig) order(action, body string) (code int, err error) {
	b.t.Helper()
	req, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, "http://"+b.status+"/admin/pgbouncer/edge/"+action, strings.NewReader(body))
	b.do(err)
	req.Header.Set("Authorization", "Bearer "+operator)
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

// unread has PgBouncer lead elsewhere than the template's file says, as one does whose
// pgbouncer.ini does not include it, for as long as it takes to be told.
func (b *bouncerRig) unread() {
	b.t.Helper()
	const healthy = "postgres leads to "
	b.until("the status to say where it leads", func() bool { return strings.Contains(b.sink("pgbouncer edge").Detail, healthy) })
	text, err := os.ReadFile(b.file("databases.ini"))
	b.do(err)
	write := func(text string) {
		b.do(os.WriteFile(b.file("databases.ini"), []byte(text), 0o644))
		b.console("RELOAD")
	}
	write("[databases]\npostgres = host=127.0.0.9 port=1\n")
	want := "does its pgbouncer.ini %include " + b.file("databases.ini")
	b.until("it to be told", func() bool {
		s := b.sink("pgbouncer edge")
		return s.State == "failing" && strings.Contains(s.Error, want)
	})
	s := b.switchOver(b.t.Context(), `{"to":"n2"}`)
	if s.code != http.StatusConflict || !strings.Contains(s.text(), want) {
		b.t.Errorf("with a PgBouncer that leads elsewhere: %d %s", s.code, s.text())
	}
	b.t.Logf("with a PgBouncer that leads elsewhere: %s", s.text())
	write(string(text))
	b.until("it to be well again", func() bool { return b.sink("pgbouncer edge").State == "ok" })
}

// console says something to PgBouncer as an operator does.
func (b *bouncerRig) console(command string) (rows []map[string]string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Second)
	defer cancel()
	c, err := b.bouncer.Console(ctx)
	b.do(err)
	defer func() { _ = c.Close(context.WithoutCancel(ctx)) }()
	all, err := c.PgConn().Exec(ctx, command).ReadAll()
	if err != nil {
		b.t.Fatalf("%s: %v", command, err)
	}
	for _, r := range all {
		for _, values := range r.Rows {
			row := make(map[string]string)
			for i, v := range values {
				row[r.FieldDescriptions[i].Name] = string(v)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// clients write through PgBouncer: some that stay, and one that comes anew for each write.
func (b *bouncerRig) clients() []*lab.Load {
	b.t.Helper()
	loads := []*lab.Load{
		b.lab.Load(b.bouncer.Addr(), lab.LoadOptions{Pooler: true, Sessions: 20, Timeout: 2 * patient}),
		b.lab.Load(b.bouncer.Addr(), lab.LoadOptions{Pooler: true, Sessions: 2, NewSession: true, Timeout: 2 * patient}),
	}
	for _, l := range loads {
		b.t.Cleanup(func() { l.Stop() })
		b.do(l.Wait(b.t.Context(), "a write", func(s lab.Sample) bool { return s.Op == lab.Write && s.Err == nil }))
	}
	return loads
}

// waits are how long the operations that began in a time took, sorted.
func waits(samples []lab.Sample, from, until time.Time) (all []time.Duration) {
	for _, s := range between(samples, from, until) {
		if s.Op != lab.Connect {
			all = append(all, s.Duration)
		}
	}
	slices.Sort(all)
	return all
}

// asked waits until the command of handedOver runs.
func (b *bouncerRig) asked() {
	b.t.Helper()
	b.until("the authority to be asked", func() bool {
		_, err := os.Stat(b.file("asked"))
		return err == nil
	})
}

// byHand is a command that has the test itself switch over: it runs until the test
// calls done.
func (b *bouncerRig) byHand() (command string, done func()) {
	script := fmt.Sprintf("touch %q; while [ ! -e %q ]; do sleep 0.02; done; rm -f %q %q", b.file("asked"), b.file("done"), b.file("asked"), b.file("done"))
	return fmt.Sprintf("command: [sh, -c, %q]", script), func() { b.replace("done", "") }
}

// pgbench runs simple transactions through PgBouncer in sessions that last, for seconds, until
// wait is called, which returns what it says. A client that fails ends it with an error.
func (b *bouncerRig) pgbench(seconds int) (wait func() (string, error)) {
	b.t.Helper()
	program, err := exec.LookPath("pgbench")
	b.do(err)
	b.replace("write.sql", "INSERT INTO writes DEFAULT VALUES;\n")
	host, port, _ := strings.Cut(b.bouncer.Addr(), ":")
	cmd := exec.CommandContext(b.t.Context(), program, "-n", "-M", "simple", "-c", "10", "-j", "2", "-T", strconv.Itoa(seconds),
		"-h", host, "-p", port, "-U", lab.AppUser, "-f", b.file("write.sql"), "postgres")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	b.do(cmd.Start())
	return func() (string, error) { err := cmd.Wait(); return out.String(), err }
}
