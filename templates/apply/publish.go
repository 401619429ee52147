package apply

import (
	"maps"
	"time"
)

// refuse counts a text that was not applied and keeps why.
func (w *worker) refuse(reason, text, output string) {
	if reason != "" {
		w.counts.Refused[reason]++
	}
	w.counts.LastError, w.counts.LastErrorAt, w.counts.LastOutput = text, w.now().Wall, output
}

// state says what the group is doing and what keeps it from being applied.
func (w *worker) state() (State, string) {
	switch {
	case w.waiting != "":
		return StateWaiting, w.waiting
	case w.rejected:
		return StateRejected, w.fault
	case w.desired != nil && !w.isLive():
		return StatePending, w.fault
	case w.hold != "":
		return StateHeld, w.hold
	default:
		return StateApplied, ""
	}
}

// publish makes the status visible, and logs when it changed.
func (w *worker) publish() {
	now := w.now()
	s := w.counts
	s.Group = w.Name
	s.State, s.Error = w.state()
	s.Desired, s.OnDisk, s.Running = string(w.desiredIs), string(w.diskIs), string(w.runningIs)
	s.Applied, s.Refused, s.LeftOut = maps.Clone(s.Applied), maps.Clone(s.Refused), w.leftOut
	s.Since = now.Wall
	if old := w.status.Load(); old != nil && old.State == s.State {
		s.Since = old.Since
	}
	s.NextTry = w.nextTryAt(s.State)
	w.status.Store(&s)
	w.logChange(s)
}

// nextTryAt is in wall time; zero: it waits for a change.
func (w *worker) nextTryAt(s State) (at time.Time) {
	if s == StatePending || s == StateRejected || s == StateHeld {
		if due := earliest(w.applyDue(), w.recheck); due != 0 {
			return w.now().WallAt(max(due, w.now().Mono))
		}
	}
	return at
}

func (w *worker) logChange(s Status) {
	line := string(s.State) + s.Error + s.Running
	if line == w.logged {
		return
	}
	w.logged = line
	facts := []any{"state", string(s.State), "desired", short(s.Desired), "running", short(s.Running)}
	if s.Error != "" {
		facts = append(facts, "error", s.Error, "output", s.LastOutput)
	}
	if !s.NextTry.IsZero() {
		facts = append(facts, "next_try", s.NextTry)
	}
	switch {
	case s.State == StateWaiting:
		w.log.Info("files are held until all nodes are known", facts...)
	case s.State == StateHeld:
		w.log.Warn("files are held as they stand", facts...)
	case s.State == StatePending && s.Error == "":
		w.log.Info("files have changed and will be applied", facts...)
	case s.State == StatePending:
		w.log.Warn("files are not live yet and are tried again", facts...)
	case s.State == StateRejected:
		w.log.Error("files were refused and are tried again; what stands goes on", facts...)
	default:
		w.log.Info("files are applied", facts...)
	}
}

func short(h string) string { return h[:min(len(h), 12)] }
