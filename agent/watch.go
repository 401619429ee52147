package agent

import (
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
	"github.com/pgsteer/pgsteer/watchers/postgres"
)

// watch runs the sources of one cluster: those of the configuration, and a
// prober for each node that the state lists, at the pace that it demands.
type watch struct {
	cluster config.Cluster
	now     topology.Ticker
	log     *slog.Logger
	report  func(context.Context) func(topology.Observation)
	tls     *tls.Config
	// consul is nil unless the cluster's authority lies there.
	consul  *consul.Watcher
	sources map[topology.SourceID]watchers.Source

	probes map[string]*probe // by node; belongs to the state goroutine
	wg     sync.WaitGroup
}

// probe is a running prober.
type probe struct {
	address topology.Address
	prober  *postgres.Prober
	stop    context.CancelFunc
}

// newWatch prepares the sources; nothing is asked yet.
func newWatch(c config.Cluster, client *consul.Client, now topology.Ticker, log *slog.Logger) (*watch, error) {
	w := &watch{
		cluster: c, now: now, log: log,
		sources: make(map[topology.SourceID]watchers.Source), probes: make(map[string]*probe),
	}
	var err error
	if w.tls, err = tlsConfig(c.Postgres); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c.Name, err)
	}
	if c.Authority == topology.AuthorityPatroni {
		w.consul, err = consul.New(consul.Options{
			Cluster: c.Name, Scope: c.Patroni.Scope, Namespace: c.Patroni.Namespace,
			Client: client, Now: now, Logger: log.With("component", "consul"),
		})
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", c.Name, err)
		}
		w.sources[topology.SourceID{Kind: topology.SourceConsul, Name: c.Patroni.Scope}] = w.consul
	}
	if len(c.Nodes) > 0 {
		if err := w.list(file.Options{Name: "config", Static: c.Nodes}); err != nil {
			return nil, err
		}
	}
	if c.Inventory != "" {
		if err := w.list(file.Options{Name: c.Inventory, Path: c.Inventory, Parse: config.ParseInventory}); err != nil {
			return nil, err
		}
	}
	return w, nil
}

// list adds a source of nodes that are written down.
func (w *watch) list(o file.Options) error {
	o.Cluster, o.Now, o.Logger = w.cluster.Name, w.now, w.log.With("component", "file")
	f, err := file.New(o)
	if err != nil {
		return fmt.Errorf("cluster %s: %w", w.cluster.Name, err)
	}
	w.sources[topology.SourceID{Kind: topology.SourceFile, Name: o.Name}] = f
	return nil
}

// nodeSources are the sources that must deliver before a cluster is complete.
func (w *watch) nodeSources() []topology.SourceID {
	return slices.SortedFunc(maps.Keys(w.sources), func(a, b topology.SourceID) int {
		return strings.Compare(a.String(), b.String())
	})
}

// run runs the sources until ctx ends, and waits for the probers too.
func (w *watch) run(ctx context.Context, report func(topology.Observation)) error {
	errs := make(chan error, len(w.sources))
	for id, s := range w.sources {
		w.wg.Go(func() {
			if err := s.Run(ctx, report); err != nil {
				errs <- fmt.Errorf("source %s of cluster %s: %w", id, w.cluster.Name, err)
			}
		})
	}
	select {
	case err := <-errs:
		return err
	case <-ctx.Done():
		return nil
	}
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

func (w *watch) start(ctx context.Context, n topology.Node) *probe {
	if n.Address.IsZero() || ctx.Err() != nil {
		return nil
	}
	pg := w.cluster.Postgres
	prober, err := postgres.New(postgres.Options{
		Cluster: w.cluster.Name, Node: n.Name, Address: n.Address,
		User: pg.User, Database: pg.Database, Password: passwordFrom(pg), TLS: w.tls, PlainToo: pg.SSLMode == config.SSLPrefer,
		Interval: pg.Interval, QueryTimeout: pg.QueryTimeout, ConnectTimeout: pg.ConnectTimeout, LoginEvery: pg.LoginEvery,
		Now: w.now, Logger: w.log.With("component", "postgres"),
	})
	if err != nil {
		// Everything it can fail on was checked with the configuration.
		w.log.Error("node cannot be probed and stays undecided", "node", n.Name, "err", err)
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &probe{address: n.Address, prober: prober, stop: cancel}
	w.probes[n.Name] = p
	report := w.report(ctx)
	w.wg.Go(func() {
		if err := prober.Run(ctx, report); err != nil {
			w.log.Error("prober ended", "node", n.Name, "err", err)
		}
	})
	return p
}

// confirm asks the authority to be read again now.
func (w *watch) confirm() {
	if w.consul != nil {
		w.consul.Confirm()
	}
}

// passwordFrom reads the password's file before each login, so that it can be
// rotated. While the file cannot be read, the last good one serves.
func passwordFrom(pg config.Postgres) func() string {
	if pg.PasswordFile == "" {
		return nil
	}
	var mu sync.Mutex
	last := pg.Password.Reveal()
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		if b, err := os.ReadFile(pg.PasswordFile); err == nil {
			last = strings.TrimRight(string(b), "\r\n")
		}
		return last
	}
}
