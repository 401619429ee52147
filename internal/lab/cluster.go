package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Roles that every cluster has, next to the probe role.
const (
	Superuser = "postgres" // SCRAM; also used for replication and pg_rewind
	AppUser   = "app"      // no password; owns the table writes
)

// defaultProbeUser is the probe role if ClusterOptions names none.
const defaultProbeUser = "pgsteer"

// ClusterOptions says what a cluster looks like. The zero value is good.
type ClusterOptions struct {
	// Name is the cluster's name; empty means "main".
	Name string
	// Nodes is how many nodes there are; 0 means 3.
	Nodes int
	// Settings are added to postgresql.conf of every node.
	Settings map[string]string
	// ProbeUser is the role with pg_monitor and a password; empty means "pgsteer".
	ProbeUser string
	// Authority gives every node a certificate for its name, its address and Names,
	// so that sessions may use TLS; none must. Nil means no TLS.
	Authority *Authority
	// Names are further names in the certificates, by which clients reach the nodes.
	Names []string
	// FollowAfter is how long after a promotion the other nodes learn of it; 0 means at
	// once. What failover managers do then, a start and a new stream or two, is done by
	// other machines in life and takes the new primary's cores here.
	FollowAfter time.Duration
}

// Cluster is a PostgreSQL primary with streaming standbys, all on loopback. The
// nodes are called n1, n2 and so on; n1 is the first primary. Nobody watches
// over it: roles change only by its methods.
//
// In the database "postgres" the role "app" owns the table
//
//	writes(id bigserial PRIMARY KEY, at timestamptz, node int)
//
// where node is the port of the server that took the write.
type Cluster struct {
	lab       *Lab
	name      string
	bin       string // folder of PostgreSQL's programs
	settings  map[string]string
	passwords map[string]string
	probeUser string
	authority *Authority // nil: no TLS
	nodes     []*Node
	follow    time.Duration // after a promotion

	changing sync.Mutex // held by calls that change roles
}

// Cluster starts a cluster and returns when all its standbys stream. Three
// nodes take one to three seconds on two cores.
func (l *Lab) Cluster(ctx context.Context, o ClusterOptions) (*Cluster, error) {
	ctx, cancel := bound(ctx, callTimeout)
	defer cancel()
	bin, err := findPostgres()
	if err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = "main"
	}
	if o.ProbeUser == "" {
		o.ProbeUser = defaultProbeUser
	}
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	c := &Cluster{
		lab: l, name: o.Name, bin: bin, settings: maps.Clone(o.Settings), probeUser: o.ProbeUser, authority: o.Authority, follow: o.FollowAfter,
		passwords: map[string]string{Superuser: rand.Text(), o.ProbeUser: rand.Text()},
	}
	if err := c.makeNodes(o.Nodes, o.Names); err != nil {
		return nil, err
	}
	l.onClose(c.close)
	if err := c.bootstrap(ctx); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", o.Name, err)
	}
	return c, nil
}

func (c *Cluster) makeNodes(n int, names []string) error {
	dir := filepath.Join(c.lab.dir, c.lab.unique("cluster-"+c.name))
	ports, err := c.lab.freePorts(n)
	if err != nil {
		return err
	}
	for i, port := range ports {
		name := fmt.Sprintf("n%d", i+1)
		node := &Node{c: c, name: name, port: port, dir: filepath.Join(dir, name)}
		if err := c.lab.mkdir(node.dir); err != nil {
			return err
		}
		if err := node.certify(names); err != nil {
			return err
		}
		c.nodes = append(c.nodes, node)
	}
	if s := c.nodes[0].socket(); len(s) > maxSocketPath {
		return fmt.Errorf("lab: %s is longer than the %d bytes that a socket's path may have: use a shorter folder", s, maxSocketPath)
	}
	return nil
}

func (c *Cluster) bootstrap(ctx context.Context) error {
	first := c.nodes[0]
	if err := first.initdb(ctx); err != nil {
		return err
	}
	if err := first.Start(ctx); err != nil {
		return err
	}
	if err := createRoles(ctx, first.DSN(Superuser), c.probeUser, c.passwords[c.probeUser]); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, n := range c.nodes[1:] {
		g.Go(func() error {
			if err := n.clone(ctx, first); err != nil {
				return err
			}
			if err := n.Start(ctx); err != nil {
				return err
			}
			return n.waitStreaming(ctx, first)
		})
	}
	return g.Wait()
}

// createRoles makes the roles and the table that the package promises.
func createRoles(ctx context.Context, dsn, probeUser, password string) error {
	conn, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	probe := quoteIdent(probeUser)
	for _, sql := range []string{
		"CREATE ROLE " + probe + " LOGIN PASSWORD " + quoteLiteral(password),
		"GRANT pg_monitor TO " + probe,
		"CREATE ROLE app LOGIN",
		"CREATE TABLE writes (id bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp()," +
			" node int DEFAULT inet_server_port())",
		"ALTER TABLE writes OWNER TO app",
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("lab: %s: %w", sql, err)
		}
	}
	return nil
}

// close stops all nodes at once: a primary's fast stop waits until its standbys
// have received everything or gone.
func (c *Cluster) close() error {
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
	return errors.Join(errs...)
}

// Name returns the cluster's name.
func (c *Cluster) Name() string { return c.name }

// ProbeUser returns the name of the role that has pg_monitor and a password.
func (c *Cluster) ProbeUser() string { return c.probeUser }

// Password returns the password of a role; it is empty for the role "app",
// which needs none, and for unknown roles.
func (c *Cluster) Password(role string) string { return c.passwords[role] }

// Nodes returns all nodes in the order of their names.
func (c *Cluster) Nodes() []*Node { return slices.Clone(c.nodes) }

// Node returns the node of that name, or nil.
func (c *Cluster) Node(name string) *Node {
	for _, n := range c.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// Primary asks all nodes by SQL and returns the one that is not in recovery; of
// several, the one on the highest timeline. It returns nil if there is none. A
// frozen node, and one that does not answer within 5 seconds, is no primary.
func (c *Cluster) Primary() *Node {
	n, _ := c.primary(context.Background(), nil)
	return n
}

// primary is Primary without one node.
func (c *Cluster) primary(ctx context.Context, except *Node) (*Node, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	timelines := make([]int64, len(c.nodes)) // 0: no primary
	errs := make([]error, len(c.nodes))
	var wg sync.WaitGroup
	for i, n := range c.nodes {
		if n == except || !n.process().usable() {
			continue
		}
		wg.Go(func() { timelines[i], errs[i] = n.writeTimeline(ctx) })
	}
	wg.Wait()
	if best := slices.Max(timelines); best > 0 {
		return c.nodes[slices.Index(timelines, best)], nil
	}
	return nil, errors.Join(fmt.Errorf("lab: cluster %s has no primary", c.name), errors.Join(errs...))
}

// node is Node with an error.
func (c *Cluster) node(name string) (*Node, error) {
	if n := c.Node(name); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("lab: cluster %s has no node %q", c.name, name)
}

func quoteIdent(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }

func quoteLiteral(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
