package config

import (
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// PgBouncer is a PgBouncer that is told of changes over its admin console.
type PgBouncer struct {
	Name string `yaml:"name"`
	// Address is the path of its UNIX socket or host:port.
	Address      ConsoleAddress `yaml:"address"`
	User         string         `yaml:"user"` // one of its admin_users
	PasswordFile string         `yaml:"password_file" type:"file"`
	SSLMode      SSLMode        `yaml:"sslmode"` // over TCP
	SSLRootCert  string         `yaml:"sslrootcert" type:"file"`
	Timeout      time.Duration  `yaml:"timeout"` // of a login with one exchange
	// Databases are those that lead to a pool.
	Databases []PgBouncerDatabase `yaml:"databases"`
}

// PgBouncerDatabase is a database as clients of PgBouncer call it.
type PgBouncerDatabase struct {
	Name   string  `yaml:"name"`
	Pool   PoolRef `yaml:"pool"`
	DBName string  `yaml:"dbname"` // at the node; empty: Name
}

func (b *PgBouncer) setDefaults() {
	b.User, b.SSLMode, b.Timeout = "pgsteer", SSLPrefer, 2*time.Second
}

// ConsoleAddress is the path of PgBouncer's UNIX socket, or host:port.
type ConsoleAddress string

// UnmarshalText reads an address.
func (a *ConsoleAddress) UnmarshalText(b []byte) error {
	s := string(b)
	switch {
	case strings.Contains(s, "/"):
		port, ok := strings.CutPrefix(filepath.Base(s), ".s.PGSQL.")
		if n, err := strconv.ParseUint(port, 10, 16); !ok || err != nil || n == 0 || !filepath.IsAbs(s) {
			return fmt.Errorf("%q is no socket of PgBouncer such as /run/postgresql/.s.PGSQL.6432", s)
		}
		*a = ConsoleAddress(filepath.Clean(s))
	default:
		at, err := topology.ParseAddress(s)
		if err != nil {
			return fmt.Errorf("%q is neither the path of PgBouncer's socket nor host:port: %w", s, err)
		}
		*a = ConsoleAddress(net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))))
	}
	return nil
}

// PoolRef names one pool of one cluster, written cluster/pool. Zero: none.
type PoolRef struct{ Cluster, Pool string }

// String writes cluster/pool, and nothing for none.
func (r PoolRef) String() string {
	if r == (PoolRef{}) {
		return ""
	}
	return r.Cluster + "/" + r.Pool
}

// MarshalText writes String.
func (r PoolRef) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads cluster/pool.
func (r *PoolRef) UnmarshalText(b []byte) error {
	var n NodeRef // of the same form
	if err := n.UnmarshalText(b); err != nil {
		return fmt.Errorf("%q is not cluster/pool, such as main/primary", b)
	}
	*r = PoolRef{Cluster: n.Cluster, Pool: n.Node}
	return nil
}

// Bouncer returns a PgBouncer by name.
func (c *Config) Bouncer(name string) (PgBouncer, bool) {
	i := slices.IndexFunc(c.PgBouncers, func(b PgBouncer) bool { return b.Name == name })
	if i < 0 {
		return PgBouncer{}, false
	}
	return c.PgBouncers[i], true
}

// pool returns the pool that a reference names.
func (c *Config) pool(r PoolRef) (Pool, error) {
	cl, ok := c.Cluster(r.Cluster)
	if !ok {
		return Pool{}, fmt.Errorf("no such cluster: %s", UnknownWord(r.Cluster, c.ClusterNames()))
	}
	var names []string
	for _, p := range cl.Pools {
		if p.Name == r.Pool {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Pool{}, fmt.Errorf("no such pool in cluster %s: %s", cl.Name, UnknownWord(r.Pool, names))
}

// poolsLegible reports whether the pools of a cluster are all that the file has there,
// or else that there is no such cluster in it.
func (c *Config) poolsLegible(d *decoder, cluster string) bool {
	if _, ok := c.Cluster(cluster); !ok {
		return d.legible("clusters")
	}
	return d.legible(path("clusters").child(cluster).child("pools"))
}

// Mode is the mode of the pool that a database leads to, "" when there is none.
func (c *Config) Mode(r PoolRef) topology.Mode {
	p, _ := c.pool(r)
	return p.Mode
}

// plainDatabase is what PgBouncer takes as the name of an entry in its file; see
// render's pgbouncerName.
var plainDatabase = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,63}$`)

// maxConsoleTimeout bounds PgBouncer.Timeout: a console answers at once, and what takes
// longer is no answer.
const maxConsoleTimeout = time.Minute

func (c *Config) checkPgBouncers(s scope) {
	names, addresses := make(map[string]bool), make(map[ConsoleAddress]string)
	for i, b := range c.PgBouncers {
		in := s.in(strconv.Itoa(i))
		switch {
		case b.Name == "":
			in.fault("name", "a PgBouncer needs a name")
		case topology.CheckName(b.Name) != nil:
			in.fault("name", "%v", topology.CheckName(b.Name))
		case names[b.Name]:
			in.fault("name", "a PgBouncer named %s is there already", b.Name)
		}
		if other, taken := addresses[b.Address]; taken && b.Address != "" {
			in.fault("address", "%s is PgBouncer %s already", b.Address, other)
		}
		names[b.Name], addresses[b.Address] = true, b.Name
		if b.Address == "" {
			in.fault("address", "PgBouncer %s needs an address: where its console is", b.Name)
		}
		if b.User == "" {
			in.fault("user", "user is empty")
		}
		in.positive("timeout", b.Timeout)
		if b.Timeout > maxConsoleTimeout {
			in.fault("timeout", "timeout %s is above %s: whatever waits for a PgBouncer that does not answer waits as long, a switchover among it", b.Timeout, maxConsoleTimeout)
		}
		c.checkDatabases(in, b)
	}
}

func (c *Config) checkDatabases(s scope, b PgBouncer) {
	if len(b.Databases) == 0 {
		s.fault("databases", "PgBouncer %s has no databases: which of its databases lead to which pool?", b.Name)
	}
	seen := make(map[string]bool)
	for i, d := range b.Databases {
		in := s.in("databases").in(strconv.Itoa(i))
		switch {
		case d.Name == "":
			in.fault("name", "a database needs the name that PgBouncer has for it")
		case d.Name == "pgbouncer" || d.Name == "*":
			in.fault("name", "%s is no database of PgBouncer that leads to a pool", d.Name)
		case seen[d.Name]:
			in.fault("name", "database %s is there already", d.Name)
		}
		seen[d.Name] = true
		if d.Pool == (PoolRef{}) {
			in.fault("pool", "pool is missing: cluster/pool, such as main/primary")
		} else if _, err := c.pool(d.Pool); err != nil && c.poolsLegible(s.d, d.Pool.Cluster) {
			in.fault("pool", "%v", err)
		}
	}
}
