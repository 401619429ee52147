package agent

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/doctor"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
	"github.com/pgsteer/pgsteer/watchers/postgres"
)

// Doctor returns what doctor.Run needs of a configuration: it logs in to nodes and
// asks Consul exactly as an agent would. It fails where an agent could not be built.
func Doctor(cfg *config.Config, o Options) (doctor.Options, error) {
	o = o.withDefaults()
	a := &Agent{o: o, log: o.Logger, now: topology.NewTicker(o.Clock), store: newStore("", o.Logger)}
	client, err := a.consulClient(cfg)
	if err != nil {
		return doctor.Options{}, err
	}
	watches := make(map[string]*watch)
	for _, cl := range cfg.Clusters {
		w, err := newWatch(cl, client, a.now, slog.New(slog.DiscardHandler))
		if err != nil {
			return doctor.Options{}, fmt.Errorf("cluster %s cannot be watched: %w", cl.Name, err)
		}
		watches[cl.Name] = w
	}
	out := doctor.Options{
		Config: cfg, Now: o.Clock, Getenv: o.Getenv,
		Login: func(ctx context.Context, cluster string, n topology.Node) (doctor.Session, *topology.Failure) {
			l, f := postgres.Login(ctx, watches[cluster].asked(n))
			if f != nil {
				return nil, f
			}
			return l, nil
		},
	}
	if client != nil {
		out.Consul = func(ctx context.Context, prefix string) (doctor.ConsulAnswer, error) {
			q, err := client.Options(ctx, consul.Default)
			if err != nil {
				return doctor.ConsulAnswer{}, err
			}
			keys, meta, err := client.KV().Keys(prefix, "", q)
			if err != nil {
				return doctor.ConsulAnswer{}, err
			}
			return doctor.ConsulAnswer{Keys: len(keys), Filtered: meta.ResultsFilteredByACLs}, nil
		}
	}
	return out, nil
}
