package e2e

import (
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// clockSlack is how far the lab's moments can lie behind the true ones: it asks
// a promoted node every 2 ms whether it is writable.
const clockSlack = 10 * time.Millisecond

// patient clients wait this long: slow is not cut, and a busy machine stands
// still for seconds.
const patient = 15 * time.Second

// right reports whether a sample's session was on the writer at some moment of
// the operation in which it reported its server.
func (f *front) right(x lab.Sample) bool {
	for _, w := range f.reigns {
		begun := !x.End().Before(w.from.Add(-clockSlack))
		ended := !w.until.IsZero() && x.At.After(w.until.Add(clockSlack))
		if w.node.Port() == x.Port && begun && !ended {
			return true
		}
	}
	return false
}

// onlyWriters fails the test for every session of a write port that was on
// another node than the writer, and when there was none to judge.
func (f *front) onlyWriters(what string, samples []lab.Sample) {
	f.t.Helper()
	sessions, writes, wrong := 0, 0, 0
	for _, x := range samples {
		if x.Err != nil || x.Port == 0 {
			continue
		}
		if !f.right(x) {
			wrong++
			f.t.Errorf("%s: %s at %s (%s) was on port %d, which was not the writer", what, x.Op, x.At.Format(time.StampMilli), x.Duration, x.Port)
		}
		switch x.Op {
		case lab.Connect:
			sessions++
		case lab.Write:
			writes++
		default:
		}
	}
	if sessions == 0 || writes == 0 {
		f.t.Errorf("%s: %d sessions with %d writes prove nothing", what, sessions, writes)
	}
	f.t.Logf("%s: %d sessions with %d writes, %d not on the writer of their time", what, sessions, writes, wrong)
}

// unbroken fails the test for every failed operation.
func (r *rig) unbroken(what string, samples []lab.Sample) {
	r.t.Helper()
	failed := 0
	for _, x := range samples {
		if x.Err != nil {
			if failed++; failed <= 5 {
				r.t.Errorf("%s: %s at %s failed after %s: %v", what, x.Op, x.At.Format(time.StampMilli), x.Duration, x.Err)
			}
		}
	}
	if len(samples) < 10 {
		r.t.Errorf("%s: %d operations prove nothing", what, len(samples))
	}
	r.t.Logf("%s: %d operations, %d failed", what, len(samples), failed)
}

// between are the samples that began in a time.
func between(samples []lab.Sample, from, until time.Time) []lab.Sample {
	var out []lab.Sample
	for _, x := range samples {
		if !x.At.Before(from) && x.At.Before(until) {
			out = append(out, x)
		}
	}
	return out
}

// gap is the time from a moment to the end of the first good operation that
// ended after it: what a client sees of a change of the writer.
func gap(samples []lab.Sample, from time.Time) time.Duration {
	for _, x := range samples {
		if x.Err == nil && x.Op != lab.Connect && x.End().After(from) {
			return x.End().Sub(from)
		}
	}
	return -1
}

// slowest is the longest gap of the sessions of a load that holds them.
func slowest(samples []lab.Sample, from time.Time) time.Duration {
	by := make(map[int][]lab.Sample)
	for _, x := range samples {
		by[x.Session] = append(by[x.Session], x)
	}
	var most time.Duration
	for _, s := range by {
		g := gap(s, from)
		if g < 0 {
			return g
		}
		most = max(most, g)
	}
	return most
}

// writing waits until a load has written on a node.
func (r *rig) writing(l *lab.Load, n *lab.Node) {
	r.t.Helper()
	r.do(l.Wait(r.t.Context(), "a write on "+n.Name(), func(x lab.Sample) bool {
		return x.Op == lab.Write && x.Err == nil && x.Port == n.Port()
	}))
}
