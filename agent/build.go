package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/pgsteer/pgsteer/agent/agentcheck"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/engine"
	"github.com/pgsteer/pgsteer/agent/healthapi"
	"github.com/pgsteer/pgsteer/agent/runtimeapi"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/apply"
	"github.com/pgsteer/pgsteer/templates/builtin"
	"github.com/pgsteer/pgsteer/templates/render"
	"github.com/pgsteer/pgsteer/watchers/consul"
	"github.com/pgsteer/pgsteer/xds"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// The names of the parts.
const (
	partAgentCheck = "agentcheck"
	partHealth     = "healthapi"
	partStatus     = "status"
	partXDS        = "xds"
	partRuntime    = "runtimeapi"
	partTemplates  = "templates"
	partCluster    = "cluster/" // and the cluster's name
)

// wanted reports whether a configuration has a part.
func wanted(cfg *config.Config, name string) bool {
	switch name {
	case partAgentCheck:
		return !cfg.Listen.AgentCheck.Off()
	case partHealth:
		return !cfg.Listen.Health.Off()
	case partStatus:
		return !cfg.Listen.Status.Off()
	case partXDS:
		return !cfg.Listen.XDS.Off()
	case partRuntime:
		return len(cfg.HAProxy.Sockets) > 0
	case partTemplates:
		return len(cfg.Templates) > 0
	}
	_, ok := cfg.Cluster(strings.TrimPrefix(name, partCluster))
	return ok
}

// build makes the parts that a change touches. On an error everything that was
// made is closed again.
func (a *Agent) build(cfg *config.Config, c config.Changes) (map[string]*part, error) {
	next := make(map[string]*part)
	var errs []error
	add := func(name string, touched bool, make func() (*part, error)) {
		if !touched || !wanted(cfg, name) {
			return
		}
		p, err := make()
		if err != nil {
			errs = append(errs, err)
			return
		}
		p.name = name
		next[name] = p
	}
	pools := a.poolsChanged(cfg, c)
	add(partAgentCheck, c.Listen && a.moved(partAgentCheck, cfg.Listen.AgentCheck), func() (*part, error) { return a.buildAgentCheck(cfg) })
	add(partHealth, c.Local || c.Listen && a.moved(partHealth, cfg.Listen.Health), func() (*part, error) { return a.buildHealth(cfg) })
	add(partStatus, c.Listen && a.moved(partStatus, cfg.Listen.Status), func() (*part, error) { return a.buildStatus(cfg) })
	add(partXDS, c.Envoy || pools || c.Listen && a.moved(partXDS, cfg.Listen.XDS), func() (*part, error) { return a.buildXDS(cfg) })
	add(partRuntime, c.HAProxy, func() (*part, error) { return a.buildRuntime(cfg) })
	add(partTemplates, !c.Templates.None() || c.Listen || c.HAProxy || pools, func() (*part, error) { return a.buildTemplates(cfg) })
	errs = append(errs, a.buildClusters(cfg, c, add))
	if err := errors.Join(errs...); err != nil {
		for _, p := range next {
			p.close()
		}
		return nil, err
	}
	return next, nil
}

// moved reports whether a listener's address differs from the running one's.
func (a *Agent) moved(name string, address config.ListenAddress) bool {
	p := a.parts[name]
	return p == nil || p.address != string(address)
}

// poolsChanged: sinks that render pools' addresses must know of them anew.
func (a *Agent) poolsChanged(cfg *config.Config, c config.Changes) bool {
	if a.cfg == nil || len(c.Clusters.Added)+len(c.Clusters.Removed) > 0 {
		return true
	}
	for _, name := range c.Clusters.Changed {
		before, _ := a.cfg.Cluster(name)
		after, _ := cfg.Cluster(name)
		if fmt.Sprint(before.Pools) != fmt.Sprint(after.Pools) {
			return true
		}
	}
	return false
}

func (a *Agent) buildClusters(cfg *config.Config, c config.Changes, add func(string, bool, func() (*part, error))) error {
	var client *consul.Client
	if cfg.UsesConsul() {
		var err error
		client, err = consul.NewClient(consul.ClientOptions{
			Address: cfg.Consul.Address, TokenFile: cfg.Consul.TokenFile, Datacenter: cfg.Consul.Datacenter,
			CAFile: cfg.Consul.CAFile, CertFile: cfg.Consul.CertFile, KeyFile: cfg.Consul.KeyFile,
			ServerName: cfg.Consul.ServerName, Logger: a.log.With("component", "consul"),
		})
		if err != nil {
			return err
		}
	}
	for _, cl := range cfg.Clusters {
		before, existed := config.Cluster{}, false
		if a.cfg != nil {
			before, existed = a.cfg.Cluster(cl.Name)
		}
		same := existed && cl.SameSources(before) && (!c.Consul || cl.Authority != topology.AuthorityPatroni)
		add(partCluster+cl.Name, !same, func() (*part, error) { return a.buildCluster(cfg, cl, client) })
	}
	return nil
}

func (a *Agent) buildCluster(cfg *config.Config, cl config.Cluster, client *consul.Client) (*part, error) {
	log := a.log.With("cluster", cl.Name)
	w, err := newWatch(cl, client, a.now, log)
	if err != nil {
		return nil, sourceError(cl.Name, err)
	}
	c := &cluster{
		name: cl.Name, wake: make(chan struct{}, 1), inbox: make(chan topology.Observation, 64),
		now: a.now, views: &a.views, save: a.store.put, log: log, watch: w,
	}
	w.report = c.report
	policy := cfg.Policy(cl.Name)
	c.policy.Store(&policy)
	return &part{
		begin: func() { a.adopt(c, w) },
		run:   func(ctx context.Context) error { return runCluster(ctx, c, w) },
	}, nil
}

// adopt gives a cluster its state: by what an earlier process saved, or by
// what its predecessor in this process knew. Either holds and admits nobody.
func (a *Agent) adopt(c *cluster, w *watch) {
	saved, generation := a.store.load(c.name), uint64(0)
	if old := a.clusters[c.name]; old != nil && old.last != nil {
		s := old.state.Save(a.now())
		saved, generation = &s, old.last.Generation
	}
	c.state = engine.NewState(engine.Options{
		Cluster: c.name, NodeSources: w.nodeSources(), Saved: saved, Generation: generation, Start: a.now(),
	})
	a.savedAtBoot.Store(c.name, saved)
	a.clusters[c.name] = c
}

// runCluster runs the state goroutine and the sources until ctx ends.
func runCluster(ctx context.Context, c *cluster, w *watch) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- w.run(ctx, c.report(ctx)) }()
	go func() { ended <- c.run(ctx) }()
	err := <-ended
	cancel()
	<-ended
	w.wg.Wait()
	return err
}

func (a *Agent) buildAgentCheck(cfg *config.Config) (*part, error) {
	srv, err := agentcheck.New(agentcheck.Options{
		Views: &a.views, Now: a.now, Clusters: a.clusterNames, Logger: a.log.With("component", partAgentCheck),
	})
	if err != nil {
		return nil, err
	}
	return a.served(partAgentCheck, cfg.Listen.AgentCheck, srv.Serve, func() []status.Sink {
		n := srv.Counters()
		return []status.Sink{{Name: partAgentCheck, State: "ok", Counters: map[string]uint64{
			"up": n.Up.Load(), "drain": n.Drain.Load(), "down": n.Down.Load(), "silent": n.Silent.Load(),
			"unknown": n.Unknown.Load(), "empty": n.Empty.Load(), "rejected": n.Rejected.Load(), "failed": n.Failed.Load(),
		}}}
	})
}

func (a *Agent) buildHealth(cfg *config.Config) (*part, error) {
	srv, err := healthapi.New(healthapi.Options{
		Views: &a.views, Now: a.now, Saved: a.savedVerdict, Version: a.o.Version,
		Local:  healthapi.NodeRef{Cluster: cfg.Local.Cluster, Node: cfg.Local.Node},
		Logger: a.log.With("component", partHealth),
	})
	if err != nil {
		return nil, err
	}
	return a.served(partHealth, cfg.Listen.Health, srv.Serve, func() []status.Sink {
		n := srv.Counters()
		return []status.Sink{{Name: partHealth, State: "ok", Counters: map[string]uint64{
			"ok": n.OK.Load(), "unavailable": n.Unavailable.Load(), "other": n.Other.Load(),
			"unanswered": n.Unanswered.Load(), "rejected": n.Rejected.Load(),
		}}}
	})
}

func (a *Agent) buildStatus(cfg *config.Config) (*part, error) {
	srv := status.New(status.Options{
		Views: &a.views, Now: a.now, Clusters: a.clusterNames, Policy: a.policy,
		Agent: a.about, Sinks: a.sinks, Logger: a.log.With("component", partStatus),
	})
	return a.served(partStatus, cfg.Listen.Status, srv.Serve, nil)
}

func (a *Agent) buildXDS(cfg *config.Config) (*part, error) {
	listen := make(map[string]topology.Address)
	for _, cl := range cfg.Clusters {
		for _, p := range cl.Pools {
			if at := cfg.EnvoyListen(p); !at.Off() {
				host, port := at.HostPort()
				listen[resources.Name(cl.Name, p.Name)] = topology.Address{Host: host, Port: port}
			}
		}
	}
	srv := xds.New(xds.Options{
		Views: &a.views, Now: a.now, Clusters: a.clusterNames, Logger: a.log.With("component", partXDS),
		Settings: resources.Settings{
			ConnectTimeout: cfg.Envoy.ConnectTimeout,
			Listen: func(cluster, pool string) (topology.Address, bool) {
				addr, ok := listen[resources.Name(cluster, pool)]
				return addr, ok
			},
		},
	})
	return a.served(partXDS, cfg.Listen.XDS, srv.Run, func() []status.Sink { return []status.Sink{xdsSink(srv.Status())} })
}

func xdsSink(s xds.Status) status.Sink {
	sink := status.Sink{Name: partXDS, State: "ok", Counters: map[string]uint64{"streams": uint64(len(s.Streams))}}
	if !s.Answering {
		sink.State = "waiting"
	}
	for kind, n := range s.Refused {
		sink.Counters["refused_"+strings.ToLower(kind)] = n
	}
	return sink
}

// served makes the part of a server and its listener.
func (a *Agent) served(name string, address config.ListenAddress, serve func(context.Context, net.Listener) error, st func() []status.Sink) (*part, error) {
	l, err := listen(name, string(address), a.parts[name])
	if err != nil {
		return nil, err
	}
	return &part{listen: l, address: string(address), status: st, run: func(ctx context.Context) error { return serve(ctx, l) }}, nil
}

func (a *Agent) buildRuntime(cfg *config.Config) (*part, error) {
	push, err := runtimeapi.New(runtimeapi.Options{
		Sockets: cfg.HAProxy.Sockets, Views: &a.views, Now: a.now, Timeout: cfg.HAProxy.Timeout,
		Logger: a.log.With("component", partRuntime),
	})
	if err != nil {
		return nil, err
	}
	return &part{run: push.Run, status: func() []status.Sink {
		var out []status.Sink
		for _, s := range push.Status() {
			sink := status.Sink{Name: partRuntime + " " + s.Socket, State: "ok", Since: s.Since, Counters: map[string]uint64{"pushes": s.Pushes}}
			if s.Err != nil {
				sink.State, sink.Error = "failing", s.Err.Error()
			}
			out = append(out, sink)
		}
		return out
	}}, nil
}

func (a *Agent) buildTemplates(cfg *config.Config) (*part, error) {
	groups, err := Groups(cfg)
	if err != nil {
		return nil, err
	}
	ap, err := apply.New(apply.Options{Groups: groups, Views: &a.views, Now: a.now, Logger: a.log.With("component", partTemplates)})
	if err != nil {
		return nil, err
	}
	return &part{run: ap.Run, status: func() []status.Sink {
		var out []status.Sink
		for _, s := range ap.Status() {
			counters := map[string]uint64{"reloads": s.Reloads, "reloads_failed": s.ReloadsFailed}
			for why, n := range s.Refused {
				counters["refused_"+why] = n
			}
			out = append(out, status.Sink{Name: "template " + s.Group, State: string(s.State), Error: s.Error, Since: s.Since, Counters: counters})
		}
		return out
	}}, nil
}

// Groups makes the template groups of a configuration.
func Groups(cfg *config.Config) ([]apply.Group, error) {
	var groups []apply.Group
	for _, t := range cfg.Templates {
		g := apply.Group{
			Name: t.Name, Settings: renderSettings(cfg), Check: t.Check, Reload: t.Reload, MasterSocket: t.MasterSocket,
			Timeout: t.Timeout, ReloadInterval: t.ReloadInterval,
		}
		for _, name := range cfg.ClusterNames() {
			if t.Covers(name) {
				g.Clusters = append(g.Clusters, name)
			}
		}
		for _, f := range t.Files {
			text, name, err := templateText(f)
			if err != nil {
				return nil, fmt.Errorf("template %s: %w", t.Name, err)
			}
			g.Files = append(g.Files, apply.File{
				Template: render.Template{Name: name, Text: text}, Destination: f.Destination, Mode: f.Mode.Mode(),
			})
		}
		groups = append(groups, g)
	}
	return groups, nil
}

func templateText(f config.File) (text, name string, err error) {
	if f.Builtin != "" {
		text, ok := builtin.Text(string(f.Builtin) + ".cfg")
		if !ok {
			return "", "", fmt.Errorf("there is no built-in template %q; there are %v", f.Builtin, builtin.Names())
		}
		return text, "builtin/" + string(f.Builtin), nil
	}
	b, err := os.ReadFile(f.Source)
	if err != nil {
		return "", "", fmt.Errorf("read the template: %w", err)
	}
	return string(b), f.Source, nil
}

func renderSettings(cfg *config.Config) render.Settings {
	s := render.Settings{Listen: make(map[render.PoolID][]netip.AddrPort)}
	s.Agent, _ = netip.ParseAddrPort(string(cfg.Listen.AgentCheck))
	for _, cl := range cfg.Clusters {
		for _, p := range cl.Pools {
			if at, err := netip.ParseAddrPort(string(p.Listen)); err == nil {
				s.Listen[render.PoolID{Cluster: cl.Name, Pool: p.Name}] = []netip.AddrPort{at}
			}
		}
	}
	for _, socket := range cfg.HAProxy.Sockets {
		if strings.HasPrefix(socket, "/") {
			s.Options.StatsSocket = socket
			break
		}
	}
	return s
}
