package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/doctor"
	"github.com/pgsteer/pgsteer/agent/pgbouncer"
	"github.com/pgsteer/pgsteer/agent/systemd"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
	"github.com/pgsteer/pgsteer/watchers/pgautofailover"
	"github.com/pgsteer/pgsteer/watchers/postgres"
)

// Doctor returns what doctor.Run needs of a configuration: it logs in to nodes and
// asks Consul exactly as an agent would. It fails where an agent could not be built.
func Doctor(cfg *config.Config, o Options) (doctor.Options, error) {
	a := neverRun(o)
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
		Config: cfg, Now: a.o.Clock, Getenv: a.o.Getenv,
		Login: func(ctx context.Context, cluster string, n topology.Node) (doctor.Session, *topology.Failure) {
			return session(postgres.Login(ctx, watches[cluster].asked(n)))
		},
		Monitor: func(ctx context.Context, cluster string, at topology.Address) (doctor.Session, *topology.Failure) {
			m, is := watches[cluster].authority.(*pgautofailover.Watcher)
			if !is {
				return nil, &topology.Failure{Class: topology.FailLocal, Text: "cluster " + cluster + " has no monitor"}
			}
			return session(m.Login(ctx, at))
		},
		Console: func(ctx context.Context, b config.PgBouncer) (doctor.Console, error) {
			l, err := bouncerLogin(b, slog.New(slog.DiscardHandler))
			if err != nil {
				return nil, err
			}
			return looked(pgbouncer.Open(ctx, l))
		},
		Lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		Unit: func(ctx context.Context, name string) (doctor.Unit, error) {
			u, err := systemd.AskUnit(ctx, nil, name)
			return doctor.Unit{Load: u.Load, Active: u.Active, CanReload: u.CanReload, Root: os.Geteuid() == 0}, err
		},
	}
	if cfg.Maintenance.Sessions.User != "" {
		e, err := a.newEnder(cfg.Maintenance.Sessions)
		if err != nil {
			return doctor.Options{}, err
		}
		out.Ender = func(ctx context.Context, cluster string, n topology.Node) (doctor.Session, *topology.Failure) {
			return session(postgres.Login(ctx, e.as(watches[cluster].asked(n))))
		}
	}
	if client != nil {
		out.Consul = func(ctx context.Context, prefix string) (doctor.ConsulAnswer, error) {
			return keysBelow(ctx, client, prefix)
		}
		out.Lacking = client.Lacking
	}
	return out, nil
}

// looked keeps a nil session from being one.
func looked(l *pgbouncer.Look, err error) (doctor.Console, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}

// ConsulClient returns the client with which an agent would ask Consul. It fails
// where an agent could not be built, and for a configuration that needs no Consul.
func ConsulClient(cfg *config.Config, o Options) (*consul.Client, error) {
	client, err := neverRun(o).consulClient(cfg)
	if err == nil && client == nil {
		err = errors.New("the configuration does not need Consul")
	}
	return client, err
}

// session is a login for doctor; a failed one is no session, not an empty one.
func session(l *postgres.Look, f *topology.Failure) (doctor.Session, *topology.Failure) {
	if f != nil {
		return nil, f
	}
	return l, nil
}

// keysBelow counts the keys in Consul that begin with a prefix.
func keysBelow(ctx context.Context, client *consul.Client, prefix string) (doctor.ConsulAnswer, error) {
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
