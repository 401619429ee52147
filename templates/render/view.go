package render

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// View is what a template sees as ".". It is made for one rendering and shares
// no memory with what it was made from.
type View struct {
	Clusters []Cluster // by name
	// Agent is the agent-check listener; invalid when there is none.
	Agent   netip.AddrPort
	Options Options           // every default filled in
	Vars    map[string]string // the operator's own values
	// Databases are those of the PgBouncer that reads the file; see Leads.
	Databases []Database
	// LeftOut says, a sentence each and sorted, which nodes and tags no file can
	// hold and why; everything else is here. It is for the log.
	LeftOut []string
}

// Cluster is one primary and its replicas.
type Cluster struct {
	Name  string
	Pools []Pool // by name
}

// Pool is a routing target. Every node of the cluster is a server of every
// pool: which of them serves is for the balancer's checks to ask.
type Pool struct {
	Cluster string
	Name    string
	Mode    topology.Mode
	Listen  []netip.AddrPort // where the balancer offers it; may be empty
	Refuse  netip.AddrPort   // where clients are told why no node takes them; may be invalid
	Servers []Server         // by name; may be empty
	// Serving is the one server for programs that have no checks, such as PgBouncer:
	// the writer, or one that is up in a read pool. Only files that are marked to name
	// roles have it; else it is empty.
	Serving []Server
}

// IsWrite reports whether the pool's mode is write.
func (p Pool) IsWrite() bool { return p.Mode == topology.ModeWrite }

// ID is the pool's name among all clusters, "cluster_pool": the names of the
// built-in templates are made of it.
func (p Pool) ID() string { return p.Cluster + "_" + p.Name }

// Server is a node as a server of one pool.
type Server struct {
	Cluster string
	Pool    string
	Name    string // the node's name
	// Host is a literal IP without brackets, or a DNS name; Port is 1 to 65535, and
	// the pool's own where it has one.
	Host string
	Port uint16
	// Address is host and port when Host is a literal IP, else invalid.
	Address netip.AddrPort
	Zone    string            // the tag "zone", "" when there is none
	Tags    map[string]string // of the node; a missing one is an error, so use index
}

// TagZone is the tag that says where a node stands.
const TagZone = "zone"

// ViewOf builds the view of some clusters. The order of the snapshots does not
// matter. Servers are the snapshots' nodes, whatever their verdicts, but for
// what LeftOut names.
func ViewOf(snaps []*topology.Snapshot, s Settings) View {
	v := View{Agent: s.Agent, Options: s.Options.withDefaults(), Vars: maps.Clone(s.Vars), Databases: slices.Clone(s.Databases)}
	if v.Vars == nil {
		v.Vars = map[string]string{}
	}
	for _, snap := range snaps {
		v.addCluster(snap, s)
	}
	slices.SortFunc(v.Clusters, func(a, b Cluster) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(v.LeftOut)
	return v
}

func (v *View) addCluster(snap *topology.Snapshot, s Settings) {
	c := Cluster{Name: snap.Cluster}
	nodes := v.usable(snap)
	for _, n := range nodes {
		if _, literal := n.Address.IP(); !literal && n.Address.Check() == nil {
			v.leaveOut("node %s has no address yet, since its name %s is not resolved: the built-in files go without it",
				quoted(snap.Cluster+"/"+n.Name), quoted(n.Address.Host))
		}
	}
	for _, p := range snap.Pools {
		pool := Pool{Cluster: snap.Cluster, Name: p.Pool, Mode: p.Mode}
		pool.Listen = slices.SortedFunc(slices.Values(s.Listen[PoolID{snap.Cluster, p.Pool}]), netip.AddrPort.Compare)
		pool.Refuse = s.Refuse[PoolID{snap.Cluster, p.Pool}]
		for _, n := range nodes {
			n.Address = offered(p, n)
			if err := n.Address.Check(); err != nil {
				v.leaveOut("node %s of pool %s is left out: %v", quoted(snap.Cluster+"/"+n.Name), p.Pool, err)
				continue
			}
			pool.Servers = append(pool.Servers, serverOf(n, pool))
		}
		if s.Roles {
			pool.Serving = serving(p, pool, s.Before[PoolID{snap.Cluster, p.Pool}])
		}
		c.Pools = append(c.Pools, pool)
	}
	slices.SortFunc(c.Pools, func(a, b Pool) int { return cmp.Compare(a.Name, b.Name) })
	v.Clusters = append(v.Clusters, c)
}

// offered is where a pool's sessions at a node go: the pool may have a port of
// its own, such as that of a PgBouncer (field report FR-23).
func offered(p topology.PoolVerdicts, n topology.Node) topology.Address {
	if v, judged := p.Verdict(n.Name); judged && !v.Address.IsZero() {
		return v.Address
	}
	return n.Address
}

func serverOf(n topology.Node, p Pool) Server {
	s := Server{
		Cluster: p.Cluster, Pool: p.Name, Name: n.Name,
		Host: n.Address.Host, Port: n.Address.Port,
		Zone: n.Tags[TagZone], Tags: map[string]string{},
	}
	maps.Copy(s.Tags, n.Tags)
	if ip, ok := n.Address.IP(); ok {
		s.Host = ip.String()
		s.Address = netip.AddrPortFrom(ip, n.Address.Port)
	}
	return s
}

// Check reports every fault of a view that makes it unfit for any file: illegal
// or ambiguous names, addresses nobody can route to, tags with control
// characters. Render calls it. Of nodes, ViewOf leaves out what it would refuse.
func (v View) Check() error {
	var errs []error
	clusters, pools := unique{}, unique{}
	for _, c := range v.Clusters {
		errs = append(errs, checkName("cluster", c.Name), clusters.add("cluster", c.Name, c.Name))
		for _, p := range c.Pools {
			where := c.Name + "/" + p.Name
			errs = append(errs, checkName("pool of cluster "+quoted(c.Name), p.Name),
				pools.add("pool", p.ID(), where), p.check(where))
		}
	}
	return errors.Join(errs...)
}

func (p Pool) check(where string) error {
	if p.Mode != topology.ModeWrite && p.Mode != topology.ModeRead {
		return fmt.Errorf("pool %s has mode %q, which is neither write nor read", quoted(where), p.Mode)
	}
	var errs []error
	// Names of nodes that differ by case only stay two: HAProxy and its like tell
	// them apart, and whoever left one out here could leave out the writer.
	names := map[string]bool{}
	for _, s := range p.Servers {
		errs = append(errs, checkName("node of "+quoted(where), s.Name))
		if names[s.Name] {
			errs = append(errs, fmt.Errorf("node %s is there twice", quoted(where+"/"+s.Name)))
		}
		names[s.Name] = true
		if err := (topology.Address{Host: s.Host, Port: s.Port}).Check(); err != nil {
			errs = append(errs, fmt.Errorf("node %s: %w", quoted(where+"/"+s.Name), err))
		}
		for _, k := range slices.Sorted(maps.Keys(s.Tags)) {
			if hasControl(k) || hasControl(s.Tags[k]) {
				errs = append(errs, fmt.Errorf("node %s: tag %s has a line break or another control character",
					quoted(where+"/"+s.Name), quoted(k)))
			}
		}
	}
	return errors.Join(errs...)
}

// unique finds names that programs which ignore case, or which join names with
// an underscore, could not tell apart.
type unique map[string]string

func (u unique) add(kind, name, where string) error {
	key := strings.ToLower(name)
	if other, ok := u[key]; ok {
		return fmt.Errorf("the %ss %s and %s cannot be told apart in a file: both are called %s there",
			kind, quoted(other), quoted(where), quoted(key))
	}
	u[key] = where
	return nil
}

func checkName(kind, name string) error {
	if err := topology.CheckName(name); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}
