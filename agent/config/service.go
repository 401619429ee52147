package config

import (
	"strconv"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// ConsulService is a service in Consul's catalog whose instances are the nodes.
type ConsulService struct {
	Name string `yaml:"name"` // empty: there is none
	// Tag narrows the service to the instances that have it.
	Tag string `yaml:"tag"`
	// NodeNames says what the node of an instance is called.
	NodeNames NodeNames `yaml:"node_names"`
}

// NodeNames says what the node of a service's instance is called.
type NodeNames string

// The choices for NodeNames.
const (
	NamedByNode NodeNames = "node" // as the Consul node it runs on
	NamedByID   NodeNames = "id"   // as the instance's ID, up from the last slash
	NamedByMeta NodeNames = "meta" // as its metadata says under node
)

// UsesConsul reports whether the cluster needs Consul: for Patroni's keys, or for
// its nodes.
func (c Cluster) UsesConsul() bool {
	return c.Authority == topology.AuthorityPatroni && c.Patroni.Source == SourceConsul || c.ConsulService.Name != ""
}

// check wants a name, and nothing else that says which nodes there are.
func (cs ConsulService) check(s scope, c Cluster) {
	if cs.Name == "" && !s.written("") {
		return
	}
	switch {
	case c.Authority == topology.AuthorityPatroni:
		s.faultOf("", "with `authority: patroni` the members of Patroni are the nodes; a service beside them has no effect")
	case c.Authority == topology.AuthorityMonitor:
		s.faultOf("", "with `authority: pg_auto_failover` the nodes of its monitor are the nodes; a service beside them has no effect")
	case cs.Name == "":
		s.fault("name", "consul_service needs the `name` of the service whose instances are the nodes")
	}
}

// isGroup tells the number of a Citus group, as Patroni writes it in its keys.
func isGroup(s string) bool {
	n, err := strconv.ParseUint(s, 10, 31)
	return err == nil && strconv.FormatUint(n, 10) == s
}
