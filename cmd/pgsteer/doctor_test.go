package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/doctor"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/templates/apply"
)

// TestDoctorNamesRefusedTemplates: what the agent says of a template that is not live
// reaches doctor, whatever state that is; one that waits for its nodes is no trouble.
func TestDoctorNamesRefusedTemplates(t *testing.T) {
	a := agentOf(status.Report{Sinks: []status.Sink{
		{Name: "template a", State: string(apply.StateRejected), Error: "the check refused the files"},
		{Name: "template b", State: string(apply.StateHeld), Error: "no such function"},
		{Name: "template c", State: string(apply.StatePending), Error: "reload: no"},
		{Name: "template d", State: string(apply.StatePending)},
		{Name: "template e", State: string(apply.StateWaiting), Error: "the nodes are not known yet of main"},
		{Name: "template f", State: string(apply.StateApplied)},
		{Name: "state", State: status.SinkFailing, Error: "disk full"},
	}})
	want := map[string]string{"template a": "the check refused the files", "template b": "no such function", "template c": "reload: no", "state": "disk full"}
	if diff := cmp.Diff(want, a.Failing); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestDoctor looks at a real PostgreSQL, HAProxy and Consul, without fault and with
// one after the other.
func TestDoctor(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedPostgres, lab.NeedHAProxy, lab.NeedConsul)
	c, err := l.Cluster(t.Context(), lab.ClusterOptions{Name: "main", Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	consul, err := l.Consul(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := consul.Put(t.Context(), "service/keys/leader", "n1"); err != nil {
		t.Fatal(err)
	}
	operator := l.SocketPath("operator.sock")
	h, err := l.HAProxy(t.Context(), lab.HAProxyOptions{Config: fmt.Sprintf(doctorHAProxy, operator)})
	if err != nil {
		t.Fatal(err)
	}
	n, dir := c.Nodes()[0], t.TempDir()
	probe := c.ProbeUser()
	file := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	password := file("pw", c.Password(probe)+"\n")
	wrong := file("wrong", "nonsense\n")
	config := func(password, scope, socket, master string) string {
		return file("pgsteer.yaml", fmt.Sprintf(doctorConfig, dir, probe, password, consul.Addr(), n.Addr(), scope, socket, h.ConfigFile(), master))
	}
	// look returns the rows that are not OK, as "LEVEL check".
	look := func(path string) (rows []string, code int, all []doctor.Result) {
		t.Helper()
		var out, errs bytes.Buffer
		code = run([]string{"doctor", "-c", path, "-o", "json"}, streams{&out, &errs})
		if err := json.Unmarshal(out.Bytes(), &all); err != nil {
			t.Fatalf("%v: %s%s", err, &out, &errs)
		}
		for _, r := range all {
			// Nobody knows the nodes of cluster keys, whose agent does not run.
			if r.Level != doctor.OK && r.Found != "no node is known" {
				rows = append(rows, string(r.Level)+" "+r.Check)
			}
		}
		return rows, code, all
	}
	before, err := os.ReadFile(n.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	exec := func(statement string) func() {
		return func() {
			t.Helper()
			if err := n.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
	}
	nothing := func() {}
	for _, tt := range []struct {
		name    string
		change  func()
		config  []string // password, scope, socket, master
		want    string
		code    int
		restore func()
	}{
		{"without fault", exec("ALTER ROLE " + probe + " CONNECTION LIMIT 10"), []string{password, "keys", h.AdminSocket(), h.MasterSocket()}, "", 0, nothing},
		{"superuser", exec("ALTER ROLE " + probe + " SUPERUSER"), []string{password, "keys", h.AdminSocket(), h.MasterSocket()}, "WARN probe-role", 0, exec("ALTER ROLE " + probe + " NOSUPERUSER")},
		{"no pg_monitor", exec("REVOKE pg_monitor FROM " + probe), []string{password, "keys", h.AdminSocket(), h.MasterSocket()}, "FAIL probe-role", 1, exec("GRANT pg_monitor TO " + probe)},
		{"no limit", exec("ALTER ROLE " + probe + " CONNECTION LIMIT -1 CREATEDB"), []string{password, "keys", h.AdminSocket(), h.MasterSocket()}, "WARN probe-role", 0, exec("ALTER ROLE " + probe + " NOCREATEDB CONNECTION LIMIT 10")},
		{"no key", nothing, []string{password, "nokeys", h.AdminSocket(), h.MasterSocket()}, "WARN consul", 0, nothing},
		{"sockets mixed up", nothing, []string{password, "keys", h.MasterSocket(), h.AdminSocket()}, "FAIL haproxy-socket, FAIL haproxy-master", 1, nothing},
		{"level operator", nothing, []string{password, "keys", operator, h.MasterSocket()}, "FAIL haproxy-socket", 1, nothing},
		{"no such socket", nothing, []string{password, "keys", "/nowhere.sock", h.MasterSocket()}, "FAIL haproxy-socket", 1, nothing},
	} {
		tt.change()
		rows, code, all := look(config(tt.config[0], tt.config[1], tt.config[2], tt.config[3]))
		if got := strings.Join(rows, ", "); got != tt.want || code != tt.code {
			t.Errorf("%s: %q with code %d, want %q with %d:\n%+v", tt.name, got, code, tt.want, tt.code, all)
		}
		tt.restore()
	}
	after, err := os.ReadFile(n.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	if logged := strings.TrimPrefix(string(after), string(before)); logged != "" {
		t.Errorf("PostgreSQL logged: %s", logged)
	}
	if rows, code, all := look(config(wrong, "keys", h.AdminSocket(), h.MasterSocket())); strings.Join(rows, ", ") != "FAIL login" || code != 1 {
		t.Errorf("wrong password: %q with code %d:\n%+v", rows, code, all)
	}
	var out, errs bytes.Buffer
	if code := run([]string{"doctor", "-c", config(password, "keys", h.AdminSocket(), h.MasterSocket())}, streams{&out, &errs}); code != 0 || !strings.HasSuffix(out.String(), " OK, 1 WARN, 0 FAIL\n") {
		t.Errorf("code %d: %s%s", code, &out, &errs)
	}
	t.Logf("\n%s", &out)
}

const doctorHAProxy = `
global
  stats socket @ADMIN_SOCKET@ mode 600 level admin
  stats socket %s mode 600 level operator
defaults
  mode tcp
  timeout connect 1s
  timeout client 1m
  timeout server 1m
frontend f
  bind unix@@DIR@/f.sock
`

const doctorConfig = `
state_dir: %s
listen: {agent_check: "127.0.0.1:0", health: "127.0.0.1:0", status: "127.0.0.1:0", xds: off}
postgres: {user: %q, password_file: %s, sslmode: prefer}
consul: {address: "http://%s"}
maintenance: {store: consul}
clusters:
  main: {nodes: {n1: %q}}
  keys: {authority: patroni, patroni: {scope: %s}}
haproxy: {sockets: [%s]}
templates:
  - name: haproxy
    files: [{source: pgsteer.yaml, destination: %s}]
    check: [haproxy, -c, -f, "{{.Staged}}"]
    master_socket: %s
`
