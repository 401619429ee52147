package config

import (
	"net/netip"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// checkNodePorts refuses to listen where a node does: whoever binds there is in the
// node's way, or a balancer connects to itself. Only what is certain from the file
// counts: the same address, or all addresses of this host and a node on loopback.
func (c *Config) checkNodePorts(s scope) {
	for _, l := range c.listeners(s) {
		for _, cl := range c.Clusters {
			if node, at, ok := cl.nodeAt(l.at); ok {
				l.in.fault(l.key, "%s is taken by node %s of cluster %s (%s): whoever connects there would reach itself, or cannot bind it", l.at, node, cl.Name, at)
				break
			}
		}
	}
}

// nodeAt is a node that has a listener's address, by its own port or by that of a pool.
func (c Cluster) nodeAt(l ListenAddress) (node string, at topology.Address, ok bool) {
	host, port := l.HostPort()
	for _, n := range c.Nodes {
		if port == 0 || !meets(host, n.Address.Host) {
			continue
		}
		if n.Address.Port == port {
			return n.Name, n.Address, true
		}
		for _, p := range c.Pools {
			if p.Port == port {
				return n.Name, topology.Address{Host: n.Address.Host, Port: port}, true
			}
		}
	}
	return "", topology.Address{}, false
}

// meets reports whether a listener's host certainly takes in a node's.
func meets(listen, node string) bool {
	every, err := netip.ParseAddr(listen)
	if listen != "" && (err != nil || !every.IsUnspecified()) {
		a, err2 := netip.ParseAddr(node)
		return err == nil && err2 == nil && every.Unmap() == a.Unmap() || strings.EqualFold(listen, node)
	}
	if strings.EqualFold(node, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(node)
	a = a.Unmap()
	return err == nil && a.IsLoopback() && (a.Is4() || !every.Is4()) // 0.0.0.0 has no part in ::1
}
