package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgsteer/pgsteer/agent/status"
)

// What a killed agent has left paused is told at the start where no PgBouncer is
// configured any more, and after a reload that took the last one away.
func TestLeftPausedWithoutPgBouncers(t *testing.T) {
	r := newRig(t)
	cluster := "clusters:\n  main:\n    nodes: {n1: 127.0.0.1:1}\n"
	r.write(base, listen(), cluster)
	if err := os.MkdirAll(filepath.Join(r.dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	r.file("state/"+bouncerFile, `{"paused":[{"bouncer":"edge","database":"app","since":"2026-11-30T12:00:00Z","address":"/run/gone/.s.PGSQL.6432","user":"steer"}]}`)
	r.up()
	want := "psql -h /run/gone -p 6432 -U steer -c 'RESUME \"app\"' pgbouncer"
	told := func() bool {
		return slices.ContainsFunc(r.agent.sinks(), func(s status.Sink) bool {
			return s.Name == "pgbouncer edge" && s.State == status.SinkFailing && strings.Contains(s.Error, want)
		})
	}
	r.until("the status to tell", told)
	r.until("the log to tell", func() bool { return strings.Contains(r.log.String(), "a database stays paused") })
	r.write(base, listen(), cluster, "pgbouncers: [{name: edge, address: /run/gone/.s.PGSQL.6432, databases: [{name: app, pool: main/primary}]}]\n")
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.until("it to be tried", func() bool {
		return slices.ContainsFunc(r.agent.sinks(), func(s status.Sink) bool {
			return s.Name == "pgbouncer edge" && s.State == status.SinkFailing && strings.Contains(s.Error, "tried again")
		})
	})
	r.write(base, listen(), cluster)
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.until("the status to tell again", told)
}
