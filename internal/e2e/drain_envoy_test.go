package e2e

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/agent/drain"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// checkedPool is a pool more whose sessions Envoy ends by its own checks, and where
// Envoy listens for it.
func checkedPool(f *front, name, mode string) (addr string) {
	f.t.Helper()
	at := f.addr()
	f.o.pools += fmt.Sprintf("      %s: {mode: %s, listen: %q, envoy_sessions: health-check}\n", name, mode, at)
	f.writeConfig()
	return atEnvoy(at)
}

// A replica is drained whose clients come through a real Envoy, in the mode that ends
// no session and in the one that ends them by checks.
func TestDrainAtEnvoy(t *testing.T) {
	t.Parallel()
	o, checked := drains(frontOptions{envoy: true}), ""
	begin := o.external
	o.external = func(f *front) { checked = checkedPool(f, "reports", "read"); begin(f) }
	f := newFront(t, o)
	f.maySignal()
	f.until("reads through the other pool", func() bool { return f.reached(checked) != 0 })
	f.drained(f.guestsAt("", f.envoyRead), f.guestsAt("_checked", checked))
}

// The writer is taken out by force before a real Envoy, in both modes that end sessions
// with the writer, with the agent restarted in the middle: no new session after a
// second, nobody is cut before the deadline, the server tells those who are ended, and
// afterwards it is the writer as before. Left to Envoy, sessions end at the deadline.
func TestDrainOfTheWriterAtEnvoy(t *testing.T) {
	t.Parallel()
	o, checked := drains(frontOptions{envoy: true}), ""
	begin := o.external
	o.external = func(f *front) { checked = checkedPool(f, "ledger", "write"); begin(f) }
	f := newFront(t, o)
	f.maySignal()
	n1 := f.writer().Port()
	addrs := map[string]string{"": f.envoyWrite, "_checked": checked}
	news, waits, works := make(map[string]*lab.Load), make(map[string]*pgx.Conn), make(map[string]*pgx.Conn)
	want := make(map[string]int)
	for name, addr := range addrs {
		waits[name], works[name] = f.called("waits"+name, addr, n1), f.called("works"+name, addr, n1)
		_, err := works[name].Exec(t.Context(), "BEGIN")
		f.do(err)
		want["waits"+name], want["works"+name] = 1, 1
		news[name] = f.lab.Load(addr, lab.LoadOptions{NewSession: true, ReadOnly: true})
		f.do(news[name].Wait(t.Context(), "new sessions", func(x lab.Sample) bool { return x.Port == n1 && x.Err == nil }))
	}
	closed := func() bool { return f.reached(f.envoyWrite) == 0 && f.reached(checked) == 0 }

	const deadline = 10 * time.Second
	asked := time.Now()
	out := f.emptied("n1", deadline)
	f.until("no new session to be let in", closed)
	f.until("the idle sessions to end", func() bool { return f.sessions("n1", "waits") == 0 && f.sessions("n1", "waits_checked") == 0 })
	f.down()
	f.during(500*time.Millisecond, "nobody is let in while the agent is away", closed)
	f.up()
	f.is("main", "primary", "n1", topology.Drain, topology.CodeMaintenance)
	f.during(500*time.Millisecond, "nobody is let in after its start", closed)
	for name, c := range works {
		if p := serverPort(c); p != n1 {
			t.Errorf("works%s: before the deadline its transaction is on port %d", name, p)
		}
	}
	rep := f.drainOf("n1", "its end", func(r drain.Report) bool { return r.Phase.Over() })
	took := time.Since(out)
	f.ended(rep, want)
	f.onTime(rep, asked, deadline)
	for name := range addrs {
		wasTold(t, "waits"+name, broken(waits[name]))
		wasTold(t, "works"+name, broken(works[name]))
		last := lastOn(news[name].Stop(), n1, out)
		t.Logf("%s: the last new session began %s after the answer, all was over after %s", name, last, took)
		if last > time.Second {
			t.Errorf("%s: a new session was let in %s after the answer", name, last)
		}
	}

	f.maintained(http.MethodDelete, "main/n1", "")
	ended := make(map[string]<-chan time.Time)
	for name, addr := range addrs {
		ended[name] = watchEnd(t, f.session(addr, n1))
	}
	out = f.maintained(http.MethodPost, "main/n1", `{"reason":"disk","drain":"1s","force":true}`)
	f.endAt(ended, out, time.Second)
	f.maintained(http.MethodDelete, "main/n1", "")
	held := make(map[string]*pgx.Conn)
	for name, addr := range addrs {
		held[name] = f.session(addr, n1)
	}
	f.maintained(http.MethodPost, "main/n1", `{"reason":"disk","force":true}`)
	f.until("no new session to be let in", closed)
	f.maintained(http.MethodDelete, "main/n1", "")
	for name, addr := range addrs {
		f.until("new sessions to be let in", func() bool { return f.reached(addr) == n1 })
		if _, err := held[name].Exec(context.Background(), "SELECT 1"); err != nil {
			t.Errorf("%s: a session did not outlive a maintenance without an end of sessions: %v", name, err)
		}
	}
}
