package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// mix are the clients of a front's HAProxy or Envoy.
type mix struct {
	held, fresh, reads *lab.Load
}

func (f *front) clients(write, read string) mix {
	root := ""
	if f.o.authority != nil {
		root = f.file(rootCert)
	}
	return mix{
		held:  f.lab.Load(write, lab.LoadOptions{RootCert: root, Sessions: 4}),                                       // pooled applications
		fresh: f.lab.Load(write, lab.LoadOptions{RootCert: root, NewSession: true}),                                  // a session for each write
		reads: f.lab.Load(read, lab.LoadOptions{RootCert: root, NewSession: true, ReadOnly: true, Timeout: patient}), // a session for each read
	}
}

// settled waits until every kind of client works on the present writer, and says
// how long each took from a moment on: milliseconds, on a machine that is not busy.
func (f *front) settled(what string, tr mix, from time.Time) {
	f.t.Helper()
	for i := range 4 {
		f.do(tr.held.Wait(f.t.Context(), fmt.Sprintf("held session %d to write on %s", i, f.writer().Name()), func(x lab.Sample) bool {
			return x.Session == i && x.Op == lab.Write && x.Err == nil && x.Port == f.writer().Port()
		}))
	}
	f.writing(tr.fresh, f.writer())
	fresh, held := gap(tr.fresh.Samples(), from), slowest(tr.held.Samples(), from)
	f.t.Logf("%s: writable to the first good write: new sessions %s, slowest of the held ones %s", what, fresh, held)
	if worst := 3 * time.Second; fresh > worst || held > worst {
		f.t.Errorf("%s: clients were not led to the writer within %s", what, worst)
	}
}

// A switchover, a crash, and a primary that freezes and wakes writable after its
// successor was promoted: writes reach the writer alone, sessions to the old one
// end, and HAProxy is never reloaded.
func TestHAProxyFollowsWriter(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{haproxy: true})
	worker := f.worker()
	tr := f.clients(f.write, f.read)
	readers := f.lab.Load(f.read, lab.LoadOptions{Sessions: 4, ReadOnly: true, Timeout: patient})
	f.settled("start", tr, time.Now())

	tl := f.switchover("n2")
	f.settled("switchover", tr, tl.NewWritable)
	f.is("main", "replica", "n1", topology.Up, topology.CodeReplica)
	// The session of a reader on the promoted node goes on too: it can read there.
	f.unbroken("held readers through a switchover", readers.Stop())
	f.unbroken("new readers through a switchover", tr.reads.Samples())

	f.crash(tr)
	f.freeze(tr)

	f.onlyWriters("held sessions", tr.held.Stop())
	f.onlyWriters("new sessions", tr.fresh.Stop())
	f.reading(tr.reads.Stop())
	if now := f.worker(); now != worker {
		t.Errorf("HAProxy's worker was %d and is %d: it was reloaded", worker, now)
	}
	if s := f.sink("template haproxy"); s.State != "applied" {
		t.Errorf("the template is %s: %s", s.State, s.Error)
	}
}

// crash kills the writer. While there is none, no session reaches any server.
func (f *front) crash(tr mix) {
	f.t.Helper()
	old := f.writer()
	f.do(old.Kill())
	f.is("main", "primary", old.Name(), topology.Down, topology.CodeRefused)
	f.until("connections to be refused", func() bool { return f.refuses(f.write) == nil })
	f.during(time.Second, "connections are refused while there is no writer", func() bool { return f.refuses(f.write) == nil })
	tl := f.failover()
	f.settled("crash", tr, tl.NewWritable)
	f.rejoin(old)
}

// refuses returns nil when HAProxy ends a connection at once, without a word
// of any server.
func (r *rig) refuses(addr string) error {
	begin := time.Now()
	c, err := r.dial(addr)
	var server *pgconn.PgError
	switch {
	case err == nil:
		port := serverPort(c)
		_ = c.Close(r.t.Context())
		return fmt.Errorf("a session reached port %d", port)
	case errors.As(err, &server):
		return fmt.Errorf("a server answered: %w", err)
	case time.Since(begin) > 2*time.Second:
		return fmt.Errorf("refused only after %s: %w", time.Since(begin), err)
	}
	return nil
}

// freeze stops the writer without a word, promotes another node and wakes the
// old one, which believes itself to be the primary.
func (f *front) freeze(tr mix) {
	f.t.Helper()
	old := f.writer()
	idle := watchEnd(f.t, f.session(f.write, old.Port()))
	f.do(old.Freeze())
	f.is("main", "primary", old.Name(), topology.Drain, topology.CodeSilent)
	select {
	case at := <-idle:
		f.t.Errorf("a session ended at %s although its server is only silent", at)
	default:
	}
	tl := f.failover()
	f.cut(idle, tl, 5*time.Second)
	f.settled("freeze", tr, tl.NewWritable)
	f.do(old.Thaw())
	f.is("main", "primary", old.Name(), topology.Down, topology.CodeOldTimeline)
	f.during(time.Second, "new sessions reach the new writer", func() bool { return f.reached(f.write) == f.writer().Port() })
	f.rejoin(old)
}

// cut waits for the end of an idle session to a writer that has lost its role, and
// fails the test when it comes later after the decision than that.
func (f *front) cut(idle <-chan time.Time, tl lab.Timeline, within time.Duration) {
	f.t.Helper()
	decided := tl.NewWritable.Add(f.sinceWritable(tl))
	select {
	case at := <-idle:
		f.t.Logf("the session to the old writer ended %s after the new one was writable, %s after the decision", at.Sub(tl.NewWritable), at.Sub(decided))
		if late := at.Sub(decided); late > within {
			f.t.Errorf("that is later than %s", within)
		}
	case <-time.After(5 * time.Second):
		f.t.Errorf("a session to the old writer lives on 5 s after its successor was promoted; HAProxy says:\n%s", f.servers())
	}
}

// sinceWritable is when pgsteer decided for the new writer, by its own record.
func (f *front) sinceWritable(tl lab.Timeline) time.Duration {
	f.t.Helper()
	f.until("the decision", func() bool { return f.view("main").Snapshot.Writer == f.writer().Name() })
	p, _ := f.view("main").Snapshot.Pool("primary")
	v, _ := p.Verdict(f.writer().Name())
	return v.Reason().Since.Sub(tl.NewWritable)
}

func (f *front) servers() string {
	out, err := f.haproxy.Command(f.t.Context(), "show servers state")
	if err != nil {
		return err.Error()
	}
	return out
}

// reading: readers find a server nearly always; one that meets a node in the
// moment of its death goes to another.
func (f *front) reading(samples []lab.Sample) {
	f.t.Helper()
	good, failed := 0, make(map[string]int)
	for _, x := range samples {
		if x.Err != nil {
			failed[x.At.Format(time.StampMilli)+" "+x.Err.Error()]++
		} else if x.Op == lab.Read {
			good++
		}
	}
	f.t.Logf("readers: %d good, failed: %v", good, failed)
	if good < 10 { // that they read at all: how often is the machine's affair
		f.t.Errorf("only %d good reads", good)
	}
}

// A node that joins is rendered, and HAProxy is reloaded once for it. A replica
// that lags keeps its sessions while new ones go elsewhere.
func TestHAProxyFollowsNodes(t *testing.T) {
	t.Parallel()
	f := newFront(t, frontOptions{haproxy: true, inventory: []string{"n1", "n2"}, replica: ", max_lag: 1MB"})
	worker, before := f.worker(), f.sink("template haproxy").Counters["reloads"]
	held := f.lab.Load(f.write, lab.LoadOptions{Timeout: patient})
	f.writing(held, f.writer())

	f.list("n1", "n2", "n3")
	took := f.until("a reload", func() bool { return f.sink("template haproxy").Counters["reloads"] > before })
	t.Logf("node added to the confirmed reload: %s", took)
	took = f.until("a session on n3", func() bool { return f.reached(f.read) == f.node("n3").Port() })
	t.Logf("confirmed reload to the first session on the new node: %s", took)
	if text, err := os.ReadFile(f.file("haproxy.cfg")); err != nil || !strings.Contains(string(text), "server n3 "+f.node("n3").Addr()) {
		t.Errorf("haproxy.cfg does not have n3: %v\n%s", err, text)
	}
	after := f.worker()
	if after == worker {
		t.Error("HAProxy still has the worker of before")
	}

	f.lagDrains()
	f.unbroken("a held writer", held.Stop())
	if now := f.worker(); now != after {
		t.Errorf("HAProxy's worker was %d after the reload and is %d", after, now)
	}
	if s := f.sink("template haproxy"); s.State != "applied" || s.Counters["reloads"] != before+1 || s.Counters["reloads_failed"] > 1 {
		t.Errorf("one reload is due for one node; the template is %+v, it had %d reloads before", s, before)
	}
}

func (f *front) lagDrains() {
	f.t.Helper()
	port := f.node("n2").Port()
	open := f.session(f.read, port)
	f.do(f.node("n2").PauseReplay(f.t.Context()))
	f.fallBehind("n2", 3<<20)
	f.is("main", "replica", "n2", topology.Drain, topology.CodeLag)
	took := f.until("HAProxy to be told", func() bool {
		w, err := f.haproxy.Command(f.t.Context(), "get weight be_main_replica/n2")
		return err == nil && strings.HasPrefix(w, "0 ")
	})
	f.t.Logf("drained by lag to the weight 0 at HAProxy: %s", took)
	end := time.Now().Add(2 * time.Second)
	for n := 0; time.Now().Before(end) || n < 10; n++ {
		if got := f.reached(f.read); got != f.node("n3").Port() {
			f.t.Errorf("new session %d after the drain reached port %d, not n3's", n, got)
		}
		if got := serverPort(open); got != port {
			f.t.Fatalf("the session that was open before the lag says port %d, not n2's", got)
		}
	}
	f.do(f.node("n2").ResumeReplay(f.t.Context()))
	f.is("main", "replica", "n2", topology.Up, topology.CodeReplica)
	f.until("a new session on n2", func() bool { return f.reached(f.read) == port })
	if serverPort(open) != port {
		f.t.Error("the session that was open before the lag is gone")
	}
}
