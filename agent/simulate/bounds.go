package simulate

import (
	"fmt"
	"strconv"
	"time"
)

// expect looks whether one thing is as expected, now.
func (r *run) expect(c *check) {
	if !c.silent {
		r.result.Expectations++
	}
	if r.snap == nil {
		r.fail(c.line, c.what, c.want, "nothing was decided yet")
		return
	}
	if got, good := c.look(r); !good {
		r.fail(c.line, c.what, c.want, got)
	}
}

func (r *run) fail(line int, what, want, got string) {
	r.result.Failures = append(r.result.Failures, Failure{
		File: r.s.File, Line: line, At: Moment(r.at()), What: what, Want: want, Got: got,
	})
}

// always looks at what must hold in every decision. Each thing is reported once,
// at the first decision in which it does not hold.
func (r *run) always() {
	r.result.Decisions++
	at := r.at()
	for i := range r.s.always {
		a := &r.s.always[i]
		if at < a.from || at > a.to {
			continue
		}
		for j := range a.expect {
			c := &a.expect[j]
			if r.broken[c] {
				continue
			}
			r.held[c] = true
			if got, good := c.look(r); !good {
				r.broken[c] = true
				r.fail(c.line, "always "+c.what, c.want, got)
			}
		}
	}
}

// finish checks what needs the whole run.
func (r *run) finish() {
	for i := range r.s.always {
		a := &r.s.always[i]
		for j := range a.expect {
			c := &a.expect[j]
			if !c.silent {
				r.result.Expectations++
			}
			if !r.held[c] {
				r.fail(c.line, "always "+c.what, c.want, fmt.Sprintf("no decision from %s to %s", seconds(a.from), seconds(a.to)))
			}
		}
	}
	for _, f := range r.s.changes {
		n := r.flips[f.pool+" "+f.node]
		what := "changes of " + f.node + " in " + f.pool
		for _, bound := range []struct {
			word string
			is   *int
			good func(is int) bool
		}{
			{"at most", f.atMost, func(is int) bool { return n <= is }},
			{"at least", f.atLeast, func(is int) bool { return n >= is }},
		} {
			if bound.is == nil {
				continue
			}
			r.result.Expectations++
			if !bound.good(*bound.is) {
				r.fail(f.line, what, bound.word+" "+strconv.Itoa(*bound.is), strconv.Itoa(n))
			}
		}
	}
}

func seconds(d time.Duration) string { return Moment(d).String() }
