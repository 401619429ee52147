package pgbouncer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/pgsteer/pgsteer/agent/topology"
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
	var wanted []string
	for _, e := range b.Databases {
		if e.Cluster == cluster && e.Mode == topology.ModeWrite {
			wanted = append(wanted, e.Name)
		}
	}
	if len(wanted) == 0 {
		return nil, nil, nil, nil
	}
	there, err := b.present(ctx)
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
	if err := b.hold(paused, there); err != nil {
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
	b.count("pauses", len(paused))
	return paused, left, paths, nil
}

// present is what PgBouncer says of its databases now.
func (b *bouncer) present(ctx context.Context) (there map[string]Database, err error) {
	err = b.do(ctx, func(ctx context.Context, c *console) (err error) { there, err = c.databases(ctx); return err })
	return there, err
}

// hold notes on the disk what is to be paused; without that nothing is.
func (b *bouncer) hold(names []string, there map[string]Database) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.c.begin().pause(b.Name, names, b.c.o.Now().Wall); err != nil {
		return fmt.Errorf("%w; nothing was paused at PgBouncer %s", err, b.Name)
	}
	for _, n := range names {
		b.held[n] = there[n].Host + ":" + there[n].Port
	}
	return nil
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
	if err := c.send(ctx, "PAUSE "+quoted(name)); err != nil {
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
		names := b.letGo(h.cluster)
		if len(names) == 0 {
			continue
		}
		all.Go(func() {
			err := b.resume(ctx, names)
			if err == nil && writer != "" && !b.Templated {
				err = h.c.begin().turned(b.Name, h.cluster, writer)
			}
			b.nudge()
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// letGo takes the databases of a cluster out of the hold: from now on they are owed.
func (b *bouncer) letGo(cluster string) (names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.names(cluster) {
		if _, held := b.held[n]; held {
			names = append(names, n)
			delete(b.held, n)
		}
	}
	return names
}

// Reload has a PgBouncer read its files again, after a template has written one of
// them. want has where its databases must lead then, as host:port; where one led
// elsewhere before, or has a server connection to elsewhere, its server connections are
// replaced, and a hold that has paused it is over with the same packet: the databases
// lead to the new writer.
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
	released, replaced := b.released(want), 0
	err := b.do(ctx, func(ctx context.Context, c *console) (err error) {
		replaced, err = c.turn(ctx, want, released)
		return err
	})
	b.count("reconnects", replaced)
	if err != nil {
		return fmt.Errorf("reload PgBouncer %s: %w", b.Name, err)
	}
	b.count("reloads", 1)
	return b.over(released)
}

// turn sends RELOAD and all that belongs to it in one packet, looks whether the
// databases lead where they should, and counts those that were reconnected. Between
// RELOAD and RECONNECT a client could have a connection opened, which RECONNECT would
// close: a failed one to PgBouncer, after which it waits for server_login_retry.
func (c *console) turn(ctx context.Context, want map[string]string, released []string) (replaced int, err error) {
	before, err := c.databases(ctx)
	if err != nil {
		return 0, err
	}
	commands := []string{"RELOAD"}
	for _, n := range astray(before, want) {
		if !slices.Contains(released, n) { // what was paused has no server connections
			commands = append(commands, "RECONNECT "+quoted(n))
			replaced++
		}
	}
	for _, n := range released {
		commands = append(commands, "RESUME "+quoted(n))
	}
	if err := c.send(ctx, commands...); err != nil {
		return 0, err
	}
	after, err := c.databases(ctx)
	if err != nil {
		return replaced, err
	}
	for _, n := range astray(after, want) {
		return replaced, fmt.Errorf("after RELOAD database %s leads to %s:%s and not to %s: is the file read by this PgBouncer (%%include), and what says its log?",
			n, after[n].Host, after[n].Port, want[n])
	}
	stale, err := c.stale(ctx, want)
	if err != nil || len(stale) == 0 {
		return replaced, err
	}
	return replaced + len(stale), c.reconnect(ctx, stale)
}

// astray are the databases that do not lead where they should.
func astray(there map[string]Database, want map[string]string) (names []string) {
	for _, n := range slices.Sorted(maps.Keys(want)) {
		if d := there[n]; d.Host+":"+d.Port != want[n] {
			names = append(names, n)
		}
	}
	return names
}

// released are the held databases that led elsewhere when they were paused.
func (b *bouncer) released(want map[string]string) (names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(b.held)) {
		if want[n] != "" && b.held[n] != want[n] {
			names = append(names, n)
		}
	}
	return names
}

// over ends the hold of databases that were resumed.
func (b *bouncer) over(names []string) error {
	if len(names) == 0 {
		return nil
	}
	b.mu.Lock()
	for _, n := range names {
		delete(b.held, n)
	}
	b.mu.Unlock()
	return b.resume(context.Background(), names) // which looks whether they are, and strikes them off
}
