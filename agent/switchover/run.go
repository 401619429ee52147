package switchover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

const (
	// releaseWithin bounds the resuming at the end; what fails is tried on by the holder.
	releaseWithin = 3 * time.Second
	// answerGrace is how long the answer of an authority that only answers is waited for
	// once its new writer is up.
	answerGrace = 5 * time.Second
)

// run is a plan that is carried out.
type run struct {
	*Plan
	tell   func(Event)
	begin  topology.Mono // of the hold
	asked  topology.Mono
	held   Held
	result Result
	// answer has what Switch returns; nil before it is asked, and once it was received.
	answer <-chan error
}

func (r *run) say(format string, args ...any) {
	e := Event{At: r.r.o.Now().Wall, Text: fmt.Sprintf(format, args...)}
	if r.runsOn() {
		e.RunsOn = r.authority.Name
	}
	r.tell(e)
}

// all holds, asks, waits, and releases.
func (r *run) all(ctx context.Context) error {
	limited, cancel := context.WithTimeoutCause(ctx, r.limit, fmt.Errorf("the limit of %s is reached", r.limit))
	defer cancel()
	var err error
	if r.held, err = r.r.o.Hold(limited, r.cluster); err != nil {
		return fmt.Errorf("clients could not be held, so the authority was not asked; what was paused for it is resumed: %w", whyEnded(limited, err))
	}
	r.result.Paused = append(r.result.Paused, r.held.Paused...)
	r.sayHeld()
	r.asked = r.r.o.Now().Mono
	whole, stop := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("there is no new writer after %s", r.timeout))
	defer stop()
	r.ask(whole)
	return r.await(whole, limited)
}

// ask asks the authority. What does the work itself has a time of its own.
func (r *run) ask(whole context.Context) {
	answer := make(chan error, 1)
	r.answer = answer
	r.say("%s is asked to switch over from %s to %s; it decides", r.authority.Name, r.from, orAny(r.to))
	asking, stop := whole, context.CancelFunc(func() {})
	if r.authority.RunsOn {
		asking, stop = context.WithTimeoutCause(context.WithoutCancel(whole), r.timeout, &timeIsUp{r.timeout})
	}
	go func() {
		defer stop()
		answer <- r.authority.Switch(asking, r.from, r.to)
	}()
}

// whyEnded is the reason of an end rather than its symptom.
func whyEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, context.Cause(ctx)) {
		return fmt.Errorf("%w (%w)", context.Cause(ctx), err)
	}
	return err
}

func (r *run) sayHeld() {
	switch {
	case len(r.held.Paused) > 0:
		r.say("paused for at most %s: %s", r.limit, strings.Join(r.held.Paused, ", "))
	case len(r.held.Left) == 0:
		r.say("no PgBouncer leads to the writer of %s: nobody's clients are held, and some will see errors", r.cluster)
	}
	if len(r.held.Left) > 0 {
		r.say("paused before by somebody else, and left as they are: %s", strings.Join(r.held.Left, ", "))
	}
}

// await waits for the new writer, in the first place as long as clients are held.
func (r *run) await(whole, limited context.Context) error {
	changes := r.r.o.Views.Subscribe()
	defer changes.Close()
	waiting := true // whether clients are held
	atLimit := limited.Done()
	for {
		if s := r.successor(); s != nil {
			return r.arrived(whole, limited, s)
		}
		select {
		case <-changes.Ready():
			changes.Take()
		case err := <-r.answer:
			if r.answer = nil; err != nil {
				released := r.release(waiting, "")
				return errors.Join(r.refused(whole, err), released)
			}
			r.say("%s says that it is done", r.authority.Name)
		case <-whole.Done():
			err := r.release(waiting, "")
			return errors.Join(r.noWriter(whole), err)
		case <-atLimit:
			atLimit = nil
			if whole.Err() != nil || hasLeft(limited) {
				continue
			}
			err := r.release(waiting, "")
			waiting, r.result.LimitReached = false, true
			r.say("the limit of %s is reached and no new writer is up: everything is resumed, the authority's switchover goes on", r.limit)
			if err != nil {
				r.say("not resumed yet: %v", err)
			}
		}
	}
}

// refused says why the authority did not switch over.
func (r *run) refused(whole context.Context, err error) error {
	switch {
	case r.authority.RunsOn:
		return r.outcome(err)
	case hasLeft(whole):
		return r.aborted()
	}
	return fmt.Errorf("%s did not switch over: %w", r.authority.Name, whyEnded(whole, err))
}

// hasLeft reports whether it was the caller who ended a context.
func hasLeft(ctx context.Context) bool { return errors.Is(context.Cause(ctx), context.Canceled) }

// noWriter says why the wait for a new writer is over, and what goes on.
func (r *run) noWriter(whole context.Context) error {
	switch cause := context.Cause(whole); {
	case hasLeft(whole):
		return r.aborted()
	case r.runsOn():
		return errors.Join(cause, r.finished(<-r.answer))
	default:
		return fmt.Errorf("%w; what the authority was asked for it may still do", cause)
	}
}

// aborted says what becomes of it when the caller goes away.
func (r *run) aborted() error {
	if r.runsOn() {
		return fmt.Errorf("aborted: everything is resumed; %s goes on until it ends, or until %s after its start (switchover.timeout)", r.authority.Name, r.timeout)
	}
	return errors.New("aborted: everything is resumed; what the authority was asked for it may still do")
}

// successor is the decision that has another writer, nil before.
func (r *run) successor() *topology.Snapshot {
	v := r.r.o.Views.Get(r.cluster)
	if v == nil || v.Snapshot == nil || v.Snapshot.Writer == "" || v.Snapshot.Writer == r.from {
		return nil
	}
	return v.Snapshot
}

// arrived releases once the balancers know the new writer.
func (r *run) arrived(whole, limited context.Context, s *topology.Snapshot) error {
	r.result.Writer = s.Writer
	r.result.WriterFor = r.r.o.Now().Mono.Sub(r.asked).Seconds()
	err := r.r.o.Settled(limited, r.cluster, s.Generation)
	if err == nil && r.held.Open != nil && !r.result.LimitReached {
		err = r.held.Open(limited)
	}
	if err != nil && !r.result.LimitReached {
		r.say("the balancers have not all taken %s yet: %v", s.Writer, err)
	}
	err = r.release(!r.result.LimitReached, s.Writer)
	r.say("%s is the writer %s after the question; it was %s", s.Writer, seconds(r.result.WriterFor), r.from)
	if r.to != "" && s.Writer != r.to {
		err = errors.Join(err, fmt.Errorf("the authority chose %s instead of %s", s.Writer, r.to))
	}
	if r.runsOn() {
		return errors.Join(err, r.command(whole))
	}
	r.late(whole)
	return err
}

// late waits a moment for an answer that the new writer was faster than.
func (r *run) late(whole context.Context) {
	if r.answer == nil {
		return
	}
	late, cancel := context.WithTimeout(whole, answerGrace)
	defer cancel()
	select {
	case <-late.Done():
	case said := <-r.answer:
		if r.answer = nil; said != nil {
			r.say("%s says, although there is a new writer: %v", r.authority.Name, said)
		}
	}
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond)
}

// release resumes what is held, also when everything around it has ended.
func (r *run) release(held bool, writer string) error {
	if !held {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseWithin)
	defer cancel()
	err := r.held.Release(ctx, writer)
	r.result.HeldFor = r.r.o.Now().Mono.Sub(r.begin).Seconds()
	r.sayReleased(err == nil)
	return err
}

// sayReleased says how long clients were held; resumed: nobody is any more.
func (r *run) sayReleased(resumed bool) {
	rest, last := slices.Clone(r.held.Paused), 0.0
	if r.held.Early != nil {
		for _, e := range r.held.Early() {
			held := e.At.Sub(r.begin).Seconds()
			r.say("%s was held for %s at most: %s", e.Database, seconds(held), e.By)
			last = max(last, held)
			rest = slices.DeleteFunc(rest, func(name string) bool { return name == e.Database })
		}
	}
	switch {
	case len(rest) == 0 && last > 0:
		r.result.HeldFor = last
	case len(rest) > 0 && resumed:
		r.say("resumed after %s: %s", seconds(r.result.HeldFor), strings.Join(rest, ", "))
	}
}
