package agent

import (
	"fmt"

	"github.com/pgsteer/pgsteer/agent/tap"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Why a recording ends before its reader wants it to.
const (
	cutByReload = "its configuration was reloaded, so what comes now is decided by other rules"
	cutByEnd    = "the agent stops watching the cluster: it ends, or a reload changed the cluster's sources"
)

// observations serves what the clusters' rules are fed with.
func (a *Agent) observations() *tap.Handler {
	return tap.NewHandler(tap.Options{Find: a.watched, Clusters: a.clusterNames, Now: a.now, Version: a.o.Version})
}

// watched is a cluster as it may be recorded.
func (a *Agent) watched(name string) (tap.Source, bool) {
	cfg := a.cfg.Load()
	cl, configured := cfg.Cluster(name)
	a.mu.Lock()
	c := a.clusters[name]
	a.mu.Unlock()
	if !configured || c == nil {
		return tap.Source{}, false
	}
	return tap.Source{Tap: &c.tap, Cluster: cl, Zone: cfg.Zone, Secrets: func() []string {
		secrets := []string{cfg.Consul.Token.Reveal(), cl.Postgres.Password.Reveal(), cl.Monitor.Password.Reveal()}
		for _, now := range []func() string{c.watch.password, c.watch.monitorPassword} {
			if now != nil {
				secrets = append(secrets, now()) // it may have been changed since
			}
		}
		return secrets
	}}, true
}

// samePolicy reports whether a reload leaves a cluster's rules as they are.
func samePolicy(a, b topology.Policy) bool { return fmt.Sprintf("%#v", a) == fmt.Sprintf("%#v", b) }
