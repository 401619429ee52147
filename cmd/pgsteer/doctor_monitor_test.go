package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/doctor"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// TestDoctorMonitor looks at a fresh monitor of pg_auto_failover as whoever sets up
// pgsteer would: first as the nodes' own role, then as one that is not there, and
// each time does what doctor says, word by word, until nothing is left to do.
func TestDoctorMonitor(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedAutoFailover)
	c, err := l.AutoFailover(t.Context(), lab.AutoFailoverOptions{Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	m, dir := c.Monitor(), t.TempDir()
	file := filepath.Join(dir, "pgsteer.yaml")
	exec := func(statements string) {
		t.Helper()
		if err := m.Exec(t.Context(), "pg_auto_failover", statements); err != nil {
			t.Fatalf("%v in\n%s", err, statements)
		}
	}
	// look returns the rows of the check as "LEVEL: found", and the statements of the
	// last thing to do.
	look := func(user, formation string) (rows, statements string) {
		t.Helper()
		if err := os.WriteFile(file, fmt.Appendf(nil, doctorMonitorConfig, dir, m.Addr(), user, formation), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		run([]string{"doctor", "-c", file, "-o", "json"}, streams{&out, &errs})
		var all []doctor.Result
		if err := json.Unmarshal(out.Bytes(), &all); err != nil {
			t.Fatalf("%v: %s%s", err, &out, &errs)
		}
		var found []string
		for _, r := range all {
			if r.Check == "monitor" {
				found = append(found, string(r.Level)+": "+r.Found)
				_, statements, _ = strings.Cut(r.Do, "\n")
			}
		}
		return strings.Join(found, "; "), statements
	}
	const good = "OK: version 2.0; 1 nodes, read from the "
	rows, recipe := look("autoctl_node", "default")
	if want := good + "table pgautofailover.node; WARN: autoctl_node may start failovers and remove nodes: whoever reads its password can"; rows != want {
		t.Errorf("as the nodes' role: %s", rows)
	}
	if rows, _ := look("postgres", "default"); !strings.Contains(rows, "WARN: postgres is a superuser") {
		t.Errorf("as superuser: %s", rows)
	}
	if rows, all := look("pgsteer", "default"); !strings.HasPrefix(rows, "FAIL: auth: ") || all != recipe {
		t.Errorf("as a role that is not there: %s\n%s", rows, all)
	}
	exec("CREATE ROLE reader LOGIN")
	rows, views := look("reader", "default")
	if !strings.HasPrefix(rows, "FAIL: reader can read neither") {
		t.Errorf("as a role without rights: %s", rows)
	}
	exec(views)
	if rows, _ := look("reader", "default"); rows != good+"view pgsteer.node" {
		t.Errorf("after what doctor said: %s", rows)
	}
	exec("DROP SCHEMA pgsteer CASCADE")
	exec(recipe)
	if rows, _ := look("pgsteer", "default"); rows != good+"view pgsteer.node" {
		t.Errorf("after the recipe: %s", rows)
	}
	if rows, _ := look("pgsteer", "shop"); rows != "FAIL: it knows no node of formation shop, group 0" {
		t.Errorf("another formation: %s", rows)
	}
	if rows, grants := look("reader", "default"); !strings.HasPrefix(rows, "FAIL: reader can read neither") || !strings.HasPrefix(grants, "GRANT ") {
		t.Errorf("views of another role: %s\n%s", rows, grants)
	}
	var out, errs bytes.Buffer
	run([]string{"doctor", "-c", file}, streams{&out, &errs})
	t.Logf("\n%s", &out)
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if rows, _ := look("pgsteer", "default"); !strings.HasPrefix(rows, "FAIL: refused: ") {
		t.Errorf("a monitor that is not there: %s", rows)
	}
}

const doctorMonitorConfig = `
state_dir: %s
listen: {agent_check: "127.0.0.1:0", health: "127.0.0.1:0", status: "127.0.0.1:0", xds: off}
clusters:
  main:
    authority: pg_auto_failover
    pg_auto_failover: {monitors: [%q], user: %s, formation: %s}
`

// The running agent's descriptors are those of its own metrics.
func TestDescriptors(t *testing.T) {
	agent := httptest.NewServer(status.New(status.Options{
		Views: new(latest.Map[string, topology.View]), Now: topology.NewTicker(time.Now), Clusters: func() []string { return nil },
		Agent: func() status.Agent { return status.Agent{} }, Sinks: func() []status.Sink { return nil },
	}))
	at := running{Address: strings.TrimPrefix(agent.URL, "http://")}
	var want syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &want); err != nil {
		t.Fatal(err)
	}
	if open, limit := descriptors(t.Context(), at); open == 0 || open > 1000 || limit != want.Cur {
		t.Errorf("%d of %d are open, want some of %d", open, limit, want.Cur)
	}
	agent.Close()
	if open, limit := descriptors(t.Context(), at); open != 0 || limit != 0 {
		t.Errorf("of no agent: %d of %d", open, limit)
	}
}
