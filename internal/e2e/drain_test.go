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
	"strconv"
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
func (b *pgbench) end(tb testing.TB) (text string, aborted int) {
	tb.Helper()
	select {
	case <-b.over:
	case <-time.After(patience):
		tb.Fatalf("pgbench %s does not end", b.name)
	}
	text = b.out.String()
	if !strings.Contains(text, "number of transactions actually processed: ") {
		tb.Errorf("pgbench %s did nothing:\n%s", b.name, text)
	}
	return text, strings.Count(text, "aborted in command")
}

// drain waits for what the drain of n2 has come to.
func (f *front) drain(what string, ok func(drain.Report) bool) drain.Report {
	f.t.Helper()
	return f.drainOf("n2", what, ok)
}

// drainOf waits for what the drain of a node has come to, as often as one may ask.
func (r *rig) drainOf(node, what string, ok func(drain.Report) bool) (rep drain.Report) {
	r.t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	r.until(what, func() bool {
		<-tick.C
		var s admin.State
		code, text := r.maintain(http.MethodGet, "main/"+node, "")
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

// guests are clients of n2 through one address, before and while it is drained.
type guests struct {
	f    *front
	name string // added to each application's
	// pgbench with a connection per transaction, and in sessions that last.
	churn, long   *pgbench
	news          *lab.Load // a session for each read
	waits, works  *pgx.Conn // idle, and in a transaction that would outlast the deadline
	worked        chan error
	longs, others int // of long's sessions: on n2, elsewhere
}

// guestsAt starts clients through an address and returns when each kind is on n2.
func (f *front) guestsAt(name, addr string) *guests {
	f.t.Helper()
	const longs = 6
	n2, g := f.node("n2").Port(), &guests{f: f, name: name, worked: make(chan error, 1)}
	g.churn = f.bench("churn"+name, addr, "SELECT 1;\n\\sleep 20 ms\n", "-C", "-c", "4", "-T", "20")
	g.long = f.bench("long"+name, addr, "BEGIN;\nSELECT pg_sleep(1.5);\nCOMMIT;\n", "-c", strconv.Itoa(longs), "-j", "2", "-T", "20")
	g.news = f.lab.Load(addr, lab.LoadOptions{NewSession: true, ReadOnly: true, Timeout: patient})
	f.do(g.news.Wait(f.t.Context(), "readers on n2", func(x lab.Sample) bool { return x.Port == n2 && x.Err == nil }))
	g.waits, g.works = f.called("waits"+name, addr, n2), f.called("works"+name, addr, n2)
	go func() {
		_, err := g.works.Exec(context.Background(), "SELECT pg_sleep(60)")
		g.worked <- err
	}()
	f.until("all of pgbench's sessions", func() bool {
		g.longs, g.others = f.sessions("n2", "long"+name), f.sessions("n3", "long"+name)
		return g.longs > 0 && g.longs+g.others == longs
	})
	return g
}

// named are those of them whom the drain should end, by application.
func (g *guests) named(want map[string]int) {
	want["waits"+g.name], want["works"+g.name], want["long"+g.name] = 1, 1, g.longs
}

// working fails the test when the transaction has ended already.
func (g *guests) working() {
	g.f.t.Helper()
	select {
	case err := <-g.worked:
		g.f.t.Errorf("%s: a transaction ended before the deadline: %v", g.name, err)
		g.worked <- err
	default:
	}
}

// left judges what they have seen of a drain that was asked for at a moment.
func (g *guests) left(out time.Time) {
	t := g.f.t
	t.Helper()
	for name, err := range map[string]error{"works": <-g.worked, "waits": broken(g.waits)} {
		wasTold(t, name+g.name, err)
	}
	text, aborted := g.churn.end(t)
	t.Log(text)
	if aborted > 0 || strings.Contains(text, "error") || !strings.Contains(text, "failed transactions: 0 ") {
		t.Errorf("%s: with a connection per transaction %d clients were aborted", g.name, aborted)
	}
	text, aborted = g.long.end(t)
	if told := strings.Count(text, "terminating connection due to administrator command"); aborted != g.longs || told != g.longs {
		t.Errorf("%s: %d of pgbench's clients were on n2, %d aborted, %d were told why:\n%s", g.name, g.longs, aborted, told, text)
	}
	last := lastOn(g.news.Stop(), g.f.node("n2").Port(), out)
	t.Logf("%s: the last new session on n2 began %s after the answer", g.name, last)
	if last > time.Second {
		t.Errorf("%s: a new session came to n2 %s after it was taken out", g.name, last)
	}
}

// lastOn is how long after a moment the last session on the server of a port began.
func lastOn(samples []lab.Sample, port int, from time.Time) (last time.Duration) {
	for _, x := range samples {
		if x.Op == lab.Connect && x.Port == port {
			last = max(last, x.At.Sub(from))
		}
	}
	return last
}

// wasTold fails the test unless a session ended by the server's own word.
func wasTold(tb testing.TB, name string, err error) {
	tb.Helper()
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "57P01" {
		tb.Errorf("%s sees %v", name, err)
	}
}

// emptied asks for a drain of a node that ends whom it can, be it the writer, and returns
// when that was answered.
func (r *rig) emptied(node string, deadline time.Duration) time.Time {
	r.t.Helper()
	return r.maintained(http.MethodPost, "main/"+node, fmt.Sprintf(`{"reason":"kernel","drain":"%s","end_idle":true,"terminate":true,"force":%t}`, deadline, node == "n1"))
}

// onTime fails the test unless a drain that was asked for at a moment, with this time
// for transactions, is done, not before its deadline, and not long after it.
func (r *rig) onTime(rep drain.Report, asked time.Time, wait time.Duration) {
	r.t.Helper()
	late := time.Since(rep.Deadline)
	if rep.Phase != drain.Done || rep.Deadline.Sub(asked) < wait || late < 0 || late > 5*time.Second {
		r.t.Errorf("%s after the deadline, which was %s after the question: %s, left %+v", late, rep.Deadline.Sub(asked), rep.Phase, rep.Left)
	}
}

// drained has n2 drained under its guests, with the agent restarted in the middle.
// pgbench with a connection per transaction loses no client; no new session reaches
// the node after a second; sessions that wait end early; every transaction lives until
// the deadline; whoever is ended sees 57P01 and stands in the report, and nobody else.
func (f *front) drained(all ...*guests) {
	f.t.Helper()
	const deadline = 10 * time.Second // the agent is restarted before
	asked := time.Now()
	out := f.emptied("n2", deadline)
	f.is("main", "replica", "n2", topology.Drain, topology.CodeMaintenance)
	f.drain("the idle sessions to end", func(r drain.Report) bool { return len(r.Ended) == len(all) })
	idle := time.Since(out)
	f.down()
	f.up()
	if rep := f.drain("the report after the restart", func(drain.Report) bool { return true }); len(rep.Ended) != len(all) {
		f.t.Errorf("after the restart: %+v", rep)
	}
	for _, g := range all {
		g.working()
	}
	rep := f.drain("its end", func(r drain.Report) bool { return r.Phase.Over() })
	took := time.Since(out)
	f.t.Logf("idle ended after %s, all after %s: %d ended, %d left", idle, took, len(rep.Ended), len(rep.Left))
	want := make(map[string]int)
	for _, g := range all {
		g.named(want)
	}
	f.ended(rep, want)
	f.onTime(rep, asked, deadline)
	for _, g := range all {
		g.left(out)
	}
}

// drains are the options of a front whose nodes are drained.
func drains(o frontOptions) frontOptions {
	o.top += "maintenance: {admin_token_file: operator.token, sessions: {user: pgsteer}}\n"
	o.external = func(f *front) {
		f.replace("operator.token", operator+"\n")
		f.up()
	}
	return o
}

// A replica is drained before a real HAProxy.
func TestDrainUnderPgbench(t *testing.T) {
	t.Parallel()
	f := newFront(t, drains(frontOptions{haproxy: true}))
	f.maySignal()
	f.drained(f.guestsAt("", f.read))
}

// ended compares who was ended with who should have been, and when.
func (f *front) ended(rep drain.Report, want map[string]int) {
	f.t.Helper()
	got := make(map[string]int)
	for _, c := range rep.Ended {
		got[c.Application]++
		if c.Why == "deadline" && c.At.Before(rep.Deadline) || (c.Why == "idle") != strings.HasPrefix(c.Application, "waits") || c.PID == 0 || c.User != lab.AppUser || !c.Told {
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
