package consul

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// The defaults of a watch.
const (
	defaultWait        = 30 * time.Second
	defaultCrossCheck  = 5 * time.Minute
	defaultLastContact = time.Second
	answerTimeout      = 5 * time.Second // for a read that does not block
)

// WatchOptions describe one blocking query. T is what the answer is reduced to;
// two answers with equal T are no change.
type WatchOptions[T any] struct {
	Client *Client
	// What names the thing that is read, for texts ("key service/main/leader").
	What string
	// Query asks with the options as they are and reduces the answer. It must be
	// the same question each time: an index belongs to one question.
	Query func(ctx context.Context, q *api.QueryOptions) (T, *api.QueryMeta, error)
	// Equal compares two reduced answers.
	Equal func(a, b T) bool
	// Empty tells answers that claim there is nothing; such a claim is delivered
	// only after a second, consistent read. nil: no answer is empty.
	Empty func(T) bool
	// Deliver gets what changed. It must not block for long; it is never called
	// after Run has returned.
	Deliver func(Result[T])
	// Wait is how long Consul may hold a query; zero: 30 s. Consul's limit is 10 min.
	Wait time.Duration
	// Every is the time between questions in the long run, of which a few may follow
	// each other at once; zero: 1 s.
	Every time.Duration
	// Poll returns how long to pause between questions that do not block, or 0 for
	// one that blocks; nil: every question blocks.
	Poll func() time.Duration
	// CrossCheckEvery is how often the question is asked without blocking, to
	// find an answer that a streamed view missed; zero: 5 min.
	CrossCheckEvery time.Duration
	// MaxLastContact: an answer from a server that has not heard of the leader
	// for longer is unsure; zero: 1 s.
	MaxLastContact time.Duration
	Now            topology.Ticker
	Logger         *slog.Logger // nil discards
}

// Result is what a watch delivers: a value, or why there is none.
type Result[T any] struct {
	// Value is the newest one; with Failure set it is the last good one.
	Value T
	// Known says that Value was ever read.
	Known bool
	// Empty says that Value claims there is nothing, and that a consistent read
	// said so too.
	Empty bool
	// Unsure says why Value may be old (the server knows no leader, or has not
	// heard of it); empty: it is sure. An unsure value is delivered at once and
	// replaced as soon as a sure one is there.
	Unsure string
	// Failure is told once when it begins or changes its class, and every few
	// seconds while it lasts.
	Failure *topology.Failure
	// AskedAt is when the newest question was put.
	AskedAt topology.Clock
	// ChangedAt and ConfirmedAt are when the value last changed, and when it was
	// last known to be true.
	ChangedAt, ConfirmedAt topology.Mono
}

// WatchStats count what a watch did.
type WatchStats struct {
	Requests     uint64 // questions put to Consul
	Failures     uint64 // questions without a usable answer
	Deliveries   uint64 // changed values handed on
	Backwards    uint64 // answers with a lower index than before; the watch began anew
	Unsure       uint64 // answers that may have been old
	CrossChecks  uint64 // questions without blocking, as a check of the watch
	Missed       uint64 // cross-checks that found a change which the watch had not told
	EmptyRefused uint64 // empty answers that a consistent read did not confirm
	Restarts     uint64 // calls of Restart
	ChangedAt    topology.Mono
	ConfirmedAt  topology.Mono
	FailingSince topology.Mono // zero: the last question was answered
	FailingWith  topology.FailureClass
}

// Watch keeps one blocking query going: the newest value, at most about one
// request per second, and no value that is not to be trusted.
type Watch[T any] struct {
	o    WatchOptions[T]
	pace *pace

	// Owned by Run.
	index   uint64 // 0: the next question does not block
	res     Result[T]
	crossed topology.Mono // when a question was last put with index 0
	told    topology.FailureClass
	toldAt  topology.Mono
	// owed: the receiver's last word was a failure or an unsure value, so the
	// next sure value is delivered even if it is no change.
	owed bool
	wake watchers.Nudge

	mu      sync.Mutex // guards everything below
	stats   WatchStats
	cancel  context.CancelFunc // ends the question under way
	restart bool
}

// NewWatch prepares a watch. Client, Query, Equal, Deliver and Now are required.
func NewWatch[T any](o WatchOptions[T]) *Watch[T] {
	if o.Wait <= 0 {
		o.Wait = defaultWait
	}
	if o.CrossCheckEvery <= 0 {
		o.CrossCheckEvery = defaultCrossCheck
	}
	if o.MaxLastContact <= 0 {
		o.MaxLastContact = defaultLastContact
	}
	if o.Empty == nil {
		o.Empty = func(T) bool { return false }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Watch[T]{o: o, pace: newPace(watchBurst), wake: watchers.NewNudge()}
	if o.Every > 0 {
		w.pace.bucket.SetLimit(rate.Every(o.Every))
	}
	return w
}

// watchBurst is how many questions may follow each other at once.
const watchBurst = 3

// Run watches until ctx ends.
func (w *Watch[T]) Run(ctx context.Context) {
	for w.pace.admit(ctx) {
		t := w.turn(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case w.takeRestart():
			w.index = 0
		case t != nil:
			w.fail(t)
			w.pace.rest(ctx, resting{
				pause: w.pace.pause(t), wake: w.wake.C(), token: w.o.Client.token, again: func() { w.fail(t) },
			})
		default:
			w.mended()
			w.idle(ctx)
		}
	}
}

// idle pauses before a question that shall not block.
func (w *Watch[T]) idle(ctx context.Context) {
	if w.o.Poll == nil {
		return
	}
	d := w.o.Poll()
	if d <= 0 {
		return
	}
	w.index = 0
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-w.wake.C():
	case <-timer.C:
	}
}

// Restart ends the question under way and begins anew without blocking. It is
// for a caller who knows better, such as after an outage in which the
// connection of a hanging query may have died unnoticed. Use it rarely: a
// cancelled query occupies Consul for a while.
func (w *Watch[T]) Restart() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Restarts++
	w.restart = true
	w.wake.Set()
	if w.cancel != nil {
		w.cancel()
	}
}

func (w *Watch[T]) takeRestart() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.restart
	w.restart = false
	return r
}

// Stats returns the counters.
func (w *Watch[T]) Stats() WatchStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

func (w *Watch[T]) count(f func(*WatchStats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.stats)
}

// fail tells a failure when its class is new or the last word is old. The last
// good value stays; the next question does not block.
func (w *Watch[T]) fail(t *trouble) {
	w.index = 0
	now := w.o.Now().Mono
	if t.class == w.told && now.Sub(w.toldAt) < repeatEvery {
		return
	}
	if t.class != w.told {
		w.o.Logger.Warn("watch on Consul fails, the last value stays", "what", w.o.What, "class", t.class, "err", t.err)
	}
	w.told, w.toldAt = t.class, now
	r := w.res
	r.Failure = t.failure(w.o.What, w.o.Client)
	w.owed = true
	w.o.Deliver(r)
}

// mended ends a failure.
func (w *Watch[T]) mended() {
	w.pace.back.Reset()
	if w.told == "" {
		return
	}
	w.told = ""
	w.o.Logger.Info("watch on Consul works again", "what", w.o.What)
}
