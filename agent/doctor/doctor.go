// Package doctor looks at everything that pgsteer needs around it, and says what is
// wrong and what to do: rights, ports, versions, files, clocks.
//
// Guarantees: a look changes nothing, neither here nor at a server: one login per
// node, role, monitor and PgBouncer, three SHOWs at each PgBouncer, two questions per
// socket of HAProxy, one read per prefix of Consul and a question for its token's
// rights, and a file made and removed in the state folder. No command is run but
// `haproxy -v`. Every question has a deadline, and one that hangs delays no other of
// its kind. What could not be found out is a warning and never OK.
package doctor

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/haproxycli"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// Level says how bad a finding is.
type Level string

// The levels.
const (
	OK   Level = "OK"
	Warn Level = "WARN" // works, or may work, with a risk that Do names
	Fail Level = "FAIL" // something that is configured cannot work
)

// Result is one finding.
type Result struct {
	Check   string `json:"check"`
	Subject string `json:"subject,omitempty"` // a node, a file, an address; empty: the whole
	Level   Level  `json:"level"`
	Tried   string `json:"tried"`
	Found   string `json:"found"`
	Do      string `json:"do,omitempty"` // empty when it is OK
}

// Check is one row of the manual: what is looked at, and why.
type Check struct {
	Name, Doc string

	run func(context.Context, *exam) []Result
}

// Checks is everything that is looked at, in this order.
var Checks = []Check{
	{"state-folder", "The folder of the saved state can be written: what is not saved is not known after a restart.", stateFolder},
	{"secrets", "Files with passwords, tokens and keys can be read by this user, and by few others.", secrets},
	{"certificates", "Certificates that the configuration names are valid, and for two weeks more.", certificates},
	{"limits", "There are file descriptors for every node, agent check and stream, and Consul's 200 connections per client address suffice.", limits},
	{"names", "Nodes and monitors that are given by name can be resolved.", names},
	{"agent", "The running agent, if there is one, took its configuration, hears its sources, keeps its sinks fed, and had no template's files refused.", runningAgent},
	{"listeners", "Every listener can be bound, or is the running agent's own.", listeners},
	{"refuse", "The address of each pool's `refuse` can be bound, or is the running agent's own, and the balancers that are told of it can come there: an Envoy of another host that is told a loopback address finds its own host.", refusals},
	{"pool-ports", "Somebody listens where pools are offered to clients.", poolPorts},
	{"haproxy-program", "The installed HAProxy has no known fault that pgsteer cannot avoid.", haproxyProgram},
	{"haproxy-socket", "Each admin socket answers, has level admin, and belongs to a version without such a fault.", haproxySockets},
	{"haproxy-master", "Each master socket answers as one, its last reload went through, and few old workers are left. HAProxy that `reload` or `reload_unit` reloads has one: without it a reload that does nothing is not made good.", haproxyMasters},
	{"haproxy-file", "HAProxy's files hold none of the settings that are known to misroute: an external-check that cannot run, a state file, pgsql-check, agent-check without agent-send, an agent-inter above half of policy.min_down.", haproxyFiles},
	{"reload-unit", "systemd has the units of reload_unit, and they can be reloaded. Whether polkit lets the agent's user do it cannot be asked: that stays a warning unless doctor runs as root.", reloadUnits},
	{"login", "The probe role can log in to each node: network, pg_hba.conf, password, TLS, database, free slots.", logins},
	{"probe-role", "The probe role has pg_monitor, no right beyond it, and a connection limit that leaves slots to others.", probeRole},
	{"tls", "The session to each node is encrypted, unless it stays on this host or sslmode says otherwise.", nodeTLS},
	{"slots", "Each node has connection slots left.", slots},
	{"session-role", "The role of `maintenance.sessions` can log in to each node, see all sessions there, and end them.", sessionRole},
	{"clock", "This host's clock and those of the nodes agree: moments of one are shown beside those of the other.", clocks},
	{"monitor", "pg_auto_failover's monitor can be read, knows the group, is of a known version, and its role can do no more than read.", monitors},
	{"pgbouncer", "Each PgBouncer's console answers, its login is one of admin_users, as PAUSE, RESUME and RECONNECT need, its version has RECONNECT (1.9; 1.18 was tried), and clients do not wait long after a failed connection.", pgBouncers},
	{"pgbouncer-databases", "Each PgBouncer has the databases that are configured for it, and none is paused or disabled: what it does not have can be neither held nor turned to a new writer.", bouncerDatabases},
	{"switchover-command", "The program of each `switchover.command` is there and this user may run it, with the interpreter that a script names. It is never run.", switchoverCommands},
	{"maintenance-store", "Where Consul is configured, the records of `pgsteer maintenance` lie there: of what one agent has in a file no other agent knows, and goes on serving it.", maintenanceStore},
	{"consul", "Consul answers, and the token may read every key that is watched.", consulReads},
	{"consul-token", "With ACLs on, Consul's token has every right that watching, maintenance and publishing need; `pgsteer doctor --acl` prints them.", consulRights},
}

// Options says what to look at, and how. Config and Now are required; what reaches
// out may be left nil, and is then not looked at.
type Options struct {
	Config *config.Config
	Now    func() time.Time
	Getenv func(string) string
	// Agent asks the running agent; nil in its answer: none runs.
	Agent func(context.Context) *Agent
	// Login logs in to a node as the agent does.
	Login func(context.Context, string, topology.Node) (Session, *topology.Failure)
	// Ender logs in to a node as the role that ends sessions; nil: there is none.
	Ender func(context.Context, string, topology.Node) (Session, *topology.Failure)
	// Monitor logs in to a cluster's monitor of pg_auto_failover as the agent does.
	Monitor func(ctx context.Context, cluster string, at topology.Address) (Session, *topology.Failure)
	// Console logs in to the console of a PgBouncer as the agent does.
	Console func(context.Context, config.PgBouncer) (Console, error)
	// Lookup resolves a name.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Unit asks systemd for a unit.
	Unit func(ctx context.Context, name string) (Unit, error)
	// Consul lists what a prefix of keys holds.
	Consul func(ctx context.Context, prefix string) (ConsulAnswer, error)
	// Lacking asks Consul which of these rights the token does not have.
	Lacking func(ctx context.Context, rights []consul.Right) ([]consul.Right, error)
	// Output runs a program and returns what it printed.
	Output func(ctx context.Context, name string, args ...string) (string, error)
	// Dial opens connections; nil: the operating system's.
	Dial haproxycli.Dialer
	// HAProxyFiles are further files of HAProxy's configuration; those of the
	// templates are known.
	HAProxyFiles []string
	// FileLimit is how many descriptors an agent that does not run may have; zero: as
	// many as this process.
	FileLimit uint64
}

// Agent is what a running agent says of itself.
type Agent struct {
	// Silent is set when an agent was reached and did not answer; the rest is empty.
	Silent      error
	Version     string
	ConfigError string
	Listeners   map[string]string // address by name
	Failing     map[string]string // trouble by sink or source
	// Nodes are those that its sources list, by cluster.
	Nodes map[string][]topology.Node
	// Files is how many descriptors it has open, FileLimit how many it may have; zero:
	// it does not say.
	Files, FileLimit uint64
}

// Session is a login at a node.
type Session interface {
	// Value asks a question whose answer is one row of one column.
	Value(ctx context.Context, sql string) (string, error)
	Close()
}

// ConsulAnswer is what a read of a prefix tells.
type ConsulAnswer struct {
	Keys int
	// Filtered: the token hid some of it.
	Filtered bool
}

// patience bounds each question.
const patience = 3 * time.Second

// Run makes every check.
func Run(ctx context.Context, o Options) []Result {
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	x := &exam{Options: o}
	var all []Result
	for _, c := range Checks {
		for _, r := range c.run(ctx, x) {
			r.Check = c.Name
			all = append(all, r)
		}
	}
	return all
}

// Worst is the highest level of all results.
func Worst(results []Result) Level {
	worst := OK
	for _, r := range results {
		if r.Level == Fail || r.Level == Warn && worst == OK {
			worst = r.Level
		}
	}
	return worst
}

// exam is one run, and what its checks have found out for one another.
type exam struct {
	Options

	agent *Agent // of runningAgent
	asked bool
	seen  []node // of logins; in the order of clusters and nodes

	pgbouncers []bouncer // of bouncers; in the order of the configuration
}

func (x *exam) ask(ctx context.Context) *Agent {
	if !x.asked && x.Agent != nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		x.agent = x.Agent(ctx)
	}
	x.asked = true
	return x.agent
}
