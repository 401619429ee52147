package pgbouncer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// leaveAfter is how long balancers may take until a node that operators took out gets no
// new connection. Told sooner, PgBouncer could come back to that node.
const leaveAfter = 2 * time.Second

// RECONNECT drops a connection whose login is under way as one that has failed, after
// which PgBouncer opens none for server_login_retry, and ends clients once it has none
// left (measured, 1.18). So a moment without one is looked for every leaveEvery, for as
// long as leaveWithin: clients that stay would be cut for sure.
const leaveEvery, leaveWithin = 20 * time.Millisecond, 5 * time.Second

// departures are the nodes that PgBouncer's connections leave, since operators took
// them out. They are not kept over a restart: one RECONNECT more does no harm.
type departures struct {
	out  map[takenOut]departure
	soon time.Duration // after that there is more to do; zero: nothing
}

// takenOut is a node that operators took out of a read pool.
type takenOut struct{ cluster, pool, node string }

type departure struct {
	seen topology.Mono // first
	told bool
}

// within shortens a pause to when there is more to do.
func (d *departures) within(pause time.Duration) time.Duration {
	if d.soon > 0 {
		return min(pause, d.soon)
	}
	return pause
}

// leave has PgBouncer replace its connections for each node that operators took out of
// a read pool, so that no client is on one when its sessions end. A write pool has no
// other node to lead to, and a pool where nobody is up has none either. Where a template
// writes the file, Reload does it.
func (b *bouncer) leave(ctx context.Context) error {
	if b.Templated {
		return nil
	}
	due := b.departing(b.c.o.Now().Mono)
	var names []string
	for _, e := range b.Databases {
		if slices.ContainsFunc(due, func(t takenOut) bool { return t.cluster == e.Cluster && t.pool == e.Pool }) {
			names = append(names, e.Name)
		}
	}
	if len(due) == 0 {
		return nil
	}
	waited := b.c.o.Now().Mono.Sub(b.out[due[0]].seen) - leaveAfter
	sent := false
	err := b.do(ctx, func(ctx context.Context, c *console) error {
		opening, err := c.opening(ctx, names)
		if err != nil || opening > 0 && waited < leaveWithin {
			return err
		}
		sent = true
		return c.reconnect(ctx, names)
	})
	if err != nil {
		return fmt.Errorf("leave node %s of cluster %s, which was taken out: %w", due[0].node, due[0].cluster, err)
	}
	if !sent {
		b.soon = leaveEvery
		return nil
	}
	b.count("reconnects", len(names))
	for _, t := range due {
		b.out[t] = departure{b.out[t].seen, true}
		b.log.Info("reconnected for a node that was taken out", "cluster", t.cluster, "pool", t.pool, "node", t.node, "databases", names)
	}
	return nil
}

// departing notes who is out now, and returns those whose time has come.
func (b *bouncer) departing(now topology.Mono) (due []takenOut) {
	before := b.out
	b.out = make(map[takenOut]departure)
	for _, e := range b.Databases {
		v := b.c.o.Views.Get(e.Cluster)
		if e.Mode != topology.ModeRead || v == nil || v.Snapshot == nil {
			continue
		}
		p, _ := v.Snapshot.Pool(e.Pool)
		for _, n := range p.Nodes {
			t := takenOut{e.Cluster, e.Pool, n.Node}
			if _, twice := b.out[t]; twice || n.Verdict == topology.Up || !slices.ContainsFunc(n.Reasons, isMaintenance) {
				continue
			}
			d, known := before[t]
			if !known || len(p.Up()) == 0 { // balancers that have nobody yet take a while to hear of the first one
				d.seen = now
			}
			b.out[t] = d
			switch rest := leaveAfter - now.Sub(d.seen); {
			case d.told || len(p.Up()) == 0:
			case rest > 0:
				b.soon = b.within(rest)
			default:
				due = append(due, t)
			}
		}
	}
	return due
}

// opening counts the connections to servers of databases whose login is under way.
func (c *console) opening(ctx context.Context, names []string) (n int, err error) {
	rows, err := c.rows(ctx, "SHOW POOLS")
	for _, r := range rows {
		if !slices.Contains(names, r["database"]) {
			continue
		}
		logins, wrong := strconv.Atoi(r["sv_login"])
		if wrong != nil {
			return 0, fmt.Errorf("sv_login of PgBouncer's SHOW POOLS: %w", wrong)
		}
		n += logins
	}
	return n, err
}

func isMaintenance(r topology.Reason) bool { return r.Code == topology.CodeMaintenance }
