package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// refusing is a front whose pools tell clients why they are refused.
func refusing(tb testing.TB) *front {
	tb.Helper()
	return newFront(tb, frontOptions{
		haproxy: true, envoy: true, refuse: true, replica: ", fallback: none", top: "maintenance: {admin_token_file: operator.token}\n",
		external: func(f *front) {
			f.replace("operator.token", operator+"\n")
			f.up()
		},
	})
}

// psqlProgram is psql itself where Debian has a script before it, which takes several times
// as long to start.
func psqlProgram() string {
	if all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/psql"); len(all) > 0 {
		return all[len(all)-1]
	}
	return "psql"
}

// psqlAt asks through a balancer which server answers, as PostgreSQL's own client does;
// it tries several addresses one after another.
func (f *front) psqlAt(addrs ...string) (out string, took time.Duration) {
	f.t.Helper()
	var hosts, ports []string
	for _, a := range addrs {
		h, p, _ := net.SplitHostPort(a)
		hosts, ports = append(hosts, h), append(ports, p)
	}
	begin := time.Now()
	b, err := exec.CommandContext(f.t.Context(), psqlProgram(), "-XAtc", "SELECT inet_server_port()",
		fmt.Sprintf("host=%s port=%s user=%s password=%s dbname=postgres", strings.Join(hosts, ","), strings.Join(ports, ","),
			lab.Superuser, f.cluster.Password(lab.Superuser))).CombinedOutput()
	took = time.Since(begin)
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		f.t.Fatal(err)
	}
	return string(b), took
}

// A client whose pool is out for maintenance reads why in its own words and stops;
// one whose pool has no node goes on to its next address. Both are told by pgsteer
// through HAProxy and Envoy, and nobody who can be served is.
func TestRefusedClients(t *testing.T) {
	t.Parallel()
	f := refusing(t)
	primary := fmt.Sprintf("%d\n", f.node("n1").Port())
	if out, _ := f.psqlAt(f.write); out != primary {
		t.Fatalf("before: %q, want %q", out, primary)
	}
	told := func(what string, want string, addrs ...string) {
		t.Helper()
		var out string
		f.until(what+" to be told "+want, func() bool {
			var took time.Duration
			out, took = f.psqlAt(addrs...)
			t.Logf("%s, %s: %s", what, took.Round(time.Millisecond), strings.TrimSpace(out))
			return strings.Contains(out, want)
		})
	}

	for _, n := range []string{"n2", "n3"} {
		f.maintained(http.MethodPost, "main/"+n, `{"reason":"new kernel","force":true}`)
	}
	for _, addr := range []string{f.read, f.envoyRead} {
		told("a reader in maintenance", "FATAL:  pool replica of cluster main is out for maintenance: new kernel", addr)
	}
	if out, _ := f.psqlAt(f.read, f.write); !strings.Contains(out, "new kernel") || strings.Contains(out, primary) {
		t.Errorf("with a second address: %q, want libpq to stop at 57P01", out)
	}
	if out, _ := f.psqlAt(f.write); out != primary {
		t.Errorf("a writer meanwhile: %q, want %q", out, primary)
	}

	f.maintained(http.MethodDelete, "main/n2", "")
	f.maintained(http.MethodDelete, "main/n3", "")
	f.is("main", "replica", "n2", topology.Up, topology.CodeReplica)
	f.until("readers to be served again", func() bool { return f.reached(f.read) != 0 && f.reached(f.envoyRead) != 0 })

	for _, n := range []string{"n2", "n3"} {
		f.do(f.node(n).Kill())
	}
	for _, addr := range []string{f.read, f.envoyRead} {
		told("a reader without a node", "FATAL:  no node of pool replica of cluster main takes sessions right now", addr)
	}
	if out, _ := f.psqlAt(f.read, f.write); out != primary {
		t.Errorf("with a second address: %q, want %q, since libpq goes on at 57P03", out, primary)
	}

	f.maintained(http.MethodPost, "main", `{"reason":"move to PostgreSQL 18","force":true}`)
	for _, addr := range []string{f.write, f.envoyWrite} {
		told("a writer in maintenance", "FATAL:  pool primary of cluster main is out for maintenance: move to PostgreSQL 18", addr)
	}
	if n := f.metric(`pgsteer_sink_events_total{event="57P01",sink="refusal main/primary"}`); n == "" || n == "0" {
		t.Errorf("57P01 was counted %q times", n)
	}

	// Without pgsteer a connection is closed, as before.
	f.down()
	if out, _ := f.psqlAt(f.write); !strings.Contains(out, "closed the connection") && !strings.Contains(out, "reset by peer") {
		t.Errorf("without pgsteer: %q", out)
	}
}

// BenchmarkRefused times a client, from its first packet to its end, that is told
// through HAProxy why its pool is out for maintenance.
func BenchmarkRefused(b *testing.B) {
	f := refusing(b)
	f.maintained(http.MethodPost, "main", `{"reason":"kernel","force":true}`)
	f.timeRefused(b, func() (took time.Duration, told bool) {
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		begin := time.Now()
		c, err := pgconn.Connect(ctx, "postgres://app@"+f.write+"/postgres?sslmode=prefer")
		took = time.Since(begin)
		if err == nil {
			_ = c.Close(ctx)
		}
		e, ok := errors.AsType[*pgconn.PgError](err)
		return took, ok && e.Code == "57P01"
	})
}

// BenchmarkRefusedPsql times PostgreSQL's own client with the text on its screen: the
// start and the end of its process are in it.
func BenchmarkRefusedPsql(b *testing.B) {
	f := refusing(b)
	f.maintained(http.MethodPost, "main", `{"reason":"kernel","force":true}`)
	f.timeRefused(b, func() (took time.Duration, told bool) {
		out, took := f.psqlAt(f.write)
		return took, strings.Contains(out, "out for maintenance: kernel")
	})
}

// timeRefused reports how long a client takes that is told.
func (f *front) timeRefused(b *testing.B, refused func() (took time.Duration, told bool)) {
	b.Helper()
	f.until("refusals", func() bool { _, told := refused(); return told })
	var all []time.Duration
	for b.Loop() {
		took, told := refused()
		if !told {
			b.Fatal("a client was not told")
		}
		all = append(all, took)
	}
	slices.Sort(all)
	b.ReportMetric(all[len(all)/2].Seconds()*1000, "p50-ms")
	b.ReportMetric(all[len(all)*99/100].Seconds()*1000, "p99-ms")
}
