package agent

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/admin"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/switchover"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/apply"
)

// newSwitchovers makes the runner of planned switchovers.
func (a *Agent) newSwitchovers() *switchover.Runner {
	return switchover.New(switchover.Options{
		Views: &a.views, Now: a.now, Known: a.knownCluster, Authority: a.switchAuthority, Hold: a.hold, Ready: a.leadsClients, Settled: a.settled,
		Limits: func(cluster string) (time.Duration, time.Duration) {
			cl, _ := a.cfg.Load().Cluster(cluster)
			return cl.Switchover.Limit, cl.Switchover.Timeout
		},
		Logger: a.log.With("component", "switchover"),
	})
}

// withSwitchovers serves them, and orders to PgBouncers, to admins, beside all else that
// operators ask.
func (a *Agent) withSwitchovers(s *admin.Server) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", s)
	cluster := func(r *http.Request) string { return r.PathValue("cluster") }
	bouncer := func(r *http.Request) string { return r.PathValue("bouncer") + "/" + r.PathValue("action") }
	mux.Handle("POST /admin/switchover/{cluster}", s.Guarded("switchover", cluster, func(w http.ResponseWriter, r *http.Request, by admin.Caller) {
		a.switchovers.Serve(w, r, by.Audit()...)
	}))
	mux.Handle("POST /admin/pgbouncer/{bouncer}/{action}", s.Guarded("order to PgBouncer", bouncer, func(w http.ResponseWriter, r *http.Request, by admin.Caller) {
		if c := a.bouncers.Load(); c != nil {
			c.Serve(w, r, by.Audit()...)
			return
		}
		const why = "the agent ends, or takes over another configuration; nothing was done"
		line := append([]any{"audit", "refused", "target", bouncer(r)}, by.Audit()...)
		a.log.With("component", partBouncers).Warn("order to PgBouncer", append(line, "why", why)...)
		http.Error(w, `{"error":"`+why+`"}`, http.StatusServiceUnavailable)
	}))
	return mux
}

// knownCluster says which clusters there are instead of one.
func (a *Agent) knownCluster(name string) error {
	cfg := a.cfg.Load()
	if _, ok := cfg.Cluster(name); !ok {
		return fmt.Errorf("there is no such cluster: %s", config.UnknownWord(name, cfg.ClusterNames()))
	}
	return nil
}

// hold pauses the PgBouncers of a cluster; without any there is nothing to pause.
func (a *Agent) hold(ctx context.Context, cluster string) (switchover.Held, error) {
	c := a.bouncers.Load()
	if c == nil {
		return switchover.Held{Release: func(context.Context, string) error { return nil }}, nil
	}
	h, err := c.Hold(ctx, cluster)
	if err != nil {
		return switchover.Held{}, err
	}
	early := func() (all []switchover.Early) {
		for _, e := range h.Early() {
			all = append(all, switchover.Early(e))
		}
		return all
	}
	return switchover.Held{Paused: h.Paused, Left: h.Left, Open: h.Open, Release: h.Release, Early: early}, nil
}

// roleGroups are the templates that name the writer of a cluster, with their status.
func (a *Agent) roleGroups(cluster string) (all []apply.Status) {
	ap := a.templates.Load()
	if ap == nil {
		return nil
	}
	names := make(map[string]bool)
	for _, t := range a.cfg.Load().Templates {
		names[t.Name] = t.Roles && t.Covers(cluster)
	}
	return slices.DeleteFunc(ap.Status(), func(s apply.Status) bool { return !names[s.Group] })
}

// leadsClients says what keeps clients from being led to a new writer.
func (a *Agent) leadsClients(cluster string) error {
	cfg := a.cfg.Load()
	for _, s := range a.roleGroups(cluster) {
		if s.State != apply.StateApplied {
			return fmt.Errorf("template %s, by which clients are led to the writer, is %s: %s", s.Group, s.State, s.Error)
		}
	}
	if c := a.bouncers.Load(); c != nil {
		for _, s := range c.Status() {
			b, _ := cfg.Bouncer(s.Bouncer)
			leads := slices.ContainsFunc(b.Databases, func(d config.PgBouncerDatabase) bool { return d.Pool.Cluster == cluster })
			if leads && s.Err != nil {
				return fmt.Errorf("PgBouncer %s is not as it should be: %w", s.Bouncer, s.Err)
			}
		}
	}
	return nil
}

// settledEvery is how often the balancers are looked at while clients wait.
const settledEvery = 2 * time.Millisecond

// settled waits until HAProxy and the files that name the writer have a decision.
func (a *Agent) settled(ctx context.Context, cluster string, generation uint64) error {
	tick := time.NewTicker(settledEvery)
	defer tick.Stop()
	for {
		missing := a.unsettled(cluster, generation)
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", missing, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// unsettled says who has not taken a decision, "" for nobody. A HAProxy that cannot be
// reached keeps nobody waiting.
func (a *Agent) unsettled(cluster string, generation uint64) string {
	if push := a.haproxy.Load(); push != nil {
		for _, s := range push.Status() {
			if s.Err == nil && s.Applied[cluster] < generation {
				return "HAProxy at " + s.Socket
			}
		}
	}
	for _, s := range a.roleGroups(cluster) {
		if s.State != apply.StateApplied || s.Applied[cluster] < generation {
			return fmt.Sprintf("template %s (%s %s)", s.Group, s.State, s.Error)
		}
	}
	return ""
}

// switchAuthority is who is asked to switch a cluster over.
func (a *Agent) switchAuthority(cluster string) (switchover.Authority, error) {
	cl, _ := a.cfg.Load().Cluster(cluster)
	switch {
	case len(cl.Switchover.Command) > 0:
		return commandAuthority(cl), nil
	case cl.Authority == topology.AuthorityPatroni:
		return a.patroniAuthority(cl)
	case cl.Authority == topology.AuthorityMonitor:
		return a.monitorAuthority(cl)
	}
	return switchover.Authority{}, fmt.Errorf("cluster %s has `authority: none`, so that nobody can be asked to switch over; name a command (clusters.%s.switchover.command)", cluster, cluster)
}

// passwordIn reads a password of a switchover now, so that it is that of this moment.
func passwordIn(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	b, err := config.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return parsePassword([][]byte{b})
}
