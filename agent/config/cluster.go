package config

import (
	"reflect"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Cluster is one primary and its replicas.
type Cluster struct {
	Name      string                 `yaml:"-"`
	Authority topology.AuthorityKind `yaml:"authority"`
	Patroni   Patroni                `yaml:"patroni"`
	Monitor   Monitor                `yaml:"pg_auto_failover"`
	// Nodes are listed here, or in Inventory, or are the instances of ConsulService,
	// or Patroni's members, or those that pg_auto_failover's monitor knows.
	Nodes         Nodes         `yaml:"nodes"`
	Inventory     string        `yaml:"inventory" type:"path"` // watched; read with ParseInventory
	ConsulService ConsulService `yaml:"consul_service"`
	Policy        Policy        `yaml:"policy"`
	Pools         Pools         `yaml:"pools"`
	Switchover    Switchover    `yaml:"switchover"`
	Mesh          ClusterMesh   `yaml:"mesh"`
	// Postgres begins as the file's postgres section.
	Postgres Postgres `yaml:"postgres" like:"postgres"`
}

// Patroni says where Patroni's word is heard: its keys in Consul, which lie below
// NAMESPACE/SCOPE/, or its members' REST interface.
type Patroni struct {
	Source    PatroniSource `yaml:"source"`
	Scope     string        `yaml:"scope"` // default: the cluster's name
	Namespace string        `yaml:"namespace"`
	Group     string        `yaml:"group"` // number of a Citus group; empty: no Citus

	// These are for SourceREST alone. The other members are learned from the first.
	Endpoints  []string `yaml:"endpoints"` // http://host:port or https://host:port
	CAFile     string   `yaml:"ca_file" type:"file"`
	CertFile   string   `yaml:"cert_file" type:"file"`
	KeyFile    string   `yaml:"key_file" type:"file"`
	ServerName string   `yaml:"server_name"`
}

// Clusters is a map by name in the file and keeps the file's order.
type Clusters []Cluster

// Nodes is a map by name in the file and keeps the file's order.
type Nodes []topology.Node

// nodeSpec is the long form of a node; the short form is its address alone.
type nodeSpec struct {
	Address topology.Address `yaml:"address"`
	Tags    tags             `yaml:"tags"`
}

type tags map[string]string

func defaultCluster(name string, pg Postgres) Cluster {
	return Cluster{
		Name:          name,
		Authority:     topology.DefaultPolicy().Authority,
		Patroni:       Patroni{Source: SourceConsul, Scope: name, Namespace: "service"},
		Monitor:       defaultMonitor(),
		Policy:        defaultPolicy(),
		ConsulService: ConsulService{NodeNames: NamedByNode},
		Pools:         defaultPools(),
		Switchover:    defaultSwitchover(),
		Mesh:          ClusterMesh{Publish: true},
		Postgres:      pg,
	}
}

func (cs *Clusters) decode(d *decoder, p path, n *yaml.Node) {
	for _, e := range d.named(p, n) {
		c := defaultCluster(e.key, d.root.Postgres)
		d.structure(p.child(e.key), e.value, reflect.ValueOf(&c).Elem())
		*cs = append(*cs, c)
	}
}

func (ns *Nodes) decode(d *decoder, p path, n *yaml.Node) {
	for _, e := range d.named(p, n) {
		var spec nodeSpec
		here := p.child(e.key)
		if v := resolve(e.value); v.Kind == yaml.ScalarNode && !isNull(v) {
			d.value(here, v, reflect.ValueOf(&spec.Address).Elem(), "")
		} else {
			d.structure(here, e.value, reflect.ValueOf(&spec).Elem())
		}
		*ns = append(*ns, topology.Node{Name: e.key, Address: spec.Address, Tags: spec.Tags})
	}
}

// decode takes tags as they are written: zone: a and nofailover: true are texts.
func (t *tags) decode(d *decoder, p path, n *yaml.Node) {
	decodeTexts((*map[string]string)(t), "tag", d, p, n)
}

// decodeTexts reads a map of texts; kind says what one of them is.
func decodeTexts(m *map[string]string, kind string, d *decoder, p path, n *yaml.Node) {
	for _, e := range d.entries(p, n) {
		var text string
		if e.key == "" {
			d.fault(p, e.at, "a %s has no name", kind)
		}
		d.value(p.child(e.key), e.value, reflect.ValueOf(&text).Elem(), "")
		if *m == nil {
			*m = make(map[string]string)
		}
		(*m)[e.key] = text
	}
}
