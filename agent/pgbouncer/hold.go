package pgbouncer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Hold has paused databases of one cluster, so that their clients wait. Release must
// be called.
type Hold struct {
	c       *Control
	cluster string
	// Paused are the databases that it paused, and Left those that were paused
	// before, each as pgbouncer/database.
	Paused, Left []string
	paths        []string // where they lead by other ways than a template, and a server answers
}

// ErrEnding says that the agent ends, so that nothing is paused any more.
var ErrEnding = errors.New("the agent ends; nothing is paused any more")

// Hold pauses every database that leads to a write pool of a cluster, and returns once
// no transaction runs there. It ends with ctx: then, and after any error, everything
// is resumed before it returns.
func (c *Control) Hold(ctx context.Context, cluster string) (*Hold, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(c.running, cancel)
	defer stop()
	h := &Hold{c: c, cluster: cluster}
	if err := c.enter(); err != nil {
		return nil, err
	}
	if err := c.holdable(ctx, cluster); err != nil {
		c.holds.Done()
		return nil, err
	}
	err := h.pause(ctx)
	c.holds.Done()
	if err == nil && c.running.Err() != nil {
		err = ErrEnding
	}
	if err != nil {
		return nil, errors.Join(err, h.Release(context.WithoutCancel(ctx), ""))
	}
	return h, nil
}

// pause pauses all, at the same time.
func (h *Hold) pause(ctx context.Context) error {
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	for _, name := range slices.Sorted(maps.Keys(h.c.bouncers)) {
		b := h.c.bouncers[name]
		all.Go(func() {
			paused, left, paths, err := b.pause(ctx, h.cluster)
			mu.Lock()
			defer mu.Unlock()
			h.paths = append(h.paths, paths...)
			h.Paused, h.Left = append(h.Paused, b.full(paused)...), append(h.Left, b.full(left)...)
			errs = append(errs, err)
		})
	}
	all.Wait()
	slices.Sort(h.Paused)
	slices.Sort(h.Left)
	return errors.Join(errs...)
}

func (b *bouncer) full(names []string) []string {
	all := make([]string, len(names))
	for i, n := range names {
		all[i] = b.Name + "/" + n
	}
	return all
}

// pause pauses the databases of a cluster that nobody has paused. paths are where they
// lead, see Hold.
func (b *bouncer) pause(ctx context.Context, cluster string) (paused, left, paths []string, err error) {
	wanted := b.writes(cluster)
	if len(wanted) == 0 {
		return nil, nil, nil, nil
	}
	there, _, err := b.present(ctx)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("PgBouncer %s: %w", b.Name, err)
	}
	for _, n := range wanted {
		if there[n].Paused {
			left = append(left, n)
		} else {
			paused = append(paused, n)
		}
		if d, known := there[n]; known && !b.Templated && !slices.Contains(paths, d.path()) && answers(ctx, d.path()) == nil {
			paths = append(paths, d.path())
		}
	}
	held, err := b.hold(cluster, paused, there)
	if err != nil {
		return nil, left, nil, err
	}
	errs := make([]error, len(paused))
	var all sync.WaitGroup
	for i, n := range paused {
		all.Go(func() { errs[i] = b.pauseOne(ctx, n) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return paused, left, nil, fmt.Errorf("PgBouncer %s: %w", b.Name, err)
	}
	b.mu.Lock()
	for _, h := range held {
		h.complete = true
	}
	b.mu.Unlock()
	b.count("pauses", len(paused))
	return paused, left, paths, nil
}

// hold notes on the disk what is to be paused; without that nothing is. cluster is whose
// switchover it is for, "" for an operator's pause.
func (b *bouncer) hold(cluster string, names []string, there map[string]Database) (map[string]*holding, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.c.begin().pause(b.Bouncer, names, b.c.o.Now().Wall); err != nil {
		return nil, fmt.Errorf("%w; nothing was paused at PgBouncer %s", err, b.Name)
	}
	held := make(map[string]*holding)
	for _, n := range names {
		delete(b.early, n)
		held[n] = &holding{cluster: cluster, led: there[n].place()}
	}
	maps.Copy(b.held, held)
	return held, nil
}

// pauseOne waits in a session of its own until the last transaction has ended.
func (b *bouncer) pauseOne(ctx context.Context, name string) error {
	login, cancel := context.WithTimeout(ctx, b.Timeout)
	defer cancel()
	c, err := dial(login, b.Login)
	if err != nil {
		return b.failed(err)
	}
	defer c.close()
	err = c.send(ctx, "PAUSE "+quoted(name))
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("a transaction, or with pool_mode = session a client, did not end: %w", context.Cause(ctx))
	}
	if err != nil {
		return b.failed(fmt.Errorf("database %s: %w", name, err))
	}
	return nil
}

// Release resumes what the hold still has. What cannot be resumed now is tried on, and
// the error says so. writer is the writer to which the databases lead now; they have
// no server connections of before, so that they need not be reconnected for it.
func (h *Hold) Release(ctx context.Context, writer string) error {
	var mu sync.Mutex
	var errs []error
	var all sync.WaitGroup
	for _, b := range h.c.bouncers {
		held := b.release(h.cluster)
		if len(held) == 0 {
			continue
		}
		all.Go(func() {
			gone, err := b.resumeSome(ctx, slices.Sorted(maps.Keys(held)))
			if err == nil && writer != "" && !b.Templated {
				err = h.c.begin().turned(b.Name, h.cluster, writer)
			}
			b.letGo(held, gone) // not before that, else it would be turned once more
			b.nudge()
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// Reload has a PgBouncer read its files again, after a template has written one of
// them. want has where its databases must lead then, as host:port; where one led
// elsewhere before, or has a server connection to elsewhere, its server connections are
// replaced, and a switchover's hold that has paused it is over with the same packet: the
// databases lead to the new writer. An operator's pause goes on: who made it may have
// more to do before clients come.
func (c *Control) Reload(ctx context.Context, name string, want map[string]string) error {
	b := c.bouncers[name]
	if b == nil {
		return fmt.Errorf("there is no PgBouncer %s", name)
	}
	err := b.reload(ctx, want)
	b.nudge()
	return err
}

func (b *bouncer) reload(ctx context.Context, want map[string]string) error {
	released, kept := b.released(want)
	var did turned
	err := b.do(ctx, func(ctx context.Context, c *console) (err error) {
		b.want = maps.Clone(want)
		did, err = c.turn(ctx, want, released, b.File)
		b.over(did.resumed) // before anybody else looks what is paused
		return err
	})
	b.count("reconnects", did.reconnected)
	b.endEarly(did.gone, byOthers)
	// Resume looks whether they are, and strikes them off.
	if over := slices.Concat(did.resumed, did.gone); len(over) > 0 {
		err = errors.Join(err, b.resume(context.WithoutCancel(ctx), over))
	}
	if err != nil {
		return fmt.Errorf("reload PgBouncer %s: %w", b.Name, err)
	}
	b.count("reloads", 1)
	b.staysPaused(kept, want)
	return nil
}

// staysPaused tells of databases that an operator has paused, and that lead elsewhere now.
func (b *bouncer) staysPaused(names []string, want map[string]string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range names {
		if h := b.held[n]; h != nil && h.cluster == "" {
			h.led = want[n]
			b.log.Info("a database leads elsewhere now, and stays paused as an operator ordered", "database", n, "leads", want[n])
		}
	}
}

// turned is what was done when a PgBouncer was reloaded: how many databases were
// reconnected, those that were resumed, and those that should have been and were not
// paused any more.
type turned struct {
	reconnected   int
	resumed, gone []string
}

// turn sends RELOAD and all that belongs to it in one packet, looks whether the
// databases lead where they should. released are to be resumed. Between
// RELOAD and RECONNECT a client could have a connection opened, which RECONNECT would
// close: a failed one to PgBouncer, after which it waits for server_login_retry.
func (c *console) turn(ctx context.Context, want map[string]string, released []string, file string) (did turned, err error) {
	before, err := c.databases(ctx)
	if err != nil {
		return did, err
	}
	var resumed, commands []string
	for _, n := range released {
		if before[n].Paused {
			resumed = append(resumed, n)
			commands = append(commands, "RESUME "+quoted(n))
		} else {
			did.gone = append(did.gone, n)
		}
	}
	replaced := slices.DeleteFunc(astray(before, want), func(n string) bool { return slices.Contains(resumed, n) }) // which has no server connections
	commands = slices.Concat([]string{"RELOAD"}, reconnects(replaced), commands)
	var no *refusal
	err = c.send(ctx, commands...)
	if late := errors.As(err, &no) && slices.Contains(commands[1+len(replaced):], no.command); err != nil && !late { // a RESUME that comes too late is none that failed
		return did, err
	}
	did.reconnected, did.resumed = len(replaced), resumed
	after, err := c.databases(ctx)
	if err != nil {
		return did, err
	}
	if lost := astray(after, want); len(lost) > 0 {
		return did, fmt.Errorf("after RELOAD %w", strays(lost, after, want, file))
	}
	stale, err := c.stale(ctx, want)
	if err != nil || len(stale) == 0 {
		return did, err
	}
	did.reconnected += len(stale)
	return did, c.reconnect(ctx, stale)
}

// released are the databases that a switchover holds and that led elsewhere when they were
// paused. kept are those that an operator has paused, and that lead elsewhere than at the
// last reload.
func (b *bouncer) released(want map[string]string) (released, kept []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(b.held)) {
		switch h := b.held[n]; {
		case want[n] == "" || h.led == want[n]:
		case h.cluster == "":
			kept = append(kept, n)
		default:
			released = append(released, n)
		}
	}
	return released, kept
}

// over ends the hold of databases.
func (b *bouncer) over(names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range names {
		delete(b.held, n)
	}
}
