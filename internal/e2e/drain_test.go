package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/admin"
	"github.com/pgsteer/pgsteer/agent/drain"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// pgbench is a run of PostgreSQL's own load generator.
type pgbench struct {
	name string
	cmd  *exec.Cmd
	out  bytes.Buffer // of both streams
	over chan error
}

// bench starts a pgbench through an address, for as long as the test wants.
func (f *front) bench(name, addr, script string, args ...string) *pgbench {
	f.t.Helper()
	program, err := lab.PgbenchProgram()
	if err != nil {
		f.t.Fatal(err)
	}
	f.replace(name+".sql", script)
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		f.t.Fatal(err)
	}
	args = append([]string{"-n", "-h", host, "-p", port, "-U", lab.AppUser, "-f", f.file(name + ".sql")}, args...)
	b := &pgbench{name: name, over: make(chan error, 1)}
	b.cmd = exec.Command(program, append(args, "postgres")...)
	b.cmd.Env = append(os.Environ(), "PGAPPNAME="+name, "PGSSLMODE=disable")
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.out
	if err := b.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	go func() { b.over <- b.cmd.Wait() }()
	f.t.Cleanup(func() { _ = b.cmd.Process.Kill() })
	return b
}

// end waits for it and returns what it said, and how many of its clients were aborted.
func (b *pgbench) end(t *testing.T) (text string, aborted int) {
	t.Helper()
	select {
	case <-b.over:
	case <-time.After(patience):
		t.Fatalf("pgbench %s does not end", b.name)
	}
	text = b.out.String()
	if !strings.Contains(text, "number of transactions actually processed: ") {
		t.Errorf("pgbench %s did nothing:\n%s", b.name, text)
	}
	return text, strings.Count(text, "aborted in command")
}

// drain waits for what the drain of n2 has come to, as often as one may ask.
func (f *front) drain(what string, ok func(drain.Report) bool) (rep drain.Report) {
	f.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	f.until(what, func() bool {
		<-tick.C
		var s admin.State
		code, text := f.maintain(http.MethodGet, "main/n2", "")
		if err := json.Unmarshal([]byte(text), &s); err != nil || code != http.StatusOK || s.Drain == nil {
			return false
		}
		rep = *s.Drain
		return ok(rep)
	})
	return rep
}

// called is a session with a name, through an address on the server of a port.
func (f *front) called(name, addr string, port int) *pgx.Conn {
	f.t.Helper()
	c := f.session(addr, port)
	if _, err := c.Exec(f.t.Context(), "SET application_name = "+name); err != nil {
		f.t.Fatal(err)
	}
	return c
}

// A replica is drained before a real HAProxy, with the agent restarted in the middle.
// pgbench with a connection per transaction loses no client; no new session reaches
// the node after a second; sessions that wait end early; every transaction lives until
// the deadline; whoever is ended sees 57P01 and stands in the report, and nobody else.
func TestDrainUnderPgbench(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{
		haproxy: true, top: "maintenance: {admin_token_file: operator.token, sessions: {user: pgsteer}}\n",
		external: func(f *front) {
			f.replace("operator.token", operator+"\n")
			f.up()
		},
	})
	f.maySignal()
	n2 := f.node("n2").Port()
	perTransaction := f.bench("churn", f.read, "SELECT 1;\n\\sleep 20 ms\n", "-C", "-c", "4", "-T", "20")
	persistent := f.bench("long", f.read, "BEGIN;\nSELECT pg_sleep(1.5);\nCOMMIT;\n", "-c", "6", "-j", "2", "-T", "18")
	news := f.lab.Load(f.read, lab.LoadOptions{NewSession: true, ReadOnly: true, Timeout: patient})
	f.do(news.Wait(t.Context(), "readers on n2", func(x lab.Sample) bool { return x.Port == n2 && x.Err == nil }))
	waits, works := f.called("waits", f.read, n2), f.called("works", f.read, n2)
	worked := make(chan error, 1)
	go func() {
		_, err := works.Exec(context.Background(), "SELECT pg_sleep(60)")
		worked <- err
	}()
	f.until("pgbench's sessions on n2", func() bool { return f.sessions("n2", "long") > 0 })
	long := f.sessions("n2", "long")

	const deadline = 8 * time.Second
	out := f.maintained(http.MethodPost, "main/n2", fmt.Sprintf(`{"reason":"kernel","drain":"%s","end_idle":true,"terminate":true}`, deadline))
	f.is("main", "replica", "n2", topology.Drain, topology.CodeMaintenance)
	f.drain("the idle session to end", func(r drain.Report) bool { return len(r.Ended) == 1 })
	idle := time.Since(out)
	f.down()
	f.up()
	if rep := f.drain("the report after the restart", func(drain.Report) bool { return true }); len(rep.Ended) != 1 {
		t.Errorf("after the restart: %+v", rep)
	}
	select {
	case err := <-worked:
		t.Errorf("a transaction ended before the deadline: %v", err)
	default:
	}
	rep := f.drain("its end", func(r drain.Report) bool { return r.Phase.Over() })
	took := time.Since(out)
	t.Logf("idle ended after %s, all after %s: %d ended, %d left", idle, took, len(rep.Ended), len(rep.Left))
	f.ended(rep, map[string]int{"waits": 1, "works": 1, "long": long})
	if rep.Phase != drain.Done || took < deadline || took > deadline+3*time.Second {
		t.Errorf("it was over after %s: %s, left %+v", took, rep.Phase, rep.Left)
	}
	for name, err := range map[string]error{"works": <-worked, "waits": broken(waits)} {
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != "57P01" {
			t.Errorf("%s sees %v", name, err)
		}
	}
	text, aborted := perTransaction.end(t)
	t.Log(text)
	if aborted > 0 || strings.Contains(text, "error") || !strings.Contains(text, "failed transactions: 0 ") {
		t.Errorf("with a connection per transaction %d clients were aborted", aborted)
	}
	text, aborted = persistent.end(t)
	if told := strings.Count(text, "terminating connection due to administrator command"); aborted != long || told != long {
		t.Errorf("%d of pgbench's clients were on n2, %d aborted, %d were told why:\n%s", long, aborted, told, text)
	}
	last := out
	for _, x := range news.Stop() {
		if x.Op == lab.Connect && x.Port == n2 && x.At.After(last) {
			last = x.At
		}
	}
	t.Logf("the last new session on n2 began %s after the answer", last.Sub(out))
	if last.Sub(out) > time.Second {
		t.Errorf("a new session came to n2 %s after it was taken out", last.Sub(out))
	}
}

// ended compares who was ended with who should have been, and when.
func (f *front) ended(rep drain.Report, want map[string]int) {
	f.t.Helper()
	got := make(map[string]int)
	for _, c := range rep.Ended {
		got[c.Application]++
		if c.Why == "deadline" && c.At.Before(rep.Deadline) || (c.Why == "idle") != (c.Application == "waits") || c.PID == 0 || c.User != lab.AppUser || !c.Told {
			f.t.Errorf("ended too early, or not named whole: %+v", c)
		}
	}
	for name, n := range want {
		if got[name] != n {
			f.t.Errorf("%d of %s were ended, want %d", got[name], name, n)
		}
		delete(got, name)
	}
	if len(got) > 0 {
		f.t.Errorf("ended were others too: %v", got)
	}
}

// maySignal lets pgsteer's role end sessions, at every node when it returns.
func (f *front) maySignal() {
	f.t.Helper()
	f.do(f.writer().Exec(f.t.Context(), "GRANT pg_signal_backend TO pgsteer"))
	f.do(f.cluster.WaitStreaming(f.t.Context()))
}

// sessions counts an application's sessions at a node.
func (f *front) sessions(node, application string) (n int) {
	f.t.Helper()
	c, err := f.node(node).Conn(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	defer closeConn(c)
	if err := c.QueryRow(f.t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1", application).Scan(&n); err != nil {
		f.t.Fatal(err)
	}
	return n
}

// broken is the error by which a session ended.
func broken(c *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), patient)
	defer cancel()
	_, err := c.Exec(ctx, "SELECT 1")
	return err
}

// With records that two agents share, at a real Consul, the one that was asked drains
// and reports, also after its restart; the other one obeys, ends nobody, and says whom
// to ask. Cut off from Consul it ends nobody, since the other one may have been told
// to stop.
func TestDrainByOneAgent(t *testing.T) {
	t.Parallel()
	labtest.Need(t, lab.NeedConsul)
	var link *lab.Link
	f := newFront(t, frontOptions{external: func(f *front) {
		f.replace("operator.token", operator+"\n")
		store, err := f.lab.Consul(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if link, err = f.lab.Link(t.Context(), store.Addr()); err != nil {
			t.Fatal(err)
		}
		const top = "consul: {address: \"http://%s\"}\nmaintenance: {store: consul, admin_token_file: operator.token, sessions: {user: pgsteer}}\n"
		f.o.top = fmt.Sprintf(top, link.Addr())
		f.writeConfig()
		f.up()
		f.o.top = fmt.Sprintf(top, store.Addr()) // the twin's
	}})
	twin := f.twin()
	f.maySignal()
	for _, r := range []*rig{f.rig, twin} {
		r.is("main", "replica", "n2", topology.Up, topology.CodeReplica)
	}
	works := f.called("works", f.node("n2").Addr(), 0)
	if _, err := works.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	f.maintained(http.MethodPost, "main/n2", `{"reason":"kernel","drain":"6s","terminate":true}`)
	twin.is("main", "replica", "n2", topology.Drain, topology.CodeMaintenance)
	f.drain("a look", func(r drain.Report) bool { return len(r.Left) == 1 })
	f.down()
	f.up()
	rep := f.drain("its end", func(r drain.Report) bool { return r.Phase.Over() })
	f.ended(rep, map[string]int{"works": 1})
	var s admin.State
	if _, text := twin.maintain(http.MethodGet, "main/n2", ""); json.Unmarshal([]byte(text), &s) != nil || s.Drain != nil || s.Record == nil || s.Record.Sessions.ID != rep.ID || s.Record.Sessions.By == "" {
		t.Errorf("the other agent says %+v", s)
	}
	for r, want := range map[*rig]uint64{f.rig: 1, twin: 0} {
		if got := r.sink("maintenance").Counters["sessions_ended"]; got != want {
			t.Errorf("an agent has ended %d, want %d", got, want)
		}
	}
	spared := f.called("spared", f.node("n2").Addr(), 0)
	if _, err := spared.Exec(t.Context(), "BEGIN"); err != nil {
		t.Fatal(err)
	}
	f.maintained(http.MethodPost, "main/n2", `{"reason":"kernel","drain":"5s","terminate":true}`)
	f.drain("another look", func(r drain.Report) bool { return r.ID != rep.ID && len(r.Left) == 1 })
	f.do(link.Cut())
	twin.maintained(http.MethodDelete, "main/n2", "")
	f.drain("the trouble", func(r drain.Report) bool { return strings.Contains(r.Trouble, "nobody is ended until that is known") })
	f.do(link.Heal())
	if rep := f.drain("its end", func(r drain.Report) bool { return r.Phase.Over() }); rep.Phase != drain.Stopped || len(rep.Ended) != 0 {
		t.Errorf("stopped at another agent it is %+v", rep)
	}
	if _, err := spared.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("after the stop a session ended: %v", err)
	}
	f.is("main", "replica", "n2", topology.Up, topology.CodeReplica)
}
