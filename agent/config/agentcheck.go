package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// AgentCheck shapes the answers to HAProxy's agent checks.
type AgentCheck struct {
	AdminWords AdminWords `yaml:"admin_words"`
	// Ports answer for one server each, whatever they are asked.
	Ports []AgentCheckPort `yaml:"ports"`
}

// AgentCheckPort is a port that answers for one server.
type AgentCheckPort struct {
	Listen ListenAddress `yaml:"listen"`
	Server ServerRef     `yaml:"server"`
}

// AdminWords says whether answers hold HAProxy's administrative words.
type AdminWords string

// The choices for AdminWords.
const (
	AdminNever  AdminWords = "never"
	AdminAlways AdminWords = "always"
)

// guardNode stands for a pool's guard in a ServerRef.
const guardNode = "!guard"

// ServerRef names a node in a pool, or the pool's guard, written
// cluster/pool/node or cluster/pool/!guard. Zero: none.
type ServerRef struct{ Cluster, Pool, Node string }

// String writes cluster/pool/node, and nothing for none.
func (r ServerRef) String() string {
	if r == (ServerRef{}) {
		return ""
	}
	return r.Cluster + "/" + r.Pool + "/" + r.Node
}

// MarshalText writes String.
func (r ServerRef) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText reads cluster/pool/node; an empty text is none.
func (r *ServerRef) UnmarshalText(b []byte) error {
	*r = ServerRef{}
	if len(b) == 0 {
		return nil
	}
	names := strings.Split(string(b), "/")
	if len(names) != 3 {
		return fmt.Errorf("%q is not cluster/pool/node, such as main/primary/n1", b)
	}
	for i, name := range names {
		if err := topology.CheckName(name); err != nil && (i < 2 || name != guardNode) {
			return fmt.Errorf("%q is not cluster/pool/node: %w", b, err)
		}
	}
	*r = ServerRef{Cluster: names[0], Pool: names[1], Node: names[2]}
	return nil
}

// checkAgentCheck wants ports that answer for somebody who exists.
func (c *Config) checkAgentCheck(s scope) {
	for i, p := range c.AgentCheck.Ports {
		in := s.in("ports").in(strconv.Itoa(i))
		if p.Listen.Off() {
			in.fault("listen", "listen is missing: the address of a port that answers for one server")
		}
		if p.Server == (ServerRef{}) {
			in.fault("server", "server is missing: cluster/pool/node")
			continue
		}
		cl, ok := c.Cluster(p.Server.Cluster)
		if !ok {
			if s.d.legible("clusters") {
				in.fault("server", "no such cluster: %s", UnknownWord(p.Server.Cluster, c.ClusterNames()))
			}
			continue
		}
		var pools []string
		known := false
		for _, pool := range cl.Pools {
			pools = append(pools, pool.Name)
			known = known || pool.Name == p.Server.Pool
		}
		if !known && s.d.legible(path("clusters").child(cl.Name).child("pools")) {
			in.fault("server", "no such pool in cluster %s: %s", cl.Name, UnknownWord(p.Server.Pool, pools))
		}
		if p.Server.Node != guardNode {
			cl.checkNode(in, "server", p.Server.Node)
		}
	}
}

// checkNode refuses a node that the cluster cannot have.
func (c Cluster) checkNode(s scope, key, node string) {
	names, ok := c.listed(scope{s.d, path("clusters").child(c.Name)})
	if ok && !slices.Contains(names, node) {
		s.fault(key, "no such node in cluster %s: %s", c.Name, UnknownWord(node, names))
	}
}

// listed are the names of the nodes, where this file alone says which there are:
// others come and go without it. A node counts whatever else is wrong with it.
func (c Cluster) listed(s scope) (names []string, ok bool) {
	for _, key := range []string{"authority", "inventory", "consul_service"} {
		if s.d.unsound[s.in(key).at] {
			return nil, false
		}
	}
	if c.Authority != topology.AuthorityNone || c.Inventory != "" || c.ConsulService.Name != "" || s.d.opaque[s.in("nodes").at] {
		return nil, false
	}
	for _, n := range c.Nodes {
		names = append(names, n.Name)
	}
	return names, len(names) > 0
}
