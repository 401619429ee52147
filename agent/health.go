package agent

import (
	"crypto/tls"
	"fmt"
	"net/http"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/healthapi"
	"github.com/pgsteer/pgsteer/agent/status"
)

// buildHealth makes the listener for health checks without TLS.
func (a *Agent) buildHealth(cfg *config.Config) (*part, error) {
	srv, err := a.newHealth(cfg, partHealth, nil)
	if err != nil {
		return nil, err
	}
	p, err := a.served(partHealth, cfg.Listen.Health, srv.Serve)
	if err != nil {
		return nil, err
	}
	p.live, p.status = a.liveHealth(srv), func() []status.Sink { return []status.Sink{healthStatus(partHealth, srv)} }
	return p, nil
}

// planHealthTLS is the listener with TLS; other files of it need another one.
func (a *Agent) planHealthTLS(cfg *config.Config) plan {
	secure := cfg.Listen.HealthTLS
	return plan{
		name: partHealthTLS, made: fmt.Sprintf("%#v", secure), listens: true,
		make:  func() (*part, error) { return a.buildHealthTLS(cfg) },
		check: func() error { _, err := newListenerTLS(secure, a.log); return err },
	}
}

// buildHealthTLS makes it.
func (a *Agent) buildHealthTLS(cfg *config.Config) (*part, error) {
	secure, err := newListenerTLS(cfg.Listen.HealthTLS, a.log.With("component", partHealthTLS), "http/1.1")
	if err != nil {
		return nil, err
	}
	srv, err := a.newHealth(cfg, partHealthTLS, secure.config())
	if err != nil {
		return nil, err
	}
	p, err := a.served(partHealthTLS, cfg.Listen.HealthTLS.Address, srv.Serve)
	if err != nil {
		return nil, err
	}
	p.run = secure.beside(p.run)
	p.live = a.liveHealth(srv)
	p.status = func() []status.Sink {
		s := healthStatus(partHealthTLS, srv)
		s.Counters["failed_handshakes"] = srv.Counters().Handshakes.Load()
		s.Gauges = map[string]uint64{"certificate_expires_timestamp_seconds": secure.expires()}
		return []status.Sink{s}
	}
	return p, nil
}

func (a *Agent) newHealth(cfg *config.Config, name string, secure *tls.Config) (*healthapi.Server, error) {
	set := healthSettings(cfg)
	return healthapi.New(healthapi.Options{
		Views: &a.views, Now: a.now, Saved: a.savedVerdict, Version: a.o.Version, TLS: secure,
		Local: set.Local, Compat: set.Compat, DrainStatus: set.DrainStatus, Logger: a.log.With("component", name),
	})
}

// liveHealth hands over what a running server takes without a restart.
func (a *Agent) liveHealth(srv *healthapi.Server) func(*config.Config) {
	return func(cfg *config.Config) {
		if err := srv.Reconfigure(healthSettings(cfg)); err != nil {
			a.log.Error("health checks are answered as before", "err", err)
		}
	}
}

func healthSettings(cfg *config.Config) healthapi.Settings {
	set := healthapi.Settings{
		Local:  healthapi.NodeRef{Cluster: cfg.Local.Cluster, Node: cfg.Local.Node},
		Compat: healthapi.Compat(cfg.Health.Compat), DrainStatus: http.StatusServiceUnavailable,
	}
	if cfg.Health.DrainStatus == config.DrainNotFound {
		set.DrainStatus = http.StatusNotFound
	}
	return set
}

func healthStatus(name string, srv *healthapi.Server) status.Sink {
	n := srv.Counters()
	return status.Sink{Name: name, State: status.SinkOK, Counters: map[string]uint64{
		"ok": n.OK.Load(), "unavailable": n.Unavailable.Load(), "other": n.Other.Load(),
		"unanswered": n.Unanswered.Load(), "maintenance": n.Maintenance.Load(), "rejected": n.Rejected.Load(),
	}}
}
