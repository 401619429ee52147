// Package agent wires sources, decisions and sinks into one process: New builds
// everything that can fail and binds every listener, Run starts it, Reload
// exchanges what changed. It decides nothing itself.
//
// Guarantees: a configuration that cannot be read, or of which a part cannot be
// built, changes nothing. A reload restarts what differs and nothing else; a
// listener whose address stays keeps its socket and its connections. Ending the
// agent changes nothing outside: balancers stay as they were told last.
package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/drain"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/pgbouncer"
	"github.com/pgsteer/pgsteer/agent/runtimeapi"
	"github.com/pgsteer/pgsteer/agent/switchover"
	"github.com/pgsteer/pgsteer/agent/systemd"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/apply"
	"github.com/pgsteer/pgsteer/watchers/consul"
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

func (o Options) withDefaults() Options {
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
	return o
}

// Agent is the process.
type Agent struct {
	o       Options
	log     *slog.Logger
	now     topology.Ticker
	views   latest.Map[string, topology.View]
	store   *store
	book    *maintenance.Book
	tokens  atomic.Pointer[tokens] // of those who may change book; nil before the start
	drains  *drain.Runner
	ender   atomic.Pointer[ender] // nil before the start
	systemd systemd.Notifier
	bursts  burstBudget
	haproxy atomic.Pointer[runtimeapi.Pusher] // nil while no HAProxy is told
	// bouncers is nil while no PgBouncer is spoken to.
	bouncers atomic.Pointer[pgbouncer.Control]
	led      sync.Map // where the databases of a PgBouncer lead by its template, by name
	// templates is nil while no file is kept.
	templates   atomic.Pointer[apply.Applier]
	switchovers *switchover.Runner

	// cfg is what runs; the goroutine of Run exchanges it.
	cfg     atomic.Pointer[config.Config]
	tried   atomic.Value // digest of the configuration file when it was read last
	ready   atomic.Bool  // systemd knows that the start is over
	reloads chan chan error
	failed  chan error
	started time.Time
	consuls map[string]*consul.Client // by madeOf; owned by New, then by the goroutine of Run

	mu       sync.Mutex // guards everything below; nobody waits for anything while holding it
	parts    map[string]*part
	clusters map[string]*cluster
	// generations are the last ones of clusters that are gone: one that comes back counts on,
	// since a sink that did not notice takes a lower one for older than what it has.
	generations map[string]uint64
	configErr   error
	configAt    time.Time
}

// New reads the configuration, builds every part and binds every listener. On
// an error nothing is left open. What New opened is closed by Run.
func New(o Options) (*Agent, error) {
	o = o.withDefaults()
	boundGarbage(o.Getenv)
	a := &Agent{
		o: o, log: o.Logger, now: topology.NewTicker(o.Clock), started: o.Clock(),
		systemd: systemd.Notifier{Logger: o.Logger},
		reloads: make(chan chan error), failed: make(chan error, 1),
		parts: make(map[string]*part), clusters: make(map[string]*cluster), generations: make(map[string]uint64),
	}
	cfg, err := a.load()
	if err != nil {
		return nil, err
	}
	a.store = newStore(cfg.StateFolder(o.Getenv), a.log.With("component", "state"))
	a.book = a.openBook(a.store.dir)
	a.drains = a.openDrains(a.store.dir)
	a.switchovers = a.newSwitchovers()
	if a.parts, _, err = a.build(cfg); err != nil {
		return nil, err
	}
	a.cfg.Store(cfg)
	a.configAt = a.started
	a.setLevel(cfg)
	return a, nil
}

// load reads the configuration, and remembers which contents of the file it saw
// at most: whatever comes later is a change.
func (a *Agent) load() (*config.Config, error) {
	if a.o.File != "" {
		a.tried.Store(digest(a.o.File))
	}
	return a.o.Load()
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

// Run starts every part and returns when ctx ends (nil), or when a part fails,
// after all of them have stopped and the state is written. It is called once.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	storeCtx, stopStore := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer background.Wait()
	defer stopStore() // after the clusters, whose last word it writes
	defer a.stopAll()
	defer cancel()

	background.Go(func() { a.store.run(storeCtx) })
	background.Go(func() { a.book.Run(ctx) })
	background.Go(func() { a.drains.Run(ctx) })
	a.start(ctx, a.partsNow())
	a.log.Info("running", "clusters", len(a.cfg.Load().Clusters), "listeners", a.listeners(), "state", a.store.dir)
	background.Go(func() { a.watchIsolation(ctx) })
	background.Go(func() { a.tellSystemd(ctx) })
	if a.o.File != "" {
		background.Go(func() { a.watchConfig(ctx) })
	}
	for {
		select {
		case <-ctx.Done():
			a.log.Info("stopping; balancers stay as they were told last")
			return nil
		case err := <-a.failed:
			return fmt.Errorf("%w; the agent ends, balancers stay as they were told last", err)
		case reply := <-a.reloads:
			reply <- a.reload(ctx)
		}
	}
}

// Reload reads the configuration again and exchanges what changed. The error
// says why nothing was changed. It needs a running agent.
func (a *Agent) Reload(ctx context.Context) error {
	reply := make(chan error, 1)
	select {
	case a.reloads <- reply:
		return <-reply
	case <-ctx.Done():
		return ctx.Err()
	}
}

// savedVerdict is the verdict of before the last restart.
func (a *Agent) savedVerdict(cluster, pool, node string) topology.Verdict {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.clusters[cluster]; c != nil && c.before != nil {
		return c.before.Verdicts[pool][node]
	}
	return topology.Undecided
}
