package agent

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/statefile"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// planXDS is the server for Envoys. Its settings are taken over by the running
// one; another address or other files of TLS need another one.
func (a *Agent) planXDS(cfg *config.Config) plan {
	p := plan{
		name: partXDS, made: fmt.Sprintf("%s %s %#v", cfg.Listen.XDS, cfg.Envoy.Files, cfg.Envoy.TLS), listens: true,
		make: func() (*part, error) { return a.buildXDS(cfg) },
	}
	if cfg.Envoy.TLS.On() {
		p.check = func() error { _, err := a.envoyTLS(cfg); return err }
	}
	return p
}

func (a *Agent) envoyTLS(cfg *config.Config) (*listenerTLS, error) {
	t := cfg.Envoy.TLS
	secure, err := newListenerTLS(config.TLSListener{
		Address: cfg.Listen.XDS, CertFile: t.CertFile, KeyFile: t.KeyFile, ClientCAFile: t.ClientCAFile,
	}, a.log.With("component", partXDS), "h2")
	if err != nil {
		return nil, fmt.Errorf("envoy.tls: %w", err)
	}
	return secure, nil
}

func (a *Agent) buildXDS(cfg *config.Config) (*part, error) {
	var secure *listenerTLS
	var given *tls.Config
	if cfg.Envoy.TLS.On() {
		var err error
		if secure, err = a.envoyTLS(cfg); err != nil {
			return nil, err
		}
		given = secure.config()
	}
	srv := xds.New(xds.Options{
		Views: &a.views, Now: a.now, Clusters: a.clusterNames, Logger: a.log.With("component", partXDS),
		Settings: a.envoySettings(cfg), Memory: listenersFile(filepath.Join(a.store.dir, "envoy-listeners.json")), TLS: given,
		Files: cfg.Envoy.Files, AnyNode: cfg.Envoy.TLS.NodeIdentity == config.IdentityAny,
	})
	p, err := a.served(partXDS, cfg.Listen.XDS, srv.Run)
	if err != nil {
		return nil, err
	}
	p.live = func(cfg *config.Config) { srv.Reconfigure(a.envoySettings(cfg)) }
	p.envoys = srv.Status
	p.status = func() []status.Sink {
		sink := envoyStatus(srv.Status())
		if secure != nil {
			sink.Gauges["certificate_expires_timestamp_seconds"] = secure.expires()
		}
		return []status.Sink{sink}
	}
	if secure != nil {
		p.run = secure.beside(p.run)
	}
	return p, nil
}

// listenersFile is the file in which a server keeps what stands at Envoys.
type listenersFile string

// Load reads the file; without one there is nothing.
func (f listenersFile) Load() ([]byte, error) {
	b, err := config.ReadFile(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}

// Save replaces the file.
func (f listenersFile) Save(b []byte) error { return statefile.Write(string(f), b) }

func (a *Agent) envoySettings(cfg *config.Config) xds.Settings {
	listen := make(map[string]topology.Address)
	sessions := make(map[string]resources.Sessions)
	anyZone := make(map[string]bool)
	refuse := make(map[string]topology.Address)
	for _, cl := range cfg.Clusters {
		for _, p := range cl.Pools {
			name := resources.Name(cl.Name, p.Name)
			sessions[name] = resources.Sessions(p.EnvoySessions)
			if at := cfg.EnvoyListen(p); !at.Off() {
				listen[name] = address(at)
			}
			anyZone[name] = !p.PreferZone
			refuse[name] = address(p.Refuse)
		}
	}
	return xds.Settings{Release: cfg.Envoy.Release, Settings: resources.Settings{
		ConnectTimeout: cfg.Envoy.ConnectTimeout,
		ServerTLS:      resources.ServerTLS{CA: cfg.Envoy.ServerCA, Name: cfg.Envoy.ServerName},
		Check:          resources.Check{Address: address(cfg.Checks()), Interval: cfg.Envoy.CheckInterval},
		Saved:          a.savedVerdict,
		Sessions:       func(cluster, pool string) resources.Sessions { return sessions[resources.Name(cluster, pool)] },
		AnyZone:        func(cluster, pool string) bool { return anyZone[resources.Name(cluster, pool)] },
		Refuse:         func(cluster, pool string) topology.Address { return refuse[resources.Name(cluster, pool)] },
		Listen: func(cluster, pool string) (topology.Address, bool) {
			addr, ok := listen[resources.Name(cluster, pool)]
			return addr, ok
		},
	}}
}

func address(a config.ListenAddress) topology.Address {
	if a.Off() {
		return topology.Address{}
	}
	host, port := a.HostPort()
	return topology.Address{Host: host, Port: port}
}

// envoys is what the server for Envoys does, nil without one.
func (a *Agent) envoys() any {
	a.mu.Lock()
	p := a.parts[partXDS]
	a.mu.Unlock()
	if p == nil {
		return nil
	}
	return p.envoys()
}

// envoyStatus makes one sink of the xDS server. An Envoy that refused what it
// was sent last is its trouble: it goes on with what it had before.
func envoyStatus(s xds.Status) status.Sink {
	sink := status.Sink{Name: partXDS, State: status.SinkOK, Counters: map[string]uint64{}, Gauges: map[string]uint64{
		"streams": uint64(len(s.Streams)), "held_listeners": uint64(len(s.Held)), "held_clusters": uint64(len(s.HeldClusters)),
	}}
	sink.Counters["streams_rejected"], sink.Counters["impostors"] = s.Rejected, s.Impostors
	for kind, n := range s.Refused {
		sink.Counters["refused_"+strings.ToLower(kind)] = n
	}
	if !s.Answering {
		sink.State = status.SinkWaiting
		sink.Error = "no Envoy is answered before these clusters are decided, or 10 s are over: " + strings.Join(s.Waiting, " ")
	} else if len(s.Waiting) > 0 {
		sink.State = status.SinkWaiting
		sink.Error = "these clusters are not decided; Envoys hear nothing of them and keep what they have: " + strings.Join(s.Waiting, " ")
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
