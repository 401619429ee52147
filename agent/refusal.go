package agent

import (
	"crypto/tls"
	"fmt"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/refusal"
	"github.com/pgsteer/pgsteer/agent/status"
)

// planRefusals are the listeners that tell clients of a pool why it takes none.
func (a *Agent) planRefusals(cfg *config.Config) []plan {
	var all []plan
	for _, cl := range cfg.Clusters {
		for _, p := range cl.Pools {
			if p.Refuse.Off() {
				continue
			}
			w := plan{
				name: partRefusal + " " + cl.Name + "/" + p.Name, made: fmt.Sprintf("%#v", []any{p.Refuse, cfg.Listen.RefusalTLS}), listens: true,
				make: func() (*part, error) { return a.buildRefusal(cfg, cl.Name, p) },
			}
			if cfg.Listen.RefusalTLS.On() {
				w.check = func() error { _, err := a.refusalTLS(cfg); return err }
			}
			all = append(all, w)
		}
	}
	return all
}

func (a *Agent) refusalTLS(cfg *config.Config) (*listenerTLS, error) {
	t := cfg.Listen.RefusalTLS
	secure, err := newListenerTLS(config.TLSListener{CertFile: t.CertFile, KeyFile: t.KeyFile}, a.log.With("component", partRefusal), "postgresql")
	if err != nil {
		return nil, fmt.Errorf("listen.refusal_tls: %w", err)
	}
	return secure, nil
}

// buildRefusal makes the one of a pool.
func (a *Agent) buildRefusal(cfg *config.Config, cluster string, p config.Pool) (*part, error) {
	var secure *listenerTLS
	var offered *tls.Config
	if cfg.Listen.RefusalTLS.On() {
		var err error
		if secure, err = a.refusalTLS(cfg); err != nil {
			return nil, err
		}
		offered = secure.config()
	}
	srv, err := refusal.New(refusal.Options{
		Cluster: cluster, Pool: p.Name, Views: &a.views, Now: a.now, TLS: offered, Logger: a.log.With("component", partRefusal),
	})
	if err != nil {
		return nil, err
	}
	name := partRefusal + " " + cluster + "/" + p.Name
	made, err := a.served(name, p.Refuse, srv.Serve)
	if err != nil {
		return nil, err
	}
	if secure != nil {
		made.run = secure.beside(made.run)
	}
	made.status = func() []status.Sink {
		n := srv.Counters()
		s := status.Sink{Name: name, State: status.SinkOK, Counters: map[string]uint64{
			"57P01": n.Maintenance.Load(), "57P03": n.Unavailable.Load(), "cancels": n.Cancels.Load(),
			"unheard": n.Unheard.Load(), "rejected": n.Rejected.Load(),
		}}
		if secure != nil {
			s.Gauges = map[string]uint64{"certificate_expires_timestamp_seconds": secure.expires()}
		}
		return []status.Sink{s}
	}
	return made, nil
}
