package switchover

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// timeIsUp ends a command.
type timeIsUp struct{ timeout time.Duration }

func (e *timeIsUp) Error() string {
	return fmt.Sprintf("its time of %s (switchover.timeout) is up", e.timeout)
}

// runsOn reports whether a command runs that the end of this run does not end.
func (r *run) runsOn() bool { return r.authority.RunsOn && r.answer != nil }

// command waits, with the new writer up and nobody held, for the command to end.
func (r *run) command(whole context.Context) error {
	r.say("nobody is held any more; %s still runs and is waited for, until %s after its start (switchover.timeout)", r.authority.Name, r.timeout)
	select {
	case err := <-r.answer:
		return r.finished(err)
	case <-whole.Done():
		if hasLeft(whole) {
			return r.aborted()
		}
		return r.finished(<-r.answer) // its time is up as well
	}
}

// finished tells how the command ended that was waited for.
func (r *run) finished(err error) error {
	r.answer = nil
	if err = r.outcome(err); err == nil {
		r.say("%s has ended", r.authority.Name)
	}
	return err
}

// outlived waits for a command whose caller is gone, and is told by the log.
func (r *run) outlived() {
	defer r.done()
	if r.outcome(<-r.answer) == nil {
		r.log.Info("switchover", "was", r.from, "step", r.authority.Name+" has ended")
	}
}

// outcome logs what a command left undone.
func (r *run) outcome(err error) error {
	switch up := (*timeIsUp)(nil); {
	case err == nil:
		return nil
	case errors.As(err, &up):
		err = fmt.Errorf("%s was ended by pgsteer before it was through, since %w: look at what it has left undone", r.authority.Name, up)
	default:
		err = fmt.Errorf("%s failed: %w", r.authority.Name, err)
	}
	r.log.Warn("switchover", "audit", "command failed", "was", r.from, "err", err)
	return err
}
