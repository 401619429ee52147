package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// move is a way from one leader to another. Settled states are compared exactly,
// each moment of this one by bounds.
type move struct {
	name     string
	from, to string // "main/n1"
	begin    func() error
	// lost: the old leader's Patroni does not answer any more, so that it cannot say
	// when it is out.
	lost bool
}

// moment is what everybody said at one time of a move.
type moment struct {
	at       time.Time
	writable bool
	old, new map[string]bool // who says that it is the primary
}

// switchover moves the leader as it is planned.
func (d *diffRig) switchover(from, to string) {
	d.move(move{name: "switchover", from: from, to: to, begin: func() error {
		scope, name, _ := strings.Cut(to, "/")
		return d.clusters[scope].Switchover(d.whole.Context(), name)
	}})
}

// failovers: the leader is killed; then the next one's Patroni stands still, so that
// two nodes take writes, and returns.
func (d *diffRig) failovers() {
	n1, n2 := d.node("safe/n1"), d.node("safe/n2")
	d.move(move{name: "failover, all killed", from: "safe/n1", to: "safe/n2", lost: true, begin: func() error {
		return errors.Join(n1.Kill(), n1.Postgres().Kill(), d.expire("safe"))
	}})
	d.state("the killed leader returns", map[string]string{"safe/n1": "M5", "safe/n2": "M1"}, func() {
		d.do(n1.Start(d.t.Context()))
		d.running("safe")
		d.exec("safe/n2", "CREATE TABLE received AS SELECT 1") // before the first record all call another position the received one
	})
	d.move(move{name: "failover, Patroni frozen", from: "safe/n2", to: "safe/n1", lost: true, begin: func() error {
		return errors.Join(n2.Freeze(), d.expire("safe"))
	}})
	d.state("the frozen leader returns", map[string]string{"safe/n1": "M1", "safe/n2": "M5"}, func() { d.do(n2.Thaw()) })
}

// expire ends the session of a cluster's leader, as Consul does when it has not been
// renewed for up to twice its 10 s.
func (d *diffRig) expire(scope string) error {
	s := d.leaderKey(scope).Session
	if s == "" || !d.consulAsk(http.MethodPut, "session/destroy/"+s, "", nil) {
		return fmt.Errorf("the session %q of the leader of %s cannot be ended", s, scope)
	}
	return nil
}

// move looks at every moment until all say that the new leader is the primary.
func (d *diffRig) move(m move) {
	d.step(fmt.Sprintf("%s, %s to %s", m.name, m.from, m.to), func() {
		begin, done := time.Now(), make(chan error, 1)
		go func() { done <- m.begin() }()
		var seen []moment
		for end := begin.Add(patience); ; {
			x := d.moment(m)
			seen = append(seen, x)
			if x.new[strict] && x.new[compat] && x.new["patroni"] || time.Now().After(end) {
				break
			}
		}
		d.do(<-done)
		d.bounds(m, begin, seen)
	})
}

// moment asks for the new leader first: what it is told must hold when the other
// questions are asked.
func (d *diffRig) moment(v move) moment {
	m := moment{at: time.Now(), old: map[string]bool{}, new: map[string]bool{}}
	primary := func(ref, who string) bool {
		addr, q := d.node(ref).RESTAddr(), question{ref: ref, target: "/primary"}
		if r := d.agents[who]; r != nil {
			addr, q.target = r.health, q.longPath()
		}
		return tell(addr, plain(http.MethodGet, q.target), time.Second).status == http.StatusOK
	}
	for _, who := range []string{strict, compat, "patroni"} {
		m.new[who] = primary(v.to, who)
		if who != "patroni" || !v.lost {
			m.old[who] = primary(v.from, who)
		}
	}
	m.writable = d.text(v.to, "SELECT (NOT pg_is_in_recovery())::text") == "true"
	return m
}

// The bounds of a move, on a machine on which everybody is asked in turn.
const (
	outWithin = time.Second     // the old leader, after its Patroni says so
	lostAfter = 3 * time.Second // the old leader, after it was lost: 2 s of silence, and the asking
	inWithin  = 3 * time.Second // the new leader, after it takes writes
)

// bounds holds a move against what must be: never two primaries and never one
// before it takes writes, out no later than Patroni, in soon after it.
func (d *diffRig) bounds(v move, begin time.Time, seen []moment) {
	d.t.Helper()
	first := func(all []moment, of func(moment) bool) time.Time {
		if i := slices.IndexFunc(all, of); i >= 0 {
			return all[i].at
		}
		return begin
	}
	backwards := slices.Clone(seen)
	slices.Reverse(backwards)
	for _, m := range seen {
		if m.new[strict] && (m.old[strict] || !m.writable) {
			d.t.Errorf("strict at %s: the new leader is primary, so is the old: %t, the new one takes writes: %t", m.at, m.old[strict], m.writable)
		}
	}
	out, in := map[string]time.Time{}, map[string]time.Time{}
	for _, who := range []string{strict, compat, "patroni"} {
		out[who] = first(backwards, func(m moment) bool { return m.old[who] })
		in[who] = first(seen, func(m moment) bool { return m.new[who] })
		d.t.Logf("%s: last out %s, first in %s after the beginning", who, out[who].Sub(begin), in[who].Sub(begin))
	}
	writable, slack := first(seen, func(m moment) bool { return m.writable }), outWithin
	if v.lost {
		slack = lostAfter
	}
	for _, mode := range []string{strict, compat} {
		if late := out[mode].Sub(out["patroni"]); late > slack {
			d.t.Errorf("%s: the old leader is out %s after it should be, the bound is %s", mode, late, slack)
		}
		if late := in[mode].Sub(writable); !seen[len(seen)-1].new[mode] || late > inWithin {
			d.t.Errorf("%s: the new leader is in %s after it takes writes, the bound is %s", mode, late, inWithin)
		}
	}
}
