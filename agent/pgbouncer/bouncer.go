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

	"github.com/pgsteer/pgsteer/agent/topology"
)

// bouncer is one PgBouncer that is spoken to.
type bouncer struct {
	Bouncer
	c      *Control
	log    *slog.Logger
	wakeup chan struct{} // has a token when there may be something to do

	talk       sync.Mutex // held during an exchange; guards session and want
	session    *console
	want       map[string]string // where databases must lead by the template's file; nil before the first Reload
	warned     bool              // of server_login_retry; the worker's
	departures                   // the worker's

	mu       sync.Mutex // guards everything below
	held     map[string]*holding
	early    map[string]Early // of the last hold of each database
	seen     map[string]Database
	unseen   bool // seen is that of earlier: it could not be read since
	leaving  int
	err      error
	since    time.Time
	counters map[string]uint64
}

func newBouncer(c *Control, o Bouncer) *bouncer {
	o.Timeout = cmp.Or(o.Timeout, 2*time.Second)
	return &bouncer{
		Bouncer: o, c: c, log: c.o.Logger.With("pgbouncer", o.Name), wakeup: make(chan struct{}, 1), want: o.Leads,
		held: make(map[string]*holding), early: make(map[string]Early), since: c.o.Now().Wall,
		counters: map[string]uint64{"pauses": 0, "resumes": 0, "reloads": 0, "reconnects": 0, "failed": 0},
	}
}

func (b *bouncer) nudge() {
	select {
	case b.wakeup <- struct{}{}:
	default: // there is one already
	}
}

// run does what is owed until ctx ends.
func (b *bouncer) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	pause := retryAfter
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			continue
		case <-b.wakeup:
		case <-timer.C:
		}
		err := b.step(ctx)
		if ctx.Err() != nil {
			break
		}
		b.note(err)
		next := b.c.o.Recheck
		if err != nil {
			next, pause = pause, min(2*pause, retryMost)
		} else {
			pause = retryAfter
		}
		timer.Reset(b.within(next))
	}
}

// last resumes all that was paused here.
func (b *bouncer) last(ctx context.Context) {
	defer b.hangUp()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastResume)
	defer cancel()
	owed := b.c.begin().paused(b.Name)
	b.endEarly(owed, byEnd)
	if len(owed) > 0 {
		if err := b.resume(ctx, owed); err != nil {
			b.log.Error("databases stay paused: they are resumed at the next start, or by hand", "databases", owed, "err", err)
		}
	}
}

// step resumes what no hold holds, turns to new writers, leaves nodes that were taken
// out, and looks.
func (b *bouncer) step(ctx context.Context) error {
	err := b.catchUp(ctx)
	if err == nil {
		return errors.Join(b.look(ctx), b.c.begin().rewrite())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unseen = true
	return err
}

func (b *bouncer) catchUp(ctx context.Context) error {
	b.soon = 0
	if owed := b.owed(); len(owed) > 0 {
		if err := b.resume(ctx, owed); err != nil {
			return err
		}
		b.log.Warn("databases that pgsteer had paused and that nothing holds any more are resumed", "databases", owed)
	}
	if err := b.turn(ctx); err != nil {
		return err
	}
	return b.leave(ctx)
}

// owed are databases that were paused here and that no hold holds.
func (b *bouncer) owed() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(b.c.begin().paused(b.Name), func(n string) bool { _, held := b.held[n]; return held })
}

// turn reconnects the databases of clusters that have another writer. Where a template
// writes the file, Reload does.
func (b *bouncer) turn(ctx context.Context) error {
	if b.Templated {
		return nil
	}
	r := b.c.begin()
	for _, cluster := range b.clusters() {
		v := b.c.o.Views.Get(cluster)
		if v == nil || v.Snapshot == nil || v.Snapshot.Writer == "" || b.holds(cluster) {
			continue
		}
		writer, was := v.Snapshot.Writer, r.turnedTo(b.Name, cluster)
		if writer == was {
			continue
		}
		if was != "" { // else nobody knows of another one
			b.settle(ctx, v.Snapshot)
			names := b.names(cluster)
			if err := b.reconnect(ctx, names); err != nil {
				return fmt.Errorf("turn cluster %s to its writer %s: %w", cluster, writer, err)
			}
			b.log.Info("reconnected for a new writer", "cluster", cluster, "writer", writer, "was", was, "databases", names)
		}
		if err := r.turned(b.Name, cluster, writer); err != nil {
			return err
		}
	}
	return nil
}

// settle waits for the balancers that PgBouncer may lead to: a connection that fails
// there ends waiting clients. Who does not obey in time keeps nobody waiting.
func (b *bouncer) settle(ctx context.Context, s *topology.Snapshot) {
	if b.c.o.Settled == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	if err := b.c.o.Settled(ctx, s.Cluster, s.Generation); err != nil {
		b.log.Warn("a balancer has not taken the new writer yet, PgBouncer is told all the same", "cluster", s.Cluster, "writer", s.Writer, "err", err)
	}
}

// reconnect has PgBouncer replace its server connections as soon as each is released.
func (b *bouncer) reconnect(ctx context.Context, names []string) error {
	err := b.do(ctx, func(ctx context.Context, c *console) error { return c.reconnect(ctx, names) })
	if err == nil {
		b.count("reconnects", len(names))
	}
	return err
}

func (c *console) reconnect(ctx context.Context, names []string) error {
	return c.send(ctx, reconnects(names)...)
}

func reconnects(names []string) []string {
	commands := make([]string, len(names))
	for i, n := range names {
		commands[i] = "RECONNECT " + quoted(n)
	}
	return commands
}

// resume takes databases back that were paused here, and strikes them off once
// PgBouncer says that they are not paused.
func (b *bouncer) resume(ctx context.Context, names []string) error {
	_, err := b.resumeSome(ctx, names)
	return err
}

// resumeSome is resume, and names those that were not paused any more.
func (b *bouncer) resumeSome(ctx context.Context, names []string) (gone []string, err error) {
	err = b.do(ctx, func(ctx context.Context, c *console) error {
		before, err := c.resume(ctx, names)
		if gone == nil { // else an earlier try may have resumed them
			gone = before
		}
		return err
	})
	if err != nil {
		return gone, fmt.Errorf("resume %v, which is tried again until it succeeds: %w", names, err)
	}
	b.count("resumes", len(names))
	if err := b.c.begin().resumed(b.Name, names); err != nil {
		return gone, fmt.Errorf("%v are resumed, and this is tried again: %w", names, err)
	}
	return gone, nil
}

// resume ends the pause of those databases that are paused. gone are the others, nil
// when PgBouncer did not say.
func (c *console) resume(ctx context.Context, names []string) (gone []string, err error) {
	paused := func() (still []string, err error) {
		all, err := c.databases(ctx)
		for _, n := range names {
			if all[n].Paused {
				still = append(still, n)
			}
		}
		return still, err
	}
	still, err := paused()
	if err != nil {
		return nil, err
	}
	gone = append([]string{}, names...)
	gone = slices.DeleteFunc(gone, func(n string) bool { return slices.Contains(still, n) })
	if len(still) == 0 {
		return gone, nil
	}
	commands := make([]string, len(still))
	for i, n := range still {
		commands[i] = "RESUME " + quoted(n)
	}
	var no *refusal
	if err := c.send(ctx, commands...); err != nil && !errors.As(err, &no) {
		return gone, err
	}
	if still, err = paused(); err == nil && len(still) > 0 {
		err = fmt.Errorf("after RESUME these are still paused: %v", still)
	}
	return gone, err
}

// look reads what PgBouncer says of its databases.
func (b *bouncer) look(ctx context.Context) error {
	held := b.holdings()
	all, wrong, err := b.present(ctx)
	if err == nil {
		b.missed(held, all)
	}
	if err == nil && !b.warned {
		err = b.do(ctx, b.warn)
	}
	leaving := 0
	if err == nil {
		err = b.do(ctx, func(ctx context.Context, c *console) (err error) {
			leaving, err = c.leaving(ctx, b.Databases)
			return err
		})
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unseen = err != nil; err != nil {
		return err
	}
	b.seen, b.leaving = all, leaving
	return wrong
}

// longRetry is a server_login_retry above which a failover takes as long.
const longRetry = 2 * time.Second

// warn says once that PgBouncer makes clients wait after a failover.
func (b *bouncer) warn(ctx context.Context, c *console) error {
	d, err := c.loginRetry(ctx)
	if err == nil && d > longRetry {
		b.log.Warn("this PgBouncer waits long after a connection that failed, and all clients of the database with it; "+
			"set server_login_retry = 1 there", "server_login_retry", d)
	}
	b.warned = err == nil
	return err
}

// do makes one exchange, with a session that may stand since the last one. A session
// that turns out to be gone is opened again, once.
func (b *bouncer) do(ctx context.Context, exchange func(context.Context, *console) error) error {
	b.talk.Lock()
	defer b.talk.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, b.Timeout, fmt.Errorf("no answer within %s", b.Timeout))
	defer cancel()
	kept := b.session != nil && !b.session.closed()
	if kept {
		err := exchange(ctx, b.session)
		if err == nil || !b.session.closed() || ctx.Err() != nil {
			return b.failed(err)
		}
	}
	var err error
	if b.session, err = dial(ctx, b.Login); err != nil {
		b.session = nil
		return b.failed(err)
	}
	return b.failed(exchange(ctx, b.session))
}

func (b *bouncer) failed(err error) error {
	if err != nil {
		b.count("failed", 1)
	}
	return err
}

func (b *bouncer) hangUp() {
	b.talk.Lock()
	defer b.talk.Unlock()
	if b.session != nil {
		b.session.close()
	}
}

// clusters are those that its databases lead to, each once.
func (b *bouncer) clusters() []string {
	var all []string
	for _, e := range b.Databases {
		if !slices.Contains(all, e.Cluster) {
			all = append(all, e.Cluster)
		}
	}
	return all
}

// holds reports whether a switchover has paused databases of a cluster. An operator's
// pause does not count: RECONNECT ends none, and concerns what is not paused too.
func (b *bouncer) holds(cluster string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.ContainsFunc(b.names(cluster), func(n string) bool { h := b.held[n]; return h != nil && h.cluster != "" })
}

func (b *bouncer) count(what string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counters[what] += uint64(n)
}

// note keeps what is wrong, and says when that changes.
func (b *bouncer) note(err error) {
	b.mu.Lock()
	was := b.err
	if (err == nil) != (was == nil) {
		b.since = b.c.o.Now().Wall
	}
	b.err = err
	b.mu.Unlock()
	switch {
	case err != nil && (was == nil || was.Error() != err.Error()):
		b.log.Warn("PgBouncer is not as it should be, and it is tried again", "err", err)
	case err == nil && was != nil:
		b.log.Info("PgBouncer is as it should be again")
	}
}

// report needs no record: before it is read nothing is known to be paused.
func (b *bouncer) report(r *record) Status {
	var ours []string
	if r != nil {
		ours = r.paused(b.Name)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := Status{Bouncer: b.Name, Err: b.err, Since: b.since, Counters: maps.Clone(b.counters), Paused: ours, Leaving: b.leaving}
	for _, name := range slices.Sorted(maps.Keys(b.seen)) {
		d := b.seen[name]
		if slices.ContainsFunc(b.Databases, func(e Entry) bool { return e.Name == name }) && !b.unseen {
			s.Leads = append(s.Leads, d)
		}
		if d.Paused && !slices.Contains(ours, name) {
			s.PausedElsewhere = append(s.PausedElsewhere, name)
		}
		if d.Disabled {
			s.Disabled = append(s.Disabled, name)
		}
	}
	return s
}
