package agent

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/templates/apply"
	"github.com/pgsteer/pgsteer/templates/builtin"
	"github.com/pgsteer/pgsteer/templates/render"
)

func (a *Agent) buildTemplates(groups []apply.Group) (*part, error) {
	ap, err := apply.New(apply.Options{Groups: groups, Views: &a.views, Now: a.now, Bring: a.bringHAProxy, Turn: a.turnPgBouncer, Logger: a.log.With("component", partTemplates)})
	if err != nil {
		return nil, err
	}
	// What stood in the way of a file may have been mended in another one, which
	// no reload of ours can see: every reload tries again.
	retry := func(*config.Config) { ap.Retry() }
	run := func(ctx context.Context) error {
		defer a.templates.CompareAndSwap(ap, nil)
		return ap.Run(ctx)
	}
	return &part{begin: func() { a.templates.Store(ap) }, run: run, live: retry, status: func() []status.Sink {
		var out []status.Sink
		for _, s := range ap.Status() {
			counters := map[string]uint64{"reloads": s.Reloads, "reloads_failed": s.ReloadsFailed, "runtime": s.Runtime}
			for why, n := range s.Refused {
				counters["refused_"+why] = n
			}
			why := s.Error
			if why != "" && s.LastOutput != "" {
				why += ": " + strings.Join(strings.Fields(s.LastOutput), " ")
			}
			out = append(out, status.Sink{
				Name: TemplateSink(s.Group), State: string(s.State), Error: why, Since: s.Since, Counters: counters,
				Gauges: map[string]uint64{"left_out": uint64(len(s.LeftOut)), "old_processes": uint64(s.OldProcesses)},
			})
		}
		return out
	}}, nil
}

// TemplateSink is what a template group is called among the sinks of a report.
func TemplateSink(group string) string { return "template " + group }

// Groups makes the template groups of a configuration.
func Groups(cfg *config.Config) ([]apply.Group, error) {
	var groups []apply.Group
	for _, t := range cfg.Templates {
		g := apply.Group{
			Name: t.Name, Settings: renderSettings(cfg), Check: t.Check, Reload: t.Reload, Unit: t.ReloadUnit, MasterSocket: t.MasterSocket, Runtime: t.Runtime, PgBouncer: t.PgBouncer, ReloadAtStart: t.PgBouncer != "", // which shows where it leads
			Preflight: t.Preflight && t.IsHAProxy(), Timeout: t.Timeout, ReloadInterval: t.ReloadInterval,
			AdminSockets: cfg.HAProxy.Sockets,
		}
		g.Settings.Vars, g.Settings.Roles = t.Vars, t.Roles
		g.Settings.Databases = renderDatabases(cfg, t.PgBouncer)
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
				HAProxy: f.IsHAProxy(), PgBouncer: f.IsPgBouncer(),
			})
		}
		groups = append(groups, g)
	}
	return groups, nil
}

func templateText(f config.File) (text, name string, err error) {
	if f.Builtin != "" {
		name := builtin.HAProxy
		if f.Builtin == config.BuiltinPgBouncer {
			name = builtin.PgBouncer
		}
		text, ok := builtin.Text(name)
		if !ok {
			return "", "", fmt.Errorf("there is no built-in template %q; there are %v", f.Builtin, builtin.Names())
		}
		return text, "builtin/" + string(f.Builtin), nil
	}
	b, err := config.ReadFile(f.Source)
	if err != nil {
		return "", "", fmt.Errorf("read the template: %w", err)
	}
	return string(b), f.Source, nil
}

func renderSettings(cfg *config.Config) render.Settings {
	s := render.Settings{
		Listen: make(map[render.PoolID][]netip.AddrPort), Refuse: make(map[render.PoolID]netip.AddrPort),
		Options: renderOptions(cfg.HAProxy.File),
	}
	s.Agent, _ = netip.ParseAddrPort(string(cfg.Listen.AgentCheck))
	for _, cl := range cfg.Clusters {
		for _, p := range cl.Pools {
			if at, err := netip.ParseAddrPort(string(p.Listen)); err == nil {
				s.Listen[render.PoolID{Cluster: cl.Name, Pool: p.Name}] = []netip.AddrPort{at}
			}
			if at, err := netip.ParseAddrPort(string(p.Refuse)); err == nil {
				s.Refuse[render.PoolID{Cluster: cl.Name, Pool: p.Name}] = at
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

func renderOptions(f config.HAProxyFile) render.Options {
	o := render.Options{
		MaxConn: f.MaxConn, ServerMaxConn: f.ServerMaxConn, BindCertificate: f.BindCertificate, ServerCAFile: f.ServerCAFile,
		ConnectTimeout: f.Timeouts.Connect, ClientTimeout: f.Timeouts.Client, ServerTimeout: f.Timeouts.Server,
		CheckTimeout: f.Timeouts.Check, QueueTimeout: f.Timeouts.Queue, TCPUserTimeout: f.Timeouts.TCPUser,
		CheckInterval: f.CheckInterval, Fall: f.Fall, Rise: f.Rise, AgentInterval: f.AgentInterval,
		HardStopAfter: f.HardStopAfter, MaxReloads: f.MaxReloads,
	}
	o.StatsListen, _ = netip.ParseAddrPort(string(f.StatsListen)) // off: the zero value, which is nowhere
	return o
}
