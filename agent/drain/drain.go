// Package drain empties a node's server that operators took out: it waits for the
// sessions that are there, ends them where it was asked to, and reports by name who was
// ended and who is left.
//
// Guarantees: nobody is ended before balancers were told that the node takes no new
// session, nor after the maintenance has ended. Before the deadline a session ends
// only between two transactions, and only if that was asked for. Nobody is ended at
// a server that is not the one that was taken out, which is looked at in the same
// session and once more in the statement that ends. Nor is anybody ended by what
// other agents may have changed meanwhile: a shared store is read right before. Whoever is told to end stands in
// the report, also when the agent dies in between; each is counted once. One agent
// does it: the one that was asked, also after its restart. Replication, background
// workers, superusers, roles to be kept and pgsteer itself are never touched. No
// text of a query is read.
package drain

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/statefile"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Session is a login at a node as the role that may see sessions, and end them.
type Session interface {
	// Ask asks a question whose answer is one row of one column.
	Ask(ctx context.Context, sql string, args ...string) (string, error)
	// Probe asks what the node's prober asks.
	Probe() (topology.Probe, error)
	Close()
}

// Setup is what the configuration says of ending sessions.
type Setup struct {
	// Login logs in to a node; nil: drains are not set up.
	Login func(ctx context.Context, cluster string, n topology.Node) (Session, error)
	Keep  []string // roles whose sessions are left alone
	// Own are pgsteer's roles at a cluster: its own sessions are left alone.
	Own func(cluster string) []string
}

// Options configures a Runner. All but Confirm, Write and Logger are required.
type Options struct {
	// Path is the file with what this agent has under way.
	Path string
	Read func(path string) ([]byte, error)
	// Write replaces the file and syncs it; nil: statefile.Write.
	Write func(path string, b []byte) error
	Now   func() time.Time
	// Records are what is out now.
	Records func() maintenance.Set
	// Confirm makes Records what the store that all agents share says at this moment,
	// or says why that is not known: then nobody is ended. nil: nobody shares records.
	Confirm func(ctx context.Context) error
	// Judged is a node as it was judged last, or why that is not known.
	Judged func(cluster, node string) (Judged, error)
	// Setup may change at any time.
	Setup func() Setup
	By    string // the name of this host
	// Logger takes a line for each session that was ended; nil: none.
	Logger *slog.Logger
}

// Runner has the drains of this agent. It is safe for concurrent use.
type Runner struct {
	o     Options
	fresh chan struct{} // one slot: there is a target more
	ended atomic.Uint64

	mu     sync.Mutex // guards everything below, and what drains hold
	drains map[maintenance.Target]*drain
}

// drain is what this agent has to do at one target.
type drain struct {
	target maintenance.Target
	wake   chan struct{} // one slot
	turn   chan struct{} // one slot, taken while the server is asked

	// Guarded by Runner.mu.
	followed bool
	now      entry // without an ID: nothing was ever to be done
	// next was asked for, oldest first. One counts once the records say so; that may be
	// an older one, when what was asked for last is refused, or is not stored.
	next []entry
}

// mostNext bounds what is remembered of one target that was asked for and never said.
const mostNext = 8

// asked is where the drain that the records name stands among what was asked for; -1:
// nowhere.
func (d *drain) asked(id string) int {
	return slices.IndexFunc(d.next, func(e entry) bool { return id != "" && e.Report.ID == id })
}

// Open reads what was under way.
func Open(o Options) *Runner {
	if o.Write == nil {
		o.Write = statefile.Write
	}
	if o.Confirm == nil {
		o.Confirm = func(context.Context) error { return nil }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Runner{o: o, fresh: make(chan struct{}, 1), drains: make(map[maintenance.Target]*drain)}
	r.load()
	return r
}

// at returns the drain of a target; r.mu is held, or nobody else has r yet.
func (r *Runner) at(t maintenance.Target) *drain {
	d := r.drains[t]
	if d == nil {
		d = &drain{target: t, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
		r.drains[t] = d
	}
	return d
}

// Run works until ctx ends, and then leaves everything as it is.
func (r *Runner) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		r.mu.Lock()
		for _, d := range r.drains {
			if !d.followed {
				d.followed = true
				wg.Go(func() { r.follow(ctx, d) })
			}
		}
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-r.fresh:
		}
	}
}

// Wake says that the records have changed. It does not block.
func (r *Runner) Wake() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.drains {
		signal(d.wake)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is signalled already
	}
}

// Settle waits until a change of the records counts for a target: afterwards nobody
// is ended by what held before. It takes no longer than a turn, see turnFor.
func (r *Runner) Settle(t maintenance.Target) {
	r.mu.Lock()
	d := r.drains[t]
	r.mu.Unlock()
	if d != nil {
		d.turn <- struct{}{}
		<-d.turn // whoever comes later has seen the records
	}
}

// Prepare says what to write into the record of a target so that this agent drains
// it, or why nobody could: then nothing has begun. want has the deadline and whom to
// end. Nothing happens either until the record says so.
func (r *Runner) Prepare(ctx context.Context, t maintenance.Target, want maintenance.Sessions) (maintenance.Sessions, error) {
	if t.Node == "" || t.Pool != "" {
		return want, errors.New("that works at one whole node alone: name CLUSTER/NODE, and no pool, since a server does not know by which pool somebody came")
	}
	j, err := r.o.Judged(t.Cluster, t.Node)
	if err != nil {
		return want, err
	}
	id, err := j.identity()
	if err != nil {
		return want, err
	}
	want.ID, want.By = rand.Text(), r.o.By
	e := entry{Server: id, Report: Report{
		Target: t, ID: want.ID, By: want.By, Phase: Settling, Deadline: want.Deadline, EndIdle: want.EndIdle, Terminate: want.Terminate,
		Left: []Client{}, Ended: []EndedClient{},
	}}
	s, err := r.enter(ctx, e, j)
	if err != nil {
		return want, err
	}
	s.Close()
	e.Server.Run, e.Report.Began = s.run, r.o.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.at(t)
	before := d.next
	d.next = append(slices.Clone(before[max(0, len(before)-mostNext+1):]), e)
	if err := r.save(); err != nil {
		d.next = before
		return want, fmt.Errorf("write down what is to be done: %w", err)
	}
	signal(r.fresh)
	return want, nil
}

// enter logs in to a node that must be the one of a drain, as a role that must have the
// rights for it.
func (r *Runner) enter(ctx context.Context, e entry, j Judged) (server, error) {
	set := r.o.Setup()
	if set.Login == nil {
		return server{}, errors.New("drains at the server are not set up: maintenance.sessions.user names no role")
	}
	login, err := set.Login(ctx, j.Cluster, j.Node)
	if err != nil {
		return server{}, err
	}
	s := server{Session: login, keep: list(set.Keep), own: list(set.Own(j.Cluster))}
	err = s.bind(ctx)
	var rights Rights
	if err == nil {
		rights, err = s.rights(ctx)
		rights.Signal = rights.Signal || !e.ends() // who only looks needs no right to end
	}
	if err == nil {
		s.run, err = s.Ask(ctx, runQuery)
	}
	var p topology.Probe
	if err == nil {
		if missing, grant := rights.Missing(); missing != "" {
			err = errors.New(missing + ": " + grant)
		} else if p, err = s.Probe(); err == nil {
			err = e.Server.other(j, p)
		}
	}
	if err != nil {
		s.Close()
		return server{}, fmt.Errorf("%s at %s: %w", j.Name, j.Address, err)
	}
	return s, nil
}

// Report tells of the newest drain of a target by this agent.
func (r *Runner) Report(t maintenance.Target) (Report, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.drains[t]
	if d == nil {
		return Report{}, false
	}
	rec, _ := r.o.Records().Get(t)
	if i := d.asked(rec.Sessions.ID); i >= 0 { // its first turn comes in a moment
		return d.next[i].Report, true
	}
	return d.now.Report, d.now.Report.ID != ""
}

// Trouble tells what keeps drains that are under way from going on.
func (r *Runner) Trouble() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for t, d := range r.drains {
		if rep := d.now.Report; rep.Trouble != "" && !rep.Phase.Over() {
			all = append(all, fmt.Sprintf("the drain of %s does not go on: %s", t, rep.Trouble))
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.Sort(all)
	return errors.New(strings.Join(all, "; "))
}

// Counts tells how many sessions were ended since the start, and how many are left
// where a drain is under way.
func (r *Runner) Counts() (ended, left uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.drains {
		if !d.now.Report.Phase.Over() {
			left += uint64(len(d.now.Report.Left))
		}
	}
	return r.ended.Load(), left
}
