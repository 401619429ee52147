package lab

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"
)

// patroniTimeout is for a Patroni call whose context has no deadline.
const patroniTimeout = 3 * time.Minute

// lookAgain is how long a standby may be without its primary before its Patroni is
// made to look: longer than some loops of Patroni, shorter than a test is patient.
const lookAgain = 5 * time.Second

// PatroniOptions says what a Patroni cluster looks like. Consul is needed.
type PatroniOptions struct {
	// Scope is the cluster's name; empty means "main".
	Scope string
	// Nodes is how many nodes there are; 0 means 3.
	Nodes int
	// Consul holds the cluster's keys, below service/<scope>/.
	Consul *Consul
	// DCS is the dynamic configuration, over these defaults: ttl 20, loop_wait 1,
	// retry_timeout 3, maximum_lag_on_failover 1048576. Consul keeps a session for
	// up to twice its ttl, which is half of Patroni's.
	DCS map[string]any
	// Tags are the tags of each node, by its name.
	Tags map[string]map[string]any
	// Release is which Patroni runs: empty means the system's, else [Patroni4].
	Release string
	// Idle is how many of the nodes, the last ones, are left for PatroniNode.Start.
	Idle int
	// StandbyOf makes it a standby cluster of another one, whose roles it has too.
	// It follows that one's first node, whatever its role.
	StandbyOf *Patroni
}

// Replicator is the role that Patroni's standbys stream as.
const Replicator = "replicator"

// Patroni is a cluster run by Patroni. Roles and table are those of a Cluster;
// the probe role is "pgsteer".
type Patroni struct {
	lab       *Lab
	program   patroniProgram
	pgbin     string // folder of PostgreSQL's programs
	scope     string
	passwords map[string]string
	nodes     []*PatroniNode
}

// Patroni starts a cluster and returns when it has a leader, n1, and all
// replicas run; two nodes take about ten seconds on two cores.
func (l *Lab) Patroni(ctx context.Context, o PatroniOptions) (*Patroni, error) {
	ctx, cancel := bound(ctx, patroniTimeout)
	defer cancel()
	program, err := l.patroniProgram(o.Release)
	if err != nil {
		return nil, err
	}
	pgbin, err := findPostgres()
	if err != nil {
		return nil, err
	}
	if o.Consul == nil {
		return nil, errors.New("lab: Patroni needs a Consul")
	}
	if o.Scope == "" {
		o.Scope = "main"
	}
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	c := &Patroni{lab: l, program: program, pgbin: pgbin, scope: o.Scope, passwords: map[string]string{
		Superuser: rand.Text(), defaultProbeUser: rand.Text(), Replicator: rand.Text(),
	}}
	if o.StandbyOf != nil {
		c.passwords = o.StandbyOf.passwords
	}
	if err := c.makeNodes(o); err != nil {
		return nil, err
	}
	l.onClose(c.close)
	if err := c.bootstrap(ctx, o); err != nil {
		return nil, fmt.Errorf("patroni %s: %w", o.Scope, err)
	}
	return c, nil
}

func (c *Patroni) makeNodes(o PatroniOptions) error {
	dir := filepath.Join(c.lab.dir, c.lab.unique("patroni-"+c.scope))
	for i := range o.Nodes {
		ports, err := c.lab.freePorts(2)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("n%d", i+1)
		n := &PatroniNode{c: c, name: name, dir: filepath.Join(dir, name), pg: ports[0], rest: ports[1]}
		if err := c.lab.mkdir(n.dir); err != nil {
			return err
		}
		if err := errors.Join(n.makeGates(), n.writeConfig(o)); err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
	}
	return nil
}

// bootstrap starts n1 alone, so that it becomes the leader, and then the others.
func (c *Patroni) bootstrap(ctx context.Context, o PatroniOptions) error {
	first := c.nodes[0]
	if err := first.Start(ctx); err != nil {
		return err
	}
	err := poll(ctx, "n1 leads", 5*pollEvery, func() (bool, error) {
		if err := first.process().died(); err != nil {
			return false, err
		}
		leader, err := c.Leader(ctx)
		return leader == first, err
	})
	if err != nil {
		return err
	}
	if o.StandbyOf == nil {
		if err := createRoles(ctx, first.DSN(Superuser), defaultProbeUser, c.passwords[defaultProbeUser]); err != nil {
			return err
		}
	}
	for _, n := range c.nodes[1 : len(c.nodes)-o.Idle] {
		if err := n.Start(ctx); err != nil {
			return err
		}
	}
	return c.WaitRunning(ctx)
}

// writeConfig writes patroni.yml, as JSON, which is YAML.
func (n *PatroniNode) writeConfig(o PatroniOptions) error {
	type m = map[string]any
	c := n.c
	dcs := m{"ttl": 20, "loop_wait": 1, "retry_timeout": 3, "maximum_lag_on_failover": 1 << 20}
	maps.Copy(dcs, o.DCS)
	if dcs["postgresql"] == nil {
		dcs["postgresql"] = m{"use_pg_rewind": true, "parameters": m{"wal_keep_size": "256MB", "wal_log_hints": "on"}}
	}
	if o.StandbyOf != nil {
		dcs["standby_cluster"] = m{"host": "127.0.0.1", "port": o.StandbyOf.nodes[0].pg, "create_replica_methods": []string{"basebackup"}}
	}
	super := m{"username": Superuser, "password": c.passwords[Superuser]}
	replicator := m{"username": Replicator, "password": c.passwords[Replicator]}
	b, err := json.MarshalIndent(m{
		"scope": c.scope, "name": n.name, "namespace": "/service/",
		"restapi": m{"listen": n.RESTAddr(), "connect_address": n.RESTAddr()},
		"consul":  m{"host": o.Consul.Addr()},
		"bootstrap": m{
			"dcs":    dcs,
			"initdb": []any{m{"encoding": "UTF8"}, m{"locale": "C"}, "data-checksums", "no-sync"},
		},
		"postgresql": m{
			"listen": n.Addr(), "connect_address": n.Addr(), "data_dir": n.DataDir(), "bin_dir": n.binDir(),
			"pre_promote": n.prePromote(),
			"pgpass":      filepath.Join(n.dir, "pgpass"), "basebackup": []any{m{"checkpoint": "fast"}, "no-sync"},
			"authentication": m{"superuser": super, "replication": replicator, "rewind": super},
			"parameters": m{
				"unix_socket_directories": c.lab.sockets, "fsync": "off", "shared_buffers": "16MB",
				"log_line_prefix": "%m [%p] %q%u@%d ", "password_encryption": "scram-sha-256", "wal_retrieve_retry_interval": "200ms",
			},
			"pg_hba": hbaLines(),
		},
		"tags": o.Tags[n.name],
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("lab: patroni %s/%s: %w", c.scope, n.name, err)
	}
	return c.lab.write(n.ConfigFile(), string(b))
}

// close stops all nodes at once, the leader as well as the replicas.
func (c *Patroni) close() error {
	errs := make([]error, len(c.nodes))
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		wg.Go(func() {
			if p := n.process(); p.alive() {
				errs[i] = p.close(syscall.SIGTERM)
			}
			if pg := n.Postgres(); pg.PID() != 0 { // Patroni was killed, or left it alone
				errs[i] = errors.Join(errs[i], pg.Kill())
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Scope returns the cluster's name.
func (c *Patroni) Scope() string { return c.scope }

// ProbeUser returns "pgsteer", the role that has pg_monitor and a password.
func (c *Patroni) ProbeUser() string { return defaultProbeUser }

// Password returns the password of a role, as Cluster.Password does.
func (c *Patroni) Password(role string) string { return c.passwords[role] }

// Nodes returns all nodes in the order of their names.
func (c *Patroni) Nodes() []*PatroniNode { return slices.Clone(c.nodes) }

// Node returns the node of that name, or nil.
func (c *Patroni) Node(name string) *PatroniNode {
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// Member is what Patroni's REST API says of a node.
type Member struct {
	Name  string `json:"name"`
	Role  string `json:"role"`  // "leader", "replica", "sync_standby" …
	State string `json:"state"` // "running", "streaming", "stopped" …
}

// runs reports whether PostgreSQL takes queries there.
func (m Member) runs() bool {
	return m.State == "running" || m.State == "streaming" || m.State == "in archive recovery"
}

// Members asks the REST APIs one after another until one answers.
func (c *Patroni) Members(ctx context.Context) ([]Member, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	var errs []error
	for _, n := range c.nodes {
		if !n.process().usable() {
			continue
		}
		members, err := n.members(ctx)
		if err == nil {
			return members, nil
		}
		errs = append(errs, fmt.Errorf("node %s: %w", n.name, err))
	}
	return nil, errors.Join(append(errs, fmt.Errorf("lab: patroni %s: nobody says who is in the cluster", c.scope))...)
}

func (n *PatroniNode) members(ctx context.Context) ([]Member, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	out, err := n.REST(ctx, http.MethodGet, "/cluster", "")
	if err != nil {
		return nil, err
	}
	var v struct {
		Members []Member `json:"members"`
	}
	err = json.Unmarshal([]byte(out), &v)
	return v.Members, err
}

// Leader returns the node that Patroni calls the leader, or the standby leader,
// and running, or nil with an error.
func (c *Patroni) Leader(ctx context.Context) (*PatroniNode, error) {
	members, err := c.Members(ctx)
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if (m.Role == "leader" || m.Role == "standby_leader") && m.runs() {
			return c.Node(m.Name), nil
		}
	}
	return nil, fmt.Errorf("lab: patroni %s has no running leader: %v", c.scope, members)
}

// WaitRunning waits until there is a leader and every node whose Patroni is
// usable (started and not frozen) runs. What Consul has of a node may be from
// before a change of roles, so each is asked itself too.
func (c *Patroni) WaitRunning(ctx context.Context) error {
	ctx, cancel := bound(ctx, patroniTimeout)
	defer cancel()
	return poll(ctx, "a leader and all replicas run", 5*pollEvery, func() (bool, error) {
		if _, err := c.Leader(ctx); err != nil {
			return false, err
		}
		members, err := c.Members(ctx)
		if err != nil {
			return false, err
		}
		running := map[string]bool{}
		for _, m := range members {
			running[m.Name] = m.runs()
		}
		for _, n := range c.nodes {
			if n.process().usable() && !running[n.name] {
				return false, fmt.Errorf("members %v", members)
			}
		}
		err = c.healthy(ctx)
		return err == nil, err
	})
}

// WaitStreaming waits until every usable node but the leader has a WAL receiver
// that streams. Patroni 3.0.2 can leave a standby without a primary for good: it
// reads the settings of its server once per change of the files' times, also when
// it has just changed them and the server has not taken them yet, which happens
// when the leader key is absent for a moment. Such a one is made to look again.
func (c *Patroni) WaitStreaming(ctx context.Context) error {
	ctx, cancel := bound(ctx, patroniTimeout)
	defer cancel()
	looked := time.Now()
	return poll(ctx, "all standbys stream", 5*pollEvery, func() (bool, error) {
		var errs []error
		again := time.Since(looked) > lookAgain
		for _, n := range c.nodes {
			if !n.process().usable() {
				continue
			}
			err := n.streams(ctx)
			if err != nil && again {
				looked = time.Now()
				now := time.Now()
				err = errors.Join(err, os.Chtimes(filepath.Join(n.DataDir(), "postgresql.auto.conf"), now, now))
			}
			errs = append(errs, err)
		}
		err := errors.Join(errs...)
		return err == nil, err
	})
}

// streams returns why a node is neither a primary nor a standby that streams.
func (n *PatroniNode) streams(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	conn, err := n.Conn(ctx)
	if err != nil {
		return err
	}
	defer closeQuietly(conn)
	var ok bool
	var primary string
	err = conn.QueryRow(ctx, `SELECT NOT pg_is_in_recovery() OR EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'),
		regexp_replace(current_setting('primary_conninfo'), 'passfile=\S+', '')`).Scan(&ok, &primary)
	if err == nil && !ok {
		err = fmt.Errorf("no WAL receiver streams, primary_conninfo is %q; its log ends with %s", primary, tail(n.LogFile(), 6))
	}
	if err != nil {
		return fmt.Errorf("lab: patroni %s/%s: %w", n.c.scope, n.name, err)
	}
	return nil
}

// healthy returns why a usable node says that its PostgreSQL does not run.
func (c *Patroni) healthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	for _, n := range c.nodes {
		if !n.process().usable() {
			continue
		}
		if _, err := n.REST(ctx, http.MethodGet, "/health", ""); err != nil {
			return err
		}
	}
	return nil
}

// Switchover has Patroni move the leader to a node, and returns when that one
// leads and all nodes run.
func (c *Patroni) Switchover(ctx context.Context, to string) error {
	ctx, cancel := bound(ctx, patroniTimeout)
	defer cancel()
	leader, err := c.Leader(ctx)
	if err != nil {
		return err
	}
	body := fmt.Sprintf(`{"leader":%q,"candidate":%q}`, leader.name, to)
	if _, err := leader.REST(ctx, http.MethodPost, "/switchover", body); err != nil {
		return fmt.Errorf("lab: patroni %s: switchover to %s: %w", c.scope, to, err)
	}
	if err := c.WaitLeader(ctx, to); err != nil {
		return err
	}
	return c.WaitRunning(ctx)
}

// WaitLeader waits until a node leads and is running.
func (c *Patroni) WaitLeader(ctx context.Context, name string) error {
	ctx, cancel := bound(ctx, patroniTimeout)
	defer cancel()
	return poll(ctx, name+" leads", 5*pollEvery, func() (bool, error) {
		leader, err := c.Leader(ctx)
		return leader != nil && leader.name == name, err
	})
}
