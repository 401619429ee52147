// Package switchover wraps the switchover of a cluster's authority between hold and
// release: clients of PgBouncer wait while the writer changes, instead of failing.
//
// Guarantees: the authority decides, and pgsteer promotes nobody; it asks, and watches
// the decisions for the new writer. What was paused is resumed when that one is up,
// when the authority refuses, when the caller goes away, and at the limit at the
// latest, whatever the authority does. A candidate that should not take over is
// refused without force, with all reasons. A command that switches over is ended by
// its timeout alone, and that is told.
package switchover

import (
	"context"
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
	// RunsOn says that Switch itself does the work, so that it is ended by nothing but
	// the timeout: neither by its caller's leave nor by the new writer.
	RunsOn bool
	// NeedsTo says that it cannot choose a candidate.
	NeedsTo bool
}

// Held is what a hold has paused, each as pgbouncer/database, and what others had
// paused before. Open returns once they lead to a server; nil: nobody asks. Release
// resumes; writer is the new one, "" when there is none.
type Held struct {
	Paused, Left []string
	Open         func(ctx context.Context) error
	Release      func(ctx context.Context, writer string) error
	// Early are those of Paused that others have let go before Release. Nil: none.
	Early func() []Early
}

// Early is a database whose clients did not wait until the release.
type Early struct {
	Database string // as pgbouncer/database
	By       string // who has ended it, for people
	// At is when, at the latest.
	At topology.Mono
}

// Options configure a Runner. All but Logger are required.
type Options struct {
	Views *latest.Map[string, topology.View]
	Now   topology.Ticker
	// Known says why there is no such cluster, nil when there is.
	Known func(cluster string) error
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
	// RunsOn names what goes on when the caller leaves now, "" for nothing.
	RunsOn string `json:"runs_on,omitempty"`
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
		return nil, &Refusal{fmt.Sprintf("a switchover of cluster %s is under way already, or its command still runs; nothing was done", cluster)}
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
	log            *slog.Logger
}

// Plan looks at a request, and is a *Refusal of it or what will be done.
func (r *Runner) Plan(q Request) (*Plan, error) {
	p := &Plan{r: r, cluster: q.Cluster, to: q.To, log: r.o.Logger.With("target", q.Cluster, "cluster", q.Cluster, "to", q.To)}
	if err := r.o.Known(q.Cluster); err != nil {
		return nil, &Refusal{err.Error() + "; nothing was done"}
	}
	p.limit, p.timeout = r.o.Limits(q.Cluster)
	if q.Limit != "" {
		d, err := time.ParseDuration(q.Limit)
		if err != nil || d <= 0 || d > p.timeout {
			return nil, &Refusal{fmt.Sprintf("--limit %s is no time such as 10s, of at most %s (switchover.timeout); nothing was done", q.Limit, p.timeout)}
		}
		p.limit = d
	}
	v := r.o.Views.Get(q.Cluster)
	if !v.Valid(r.o.Now().Mono) || v.Snapshot.Writer == "" {
		return nil, &Refusal{fmt.Sprintf("cluster %s has no writer at this moment, so there is nothing to switch over from%s; nothing was done", q.Cluster, takenOut(v))}
	}
	p.from = v.Snapshot.Writer
	if err := impossible(v.Snapshot, q.To); err != nil {
		return nil, err
	}
	against := unfit(v, q.To)
	if err := r.o.Ready(q.Cluster); err != nil {
		against = append(against, err.Error())
	}
	if len(against) > 0 && !q.Force {
		return nil, &Refusal{fmt.Sprintf("a switchover of cluster %s from %s to %s is not asked for: %s. Nothing was done; with --force the authority is asked all the same if clients can be held, and may refuse itself",
			q.Cluster, p.from, orAny(q.To), strings.Join(against, "; "))}
	}
	var err error
	if p.authority, err = r.o.Authority(q.Cluster); err != nil {
		return nil, &Refusal{err.Error() + "; nothing was done"}
	}
	if p.authority.NeedsTo && q.To == "" {
		return nil, &Refusal{fmt.Sprintf("%s of cluster %s needs a candidate ({{.To}} in switchover.command): name it with --to, one of %s; nothing was done",
			p.authority.Name, q.Cluster, others(v.Snapshot))}
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
// may still do, and a command does: until it has ended no other switchover begins.
func (p *Plan) Run(ctx context.Context, tell func(Event)) Result {
	run := &run{Plan: p, tell: tell, begin: p.r.o.Now().Mono, result: Result{Cluster: p.cluster, From: p.from, Paused: []string{}}}
	err := run.all(ctx)
	if err != nil {
		run.result.Error = err.Error()
	}
	if run.answer != nil && p.authority.RunsOn {
		go run.outlived()
	} else {
		p.done()
	}
	return run.result
}
