package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"github.com/pgsteer/pgsteer/agent/agentcheck"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// The names of the parts.
const (
	partAgentCheck  = "agentcheck"
	partHealth      = "healthapi"
	partHealthTLS   = "healthapi-tls"
	partRefusal     = "refusal" // and the pool
	partStatus      = "status"
	partStatusTLS   = "status-tls"
	partXDS         = "xds"
	partRuntime     = "runtimeapi"
	partTemplates   = "templates"
	partMaintenance = "maintenance"
	partMesh        = "mesh"
	partCluster     = "cluster/" // and the cluster's name
)

// plan is a part that a configuration wants.
type plan struct {
	name    string
	made    string // see part
	listens bool   // make binds an address
	make    func() (*part, error)
	check   func() error // nil, or what can fail of make but for the address
}

// plans lists what a configuration wants. Policies, pools, nodes, the local node and
// Envoy's settings are in no part's made: running parts take them over.
func (a *Agent) plans(cfg *config.Config) ([]plan, error) {
	all := a.planListeners(cfg)
	add := func(name string, made any, build func() (*part, error)) {
		all = append(all, planned(name, made, build))
	}
	if o := haproxyOptions(cfg); len(o.Sockets)+len(o.Masters) > 0 {
		add(partRuntime, o, func() (*part, error) { return a.buildRuntime(o) })
	}
	// Also without any: something may have been left paused at one of before.
	add(partBouncers, madeOfBouncers(cfg), func() (*part, error) { return a.buildBouncers(cfg) })
	groups, err := Groups(cfg)
	if err != nil {
		return nil, err
	}
	if len(groups) > 0 {
		add(partTemplates, groups, func() (*part, error) { return a.buildTemplates(groups) })
	}
	client, err := a.consulClient(cfg)
	if err != nil {
		return nil, err
	}
	records := []any{cfg.Maintenance}
	if cfg.Maintenance.Store == config.StoreConsul {
		records = append(records, cfg.Consul)
	}
	add(partMaintenance, records, func() (*part, error) { return a.buildMaintenance(cfg, client) })
	if len(cfg.Published()) > 0 {
		add(partMesh, madeOfMesh(cfg), func() (*part, error) { return a.buildMesh(cfg, client) })
	}
	for _, cl := range cfg.Clusters {
		add(partCluster+cl.Name, madeOfCluster(cfg, cl), func() (*part, error) { return a.buildCluster(cfg, cl, client) })
	}
	return all, nil
}

// planned is a part that listens nowhere.
func planned(name string, made any, build func() (*part, error)) plan {
	h := sha256.New() // of a cluster the text is long, and there may be thousands
	fmt.Fprintf(h, "%#v", made)
	return plan{name: name, made: string(h.Sum(nil)), make: build}
}

// planListeners are the parts that bind an address.
func (a *Agent) planListeners(cfg *config.Config) (all []plan) {
	server := func(name string, address config.ListenAddress, build func() (*part, error)) {
		if !address.Off() {
			all = append(all, plan{name: name, made: string(address), listens: true, make: build})
		}
	}
	l := cfg.Listen
	server(partAgentCheck, l.AgentCheck, func() (*part, error) { return a.buildAgentCheck(cfg, l.AgentCheck, nil) })
	for _, p := range cfg.AgentCheck.Ports {
		server(partAgentCheck+" "+string(p.Listen), p.Listen, func() (*part, error) { return a.buildAgentCheck(cfg, p.Listen, &p.Server) })
	}
	server(partHealth, l.Health, func() (*part, error) { return a.buildHealth(cfg) })
	if !l.HealthTLS.Address.Off() {
		all = append(all, a.planHealthTLS(cfg))
	}
	all = append(all, a.planRefusals(cfg)...)
	server(partStatus, l.Status, func() (*part, error) { return a.buildStatus(l.Status) })
	if !l.StatusTLS.Address.Off() {
		all = append(all, a.planStatusTLS(l.StatusTLS))
	}
	if path := cfg.StatusSocket(a.o.Getenv); path != "" {
		all = append(all, a.planSocket(path, l.SocketMode))
	}
	if !l.XDS.Off() {
		all = append(all, a.planXDS(cfg))
	}
	return all
}

// madeOfCluster is what a cluster's watchers are made of.
func madeOfCluster(cfg *config.Config, cl config.Cluster) []any {
	hasNodes, usesConsul := len(cl.Nodes) > 0, cl.UsesConsul()
	cl.Mesh = config.ClusterMesh{}
	cl.Policy, cl.Pools, cl.Nodes, cl.Switchover = config.Policy{}, nil, nil, config.Switchover{}
	made := []any{cl, hasNodes}
	if usesConsul {
		made = append(made, cfg.Consul)
	}
	return made
}

// build makes the parts that a configuration wants and that do not run as it
// wants them, and names the running ones that it replaces or wants no more. On
// an error everything that was made is closed again.
func (a *Agent) build(cfg *config.Config) (next map[string]*part, stale []string, err error) {
	all, err := a.plans(cfg)
	if err != nil {
		return nil, nil, err
	}
	next = make(map[string]*part)
	kept := make(map[string]bool)
	var errs []error
	for _, w := range all {
		if old := a.parts[w.name]; old != nil && old.made == w.made {
			kept[w.name] = true
			continue
		}
		p, err := w.make()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		p.name, p.made = w.name, w.made
		next[w.name] = p
	}
	if err := errors.Join(errs...); err != nil {
		for _, p := range next {
			p.close()
		}
		return nil, nil, err
	}
	for name := range a.parts {
		if !kept[name] {
			stale = append(stale, name)
		}
	}
	return next, stale, nil
}

// neverRun is an agent that makes parts and runs none.
func neverRun(o Options) *Agent {
	o = o.withDefaults()
	return &Agent{o: o, log: o.Logger, now: topology.NewTicker(o.Clock), store: newStore("", o.Logger)}
}

// Check reports everything that would keep an agent from running by a
// configuration, but for addresses that are in use. It opens no connection.
func Check(cfg *config.Config) error {
	a := neverRun(Options{})
	all, err := a.plans(cfg)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range all {
		switch {
		case !w.listens:
			_, err := w.make()
			errs = append(errs, err)
		case w.check != nil:
			errs = append(errs, w.check())
		}
	}
	return errors.Join(errs...)
}

// served makes the part of a server and its listener.
func (a *Agent) served(name string, address config.ListenAddress, serve func(context.Context, net.Listener) error) (*part, error) {
	l, err := a.bind(name, string(address))
	if err != nil {
		return nil, err
	}
	return &part{listen: l, bound: string(address), run: func(ctx context.Context) error { return serve(ctx, l) }}, nil
}

// buildAgentCheck makes the port that answers for every server, or with bound one
// that answers for that server alone.
func (a *Agent) buildAgentCheck(cfg *config.Config, address config.ListenAddress, bound *config.ServerRef) (*part, error) {
	srv, err := agentcheck.New(agentcheck.Options{
		Views: &a.views, Now: a.now, Clusters: a.clusterNames, AdminWords: adminWords(cfg), Logger: a.log.With("component", partAgentCheck),
	})
	if err != nil {
		return nil, err
	}
	name, serve := partAgentCheck, srv.Serve
	var key atomic.Pointer[config.ServerRef]
	if bound != nil {
		name += " " + string(address)
		key.Store(bound)
		serve = func(ctx context.Context, l net.Listener) error {
			return srv.ServeBound(ctx, l, func() agentcheck.Key { return agentcheck.Key(*key.Load()) })
		}
	}
	p, err := a.served(name, address, serve)
	if err != nil {
		return nil, err
	}
	p.live = func(cfg *config.Config) {
		srv.SetAdminWords(adminWords(cfg))
		for _, p := range cfg.AgentCheck.Ports {
			if bound != nil && p.Listen == address {
				key.Store(&p.Server)
			}
		}
	}
	p.status = func() []status.Sink {
		n := srv.Counters()
		return []status.Sink{{Name: name, State: status.SinkOK, Counters: map[string]uint64{
			"up": n.Up.Load(), "drain": n.Drain.Load(), "down": n.Down.Load(), "silent": n.Silent.Load(), "maintenance": n.Maintenance.Load(),
			"unknown": n.Unknown.Load(), "oversized": n.Oversized.Load(), "empty": n.Empty.Load(),
			"rejected": n.Rejected.Load(), "failed": n.Failed.Load(),
		}}}
	}
	return p, nil
}

func adminWords(cfg *config.Config) agentcheck.AdminWords {
	return cfg.AgentCheck.AdminWords == config.AdminAlways
}

func (a *Agent) buildStatus(address config.ListenAddress) (*part, error) {
	return a.served(partStatus, address, a.statusServer().Serve)
}

func (a *Agent) statusServer() *status.Server {
	return status.New(status.Options{
		Views: &a.views, Now: a.now, Clusters: a.clusterNames, Policy: a.policy,
		Agent: a.about, Sinks: a.sinks, Observations: a.observations(), Envoys: a.envoys, Admin: a.withSwitchovers(a.adminServer()), Logger: a.log.With("component", partStatus),
	})
}
