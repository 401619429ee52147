package engine

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgautofailover"
)

// monitored are random histories under pg_auto_failover's monitor: any goal for any
// node, in any order, beside servers that are anything.
type monitored struct {
	*world
	t     *rapid.T
	goals map[string]string // empty: no row
}

// routable are goals that matter, and one that nobody knows; the table of all of
// them is held in watchers/pgautofailover.
var routable = []string{
	"single", "wait_primary", "primary", "apply_settings", "secondary", "catchingup", "prepare_promotion", "stop_replication",
	"draining", "demote_timeout", "demoted", "prepare_maintenance", "maintenance", "report_lsn", "dropped", "something_new", "",
}

func newMonitored(t *rapid.T) *monitored {
	m := &monitored{
		world: newWorld(t, topology.AuthorityMonitor), t: t,
		goals: map[string]string{"a": "primary", "b": "secondary", "c": "secondary"},
	}
	m.say()
	m.onDecide = m.check
	m.run(3 * sec)
	return m
}

// say makes the monitor's word of the goals, as its watcher does.
func (m *monitored) say() {
	var answer pgautofailover.Answer
	age, system := 0.5, int64(ownID)
	for i, name := range []string{"a", "b", "c"} {
		if goal := m.goals[name]; goal != "" {
			at := address(name)
			answer.Nodes = append(answer.Nodes, pgautofailover.Row{
				ID: int64(i + 1), Name: name, Host: at.Host, Port: at.Port, SystemID: &system, Goal: goal, Reported: goal, ReportAge: &age, Timeline: 5,
			})
		}
	}
	m.authority, _, _ = pgautofailover.Picture(answer, nil, nil)
}

// step changes something and lets time pass.
func (m *monitored) step() {
	node := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(m.t, "node")
	switch rapid.SampledFrom([]string{"goal", "goal", "goal", "server", "server", "monitor", "restart"}).Draw(m.t, "what") {
	case "goal":
		m.goals[node] = rapid.SampledFrom(routable).Draw(m.t, "goal")
		m.say()
		if rapid.Bool().Draw(m.t, "notified") {
			m.askAuthority()
		}
	case "server":
		s := rapid.SampledFrom([]func() *server{
			func() *server { return primary(5) }, func() *server { return primary(6) }, func() *server { return standby(5) },
			func() *server {
				s := primary(6)
				s.probe.ReadOnly = topology.Yes
				return s
			},
		}).Draw(m.t, "server")()
		s.fails = rapid.SampledFrom([]topology.FailureClass{"", "", "", topology.FailTimeout, topology.FailRefused, topology.FailSlots}).Draw(m.t, "fails")
		m.become(node, s)
		m.ask(node)
	case "monitor":
		m.unheard = rapid.SampledFrom([]topology.FailureClass{"", topology.FailTimeout, topology.FailContent}).Draw(m.t, "unheard")
		m.askAuthority()
	case "restart":
		m.restart()
	}
	m.decide()
	m.run(rapid.SampledFrom([]time.Duration{0, 100 * ms, sec, 5 * sec, 30 * sec}).Draw(m.t, "time"))
}

// check holds a decision against the monitor's newest word that the engine has.
func (m *monitored) check(s *topology.Snapshot) {
	for _, p := range s.Pools {
		if why := badWriter(s, p); why != "" {
			m.t.Fatalf("%s\n%s", why, m.show())
		}
	}
	said := m.s.authority.picture
	if w := s.Writer; w != "" {
		f := Facts(m.s, m.now).Nodes[w]
		switch {
		case said.Withdrawn(w):
			m.t.Fatalf("%s is up for writes against its goal\n%s", w, m.show())
		case s.Authority.State == topology.AuthorityStateCurrent && said.Leader != w:
			m.t.Fatalf("%s is up for writes and %q is named\n%s", w, said.Leader, m.show())
		case f.InRecovery != topology.No || f.ReadOnly != topology.No:
			m.t.Fatalf("%s is up for writes and not writable\n%s", w, m.show())
		}
	}
	writes, _ := s.Pool("primary")
	for _, n := range writes.Nodes {
		if m.s.decided && s.Authority.State == topology.AuthorityStateCurrent && said.Withdrawn(n.Node) && (n.Verdict == topology.Up || n.Verdict == topology.Drain) {
			m.t.Fatalf("%s keeps sessions that write against its goal\n%s", n.Node, m.show())
		}
	}
	reads, _ := s.Pool("replica")
	for _, n := range reads.Up() {
		a := said.Assignment(n.Node)
		switch {
		case n.Node == s.Writer: // as fallback
		case said == nil:
			if m.s.saved.Verdicts["replica"][n.Node] != topology.Up {
				m.t.Fatalf("%s serves reads before the monitor was heard, and did not before\n%s", n.Node, m.show())
			}
		case a == nil || a.Operator || s.Authority.State == topology.AuthorityStateCurrent && a.Reads != topology.Up:
			m.t.Fatalf("%s serves reads against its goal\n%s", n.Node, m.show())
		}
	}
}

// TestStaleFallbackAtAStart: who has not answered yet is no last resort, unless it was
// one before the start.
func TestStaleFallbackAtAStart(t *testing.T) {
	w := newWorld(t, topology.AuthorityMonitor)
	w.readPool().Fallback = topology.FallbackStale
	m := monitored{world: w, goals: map[string]string{"a": "primary", "b": "catchingup", "c": "catchingup"}}
	m.say()
	w.askIn([]string{"a", "leader"})
	w.want("replica", "a=drain b=drain/assigned c=drain/assigned")
	w.askIn([]string{"c"})
	w.want("replica", "b=drain/assigned c=up/fallback_stale")
	w.fails("b", topology.FailRefused)
	w.run(3 * sec)
	w.want("replica", "b=down/refused c=up/fallback_stale")
	for _, order := range permutations([]string{"a", "b", "c", "leader"}) {
		standing := w.snap
		w.restart()
		w.noHarm(standing, true)
		w.askIn(order)
		w.want("replica", "b=drain/assigned c=up/fallback_stale") // refused once
	}
	m.goals["c"] = "secondary" // which needs no stopgap, once it is asked
	m.say()
	w.answers("b")
	w.run(5 * sec)
	w.want("replica", "b=drain/assigned c=up")
	w.restart()
	w.askIn([]string{"leader", "b"})
	w.want("replica", "b=drain/assigned c=undecided")
}

// TestPropertyMonitor: whatever the monitor assigns and the servers are, at most one
// node is up for writes, it is the one whose goal takes writes and that is writable,
// and nobody serves reads against a goal.
func TestPropertyMonitor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMonitored(t)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			m.step()
		}
	})
}
