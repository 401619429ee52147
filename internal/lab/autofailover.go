package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// autoFailoverTimeout is for a pg_auto_failover call whose context has no deadline.
const autoFailoverTimeout = 2 * time.Minute

// AutoFailoverOptions says what a cluster under pg_auto_failover looks like. The
// zero value is good.
type AutoFailoverOptions struct {
	// Nodes is how many nodes there are; 0 means 2.
	Nodes int
	// Settings are set at the monitor, over those that make it decide within
	// seconds; pgautofailover. is put before their names.
	Settings map[string]string
}

// hastyMonitor are the monitor's settings in a lab: what takes it 20 and 30 s by
// default takes 3 s.
var hastyMonitor = map[string]string{
	"health_check_period": "500ms", "health_check_timeout": "500ms", "health_check_retry_delay": "100ms",
	"node_considered_unhealthy_timeout": "3s", "primary_demote_timeout": "3s", "startup_grace_period": "2s",
}

// AutoFailover is a formation of one group, with its monitor. Roles and table are
// those of a Cluster, the probe role is "pgsteer", and no role needs a password. At
// the monitor "pgsteer" reads the views that pgsteer's manual makes.
type AutoFailover struct {
	lab     *Lab
	program string // pg_autoctl
	bin     string // folder of PostgreSQL's programs
	monitor *AutoFailoverNode
	nodes   []*AutoFailoverNode
}

// AutoFailover starts a monitor and nodes and returns when the first node, n1, is
// primary and the others are secondary; two nodes take about ten seconds on two
// cores.
func (l *Lab) AutoFailover(ctx context.Context, o AutoFailoverOptions) (*AutoFailover, error) {
	ctx, cancel := bound(ctx, autoFailoverTimeout)
	defer cancel()
	program, bin, err := findAutoFailover()
	if err != nil {
		return nil, err
	}
	if o.Nodes == 0 {
		o.Nodes = 2
	}
	c := &AutoFailover{lab: l, program: program, bin: bin}
	if err := c.makeNodes(o.Nodes); err != nil {
		return nil, err
	}
	l.onClose(c.close)
	if err := c.bootstrap(ctx, o); err != nil {
		return nil, fmt.Errorf("pg_auto_failover: %w", err)
	}
	return c, nil
}

func (c *AutoFailover) makeNodes(count int) error {
	dir := filepath.Join(c.lab.dir, c.lab.unique("autofailover"))
	ports, err := c.lab.freePorts(count + 1)
	if err != nil {
		return err
	}
	for i, port := range ports {
		name := "monitor"
		if i > 0 {
			name = fmt.Sprintf("n%d", i)
		}
		n := &AutoFailoverNode{c: c, name: name, port: port, dir: filepath.Join(dir, name)}
		if err := c.lab.mkdir(n.dir); err != nil {
			return err
		}
		if i == 0 {
			c.monitor = n
		} else {
			c.nodes = append(c.nodes, n)
		}
	}
	return nil
}

func (c *AutoFailover) bootstrap(ctx context.Context, o AutoFailoverOptions) error {
	m := c.monitor
	if err := m.create(ctx, "monitor"); err != nil {
		return err
	}
	if err := m.Start(ctx); err != nil {
		return err
	}
	if err := m.superuser(ctx); err != nil {
		return err
	}
	settings := maps.Clone(hastyMonitor)
	maps.Copy(settings, o.Settings)
	if err := m.configure(ctx, settings); err != nil {
		return err
	}
	for i, n := range c.nodes {
		// A node that joins is copied from the primary, so one follows the other.
		if err := n.create(ctx, "postgres", "--name", n.name, "--monitor", c.monitorURL()); err != nil {
			return err
		}
		if err := n.Start(ctx); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		if err := n.superuser(ctx); err != nil {
			return err
		}
		if err := createRoles(ctx, n.DSN(Superuser), defaultProbeUser, "unused"); err != nil {
			return err
		}
	}
	return c.WaitStates(ctx, c.settled()...)
}

// settled is what a cluster that begins is to become.
func (c *AutoFailover) settled() []string {
	if len(c.nodes) == 1 {
		return []string{"n1=single"}
	}
	states := []string{"n1=primary"}
	for _, n := range c.nodes[1:] {
		states = append(states, n.name+"=secondary")
	}
	return states
}

// configure sets the monitor's own settings and makes the role that reads it.
func (n *AutoFailoverNode) configure(ctx context.Context, settings map[string]string) error {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		all = append(all, "ALTER SYSTEM SET pgautofailover."+name+" = "+quoteLiteral(settings[name]))
	}
	return n.Exec(ctx, "pg_auto_failover", append(all, "SELECT pg_reload_conf()")...)
}

func (c *AutoFailover) monitorURL() string {
	return "postgres://autoctl_node@" + c.monitor.Addr() + "/pg_auto_failover?sslmode=disable"
}

// Monitor returns the monitor. Its database is pg_auto_failover.
func (c *AutoFailover) Monitor() *AutoFailoverNode { return c.monitor }

// Nodes returns n1, n2 and so on.
func (c *AutoFailover) Nodes() []*AutoFailoverNode { return slices.Clone(c.nodes) }

// Node returns a node by its name, nil for none.
func (c *AutoFailover) Node(name string) *AutoFailoverNode {
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// Decide calls a function of the monitor as the role of its nodes, such as
// "perform_failover('default', 0)". It may meet a keeper's report at the monitor, and
// be the one that ends their deadlock; then it is called again.
func (c *AutoFailover) Decide(ctx context.Context, call string) error {
	return c.monitor.withConn(ctx, "autoctl_node", "pg_auto_failover", func(conn *pgx.Conn) error {
		for tries := 0; ; tries++ {
			_, err := conn.Exec(ctx, "SELECT pgautofailover."+call)
			if state, ok := errors.AsType[*pgconn.PgError](err); !ok || state.Code != deadlock || tries == 5 {
				return err
			}
		}
	})
}

const deadlock = "40P01"

// States returns each node's state as "n1=primary", or "n1=primary>draining" while
// the assigned one is not confirmed, by name.
func (c *AutoFailover) States(ctx context.Context) ([]string, error) {
	var all []string
	const q = `SELECT nodename || '=' || CASE WHEN reportedstate = goalstate THEN '' ELSE reportedstate::text || '>' END || goalstate::text
		FROM pgautofailover.node ORDER BY nodename`
	err := c.monitor.withConn(ctx, "autoctl_node", "pg_auto_failover", func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, q)
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return all, err
}

// WaitStates waits until the nodes that are named have the states, both assigned
// and confirmed: "n1=primary".
func (c *AutoFailover) WaitStates(ctx context.Context, want ...string) error {
	ctx, cancel := bound(ctx, autoFailoverTimeout)
	defer cancel()
	return poll(ctx, "the states are "+strings.Join(want, " "), 10*pollEvery, func() (bool, error) {
		have, err := c.States(ctx)
		if err != nil {
			return false, err
		}
		for _, w := range want {
			if !slices.Contains(have, w) {
				return false, errors.New(strings.Join(have, " "))
			}
		}
		return true, nil
	})
}

// close stops everybody at once, the monitor last: without it they stop all the same.
func (c *AutoFailover) close() error {
	errs := make([]error, len(c.nodes))
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		wg.Go(func() {
			if p := n.process(); p.alive() {
				errs[i] = p.close(syscall.SIGINT)
			}
		})
	}
	wg.Wait()
	if p := c.monitor.process(); p.alive() {
		errs = append(errs, p.close(syscall.SIGINT))
	}
	return errors.Join(errs...)
}

// accountName is who owns the servers, and so their first superuser.
func (l *Lab) accountName() (string, error) {
	if l.account == nil {
		u, err := user.Current()
		if err != nil {
			return "", fmt.Errorf("lab: %w", err)
		}
		return u.Username, nil
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(l.account.uid), 10))
	if err != nil {
		return "", fmt.Errorf("lab: %w", err)
	}
	return u.Username, nil
}
