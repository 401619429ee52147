package agent

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds"
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

// envoyStatus makes one sink of the xDS server. An Envoy that refused what it
// was sent last is its trouble: it goes on with what it had before.
func envoyStatus(s xds.Status) status.Sink {
	sink := status.Sink{Name: partXDS, State: status.SinkOK, Counters: map[string]uint64{}, Gauges: map[string]uint64{"streams": uint64(len(s.Streams))}}
	for kind, n := range s.Refused {
		sink.Counters["refused_"+strings.ToLower(kind)] = n
	}
	if !s.Answering {
		sink.State = status.SinkWaiting
		sink.Error = "no Envoy is answered before these clusters are decided: " + strings.Join(s.Waiting, " ")
	}
	for _, st := range s.Streams {
		for _, t := range st.Types {
			if t.RefusedAt.After(t.AckedAt) {
				sink.State, sink.Since = status.SinkFailing, t.RefusedAt
				sink.Error = fmt.Sprintf("Envoy %s refuses %s and goes on with what it had: %s", st.Node, t.Type, t.Refusal)
			}
		}
	}
	return sink
}

func (a *Agent) clusterNames() []string { return a.cfg.Load().ClusterNames() }

func (a *Agent) policy(name string) topology.Policy { return a.cfg.Load().Policy(name) }

// tellSystemd says that the agent is ready as soon as each cluster has been
// decided once, be it that everything is undecided: a start must not be taken
// for a failed one, and ended, because Consul or a database is away.
func (a *Agent) tellSystemd(ctx context.Context) {
	changes := a.views.Subscribe()
	defer changes.Close()
	for {
		select {
		case <-ctx.Done():
			a.systemd.Stopping()
			return
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
	text := fmt.Sprintf("%d clusters", len(clusters))
	if len(without) > 0 {
		text += fmt.Sprintf(", %d without a writer (%s)", len(without), strings.Join(without[:min(len(without), 5)], " "))
	}
	if e := a.about().ConfigError; e != "" {
		text += "; the last reload was refused: " + e
	}
	return text
}
