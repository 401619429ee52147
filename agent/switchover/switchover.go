// Package switchover wraps the switchover of a cluster's authority between hold and
// release: clients of PgBouncer wait while the writer changes, instead of failing.
//
// Guarantees: the authority decides, and pgsteer promotes nobody; it asks, and watches
// the decisions for the new writer. What was paused is resumed when that one is up,
// when the authority refuses, when the caller goes away, and at the limit at the
// latest, whatever the authority does. A candidate that should not take over is
// refused without force, with all reasons.
package switchover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Authority is who is asked to switch over.
type Authority struct {
	// Name says who it is and by which way, for people.
	Name string
	// Switch asks, and returns once the authority has answered: from is the writer of
	// now, to the candidate, "" for the authority's own choice.
	Switch func(ctx context.Context, from, to string) error
}

// Held is what a hold has paused, each as pgbouncer/database, and what others had
// paused before. Open returns once they lead to a server; nil: nobody asks. Release
// resumes; writer is the new one, "" when there is none.
type Held struct {
	Paused, Left []string
	Open         func(ctx context.Context) error
	Release      func(ctx context.Context, writer string) error
}

// Options configure a Runner. All but Logger are required.
type Options struct {
	Views *latest.Map[string, topology.View]
	Now   topology.Ticker
	// Authority is that of a cluster, or why there is none to ask.
	Authority func(cluster string) (Authority, error)
	// Limits are how long a cluster's PgBouncers may be paused, and how long its new
	// writer is waited for.
	Limits func(cluster string) (limit, timeout time.Duration)
	// Hold pauses what leads to the cluster's writer. After an error nothing is paused.
	Hold func(ctx context.Context, cluster string) (Held, error)
	// Ready says what keeps clients from being led to a new writer, nil for nothing.
	Ready func(cluster string) error
	// Settled returns once the balancers of a cluster have taken a decision.
	Settled func(ctx context.Context, cluster string, generation uint64) error
	Logger  *slog.Logger // nil: nothing is logged
}

// Request is what somebody wants.
type Request struct {
	Cluster string `json:"-"`
	// To is the candidate; empty: the authority chooses.
	To string `json:"to,omitempty"`
	// Limit replaces the cluster's own limit, such as "5s"; empty: that one.
	Limit string `json:"limit,omitempty"`
	// Force asks for a candidate that would be refused.
	Force bool `json:"force,omitempty"`
}

// Event is a line of the answer: what has happened, for people.
type Event struct {
	At   time.Time `json:"at"`
	Text string    `json:"text"`
	// Result comes with the last event.
	Result *Result `json:"result,omitempty"`
}

// Result is what came of it.
type Result struct {
	Cluster string `json:"cluster"`
	From    string `json:"from"`
	// Writer is the new writer, "" when none was seen.
	Writer string `json:"writer,omitempty"`
	// Paused are the databases that were paused, for how many seconds each at most.
	Paused    []string `json:"paused"`
	HeldFor   float64  `json:"held_seconds"`
	WriterFor float64  `json:"new_writer_seconds"` // from the question until the new writer was up
	// LimitReached: they were resumed before the new writer was up.
	LimitReached bool `json:"limit_reached,omitempty"`
	// Error is why it is no success, "" for success.
	Error string `json:"error,omitempty"`
}

// Refusal says why nothing was done.
type Refusal struct{ Text string }

func (r *Refusal) Error() string { return r.Text }

// releaseWithin bounds the resuming at the end; what fails is tried on by the holder.
const releaseWithin = 3 * time.Second

// commandGrace is how long the authority's answer is waited for once its new writer is
// up.
const commandGrace = 5 * time.Second

// Runner runs switchovers, one for each cluster at a time.
type Runner struct {
	o Options

	mu   sync.Mutex // guards busy
	busy map[string]bool
}

// New returns a runner.
func New(o Options) *Runner {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Runner{o: o, busy: make(map[string]bool)}
}

// take makes a cluster busy, and refuses one that is.
func (r *Runner) take(cluster string) (done func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[cluster] {
		return nil, &Refusal{fmt.Sprintf("a switchover of cluster %s is under way already", cluster)}
	}
	r.busy[cluster] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, cluster)
	}, nil
}

// Plan is a switchover that may begin. Run or Drop must be called, once.
type Plan struct {
	r              *Runner
	authority      Authority
	cluster        string
	from, to       string
	limit, timeout time.Duration
	done           func()
}

// Plan looks at a request, and is a *Refusal of it or what will be done.
func (r *Runner) Plan(q Request) (*Plan, error) {
	p := &Plan{r: r, cluster: q.Cluster, to: q.To}
	p.limit, p.timeout = r.o.Limits(q.Cluster)
	if q.Limit != "" {
		d, err := time.ParseDuration(q.Limit)
		if err != nil || d <= 0 || d > p.timeout {
			return nil, &Refusal{fmt.Sprintf("limit %q is no time such as 10s, of at most %s (switchover.timeout); nothing was done", q.Limit, p.timeout)}
		}
		p.limit = d
	}
	v := r.o.Views.Get(q.Cluster)
	if !v.Valid(r.o.Now().Mono) || v.Snapshot.Writer == "" {
		return nil, &Refusal{fmt.Sprintf("cluster %s has no writer at this moment, so there is nothing to switch over from; nothing was done", q.Cluster)}
	}
	p.from = v.Snapshot.Writer
	against := unfit(v, q.To)
	if err := r.o.Ready(q.Cluster); err != nil {
		against = append(against, err.Error())
	}
	if len(against) > 0 && (!q.Force || !isNode(v.Snapshot, q.To) || q.To == p.from) {
		return nil, &Refusal{fmt.Sprintf("a switchover of cluster %s from %s to %s is not asked for: %s. Nothing was done; with force the authority is asked all the same, and may refuse itself",
			q.Cluster, p.from, orAny(q.To), strings.Join(against, "; "))}
	}
	var err error
	if p.authority, err = r.o.Authority(q.Cluster); err != nil {
		return nil, &Refusal{err.Error() + "; nothing was done"}
	}
	if p.done, err = r.take(q.Cluster); err != nil {
		return nil, err
	}
	return p, nil
}

// Drop gives a plan up.
func (p *Plan) Drop() { p.done() }

func orAny(node string) string {
	if node == "" {
		return "a node of the authority's choice"
	}
	return node
}

// Run does it, and tells each step. The result's Error says why it is no success.
// When ctx ends, everything is resumed at once; what the authority was asked for it
// may still do.
func (p *Plan) Run(ctx context.Context, tell func(Event)) Result {
	defer p.done()
	run := &run{Plan: p, tell: tell, begin: p.r.o.Now().Mono, result: Result{Cluster: p.cluster, From: p.from, Paused: []string{}}}
	err := run.all(ctx)
	if err != nil {
		run.result.Error = err.Error()
	}
	return run.result
}

// run is a plan that is carried out.
type run struct {
	*Plan
	tell   func(Event)
	begin  topology.Mono // of the hold
	asked  topology.Mono
	held   Held
	result Result
}

func (r *run) say(format string, args ...any) {
	r.tell(Event{At: r.r.o.Now().Wall, Text: fmt.Sprintf(format, args...)})
}

// all holds, asks, waits, and releases.
func (r *run) all(ctx context.Context) error {
	limited, cancel := context.WithTimeoutCause(ctx, r.limit, fmt.Errorf("the limit of %s is reached", r.limit))
	defer cancel()
	var err error
	if r.held, err = r.r.o.Hold(limited, r.cluster); err != nil {
		return fmt.Errorf("clients did not come to rest, so everything is resumed and the authority was not asked: %w", whyEnded(limited, err))
	}
	r.result.Paused = append(r.result.Paused, r.held.Paused...)
	r.sayHeld()
	r.asked = r.r.o.Now().Mono
	r.say("%s is asked to switch over from %s to %s; it decides", r.authority.Name, r.from, orAny(r.to))
	whole, stop := context.WithTimeoutCause(ctx, r.timeout, fmt.Errorf("there is no new writer after %s", r.timeout))
	defer stop()
	answered := make(chan error, 1)
	go func() { answered <- r.authority.Switch(whole, r.from, r.to) }()
	return r.await(whole, limited, answered)
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
func (r *run) await(whole, limited context.Context, answered <-chan error) error {
	changes := r.r.o.Views.Subscribe()
	defer changes.Close()
	waiting := true // whether clients are held
	atLimit := limited.Done()
	for {
		if s := r.successor(); s != nil {
			return r.arrived(whole, limited, s, answered)
		}
		select {
		case <-changes.Ready():
			changes.Take()
		case err := <-answered:
			if answered = nil; err != nil {
				return errors.Join(fmt.Errorf("%s did not switch over: %w", r.authority.Name, whyEnded(whole, err)), r.release(waiting, ""))
			}
			r.say("%s says that it is done", r.authority.Name)
		case <-whole.Done():
			return errors.Join(fmt.Errorf("%w; what the authority was asked for it may still do", ended(whole)), r.release(waiting, ""))
		case <-atLimit:
			atLimit = nil
			if whole.Err() != nil {
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

// ended says why a wait is over; an end that is no timeout is the caller's.
func ended(ctx context.Context) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return errors.New("aborted: everything is resumed")
	}
	return context.Cause(ctx)
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
func (r *run) arrived(whole, limited context.Context, s *topology.Snapshot, answered <-chan error) error {
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
	if answered != nil {
		late, cancel := context.WithTimeout(whole, commandGrace)
		defer cancel()
		select {
		case <-late.Done():
		case said := <-answered:
			if said != nil {
				r.say("%s says, although there is a new writer: %v", r.authority.Name, said)
			}
		}
	}
	return err
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
	if len(r.held.Paused) > 0 && err == nil {
		r.say("resumed after %s: %s", seconds(r.result.HeldFor), strings.Join(r.held.Paused, ", "))
	}
	return err
}
