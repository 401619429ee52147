package agent

import (
	"fmt"
	"maps"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// consulClient is nil for a configuration that does not need Consul. Clusters
// that come with a reload get the client of those that run on, since the watchers
// of one client share their requests.
func (a *Agent) consulClient(cfg *config.Config) (*consul.Client, error) {
	if !cfg.UsesConsul() {
		return nil, nil
	}
	made := madeOf(cfg)
	if c := a.consuls[made]; c != nil {
		return c, nil
	}
	c, err := consul.NewClient(consul.ClientOptions{
		Address: cfg.Consul.Address, TokenFile: cfg.Consul.TokenFile, Datacenter: cfg.Consul.Datacenter,
		Namespace: cfg.Consul.Namespace, Partition: cfg.Consul.Partition,
		CAFile: cfg.Consul.CAFile, CertFile: cfg.Consul.CertFile, KeyFile: cfg.Consul.KeyFile,
		ServerName: cfg.Consul.ServerName, Logger: a.log.With("component", "consul"),
	})
	if err != nil {
		return nil, err
	}
	// What runs may still need its client: this configuration may yet be refused.
	if running := a.cfg.Load(); running != nil {
		maps.DeleteFunc(a.consuls, func(other string, _ *consul.Client) bool { return other != madeOf(running) })
	}
	if a.consuls == nil {
		a.consuls = make(map[string]*consul.Client)
	}
	a.consuls[made] = c
	return c, nil
}

// madeOf identifies a client by what it is made of, without the token itself.
func madeOf(cfg *config.Config) string { return fmt.Sprintf("%#v", cfg.Consul) }

// catalog adds the service in Consul whose instances are the nodes.
func (w *watch) catalog(client *consul.Client) error {
	s := w.cluster.ConsulService
	c, err := consul.NewCatalog(consul.CatalogOptions{
		Cluster: w.cluster.Name, Service: s.Name, Tag: s.Tag, NodeNames: consul.NodeNames(s.NodeNames),
		Client: client, Now: w.now, Logger: w.base.With("component", "consul"),
	})
	if err != nil {
		return err
	}
	w.add(c.ID(), c)
	return nil
}
