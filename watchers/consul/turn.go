package consul

import (
	"context"
	"time"
)

// answer is one answer with what is needed to judge it.
type answer[T any] struct {
	value T
	index uint64 // never 0
	empty bool
	doubt *trouble // why it may be old
}

// turn puts one question and takes in its answer.
func (w *Watch[T]) turn(ctx context.Context) *trouble {
	asked, cross := w.index, false
	now := w.o.Now().Mono
	if asked > 0 && now.Sub(w.crossed) >= w.o.CrossCheckEvery {
		asked, cross = 0, true
	}
	if asked == 0 {
		w.crossed = now
	}
	a, t := w.ask(ctx, Default, asked)
	if t != nil {
		return t
	}
	if a.doubt != nil {
		if a, t = w.resolve(ctx, a); t != nil {
			return t
		}
	}
	if cross {
		w.count(func(s *WatchStats) { s.CrossChecks++ })
	}
	return w.take(ctx, a, cross)
}

// resolve delivers an answer of doubtful age as such and asks for a sure one.
func (w *Watch[T]) resolve(ctx context.Context, a answer[T]) (answer[T], *trouble) {
	w.count(func(s *WatchStats) { s.Unsure++ })
	if !w.same(a) {
		r := w.res
		r.Value, r.Unsure = a.value, a.doubt.err.Error()
		w.owed = true
		w.o.Deliver(r)
	}
	w.pace.charge()
	sure, t := w.ask(ctx, Consistent, 0)
	if t == nil {
		t = sure.doubt
	}
	return sure, t
}

// take applies the rules for the index, then those for the contents.
func (w *Watch[T]) take(ctx context.Context, a answer[T], cross bool) *trouble {
	switch {
	case w.index > 0 && a.index < w.index:
		// Restored raft snapshot, lost newest key, upgraded server: what this
		// answer says may be older than what we have.
		w.count(func(s *WatchStats) { s.Backwards++ })
		w.o.Logger.Debug("index of Consul went backwards, asking anew", "what", w.o.What, "from", w.index, "to", a.index)
		w.index = 0
		return nil
	case w.index > 0 && a.index == w.index && !cross && !w.owed:
		w.confirm()
		return nil
	}
	missed := cross && a.index == w.index
	w.index = a.index
	if a.empty && !w.same(a) {
		var t *trouble
		if a, t = w.witness(ctx); t != nil {
			return t
		}
	}
	w.settle(a, missed)
	return nil
}

// same reports whether an answer says what is known already.
func (w *Watch[T]) same(a answer[T]) bool {
	return w.res.Known && w.o.Equal(w.res.Value, a.value)
}

// settle keeps a sure answer and delivers it when it is news.
func (w *Watch[T]) settle(a answer[T], missed bool) {
	changed := !w.same(a)
	if missed && changed {
		w.count(func(s *WatchStats) { s.Missed++ })
		w.o.Logger.Warn("cross-check found a change that the watch on Consul had missed", "what", w.o.What)
	}
	now := w.o.Now().Mono
	w.res.Value, w.res.Known, w.res.Empty = a.value, true, a.empty
	if changed {
		w.res.ChangedAt = now
		w.count(func(s *WatchStats) { s.Deliveries++; s.ChangedAt = now })
	}
	w.confirm()
	if changed || w.owed {
		w.owed = false
		w.o.Deliver(w.res)
	}
}

// witness asks a quorum whether there is really nothing.
func (w *Watch[T]) witness(ctx context.Context) (answer[T], *trouble) {
	w.pace.charge()
	a, t := w.ask(ctx, Consistent, 0)
	if t == nil {
		t = a.doubt
	}
	if t != nil {
		return a, t
	}
	if !a.empty {
		w.count(func(s *WatchStats) { s.EmptyRefused++ })
	}
	w.index = a.index
	return a, nil
}

func (w *Watch[T]) confirm() {
	now := w.o.Now().Mono
	w.res.ConfirmedAt = now
	w.count(func(s *WatchStats) { s.ConfirmedAt = now })
}

// ask puts one question with its own deadline.
func (w *Watch[T]) ask(ctx context.Context, mode Consistency, index uint64) (answer[T], *trouble) {
	qctx, cancel := w.begin(ctx, w.limit(index))
	defer cancel()
	w.res.AskedAt = w.o.Now()
	a, t := w.put(qctx, mode, index)
	w.finish(t)
	return a, t
}

// limit is how long an answer may take: for a blocking question Consul's wait
// and its random addition of up to a sixteenth besides.
func (w *Watch[T]) limit(index uint64) time.Duration {
	if index == 0 {
		return answerTimeout
	}
	return answerTimeout + w.o.Wait + w.o.Wait/16
}

func (w *Watch[T]) put(ctx context.Context, mode Consistency, index uint64) (answer[T], *trouble) {
	q, err := w.o.Client.Options(ctx, mode)
	if err != nil {
		return answer[T]{}, judgeError(err, 0)
	}
	if index > 0 {
		q.WaitIndex, q.WaitTime = index, w.o.Wait
	}
	value, meta, err := w.o.Query(ctx, q)
	if err != nil {
		return answer[T]{}, judgeError(err, w.limit(index))
	}
	// Index 0 is a fault of Consul that has happened; 1 is always safe to wait on.
	a := answer[T]{value: value, empty: w.o.Empty(value), index: max(meta.LastIndex, 1)}
	if t := w.o.Client.judgeMeta(meta, a.empty); t != nil {
		return a, t
	}
	a.doubt = judgeAge(meta, w.o.MaxLastContact)
	return a, nil
}

// begin opens a question that Restart can end.
func (w *Watch[T]) begin(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	qctx, cancel := context.WithTimeout(ctx, limit)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Requests++
	w.cancel = cancel
	if w.restart {
		cancel()
	}
	return qctx, cancel
}

func (w *Watch[T]) finish(t *trouble) {
	now := w.o.Now().Mono
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cancel = nil
	switch {
	case w.restart && t != nil: // ended by Restart: no failure
	case t == nil:
		w.stats.FailingSince, w.stats.FailingWith = 0, ""
	default:
		w.stats.Failures++
		w.stats.FailingWith = t.class
		if w.stats.FailingSince == 0 {
			w.stats.FailingSince = now
		}
	}
}
