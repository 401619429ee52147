// Package agent wires sources, decisions and sinks into one process: New builds
// everything that can fail and binds every listener, Run starts it, Reload
// exchanges what changed. It decides nothing itself.
//
// Guarantees: a configuration that cannot be read, or of which a part cannot be
// built, changes nothing. Ending the agent changes nothing outside: balancers
// stay as they were told last.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Options configure an Agent. Load is required.
type Options struct {
	// Load reads the configuration, at the start and at each reload.
	Load func() (*config.Config, error)
	// File is the configuration file; a change of it reloads. Empty: none.
	File string
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
	// Level is moved to the configuration's log level; nil: it stays.
	Level *slog.LevelVar
	// Version is shown in status; empty: "unknown".
	Version string
	// Getenv finds the default state folder; nil: os.Getenv.
	Getenv func(string) string
	// Clock reads the time; nil: time.Now.
	Clock func() time.Time
}

// Agent is the process.
type Agent struct {
	o     Options
	log   *slog.Logger
	now   topology.Ticker
	views latest.Map[string, topology.View]
	store *store

	reloads chan chan error
	failed  chan error
	started time.Time

	savedAtBoot sync.Map // cluster name to *topology.Saved

	mu        sync.Mutex // guards everything below
	cfg       *config.Config
	parts     map[string]*part
	clusters  map[string]*cluster
	configErr error
	configAt  time.Time
}

// New reads the configuration, builds every part and binds every listener. On
// an error nothing is left open.
func New(o Options) (*Agent, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Getenv == nil {
		o.Getenv = os.Getenv
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Version == "" {
		o.Version = "unknown"
	}
	a := &Agent{
		o: o, log: o.Logger, now: topology.NewTicker(o.Clock), started: o.Clock(),
		reloads: make(chan chan error), failed: make(chan error, 1),
		parts: make(map[string]*part), clusters: make(map[string]*cluster),
	}
	cfg, err := o.Load()
	if err != nil {
		return nil, err
	}
	a.store = newStore(cfg.StateFolder(o.Getenv), a.log.With("component", "state"))
	next, err := a.build(cfg, everything(cfg))
	if err != nil {
		return nil, err
	}
	a.cfg, a.configAt = cfg, a.started
	a.setLevel(cfg)
	maps.Copy(a.parts, next)
	return a, nil
}

// everything is the difference between nothing and a configuration.
func everything(cfg *config.Config) config.Changes {
	c := config.Diff(&config.Config{}, cfg)
	c.Listen, c.Local, c.Consul, c.HAProxy, c.Envoy = true, true, true, true, true
	return c
}

func (a *Agent) setLevel(cfg *config.Config) {
	if a.o.Level != nil {
		a.o.Level.Set(cfg.Log.Level.Level())
	}
}

// Addr returns where a part listens, nil when it does not. The parts are
// agentcheck, healthapi, status and xds.
func (a *Agent) Addr(name string) net.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.parts[name]; p != nil && p.listen != nil {
		return p.listen.Addr()
	}
	return nil
}

// Views returns the decisions of every cluster.
func (a *Agent) Views() *latest.Map[string, topology.View] { return &a.views }

// Run starts every part and returns when ctx ends (nil), or when a part fails.
func (a *Agent) Run(ctx context.Context) error {
	storeCtx, stopStore := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	background.Go(func() { _ = a.store.run(storeCtx) })
	background.Go(func() { a.watchIsolation(ctx) })
	if a.o.File != "" {
		background.Go(func() { a.watchConfig(ctx, a.o.File) })
	}
	defer background.Wait()
	defer stopStore() // after the clusters, whose last word it writes

	a.mu.Lock()
	for _, name := range startOrder(a.parts) {
		a.parts[name].start(ctx, a.failed)
	}
	a.mu.Unlock()
	a.log.Info("running", "clusters", len(a.cfg.Clusters), "listeners", a.listeners())
	defer a.stopAll()
	for {
		select {
		case <-ctx.Done():
			a.log.Info("stopping; balancers stay as they were told last")
			return nil
		case err := <-a.failed:
			return err
		case reply := <-a.reloads:
			reply <- a.reload(ctx)
		}
	}
}

// Reload reads the configuration again and exchanges what changed. The error
// says why nothing was changed.
func (a *Agent) Reload(ctx context.Context) error {
	reply := make(chan error, 1)
	select {
	case a.reloads <- reply:
		return <-reply
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reload: all that can fail comes first, then the swap, then the old stops.
func (a *Agent) reload(ctx context.Context) error {
	cfg, err := a.o.Load()
	if err == nil {
		err = a.exchange(ctx, cfg)
	}
	a.mu.Lock()
	a.configErr = err
	if err == nil {
		a.configAt = a.o.Clock()
	}
	a.mu.Unlock()
	if err != nil {
		a.log.Error("the configuration was not taken; what runs goes on unchanged", "err", err)
	}
	return err
}

func (a *Agent) exchange(ctx context.Context, cfg *config.Config) error {
	changes := config.Diff(a.cfg, cfg)
	if changes.StateDir {
		return errors.New("state_dir cannot change while the agent runs; restart it instead")
	}
	if a.cfg.Log.Format != cfg.Log.Format {
		return errors.New("log.format cannot change while the agent runs; restart it instead")
	}
	next, err := a.build(cfg, changes)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.parts {
		if !wanted(cfg, name) {
			next[name] = nil
		}
	}
	for _, name := range startOrder(next) {
		if old := a.parts[name]; old != nil {
			if err := old.stop(); err != nil {
				a.log.Error("a part of the old configuration is left behind", "err", err)
			}
			delete(a.parts, name)
		}
		if p := next[name]; p != nil {
			a.parts[name] = p
			p.start(ctx, a.failed)
		}
	}
	a.forgetClusters(cfg)
	a.cfg = cfg
	a.applyPolicies(cfg)
	a.setLevel(cfg)
	a.log.Info("configuration taken", "changed", slices.Sorted(maps.Keys(next)))
	return nil
}

// forgetClusters removes the views of clusters that are configured no more.
func (a *Agent) forgetClusters(cfg *config.Config) {
	for name := range a.clusters {
		if _, ok := cfg.Cluster(name); !ok {
			delete(a.clusters, name)
			a.views.Delete(name)
		}
	}
}

// applyPolicies gives running clusters their thresholds; it restarts nothing.
func (a *Agent) applyPolicies(cfg *config.Config) {
	for name, c := range a.clusters {
		p := cfg.Policy(name)
		c.policy.Store(&p)
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
}

func (a *Agent) stopAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Backward(startOrder(a.parts)) {
		if err := a.parts[name].stop(); err != nil {
			a.log.Error("left behind at the end", "err", err)
		}
	}
}

// startOrder: clusters first, then sinks and servers.
func startOrder(parts map[string]*part) []string {
	return slices.Sorted(maps.Keys(parts)) // "cluster/…" sorts behind "agentcheck" only, which is silent until decided
}

func (a *Agent) listeners() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make(map[string]string)
	for name, p := range a.parts {
		if p.listen != nil {
			out[name] = p.listen.Addr().String()
		}
	}
	return out
}

// about is the agent about itself.
func (a *Agent) about() status.Agent {
	s := status.Agent{Version: a.o.Version, StartedAt: a.started, Listeners: a.listeners()}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.ConfigAt = a.configAt
	if a.configErr != nil {
		s.ConfigError = a.configErr.Error()
	}
	return s
}

// sinks tells how every sink fares.
func (a *Agent) sinks() []status.Sink {
	a.mu.Lock()
	var ask []func() []status.Sink
	for _, p := range a.parts {
		if p.status != nil {
			ask = append(ask, p.status)
		}
	}
	a.mu.Unlock()
	var out []status.Sink
	for _, f := range ask {
		out = append(out, f()...)
	}
	if err, since := a.store.trouble(); err != nil {
		out = append(out, status.Sink{Name: "state", State: "failing", Error: err.Error(), Since: since})
	}
	return out
}

func (a *Agent) clusterNames() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cfg.ClusterNames()
}

func (a *Agent) policy(name string) topology.Policy {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.cfg.Policy(name)
}

// savedVerdict is the verdict of before the last restart.
func (a *Agent) savedVerdict(cluster, pool, node string) topology.Verdict {
	v, _ := a.savedAtBoot.Load(cluster)
	if s, ok := v.(*topology.Saved); ok && s != nil {
		return s.Verdicts[pool][node]
	}
	return topology.Undecided
}

// sourceError wraps what a source cannot start with.
func sourceError(cluster string, err error) error {
	return fmt.Errorf("cluster %s cannot be watched: %w", cluster, err)
}
