package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
	"github.com/pgsteer/pgsteer/watchers/consul"
	"github.com/pgsteer/pgsteer/watchers/file"
	"github.com/pgsteer/pgsteer/watchers/patroni"
	"github.com/pgsteer/pgsteer/watchers/postgres"
	"github.com/pgsteer/pgsteer/watchers/resolve"
)

// watch runs the sources of one cluster: those of the configuration, and a
// prober for each node that the state lists, at the pace that it demands.
type watch struct {
	cluster config.Cluster
	now     topology.Ticker
	base    *slog.Logger // for sources, which name the cluster themselves
	log     *slog.Logger
	report  func(context.Context) func(topology.Observation)
	// tls makes the TLS configuration for a node's host; nil: without TLS.
	tls func(host string) *tls.Config
	// password is asked before each login; nil: there is none.
	password func() string
	// monitorPassword is that of pg_auto_failover's monitor.
	monitorPassword func() string
	// agent is the row that the write probe writes: agents that wrote the same one
	// would wait for one another.
	agent string
	// authority is nil unless the cluster has one.
	authority authoritySource
	sources   map[topology.SourceID]*resolve.Source

	static *file.Source // nil unless the configuration lists nodes
	// bursts is the agent's; nil: without bounds, for a watch that is only looked at.
	bursts *burstBudget

	// These belong to the state goroutine.
	burst  int               // what it has of bursts
	probes map[string]*probe // by node
	policy *topology.Policy  // the newest one of check
	ports  postgres.Ports    // the pools' own, by that policy

	faults chan error // the first source that ended by itself
	wg     sync.WaitGroup
}

// authoritySource can be asked for confirmation at once.
type authoritySource interface {
	watchers.Source
	ID() topology.SourceID
	Confirm()
}

// probe is a running prober.
type probe struct {
	address topology.Address
	prober  *postgres.Prober
	stop    context.CancelFunc
}

// newWatch prepares the sources; nothing is asked yet.
func newWatch(c config.Cluster, client *consul.Client, now topology.Ticker, base *slog.Logger) (*watch, error) {
	log := base.With("cluster", c.Name)
	w := &watch{
		cluster: c, now: now, base: base, log: log,
		sources: make(map[topology.SourceID]*resolve.Source), probes: make(map[string]*probe), faults: make(chan error, 1),
	}
	w.agent, _ = os.Hostname() // without a name the prober's default will do
	var err error
	if w.tls, err = tlsFor(c.Postgres, log); err != nil {
		return nil, err
	}
	if w.password, err = w.passwordOf(c.Postgres); err != nil {
		return nil, err
	}
	switch c.Authority {
	case topology.AuthorityPatroni:
		w.authority, err = w.patroni(client)
	case topology.AuthorityMonitor:
		w.authority, err = w.monitor()
	case topology.AuthorityNone:
	}
	if err != nil {
		return nil, err
	}
	if w.authority != nil {
		w.add(w.authority.ID(), w.authority)
	}
	if len(c.Nodes) > 0 {
		if w.static, err = w.list(file.Options{Name: "config", Static: c.Nodes}); err != nil {
			return nil, err
		}
	}
	if c.Inventory != "" {
		if _, err := w.list(file.Options{Name: c.Inventory, Path: c.Inventory, Parse: config.ParseInventory}); err != nil {
			return nil, err
		}
	}
	if c.ConsulService.Name != "" {
		if err := w.catalog(client); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// passwordOf returns a function that reads a role's password anew for each login;
// nil: there is none.
func (w *watch) passwordOf(p config.Postgres) (func() string, error) {
	if p.PasswordFile == "" {
		return nil, nil
	}
	r, err := newRotating(w.log, parsePassword, p.PasswordFile)
	if err != nil {
		return nil, fmt.Errorf("password of role %s: %w", p.User, err)
	}
	return r.get, nil
}

// patroni makes the source of Patroni's word: its keys, or its members. client is
// not looked at for the latter.
func (w *watch) patroni(client *consul.Client) (authoritySource, error) {
	p := w.cluster.Patroni
	if p.Source == config.SourceREST {
		secure, err := patroniTLS(p, w.log)
		if err != nil {
			return nil, err
		}
		return patroni.New(patroni.Options{
			Cluster: w.cluster.Name, Scope: p.Scope, Endpoints: p.Endpoints, TLS: secure,
			Now: w.now, Logger: w.base.With("component", "patroni"),
		})
	}
	return consul.New(consul.Options{
		Cluster: w.cluster.Name, Scope: p.KeyScope(), Namespace: p.Namespace,
		Client: client, Now: w.now, Logger: w.base.With("component", "consul"),
	})
}

// add adds a source, whose nodes may have DNS names for addresses.
func (w *watch) add(id topology.SourceID, s watchers.Source) {
	w.sources[id] = resolve.Wrap(s, resolve.Options{
		Refresh: w.cluster.Postgres.DNSTTLMax, Now: w.now, Logger: w.log.With("component", "names"),
	})
}

// know tells the sources the addresses of before, so that a start without DNS
// loses nobody.
func (w *watch) know(nodes []topology.Node) {
	for _, s := range w.sources {
		s.Know(nodes)
	}
}

// list adds a source of nodes that are written down.
func (w *watch) list(o file.Options) (*file.Source, error) {
	o.Cluster, o.Now, o.Logger = w.cluster.Name, w.now, w.base.With("component", "file")
	f, err := file.New(o)
	if err != nil {
		return nil, err
	}
	w.add(topology.SourceID{Kind: topology.SourceFile, Name: o.Name}, f)
	return f, nil
}

// takeNodes takes over the nodes that a new configuration lists.
func (w *watch) takeNodes(cfg *config.Config) {
	cl, ok := cfg.Cluster(w.cluster.Name)
	if !ok || w.static == nil || len(cl.Nodes) == 0 {
		return
	}
	if err := w.static.Set(cl.Nodes); err != nil {
		// Everything it can fail on was checked with the configuration.
		w.log.Error("the configuration's nodes were not taken; those of before stay", "err", err)
	}
}

// nodeSources are the sources that must deliver before a cluster is complete.
func (w *watch) nodeSources() []topology.SourceID {
	return slices.SortedFunc(maps.Keys(w.sources), func(a, b topology.SourceID) int {
		return strings.Compare(a.String(), b.String())
	})
}

// begin starts the sources, which run until ctx ends. One that ends by itself is
// among faults.
func (w *watch) begin(ctx context.Context, report func(topology.Observation)) {
	for id, s := range w.sources {
		w.wg.Go(func() { w.fault(ctx, id.String(), s.Run(ctx, report)) })
	}
}

// fault reports that a source has ended, unless it was asked to.
func (w *watch) fault(ctx context.Context, source string, err error) {
	if err = ended(ctx, err); err == nil {
		return
	}
	select {
	case w.faults <- fmt.Errorf("source %s: %w", source, err):
	default: // one is enough
	}
}

// check has the ports checked that a policy's pools have for themselves. Only
// the state goroutine calls it, with the newest policy; a policy never changes.
func (w *watch) check(policy *topology.Policy) {
	if w.policy == policy {
		return
	}
	w.policy, w.ports = policy, portsOf(policy.Pools)
	for _, p := range w.probes {
		p.prober.SetPorts(w.ports)
	}
}

// portsOf returns the ports to check. Of two pools with one port the one that
// asks for more decides; what it finds out counts for both.
func portsOf(pools []topology.Pool) postgres.Ports {
	ports := make(postgres.Ports)
	for _, p := range pools {
		if p.Port == 0 || p.PortCheck == topology.PortCheckNone || ports[p.Port] == topology.PortCheckPgBouncer {
			continue
		}
		ports[p.Port] = cmp.Or(p.PortCheck, topology.PortCheckConnect)
	}
	return ports
}

// follow starts and stops probers so that each node is probed at its present
// address, and sets their pace. Only the state goroutine calls it.
func (w *watch) follow(ctx context.Context, nodes []topology.Node, d topology.Demand) {
	listed := make(map[string]topology.Address, len(nodes))
	for _, n := range nodes {
		listed[n.Name] = n.Address
	}
	for name, p := range w.probes {
		if a, ok := listed[name]; !ok || a != p.address {
			p.stop()
			delete(w.probes, name)
		}
	}
	if len(d.Burst)+len(d.BackOff) > 0 {
		w.nudgeNames() // a node that does not answer may have moved
	}
	if w.bursts != nil {
		if w.burst = w.bursts.hold(w.burst, len(d.Burst)); w.burst == 0 {
			d.Burst = nil
		}
	}
	for _, n := range nodes {
		p := w.probes[n.Name]
		if p == nil {
			p = w.start(ctx, n)
		}
		if p == nil {
			continue
		}
		switch {
		case slices.Contains(d.Burst, n.Name):
			p.prober.SetPace(postgres.Burst)
		case slices.Contains(d.BackOff, n.Name):
			p.prober.SetPace(postgres.BackOff)
		default:
			p.prober.SetPace(postgres.Normal)
		}
	}
}

// rest gives back what it has of the agent's bursts.
func (w *watch) rest() {
	if w.bursts != nil {
		w.burst = w.bursts.hold(w.burst, 0)
	}
}

func (w *watch) nudgeNames() {
	for _, s := range w.sources {
		s.Nudge()
	}
}

// asked is how a node is asked.
func (w *watch) asked(n topology.Node) postgres.Options {
	pg := w.cluster.Postgres
	var tlsConfig *tls.Config
	if w.tls != nil {
		tlsConfig = w.tls(cmp.Or(n.HostName, n.Address.Host)) // certificates name hosts
	}
	return postgres.Options{
		Cluster: w.cluster.Name, Node: n.Name, Address: n.Address,
		User: pg.User, Database: pg.Database, Password: w.password, TLS: tlsConfig, PlainToo: pg.SSLMode == config.SSLPrefer,
		Interval: pg.Interval, BurstInterval: burstInterval, QueryTimeout: pg.QueryTimeout, ConnectTimeout: pg.ConnectTimeout, LoginEvery: pg.LoginEvery,
		WriteProbe: pg.WriteProbe, Agent: w.agent, Now: w.now, Logger: w.base.With("component", "postgres"),
	}
}

func (w *watch) start(ctx context.Context, n topology.Node) *probe {
	if n.Address.IsZero() || ctx.Err() != nil {
		return nil
	}
	prober, err := postgres.New(w.asked(n))
	if err != nil {
		// Everything it can fail on was checked with the configuration.
		w.log.Error("node cannot be probed and stays undecided", "node", n.Name, "err", err)
		return nil
	}
	prober.SetPorts(w.ports)
	ctx, cancel := context.WithCancel(ctx)
	p := &probe{address: n.Address, prober: prober, stop: cancel}
	w.probes[n.Name] = p
	report := w.report(ctx)
	w.wg.Go(func() { w.fault(ctx, string(topology.SourcePostgres)+"/"+n.Name, prober.Run(ctx, report)) })
	return p
}

// confirm asks the authority to be read again now.
func (w *watch) confirm() {
	if w.authority != nil {
		w.authority.Confirm()
	}
}
