package consul

import (
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// A frozen Consul holds the blocking query without a sign; the re-read notices.
func TestPatroniFrozenConsul(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		r.wait(30 * time.Second)
		a.Freeze()
		at := time.Since(r.began)
		r.wait(defaultReadEvery + defaultReadTimeout)
		r.want("a of 3", "!timeout")
		r.wait(2 * time.Minute)
		checkRepeats(t, r, at)
		thawed := time.Since(r.began)
		a.Thaw()
		r.wait(5 * time.Second)
		r.want("a of 3", "!timeout", "a of 3")
		checkBack(t, r, thawed)
		a.Delete(alpha + "leader")
		r.wait(time.Second)
		r.want("a of 3", "!timeout", "a of 3", "(none) of 3")
	})
}

// checkRepeats checks that a lasting failure is told every few seconds.
func checkRepeats(t *testing.T, r *rig, since time.Duration) {
	t.Helper()
	last := since + defaultReadEvery
	for _, g := range r.all() {
		if g.o.Failure == nil {
			continue
		}
		if gap := g.at - last; gap > defaultReadTimeout+5*time.Second {
			t.Errorf("the failure was not told for %v", gap)
		}
		last = g.at
	}
	if now := time.Since(r.began); now-last > defaultReadTimeout+5*time.Second {
		t.Errorf("the failure was last told %v ago", now-last)
	}
}

// checkBack checks that the first good answer after an outage came within 5 s.
func checkBack(t *testing.T, r *rig, ended time.Duration) {
	t.Helper()
	for _, g := range r.all() {
		if g.at >= ended && g.o.Authority != nil {
			if took := g.at - ended; took > 5*time.Second {
				t.Errorf("first good answer %v after the outage, want 5s at most", took)
			}
			return
		}
	}
	t.Error("no good answer after the outage")
}

// outage is a way in which Consul can be away, and the class it is told as.
type outage struct {
	name       string
	begin, end func(*consultest.Agent)
	class      topology.FailureClass
}

func outages() []outage {
	return []outage{
		{"stopped", (*consultest.Agent).Stop, (*consultest.Agent).Start, topology.FailRefused},
		{"no leader", func(a *consultest.Agent) {
			a.Script(func(consultest.Request) consultest.Fault {
				return consultest.Fault{Status: 500, Text: "No cluster leader"}
			})
		}, func(a *consultest.Agent) { a.Script(nil) }, topology.FailStore},
		{"old answers", func(a *consultest.Agent) {
			a.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{LastContact: 9 * time.Second} })
		}, func(a *consultest.Agent) { a.Script(nil) }, topology.FailStore},
		{"every byte lost", func(a *consultest.Agent) {
			a.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{Hang: true} })
		}, func(a *consultest.Agent) { a.Script(nil) }, topology.FailTimeout},
		{"filtered", func(a *consultest.Agent) {
			a.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{Filtered: true, Empty: true} })
		}, func(a *consultest.Agent) { a.Script(nil) }, topology.FailDenied},
	}
}

func TestPatroniOutages(t *testing.T) {
	for _, c := range outages() {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
				c.begin(a)
				at := time.Since(r.began)
				r.wait(90 * time.Second)
				checkRepeats(t, r, at)
				r.want("a of 3", "!"+string(c.class))
				obs := r.all()
				last := obs[len(obs)-1].o
				if last.Failure == nil {
					t.Fatalf("last observation %+v, want a failure", last)
				}
				text := last.Failure.Text
				for _, part := range []string{alpha, "127.0.0.1:8500", "asking again"} {
					if !strings.Contains(text, part) {
						t.Errorf("failure %q does not tell %q", text, part)
					}
				}
				before := len(a.Requests())
				r.wait(time.Minute)
				if n := len(a.Requests()) - before; n > 130 {
					t.Errorf("%d requests in a minute of outage", n)
				}
				ended := time.Since(r.began)
				c.end(a)
				r.wait(31 * time.Second)
				if c.class != topology.FailDenied {
					checkBack(t, r, ended)
				}
				r.want("a of 3", "!"+string(c.class), "a of 3")
			})
		})
	}
}

// Whatever the phase of the attempts at its end, an outage is over within 5 s.
func TestPatroniBackWithinFiveSeconds(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		for i := range 100 {
			a.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{Hang: true} })
			r.wait(time.Minute + time.Duration(i)*137*time.Millisecond)
			a.Script(nil)
			ended := time.Since(r.began)
			r.wait(6 * time.Second)
			checkBack(t, r, ended)
		}
	})
}

// The connection of the blocking query died in the outage without a sign.
func TestPatroniWatchBeginsAnewAfterAnOutage(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		a.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{Hang: true} })
		r.w.leader.Restart()
		a.Script(func(q consultest.Request) consultest.Fault { return consultest.Fault{Hang: q.Index > 0} })
		r.wait(12 * time.Second) // the watch hangs in its query, the reads are good
		a.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{Hang: true} })
		r.wait(30 * time.Second)
		a.Script(nil)
		r.wait(6 * time.Second)
		at := time.Since(r.began)
		a.Delete(alpha + "leader")
		a.Acquire(alpha+"leader", "b", "s-b")
		r.wait(0)
		obs := r.all()
		if last := obs[len(obs)-1]; last.at != at || last.o.Authority == nil || last.o.Authority.Leader != "b" {
			t.Errorf("after the outage a new leader is not told at once: %+v", last)
		}
	})
}
