package postgres

import (
	"context"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// check puts one question again and again beside the probe, in a goroutine of
// its own: neither ever delays the other. It belongs to that goroutine.
type check struct {
	p     *Prober
	what  string        // for the log: "the write probe", "port 6432"
	every time.Duration // from one question to the next
	// ask puts the question. It returns nil for an answer, else the failure, and
	// how long the next attempt must be kept back.
	ask func(context.Context) (*topology.Failure, time.Duration)
	// good is what an answer is reported as; a failure is reported with kind and port.
	good topology.Observation
	kind topology.ProbeKind
	port uint16
	// kept is the session that ask uses; nil: it uses none.
	kept *kept
	stir watchers.Nudge // something was heard: ask again now

	stirred topology.Mono         // when that was last obeyed
	last    topology.FailureClass // of the newest answer; empty: a good one
}

// run asks until ctx ends, and then ends the session.
func (c *check) run(ctx context.Context) {
	if c.kept != nil {
		defer c.kept.end()
	}
	for {
		asked := c.p.o.Now()
		f, hold := c.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		if f == nil && c.kept != nil {
			asked = c.kept.sentAt // it may have taken a login, or a wait for an older answer
		}
		c.tell(asked, f)
		if !c.wait(ctx, c.next(asked.Mono, f, hold)) {
			return
		}
	}
}

// tell reports an answer, and logs a change.
func (c *check) tell(asked topology.Clock, f *topology.Failure) {
	if f == nil {
		o := c.good
		o.AskedAt = asked
		c.p.emit(o)
		if c.last != "" {
			c.p.o.Logger.Info("answered again", "check", c.what)
		}
		return
	}
	f.Port = c.port
	c.p.failed(asked, f, c.kind)
	if f.Class != c.last {
		c.p.o.Logger.Info("not answered", "check", c.what, "class", string(f.Class), "error", f.Text)
	}
}

// next returns when to ask again. A first refusal is confirmed soon.
func (c *check) next(asked topology.Mono, f *topology.Failure, hold time.Duration) topology.Mono {
	now, before := c.p.o.Now().Mono, c.last
	if f == nil {
		c.last = ""
		return asked.Add(c.every)
	}
	c.last = f.Class
	if closed(f.Class) && !closed(before) {
		return now.Add(confirmAfter)
	}
	return max(asked.Add(c.every), now.Add(hold))
}

// wait returns at the given time, or when something was heard, which counts
// once in an interval: somebody may be ending our sessions in a loop. It returns
// false when ctx has ended.
func (c *check) wait(ctx context.Context, until topology.Mono) bool {
	if c.kept != nil {
		defer c.kept.idle(c.stir.Set)()
	}
	t := time.NewTimer(until.Sub(c.p.o.Now().Mono))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
			return true
		case <-c.stir.C():
			if now := c.p.o.Now().Mono; c.stirred == 0 || now.Sub(c.stirred) >= c.every {
				c.stirred = now
				return true
			}
		}
	}
}
