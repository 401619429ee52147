package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
)

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
	for _, r := range a.book.Set().Active(a.o.Clock()) {
		if r.Target == maintenance.Agent {
			s.EnteredAt = r.Since
		}
		s.Maintenance = append(s.Maintenance, status.Maintenance{
			Cluster: r.Cluster, Pool: r.Pool, Node: r.Node, Reason: r.Reason, Who: r.Who,
			Since: r.Since, Until: r.Until, DrainUntil: r.DrainUntil, Drain: a.drainOf(r),
		})
	}
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
	var out []status.Sink
	for _, p := range a.partsNow() {
		if p.status != nil {
			out = append(out, p.status()...)
		}
	}
	return append(out, a.store.status())
}

func (a *Agent) clusterNames() []string { return a.cfg.Load().ClusterNames() }

func (a *Agent) policy(name string) topology.Policy { return a.cfg.Load().Policy(name) }

// tellSystemd says that the agent is ready as soon as each cluster has been
// decided once, be it that everything is undecided: a start must not be taken
// for a failed one, and ended, because Consul or a database is away.
func (a *Agent) tellSystemd(ctx context.Context) {
	changes := a.views.Subscribe()
	defer changes.Close()
	alive, stopAlive := a.watchdog()
	defer stopAlive()
	for {
		select {
		case <-ctx.Done():
			a.systemd.Stopping()
			return
		case <-alive:
			if len(a.stuck()) == 0 {
				a.systemd.Alive()
			}
			continue
		case <-changes.Ready():
			changes.Take()
		}
		switch {
		case a.ready.Load():
			a.systemd.Status(a.summary())
		case !slices.ContainsFunc(a.clusterNames(), func(c string) bool { return a.views.Get(c) == nil }):
			a.ready.Store(true)
			a.tellReady()
		}
	}
}

// watchdog ticks when the manager's watchdog is to be fed; without one, never.
func (a *Agent) watchdog() (<-chan time.Time, func()) {
	every := a.systemd.AliveEvery()
	if every <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(every)
	return t.C, t.Stop
}

// stuck are the clusters whose state goroutine has not turned lately: it refreshes
// its view at least once a second.
func (a *Agent) stuck() []string {
	now := a.now().Mono
	return slices.DeleteFunc(a.clusterNames(), func(c string) bool {
		v := a.views.Get(c)
		return v == nil || v.Valid(now)
	})
}

func (a *Agent) tellReloading() {
	if a.ready.Load() {
		a.systemd.Reloading()
	}
}

func (a *Agent) tellReady() {
	if a.ready.Load() {
		a.systemd.Ready(a.summary())
	}
}

// summary is one line for `systemctl status`.
func (a *Agent) summary() string {
	clusters := a.clusterNames()
	var without []string
	for _, c := range clusters {
		if v := a.views.Get(c); v == nil || v.Snapshot.Writer == "" {
			without = append(without, c)
		}
	}
	text := fmt.Sprintf("clusters: %d", len(clusters))
	if len(without) > 0 {
		text += fmt.Sprintf(", %d without a writer (%s)", len(without), strings.Join(without[:min(len(without), 5)], " "))
	}
	if e := a.about().ConfigError; e != "" {
		text += "; the last reload was refused: " + e
	}
	return text
}
