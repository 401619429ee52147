package config

import (
	"reflect"
	"slices"
	"time"

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

// Policy holds the times of topology.Policy; their meaning stands there.
type Policy struct {
	AuthorityLost   topology.AuthorityLost `yaml:"authority_lost"`
	SilentAfter     time.Duration          `yaml:"silent_after"`
	KillAfter       time.Duration          `yaml:"kill_after"`
	RefusedConfirm  time.Duration          `yaml:"refused_confirm"`
	EvidenceMaxAge  time.Duration          `yaml:"evidence_max_age"`
	AuthorityMaxAge time.Duration          `yaml:"authority_max_age"`
	LeaderGap       time.Duration          `yaml:"leader_gap"`
	MinDown         time.Duration          `yaml:"min_down"`
	ReturnAfter     time.Duration          `yaml:"return_after"`
	PausedGrace     time.Duration          `yaml:"paused_grace"`
	StreamingGrace  time.Duration          `yaml:"streaming_grace"`
	LagUnknownAfter time.Duration          `yaml:"lag_unknown_after"`
}

// Pool is a named routing target of a cluster.
type Pool struct {
	Name        string            `yaml:"-"`
	Mode        topology.Mode     `yaml:"mode"`
	Listen      ListenAddress     `yaml:"listen"` // where balancers offer it; empty: nowhere
	MaxLag      topology.Size     `yaml:"max_lag"`
	MaxLagHard  topology.Size     `yaml:"max_lag_hard"`
	MinReplicas int               `yaml:"min_replicas"`
	Fallback    topology.Fallback `yaml:"fallback"`
}

// Clusters is a map by name in the file and keeps the file's order.
type Clusters []Cluster

// Pools is a map by name in the file and keeps the file's order.
type Pools []Pool

// Nodes is a map by name in the file and keeps the file's order.
type Nodes []topology.Node

// nodeSpec is the long form of a node; the short form is its address alone.
type nodeSpec struct {
	Address topology.Address `yaml:"address"`
	Tags    tags             `yaml:"tags"`
}

type tags map[string]string

func defaultCluster(name string, pg Postgres) Cluster {
	p := topology.DefaultPolicy()
	return Cluster{
		Name:      name,
		Authority: p.Authority,
		Patroni:   Patroni{Scope: name, Namespace: "service"},
		Policy: Policy{
			AuthorityLost:   p.AuthorityLost,
			SilentAfter:     p.SilentAfter,
			KillAfter:       p.KillAfter,
			RefusedConfirm:  p.RefusedConfirm,
			EvidenceMaxAge:  p.EvidenceMaxAge,
			AuthorityMaxAge: p.AuthorityMaxAge,
			LeaderGap:       p.LeaderGap,
			MinDown:         p.MinDown,
			ReturnAfter:     p.ReturnAfter,
			PausedGrace:     p.PausedGrace,
			StreamingGrace:  p.StreamingGrace,
			LagUnknownAfter: p.LagUnknownAfter,
		},
		Pools:    defaultPools(),
		Postgres: pg,
	}
}

func (c Cluster) policy() topology.Policy {
	p := topology.Policy{
		Authority:       c.Authority,
		AuthorityLost:   c.Policy.AuthorityLost,
		SilentAfter:     c.Policy.SilentAfter,
		KillAfter:       c.Policy.KillAfter,
		RefusedConfirm:  c.Policy.RefusedConfirm,
		EvidenceMaxAge:  c.Policy.EvidenceMaxAge,
		AuthorityMaxAge: c.Policy.AuthorityMaxAge,
		LeaderGap:       c.Policy.LeaderGap,
		MinDown:         c.Policy.MinDown,
		ReturnAfter:     c.Policy.ReturnAfter,
		PausedGrace:     c.Policy.PausedGrace,
		StreamingGrace:  c.Policy.StreamingGrace,
		LagUnknownAfter: c.Policy.LagUnknownAfter,
	}
	for _, pool := range c.Pools {
		p.Pools = append(p.Pools, pool.topology())
	}
	return p
}

func defaultPools() Pools {
	var pools Pools
	for _, p := range topology.DefaultPools() {
		pools = append(pools, defaultPool(p.Name, p.Mode))
	}
	return pools
}

func defaultPool(name string, mode topology.Mode) Pool {
	p := topology.DefaultPool(name, mode)
	return Pool{
		Name: p.Name, Mode: p.Mode, MaxLag: p.MaxLag, MaxLagHard: p.MaxLagHard,
		MinReplicas: p.MinReplicas, Fallback: p.Fallback,
	}
}

func (p Pool) topology() topology.Pool {
	return topology.Pool{
		Name: p.Name, Mode: p.Mode, MaxLag: p.MaxLag, MaxLagHard: p.MaxLagHard,
		MinReplicas: p.MinReplicas, Fallback: p.Fallback,
	}
}

func (cs *Clusters) decode(d *decoder, p path, n *yaml.Node) {
	for _, e := range d.named(p, n) {
		c := defaultCluster(e.key, d.root.Postgres)
		d.structure(p.child(e.key), e.value, reflect.ValueOf(&c).Elem())
		*cs = append(*cs, c)
	}
}

func (ps *Pools) decode(d *decoder, p path, n *yaml.Node) {
	entries := d.named(p, n)
	if len(entries) == 0 {
		return // nothing below the key: the default pools stand
	}
	*ps = nil
	for _, e := range entries {
		pool := defaultPool(e.key, d.poolMode(p.child(e.key), e))
		d.structure(p.child(e.key), e.value, reflect.ValueOf(&pool).Elem())
		*ps = append(*ps, pool)
	}
}

// poolMode finds a pool's mode before its other keys are decoded, since their
// defaults depend on it. The names of the default pools imply theirs.
func (d *decoder) poolMode(p path, e entry) topology.Mode {
	mode, implied := topology.ModeRead, false
	for _, known := range topology.DefaultPools() {
		if known.Name == e.key {
			mode, implied = known.Mode, true
		}
	}
	for _, f := range d.peek(e.value) {
		if f.key == "mode" {
			if word := resolve(f.value).Value; slices.Contains(words(mode), word) {
				mode = topology.Mode(word)
			}
			return mode // a bad word is reported when it is decoded
		}
	}
	if !implied && (isNull(e.value) || resolve(e.value).Kind == yaml.MappingNode) {
		d.fault(p.child("mode"), e.at, "pool %s has no mode, write or read; only the names primary and replica imply one", e.key)
	}
	return mode
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
