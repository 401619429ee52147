package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/pgbouncer"
	"github.com/pgsteer/pgsteer/agent/status"
)

// A command of the operator's own, run for real: its caller's leave ends what waits for
// it and not the command. What cannot be done is refused with what to do, and who may not
// is noted under the name of what was asked.
func TestSwitchoverByCommand(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newRig(t)
	at := func(name string) string { return filepath.Join(r.dir, name) }
	script := fmt.Sprintf("echo $0 > %q; while [ ! -e %q ]; do sleep 0.02; done; echo through; touch %q", at("asked"), at("go"), at("through"))
	r.write(base, listen(), r.guarded(""), "clusters:\n", clusterText("main", n1, n2,
		fmt.Sprintf("    switchover: {command: [sh, -c, %q, \"{{.From}}-{{.To}}\"]}\n", script)))
	r.up()
	r.settled("main", "n1", "n2")
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Stat(at(name)); return err == nil }
	}
	refused := func(path, body, want string) {
		t.Helper()
		if code, text := r.call("POST", path, adminToken, body); code != 409 || !strings.Contains(text, want) {
			t.Errorf("%s %s: %d %s", path, body, code, text)
		}
	}
	refused("/admin/switchover/man", `{"to":"n2"}`, "there is no such cluster: `man` is none of main; did you mean `main`?; nothing was done")
	refused("/admin/switchover/main", `{}`, "the command sh of cluster main needs a candidate ({{.To}} in switchover.command): name it with --to, one of n2")
	for path, want := range map[string]string{
		"/admin/switchover/main":      `msg=switchover component=admin audit="refused: no right" target=main token=`,
		"/admin/pgbouncer/edge/pause": `msg="order to PgBouncer" component=admin audit="refused: no right" target=edge/pause token=`,
	} {
		if code, _ := r.call("POST", path, viewerToken, ""); code != 403 || !strings.Contains(r.log.String(), want) {
			t.Errorf("%s: %d, and the log has no %s", path, code, want)
		}
	}

	ctx, leave := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+r.addr(partStatus)+"/admin/switchover/main", strings.NewReader(`{"to":"n2"}`))
		if err != nil {
			t.Error(err)
			return
		}
		req.Header.Set("Authorization", "Bearer "+adminToken)
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			return
		}
		<-ctx.Done()
		_ = res.Body.Close()
	}()
	r.until("the command to run", exists("asked"))
	leave()
	<-gone
	r.until("the leave to be told", func() bool {
		return strings.Contains(r.log.String(), "aborted: everything is resumed; the command sh goes on")
	})
	refused("/admin/switchover/main", `{"to":"n2"}`, "its command still runs")
	r.file("go", "")
	r.until("the command to be through", exists("through"))
	r.until("the next to be possible", func() bool { return strings.Contains(r.log.String(), "the command sh has ended") })
	if b, err := os.ReadFile(at("asked")); err != nil || string(b) != "n1-n2\n" {
		t.Errorf("the command was given %q (%v)", b, err)
	}

	r.change("POST", "/admin/maintenance/main/n1", `{"reason":"disk","force":true}`)
	r.writer("main", "")
	refused("/admin/switchover/main", `{"to":"n2"}`, "n1 is in maintenance (disk): `pgsteer maintenance list` shows by whom, and `pgsteer maintenance stop main/n1` puts it back")
}

// Each PgBouncer has a line of status while all is well: where its databases lead, and
// which have clients wait.
func TestStatusOfPgBouncers(t *testing.T) {
	led := func(name string, paused, disabled bool) pgbouncer.Database {
		return pgbouncer.Database{Name: name, Host: "10.0.0.1", Port: "5432", Paused: paused, Disabled: disabled}
	}
	var b strings.Builder
	status.WriteStatus(&b, status.Report{Sinks: bouncerSinks([]pgbouncer.Status{
		{Bouncer: "edge", Paused: []string{"jobs"}, Leads: []pgbouncer.Database{led("app", false, false), led("jobs", true, false), led("logs", true, true)}},
		{Bouncer: "far", Err: errors.New("no answer"), Since: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)},
	})})
	const want = `- pgbouncer edge: app leads to 10.0.0.1:5432, jobs leads to 10.0.0.1:5432 (paused by pgsteer), logs leads to 10.0.0.1:5432 (paused, not by pgsteer) (disabled: no new clients)
! pgbouncer far: no answer (since 12:00:00)
`
	if b.String() != want {
		t.Errorf("status says:\n%s", b.String())
	}
}
