package config

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Monitor says where pg_auto_failover's monitor is, how to log in to it, and which
// of its groups the cluster is.
type Monitor struct {
	// Monitors are addresses of the monitor; the first that answers counts.
	Monitors  []topology.Address `yaml:"monitors"`
	Formation string             `yaml:"formation"`
	Group     int                `yaml:"group"`

	User         string  `yaml:"user"`
	Database     string  `yaml:"database"`
	PasswordFile string  `yaml:"password_file" type:"file"`
	SSLMode      SSLMode `yaml:"sslmode"`
	SSLRootCert  string  `yaml:"sslrootcert" type:"file"`
	SSLCert      string  `yaml:"sslcert" type:"file"`
	SSLKey       string  `yaml:"sslkey" type:"file"`

	Interval time.Duration `yaml:"interval"` // between two reads that nothing asked for
	Timeout  time.Duration `yaml:"timeout"`  // of a login, and of each question

	// Addresses are where clients reach nodes, by the address that the monitor has.
	Addresses Addresses `yaml:"addresses"`

	// Password is the content of PasswordFile; only Load fills it.
	Password Secret `yaml:"-"`
}

// Addresses is a map of addresses; nil when nothing is written.
type Addresses map[topology.Address]topology.Address

func defaultMonitor() Monitor {
	return Monitor{
		Formation: "default", User: "pgsteer", Database: "pg_auto_failover", SSLMode: SSLPrefer,
		Interval: 2 * time.Second, Timeout: 2 * time.Second,
	}
}

// Login is how to log in, in the form of a node's.
func (m Monitor) Login() Postgres {
	return Postgres{
		User: m.User, Database: m.Database, PasswordFile: m.PasswordFile, Password: m.Password,
		SSLMode: m.SSLMode, SSLRootCert: m.SSLRootCert, SSLCert: m.SSLCert, SSLKey: m.SSLKey,
	}
}

func (m Monitor) check(s scope) {
	for _, key := range []struct{ name, is string }{{"formation", m.Formation}, {"user", m.User}, {"database", m.Database}} {
		if key.is == "" {
			s.fault(key.name, "%s is empty", key.name)
		}
	}
	if len(m.Monitors) == 0 {
		s.fault("monitors", "`authority: pg_auto_failover` needs `monitors`: where its monitor listens, such as [10.0.0.9:5432]")
	}
	for i, a := range m.Monitors {
		if slices.Contains(m.Monitors[:i], a) {
			s.in("monitors").fault(strconv.Itoa(i), "monitor %s is listed twice", a)
		}
	}
	s.pair("sslcert", "sslkey", m.SSLCert, m.SSLKey)
	s.positive("interval", m.Interval)
	s.positive("timeout", m.Timeout)
	reached := make(map[topology.Address]string)
	for _, from := range sortedAddresses(m.Addresses) {
		to := m.Addresses[from]
		if other, taken := reached[to]; taken {
			s.in("addresses").fault(from.String(), "%s is where clients reach %s already: one server cannot be two nodes", to, other)
		}
		reached[to] = from.String()
	}
}

func sortedAddresses(m Addresses) []topology.Address {
	all := make([]topology.Address, 0, len(m))
	for a := range m {
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b topology.Address) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// checkGroup refuses a group that another cluster is already. groups is by
// monitor, formation and group, with the cluster.
func (m Monitor) checkGroup(s scope, cluster string, groups map[string]string) {
	for _, a := range m.Monitors {
		id := strings.Join([]string{a.String(), m.Formation, strconv.Itoa(m.Group)}, "\x00")
		if other, taken := groups[id]; taken && other != cluster {
			s.fault("group", "formation %s, group %d of the monitor at %s is cluster %s already", m.Formation, m.Group, a, other)
		}
		groups[id] = cluster
	}
}
