package simulate

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// names are the nodes that a file speaks of, each with the place where it does.
type names struct {
	nodes     map[string]config.Value // of a list of nodes, and Patroni's members
	servers   map[string]config.Value // with a truth
	addresses map[string]topology.Address
	members   bool // the file says who the members are
}

// know collects the names of the nodes and pools and gives every node an
// address. Every node that is probed needs a truth.
func (f *file) know(v config.Value) {
	for _, p := range f.Cluster.Pools {
		f.pools = append(f.pools, p.Name)
	}
	n := names{nodes: make(map[string]config.Value), servers: make(map[string]config.Value), addresses: make(map[string]topology.Address)}
	n.collect(v.Key("cluster").Key("nodes"), f.Cluster.Nodes)
	for _, part := range parts(v) {
		members := part.Key("kv").Key("members")
		n.members = n.members || members.Written()
		for name, m := range members.Entries() {
			if !isNull(m) {
				n.nodes[name] = m
			}
		}
		n.rows(part.Key("monitor"))
		maps.Insert(n.servers, part.Key("sql").Entries())
		var nodes config.Nodes
		part.Key("nodes").Into(&nodes)
		n.collect(part.Key("nodes"), nodes)
	}
	if !f.small(n) {
		return
	}
	f.scenario.addresses = n.everyAddress()
	if !f.scenario.probing.Off {
		f.truths(v, n)
	}
}

// rows takes the nodes that pg_auto_failover's monitor knows.
func (n *names) rows(monitor config.Value) {
	if _, word := monitor.Text(); word {
		return
	}
	for name, row := range monitor.Entries() {
		if !isNull(row) {
			n.nodes[name] = row
		}
	}
}

func (n *names) collect(at config.Value, nodes config.Nodes) {
	if len(nodes) == 0 {
		return
	}
	places := maps.Collect(at.Entries())
	for _, node := range nodes {
		n.nodes[node.Name], n.addresses[node.Name] = places[node.Name], node.Address
	}
}

// all are the nodes and servers, each once.
func (n *names) all() map[string]config.Value {
	all := maps.Clone(n.nodes)
	maps.Copy(all, n.servers)
	return all
}

// everyAddress gives nodes without an address one of their own, by name.
func (n *names) everyAddress() map[string]topology.Address {
	for i, name := range sortedKeys(n.all()) {
		if n.addresses[name].IsZero() {
			n.addresses[name] = topology.Address{Host: documentationHost(i), Port: 5432}
		}
		n.addresses[consul.LegalName(name)] = n.addresses[name]
	}
	return n.addresses
}

// documentationHost is the address of the node with a number, of the networks
// that RFC 5737 and, when these are full, RFC 3849 reserve for documentation.
func documentationHost(i int) string {
	const first, size = 11, 240
	networks := []string{"192.0.2", "198.51.100", "203.0.113"}
	if i >= size*len(networks) {
		return fmt.Sprintf("2001:db8::%x", i)
	}
	return fmt.Sprintf("%s.%d", networks[i/size], first+i%size)
}

// truths compares the nodes with the servers: each needs the other.
func (f *file) truths(v config.Value, n names) {
	if !f.sound {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(n.nodes)) {
		if _, has := n.servers[name]; !has {
			n.nodes[name].Fault("node %s has no truth: say below world.sql what a probe of it finds, such as %s: {recovery: true}", name, name)
		}
		f.nodes = append(f.nodes, consul.LegalName(name))
	}
	for _, name := range slices.Sorted(maps.Keys(n.servers)) {
		legal := consul.LegalName(name)
		if _, member := n.nodes[name]; !member { // Patroni's members may have other names
			if err := topology.CheckName(name); err != nil {
				n.servers[name].Fault("%v", err)
				continue
			}
		}
		switch {
		case slices.Contains(f.nodes, legal):
		case f.Cluster.Authority == topology.AuthorityPatroni && !n.members:
			f.nodes = append(f.nodes, legal) // every server is a member
		default:
			n.servers[name].Fault("no such node: %s", config.UnknownWord(name, f.nodes))
		}
	}
	if f.Local != "" {
		f.known(v.Key("local"), f.Local, f.nodes)
	}
	for _, part := range parts(v) {
		for name, m := range part.Key("maintenance").Entries() {
			if name != wholeCluster {
				f.known(m, name, f.nodes)
			}
		}
		for _, s := range part.Key("sql").Entries() {
			f.reachable(s)
		}
	}
}

// reachable checks what a server says of others, and of questions that somebody
// must ask: its upstream must be a node.
func (f *file) reachable(s config.Value) {
	if s.Node().Kind != yaml.MappingNode {
		return
	}
	if up, written := s.Key("sender").Text(); written {
		f.known(s.Key("sender"), consul.LegalName(up), f.nodes)
	}
	if w := s.Key("write"); w.Written() && f.Cluster.Postgres.WriteProbe == "" {
		w.Fault("nobody writes: the cluster's postgres section has no write_probe")
	}
	for port, below := range s.Key("ports").Entries() {
		asked := slices.ContainsFunc(f.Cluster.Pools, func(p config.Pool) bool {
			return strconv.Itoa(int(p.Port)) == port && p.PortCheck != topology.PortCheckNone
		})
		if !asked {
			below.Fault("no pool of the cluster checks port %s, so nobody asks there", port)
		}
	}
}

// parts are the world and the steps, which change it.
func parts(v config.Value) []config.Value {
	all := []config.Value{v.Key("world")}
	for _, s := range v.Key("steps").Elements() {
		all = append(all, s)
	}
	return all
}
