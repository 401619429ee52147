package pgbouncer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Options configure a Control. Bouncers, Views, Now and Path are required.
type Options struct {
	Bouncers []Bouncer
	Views    *latest.Map[string, topology.View]
	Now      topology.Ticker
	// Path is the file of what was paused here.
	Path string
	// Settled returns once the balancers have taken a decision: a PgBouncer that leads
	// to one of them is told after that, 2 s later at most. Nil: they are not waited for.
	Settled func(ctx context.Context, cluster string, generation uint64) error
	// Recheck is how often each PgBouncer is looked at. Zero: 5 s.
	Recheck time.Duration
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
}

// Bouncer is one PgBouncer.
type Bouncer struct {
	Name string
	Login
	// Timeout bounds a login with one exchange, but for PAUSE. Zero: 2 s.
	Timeout   time.Duration
	Databases []Entry
	// Templated says that a template writes its file, so that it is turned by Reload
	// alone. File is that file's path, for people.
	Templated bool
	File      string
	// Leads is where its databases led by that file at the last Reload, as host:port, of
	// a Control before this one. Nil: nobody knows.
	Leads map[string]string
}

// Entry is a database of a PgBouncer and where it leads.
type Entry struct {
	Name          string // as PgBouncer calls it
	Cluster, Pool string
	Mode          topology.Mode // of its pool
}

// retryAfter bounds the pause after something that failed.
const (
	retryAfter = 200 * time.Millisecond
	retryMost  = 5 * time.Second
	// settleWithin bounds the wait for balancers.
	settleWithin = 2 * time.Second
	// lastResume bounds what is resumed at the end of Run, within the time that the
	// agent gives its parts.
	lastResume = 3 * time.Second
)

// Control speaks to a set of PgBouncers.
type Control struct {
	o        Options
	bouncers map[string]*bouncer
	record   *record
	trouble  error // of the record, at the start
	since    time.Time

	running context.Context // of all holds; it ends before what was paused is resumed
	cancel  context.CancelFunc

	mu    sync.Mutex     // guards ended, and the record's beginning
	ended bool           // no hold may begin any more
	holds sync.WaitGroup // holds that may still send PAUSE
}

// New reads what an earlier run has left paused. A file that cannot be used is set
// aside and told by Status; it is no error.
func New(o Options) (*Control, error) {
	if o.Views == nil || o.Now == nil || o.Path == "" {
		return nil, errors.New("pgbouncer needs Views, Now and Path")
	}
	o.Recheck = cmp.Or(o.Recheck, 5*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Control{o: o, bouncers: make(map[string]*bouncer), since: o.Now().Wall}
	c.running, c.cancel = context.WithCancel(context.Background())
	for _, b := range o.Bouncers {
		if _, _, err := place(b.Address); err != nil {
			return nil, fmt.Errorf("PgBouncer %s: %w", b.Name, err)
		}
		if c.bouncers[b.Name] != nil {
			return nil, fmt.Errorf("PgBouncer %s is there twice", b.Name)
		}
		c.bouncers[b.Name] = newBouncer(c, b)
	}
	return c, nil
}

// Run resumes what an earlier run left paused, tells what it cannot resume since that
// PgBouncer is configured no more, and turns PgBouncers to new writers,
// until ctx ends; then everything that was paused here is resumed. It is called once.
func (c *Control) Run(ctx context.Context) error {
	changes := c.o.Views.Subscribe()
	defer changes.Close()
	var running sync.WaitGroup
	c.tellLeft() // before what was left is resumed, and struck off
	for _, b := range c.bouncers {
		running.Go(func() { b.run(ctx) })
	}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-changes.Ready():
			c.wake(changes.Take())
		}
	}
	running.Wait()
	c.end()
	for _, b := range c.bouncers {
		running.Go(func() { b.last(ctx) })
	}
	running.Wait()
	return nil
}

// begin reads the record: not before the part that had it last has ended.
func (c *Control) begin() *record {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.record == nil {
		c.record, c.trouble = openRecord(c.o.Path)
		if c.trouble != nil {
			c.o.Logger.Error("what was paused at PgBouncers is not known", "err", c.trouble)
		}
		c.record.adopt(c.bouncers)
	}
	return c.record
}

func (c *Control) wake(clusters []string) {
	for _, b := range c.bouncers {
		if slices.ContainsFunc(b.Databases, func(e Entry) bool { return slices.Contains(clusters, e.Cluster) }) {
			b.nudge()
		}
	}
}

// end lets no hold begin, and waits until those that run send nothing more.
func (c *Control) end() {
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	c.cancel()
	c.holds.Wait()
}

// enter lets a hold begin; holds.Done must follow.
func (c *Control) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return ErrEnding
	}
	c.holds.Add(1)
	return nil
}

// Status is how one PgBouncer fares.
type Status struct {
	// Bouncer is its name: of one that is configured, or of one where something was left
	// paused; "" for all of them.
	Bouncer string
	// Err is what keeps it from being as it should be, nil for nothing.
	Err   error
	Since time.Time // when Err, or its absence, began
	// Paused are its databases that are paused by pgsteer, PausedElsewhere those that
	// are paused by others, Disabled those that take no new clients.
	Paused, PausedElsewhere, Disabled []string
	// Leads are the configured databases as PgBouncer has them now; nil while it cannot
	// be asked.
	Leads []Database
	// Leaving counts its server connections that are replaced once their transaction,
	// or in session mode their client, has ended.
	Leaving int
	// Counters of what was done: pauses, resumes, reloads, reconnects, failed.
	Counters map[string]uint64
}

// Status returns how each PgBouncer fares, by name, and then what was left paused at
// those that are configured no more.
func (c *Control) Status() []Status {
	c.mu.Lock()
	r, lost := c.record, c.trouble // not read here: the part that had it last may still end
	c.mu.Unlock()
	all := make([]Status, 0, len(c.bouncers))
	for _, name := range slices.Sorted(maps.Keys(c.bouncers)) {
		all = append(all, c.bouncers[name].report(r))
	}
	if r == nil {
		return all
	}
	switch {
	case lost != nil && len(all) == 0:
		all = append(all, Status{Err: lost, Since: c.since})
	case len(all) > 0 && all[0].Err == nil:
		all[0].Err = lost
	}
	return append(all, left(r.strangers(c.bouncers))...)
}
