package config

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Mesh says how clusters are published into Consul.
type Mesh struct {
	Mode MeshMode `yaml:"mode"`
	// Tags are given to every instance, beside those that tell its role.
	Tags       []string `yaml:"tags"`
	CompatTags bool     `yaml:"compat_tags"` // the primary has the tag master too

	// These are for MeshExternal alone.
	Key        string        `yaml:"key"` // below which the locks of publishers lie
	SessionTTL time.Duration `yaml:"session_ttl"`

	// These are for MeshLocal alone.
	WhenDead   WhenDead      `yaml:"when_dead"`
	TTL        time.Duration `yaml:"ttl"`
	PrimaryTTL time.Duration `yaml:"primary_ttl"`
	Sidecar    bool          `yaml:"sidecar"`
}

// ClusterMesh says how one cluster is published.
type ClusterMesh struct {
	Publish   bool     `yaml:"publish"`
	Service   string   `yaml:"service"` // empty: the cluster's name
	Node      string   `yaml:"node"`    // MeshLocal: the one on this host; empty: see Config.Local
	WritePool string   `yaml:"write_pool"`
	ReadPool  string   `yaml:"read_pool"`
	Tags      []string `yaml:"tags"`
}

// MeshMode says who registers what.
type MeshMode string

// The choices for MeshMode.
const (
	MeshOff      MeshMode = "off"
	MeshLocal    MeshMode = "local"    // the node on this host, at the Consul agent on this host
	MeshExternal MeshMode = "external" // all nodes, as services of an external node
)

// WhenDead says what becomes of a check that is not fed.
type WhenDead string

// The choices for WhenDead.
const (
	DeadCritical WhenDead = "critical"
	DeadStay     WhenDead = "stay"
)

// The shortest times: Consul takes no session below 10 s, and a check is fed thrice
// within its TTL.
const (
	minSessionTTL = 10 * time.Second
	maxSessionTTL = 24 * time.Hour
	minCheckTTL   = 5 * time.Second
)

func defaultMesh() Mesh {
	return Mesh{
		Mode: MeshOff, Key: "pgsteer/mesh", SessionTTL: minSessionTTL,
		WhenDead: DeadCritical, TTL: 3 * time.Minute, PrimaryTTL: 30 * time.Second,
	}
}

// Published are the clusters that are published, in the file's order.
func (c *Config) Published() []Cluster {
	if c.Mesh.Mode == MeshOff || c.Mesh.Mode == "" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Clusters), func(cl Cluster) bool { return !cl.Mesh.Publish })
}

// MeshService is what a cluster is called in Consul.
func (c Cluster) MeshService() string {
	if c.Mesh.Service != "" {
		return c.Mesh.Service
	}
	return c.Name
}

// MeshNode is the node of a cluster on this host, "" when that is not said.
func (c *Config) MeshNode(cl Cluster) string {
	if cl.Mesh.Node == "" && c.Local.Cluster == cl.Name {
		return c.Local.Node
	}
	return cl.Mesh.Node
}

// meshKeys are the keys of Mesh that belong to one mode.
var meshKeys = map[MeshMode][]string{
	MeshExternal: {"key", "session_ttl"},
	MeshLocal:    {"when_dead", "ttl", "primary_ttl", "sidecar"},
}

func (c *Config) checkMesh(s scope) {
	in, m := s.in("mesh"), c.Mesh
	known := meshModeKnown(s.d)
	for _, mode := range []MeshMode{MeshExternal, MeshLocal} {
		for _, key := range meshKeys[mode] {
			if known && m.Mode != mode && in.written(key) {
				in.fault(key, "%s has no effect without `mode: %s`", key, mode)
			}
		}
	}
	checkMeshTags(in.in("tags"), m.Tags)
	if strings.Trim(m.Key, "/") != m.Key || m.Key == "" {
		in.fault("key", "key %s is no prefix of keys in Consul's store: it needs a name, without a slash before or behind it", quote(m.Key))
	}
	if m.SessionTTL < minSessionTTL || m.SessionTTL > maxSessionTTL {
		in.fault("session_ttl", "session_ttl is not between %s and %s, which Consul wants", minSessionTTL, maxSessionTTL)
	}
	if m.Mode == MeshLocal || !known {
		m.checkTTLs(in)
	}
	services := make(map[string]string)
	for _, cl := range c.Clusters {
		cl.checkMesh(s.in("clusters").in(cl.Name).in("mesh"), c, services)
	}
	c.checkMeshNames(s.in("clusters"), services)
}

// meshModeKnown reports whether the file says how clusters are published, or that they
// are not; else what is written for any mode is looked over.
func meshModeKnown(d *decoder) bool {
	p := path("mesh").child("mode")
	return d.legible(p) && !d.unsound[p]
}

// sidecarSuffix is what Consul appends to a service to name its sidecars'.
const sidecarSuffix = "-sidecar-proxy"

// checkMeshNames refuses names that are published and used for something else too;
// services are those that are published, with their clusters.
func (c *Config) checkMeshNames(s scope, services map[string]string) {
	for _, cl := range c.Clusters {
		in := s.in(cl.Name)
		if by, ok := services[cl.ConsulService.Name]; ok && cl.ConsulService.Name != "" {
			in.in("consul_service").fault("name", "service %s is what pgsteer publishes of cluster %s: it would take its own word for the nodes; name another service, or set another `mesh.service` there", cl.ConsulService.Name, by)
		}
		if base, ok := strings.CutSuffix(cl.MeshService(), sidecarSuffix); ok && c.Mesh.Sidecar && services[cl.MeshService()] == cl.Name && services[base] != "" {
			in.in("mesh").fault("service", "service %s is that of the sidecars of cluster %s already", cl.MeshService(), services[base])
		}
	}
}

func (m Mesh) checkTTLs(s scope) {
	if m.WhenDead == DeadStay {
		for _, key := range []string{"ttl", "primary_ttl"} {
			if s.written(key) {
				s.fault(key, "%s has no effect with `when_dead: stay`", key)
			}
		}
		return
	}
	if m.PrimaryTTL < minCheckTTL {
		s.fault("primary_ttl", "primary_ttl is below %s: a moment without CPU would take the primary out", minCheckTTL)
	}
	if m.TTL < m.PrimaryTTL {
		s.fault("ttl", "ttl is below primary_ttl, %s: the primary's is the shorter one, since two primaries are worse than a replica too many", m.PrimaryTTL)
	}
}

func checkMeshTags(s scope, tags []string) {
	for i, tag := range tags {
		if err := topology.CheckServiceTag(tag); err != nil {
			s.fault(strconv.Itoa(i), "%v", err)
		}
		if slices.Contains(tags[:i], tag) {
			s.fault(strconv.Itoa(i), "tag %s is listed already", tag)
		}
	}
}

// checkMesh: services has the names that are taken, with their clusters.
func (c Cluster) checkMesh(s scope, all *Config, services map[string]string) {
	known := meshModeKnown(s.d)
	if known && (all.Mesh.Mode == MeshOff || all.Mesh.Mode == "") {
		if s.written("") {
			s.faultOf("", "these settings have no effect without `mode` of `mesh` at the top of the file")
		}
		return
	}
	if !c.Mesh.Publish {
		return
	}
	name := c.MeshService()
	if err := topology.CheckLabel(name); err != nil {
		s.fault("service", "the service's name %v; set `mesh.service` of cluster %s", err, c.Name)
	} else if name == "consul" {
		s.fault("service", "service consul is that of Consul's own servers; set another `mesh.service` for cluster %s", c.Name)
	} else if other, ok := services[name]; ok {
		s.fault("service", "service %s is that of cluster %s already", name, other)
	}
	services[name] = c.Name
	checkMeshTags(s.in("tags"), c.Mesh.Tags)
	for i, tag := range c.Mesh.Tags {
		if slices.Contains(all.Mesh.Tags, tag) {
			s.in("tags").fault(strconv.Itoa(i), "tag %s is in `mesh.tags` already", tag)
		}
	}
	c.checkMeshPool(s, "write_pool", c.Mesh.WritePool, topology.ModeWrite)
	c.checkMeshPool(s, "read_pool", c.Mesh.ReadPool, topology.ModeRead)
	switch node := all.MeshNode(c); {
	case known && all.Mesh.Mode != MeshLocal && c.Mesh.Node != "":
		s.fault("node", "node has no effect without `mode: local` of `mesh`: all nodes are published")
	case all.Mesh.Mode == MeshLocal && node == "":
		s.fault("node", "`mode: local` of `mesh` publishes the node on this host: name it in `mesh.node` of cluster %s, or set `publish: false` there", c.Name)
	case c.Mesh.Node != "":
		c.checkNode(s, "node", node)
	}
}

func (c Cluster) checkMeshPool(s scope, key, name string, mode topology.Mode) {
	if name == "" {
		return
	}
	var names []string
	for _, p := range c.Pools {
		if p.Mode == mode {
			names = append(names, p.Name)
		}
	}
	if !slices.Contains(names, name) {
		s.fault(key, "no such pool of mode %s: %s", mode, UnknownWord(name, names))
	}
}
