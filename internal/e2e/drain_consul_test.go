package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/agent/admin"
	"github.com/pgsteer/pgsteer/agent/drain"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// twins is a front with another agent, whose records are shared in a real Consul.
type twins struct {
	*front
	twin  *rig
	store *lab.Consul
}

func newTwins(t *testing.T) *twins {
	t.Helper()
	labtest.Need(t, lab.NeedConsul)
	p := &twins{}
	o := drains(frontOptions{})
	o.top = ""
	o.external = func(f *front) {
		f.replace("operator.token", operator+"\n")
		var err error
		p.store, err = f.lab.Consul(t.Context())
		f.do(err)
		f.o.top = fmt.Sprintf("consul: {address: \"http://%s\"}\nmaintenance: {store: consul, admin_token_file: operator.token, sessions: {user: pgsteer}}\n", p.store.Addr())
		f.writeConfig()
		f.up()
	}
	p.front = newFront(t, o)
	p.twin = p.front.twin()
	p.maySignal()
	p.both(topology.Up, topology.CodeReplica)
	return p
}

// both waits until both agents have this verdict on n2.
func (p *twins) both(v topology.Verdict, code topology.Code) {
	p.t.Helper()
	p.is("main", "replica", "n2", v, code)
	p.twin.is("main", "replica", "n2", v, code)
}

// obeyed reports whether both keep n2 out.
func (p *twins) obeyed() bool {
	a, why := p.verdict("main", "replica", "n2")
	b, why2 := p.twin.verdict("main", "replica", "n2")
	return a == topology.Drain && b == topology.Drain && why == topology.CodeMaintenance && why2 == topology.CodeMaintenance
}

// missed waits until both agents say that Consul is away, or is back.
func (p *twins) missed(away bool) {
	p.t.Helper()
	for _, r := range []*rig{p.rig, p.twin} {
		r.until(fmt.Sprintf("the agent to miss Consul: %t", away), func() bool { return strings.Contains(r.sink("maintenance").Error, "the local copy holds") == away })
	}
}

// open begins a transaction on n2 in a session with a name.
func (p *twins) open(name string) *pgx.Conn {
	p.t.Helper()
	c := p.called(name, p.node("n2").Addr(), 0)
	_, err := c.Exec(p.t.Context(), "BEGIN")
	p.do(err)
	return c
}

func (p *twins) alive(what string, c *pgx.Conn) {
	p.t.Helper()
	if serverPort(c) == 0 {
		p.t.Errorf("%s: the transaction has ended", what)
	}
}

// Consul is restarted in the middle of a drain, of two agents: both keep the node out
// all the time, nobody is ended while it is away, the drain goes on and ends at its
// deadline, and both agents obey within a second again. One deadline passes while Consul
// is away and the draining agent is restarted: the rest ends when Consul is back. A Consul that
// comes back without the records changes nothing.
func TestDrainThroughARestartOfConsul(t *testing.T) {
	t.Parallel()
	p := newTwins(t)
	works := p.open("works")
	const deadline = 8 * time.Second
	asked := time.Now()
	p.emptied("n2", deadline)
	p.both(topology.Drain, topology.CodeMaintenance)
	p.drain("a look", func(r drain.Report) bool { return len(r.Left) == 1 })
	p.do(p.store.Stop(t.Context()))
	p.missed(true)
	waits := p.called("waits", p.node("n2").Addr(), 0)
	p.drain("the trouble", func(r drain.Report) bool { return strings.Contains(r.Trouble, "nobody is ended until that is known") })
	if p.sessions("n2", "waits") != 1 {
		t.Error("while Consul is away a session was ended")
	}
	p.do(p.store.Start(t.Context()))
	p.drain("the idle session to end", func(r drain.Report) bool { return len(r.Ended) == 1 })
	p.missed(false)
	if time.Since(asked) < deadline {
		p.alive("before the deadline", works)
	}
	if !p.obeyed() {
		t.Error("n2 is not kept out by both agents")
	}
	rep := p.drain("its end", func(r drain.Report) bool { return r.Phase.Over() })
	p.ended(rep, map[string]int{"works": 1, "waits": 1})
	p.onTime(rep, asked, deadline)
	wasTold(t, "works", broken(works))
	wasTold(t, "waits", broken(waits))
	back := p.twin.maintained(http.MethodDelete, "main/n2", "")
	p.both(topology.Up, topology.CodeReplica)
	t.Logf("put back, both obey after %s", time.Since(back))

	works = p.open("works")
	p.emptied("n2", 3*time.Second)
	p.both(topology.Drain, topology.CodeMaintenance)
	p.do(p.store.Stop(t.Context()))
	p.down()
	p.up()
	p.drain("the trouble after the deadline", func(r drain.Report) bool { return r.Trouble != "" && time.Now().After(r.Deadline) })
	p.alive("while Consul is away", works)
	if !p.obeyed() {
		t.Error("n2 is not kept out by both agents while Consul is away")
	}
	p.do(p.store.Start(t.Context()))
	p.do(p.store.Delete(t.Context(), "pgsteer/maintenance"))
	rep = p.drain("its end", func(r drain.Report) bool { return r.Phase.Over() })
	p.ended(rep, map[string]int{"works": 1})
	wasTold(t, "works", broken(works))
	if !p.obeyed() {
		t.Error("n2 is not kept out by both agents after the records were lost")
	}
	var s admin.State
	if _, text := p.twin.maintain(http.MethodGet, "main/n2", ""); json.Unmarshal([]byte(text), &s) != nil || s.Drain != nil || s.Record == nil || s.Record.Sessions.ID != rep.ID {
		t.Errorf("the other agent says %+v", s)
	}
	t.Logf("over %s after the deadline", time.Since(rep.Deadline))
	for r, want := range map[*rig]uint64{p.rig: 1, p.twin: 0} { // of this run
		if got := r.sink("maintenance").Counters["sessions_ended"]; got != want {
			t.Errorf("an agent has ended %d, want %d", got, want)
		}
	}
	p.twin.maintained(http.MethodDelete, "main/n2", "")
	p.both(topology.Up, topology.CodeReplica)
}
