package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// writablePoll is how often a node is asked whether it is writable.
const writablePoll = 2 * time.Millisecond

// Timeline has the moments of a change of roles, by our clock. A moment that
// did not happen is zero.
type Timeline struct {
	Started     time.Time // the call began
	OldStopping time.Time // the old primary was told to stop
	OldStopped  time.Time // its postmaster had ended
	Promoted    time.Time // the new primary was told to promote itself
	NewWritable time.Time // seen on an open session, asked every 2 ms
	Done        time.Time // all standbys stream from the new primary
}

// Gap returns how long no node was writable, from the moment at which the old
// primary was told to stop; 0 if it was not.
func (t Timeline) Gap() time.Duration {
	if t.OldStopping.IsZero() || t.NewWritable.IsZero() {
		return 0
	}
	return t.NewWritable.Sub(t.OldStopping)
}

// Promote makes a standby a primary and returns when it is writable. Nothing
// else changes: an old primary goes on, other standbys keep following it.
func (c *Cluster) Promote(ctx context.Context, name string) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	c.changing.Lock()
	defer c.changing.Unlock()
	n, err := c.node(name)
	if err != nil {
		return err
	}
	var tl Timeline
	return n.promote(ctx, &tl, nil)
}

// promote promotes the node on an open session. It calls before, if given, on
// the session that it opened first.
func (n *Node) promote(ctx context.Context, tl *Timeline, before func(*pgx.Conn) error) error {
	return n.withConn(ctx, func(conn *pgx.Conn) error {
		if before != nil {
			if err := before(conn); err != nil {
				return err
			}
		}
		tl.Promoted = time.Now()
		if _, err := conn.Exec(ctx, "SELECT pg_promote(false)"); err != nil {
			return fmt.Errorf("promoting: %w", err)
		}
		err := poll(ctx, "it is writable", writablePoll, func() (ok bool, err error) {
			err = conn.QueryRow(ctx, "SELECT current_setting('transaction_read_only') = 'off'").Scan(&ok)
			return ok, err
		})
		tl.NewWritable = time.Now()
		return err
	})
}

// Switchover moves the primary in an orderly way: a fast stop of the old one,
// promotion of the new one once it has replayed everything, the other standbys
// re-pointed without a restart, and the old primary started as a standby. It
// returns when all of them stream.
func (c *Cluster) Switchover(ctx context.Context, to string) (Timeline, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	c.changing.Lock()
	defer c.changing.Unlock()
	tl := Timeline{Started: time.Now()}
	next, err := c.node(to)
	if err != nil {
		return tl, err
	}
	old, err := c.primary(ctx, nil)
	if err != nil {
		return tl, err
	}
	if old == next {
		return tl, fmt.Errorf("lab: switchover to %s: it is the primary", to)
	}
	err = next.promote(ctx, &tl, func(conn *pgx.Conn) error { return old.handOver(ctx, &tl, conn) })
	if err != nil {
		return tl, fmt.Errorf("lab: switchover from %s to %s: %w", old.name, to, err)
	}
	if err := wait(ctx, c.follow); err != nil {
		return tl, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.repoint(gctx, next, old) })
	g.Go(func() error { return old.returnTo(gctx, next) })
	err = g.Wait()
	tl.Done = time.Now()
	return tl, err
}

// handOver stops the node and waits until the standby at the other end of conn
// has replayed all it wrote.
func (n *Node) handOver(ctx context.Context, tl *Timeline, conn *pgx.Conn) error {
	tl.OldStopping = time.Now()
	if err := n.Stop(ctx, Fast); err != nil {
		return err
	}
	tl.OldStopped = time.Now()
	last, err := n.controlData(ctx, "Latest checkpoint location")
	if err != nil {
		return err
	}
	return poll(ctx, "everything up to "+last+" is replayed", writablePoll, func() (ok bool, err error) {
		// The position is the start of the last record, replay counts its end.
		err = conn.QueryRow(ctx, "SELECT pg_last_wal_replay_lsn() > $1::pg_lsn", last).Scan(&ok)
		return ok, err
	})
}

// controlData reads one line of pg_controldata.
func (n *Node) controlData(ctx context.Context, field string) (string, error) {
	out, err := n.tool(ctx, "pg_controldata", "-D", n.DataDir())
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(line, ":"); ok && k == field {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("lab: pg_controldata of node %s has no line %q", n.name, field)
}

// Failover promotes a node without touching the old primary, which is dead,
// frozen or out of reach, and points all other running standbys at the new one.
// It returns when they stream.
func (c *Cluster) Failover(ctx context.Context, to string) (Timeline, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	c.changing.Lock()
	defer c.changing.Unlock()
	tl := Timeline{Started: time.Now()}
	next, err := c.node(to)
	if err != nil {
		return tl, err
	}
	if err := next.promote(ctx, &tl, nil); err != nil {
		return tl, fmt.Errorf("lab: failover to %s: %w", to, err)
	}
	if err := wait(ctx, c.follow); err != nil {
		return tl, err
	}
	err = c.repoint(ctx, next)
	tl.Done = time.Now()
	return tl, err
}

// repoint has all running standbys follow primary, without the given nodes.
func (c *Cluster) repoint(ctx context.Context, primary *Node, except ...*Node) error {
	return c.eachStandby(ctx, append(except, primary), func(ctx context.Context, n *Node) error { return n.follow(ctx, primary) })
}

// eachStandby calls f at the same time for all usable nodes in recovery, without
// the given ones.
func (c *Cluster) eachStandby(ctx context.Context, except []*Node, f func(context.Context, *Node) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes {
		if slices.Contains(except, n) || !n.process().usable() {
			continue
		}
		g.Go(func() error {
			tl, err := n.writeTimeline(ctx)
			if err != nil || tl > 0 { // another primary is left alone
				return err
			}
			return f(ctx, n)
		})
	}
	return g.Wait()
}

// WaitStreaming waits until every running standby streams from the present
// primary and shows all that was written before the call. Frozen nodes and
// other primaries are left out.
func (c *Cluster) WaitStreaming(ctx context.Context) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	primary, err := c.primary(ctx, nil)
	if err != nil {
		return err
	}
	return c.eachStandby(ctx, []*Node{primary}, func(ctx context.Context, n *Node) error { return n.waitStreaming(ctx, primary) })
}

// returnTo starts a stopped node as a standby of primary.
func (n *Node) returnTo(ctx context.Context, primary *Node) error {
	if err := n.becomeStandby(primary); err != nil {
		return err
	}
	if err := n.Start(ctx); err != nil {
		return err
	}
	return n.waitStreaming(ctx, primary)
}

// Rejoin makes a node a standby of the present primary, whatever it was, and
// returns when it streams: a running standby is re-pointed, any other node is
// stopped, rewound by pg_rewind or, if that fails, copied anew, and started.
func (c *Cluster) Rejoin(ctx context.Context, name string) error {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	c.changing.Lock()
	defer c.changing.Unlock()
	n, err := c.node(name)
	if err != nil {
		return err
	}
	primary, err := c.primary(ctx, n)
	if err != nil {
		return fmt.Errorf("lab: rejoin of %s: %w", name, err)
	}
	if n.process().usable() {
		if tl, err := n.writeTimeline(ctx); err == nil && tl == 0 {
			return n.follow(ctx, primary)
		}
	}
	if p := n.process(); p != nil { // a frozen one is killed
		if err := p.stop(ctx, Fast.signal()); err != nil {
			return err
		}
	}
	if err := n.rewind(ctx, primary); err != nil {
		c.lab.log.Info("copying the node anew", "node", name, "because", err)
		if cerr := n.clone(ctx, primary); cerr != nil {
			return errors.Join(err, cerr)
		}
	}
	return n.returnTo(ctx, primary)
}

// rewind undoes what the node wrote after it parted from primary. If it crashed,
// pg_rewind lets it recover first.
func (n *Node) rewind(ctx context.Context, primary *Node) error {
	// Until its first checkpoint a new primary's control file has the old timeline,
	// and pg_rewind would say that there is nothing to do.
	if err := primary.Exec(ctx, "CHECKPOINT"); err != nil {
		return err
	}
	_, err := n.tool(ctx, "pg_rewind", "-D", n.DataDir(), "--source-server", primary.DSN(Superuser), "--no-sync")
	return err
}
