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
	// Nodes are listed here, or in Inventory, or are Patroni's members.
	Nodes     Nodes  `yaml:"nodes"`
	Inventory string `yaml:"inventory" type:"path"` // watched; read with ParseInventory
	Policy    Policy `yaml:"policy"`
	Pools     Pools  `yaml:"pools"`
	// Postgres begins as the file's postgres section.
	Postgres Postgres `yaml:"postgres" like:"postgres"`
}

// Patroni says where the cluster's keys lie in Consul: below NAMESPACE/SCOPE/.
type Patroni struct {
	Scope     string `yaml:"scope"` // default: the cluster's name
	Namespace string `yaml:"namespace"`
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
		Name:      name,
		Authority: topology.DefaultPolicy().Authority,
		Patroni:   Patroni{Scope: name, Namespace: "service"},
		Policy:    defaultPolicy(),
		Pools:     defaultPools(),
		Postgres:  pg,
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
	for _, e := range d.entries(p, n) {
		var text string
		if e.key == "" {
			d.fault(p, e.at, "a tag has no name")
		}
		d.value(p.child(e.key), e.value, reflect.ValueOf(&text).Elem(), "")
		if *t == nil {
			*t = make(tags)
		}
		(*t)[e.key] = text
	}
}
