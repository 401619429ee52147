package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// silentMost is how long the agent may say nothing before one no longer waits for it:
// long enough for its restart. An agent that is frozen still has its connections taken
// by the kernel, so that they alone say nothing.
const silentMost = 15 * time.Second

func (r running) silence() time.Duration { return cmp.Or(r.Silence, silentMost) }

// silent says that the agent said nothing for too long.
type silent struct {
	address string
	after   time.Duration
}

func (e *silent) Error() string {
	return fmt.Sprintf("the agent at %s has said nothing for %s: it is frozen, away or cut off", e.address, e.after.Round(time.Millisecond))
}

// pulse watches over a long answer: while nothing comes the agent is asked whether it
// lives. It is safe for concurrent use.
type pulse struct {
	ctx  context.Context
	last atomic.Pointer[time.Time]
	stop context.CancelCauseFunc
	over sync.WaitGroup
}

// listen gives a context that ends, with silent as its cause, when the agent has said
// nothing for too long. Whoever asks must end the pulse.
func (r running) listen(ctx context.Context) (context.Context, *pulse) {
	p := new(pulse)
	p.ctx, p.stop = context.WithCancelCause(ctx)
	p.heard()
	p.over.Go(func() { r.beat(p) })
	return p.ctx, p
}

// beat asks a few times within the silence that is allowed.
func (r running) beat(p *pulse) {
	every := r.silence() / 5
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-tick.C:
		}
		if r.lives(p.ctx, every) {
			p.heard()
		}
		if d := time.Since(*p.last.Load()); d >= r.silence() {
			p.stop(&silent{r.Address, d})
			return
		}
	}
}

// lives reports whether the agent says anything within a time.
func (r running) lives(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url("/livez"), nil)
	if err != nil {
		return false
	}
	transport := r.transport()
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return false
	}
	return res.Body.Close() == nil
}

func (p *pulse) heard() {
	now := time.Now()
	p.last.Store(&now)
}

// why is the silence, if that ended the answer, else err.
func (p *pulse) why(err error) error {
	if s, is := errors.AsType[*silent](context.Cause(p.ctx)); is {
		return s
	}
	return err
}

func (p *pulse) end() {
	p.stop(nil)
	p.over.Wait()
}
