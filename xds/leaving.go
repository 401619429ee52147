package xds

import (
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// leaving are the nodes that are gone from pools whose nodes Envoy asks about, by
// pool. Envoy ends sessions only of hosts that are listed, so they stay until it
// has certainly asked once more.
type leaving map[string][]leaver

type leaver struct {
	resources.Host
	until topology.Mono
}

// A node that is gone stays for so many checks, and at least for the time that an
// Envoy on a busy host may be behind.
const (
	leavingChecks = 10
	leavingLeast  = 5 * time.Second
)

// of tells who is leaving a pool.
func (l leaving) of(cluster, pool string) []resources.Host {
	return l.hosts(resources.Name(cluster, pool))
}

func (l leaving) hosts(pool string) []resources.Host {
	var all []resources.Host
	for _, x := range l[pool] {
		all = append(all, x.Host)
	}
	return all
}

// note compares a decision with the hosts that Envoys ask about, by pool, and tells
// when the next of those that left has been listed long enough, if there is one.
func (l leaving) note(snap *topology.Snapshot, checked map[string][]resources.Host, interval time.Duration, now topology.Mono) (next topology.Mono, some bool) {
	for pool, was := range checked {
		here := present(snap, pool)
		stay := slices.DeleteFunc(l[pool], func(x leaver) bool { return now >= x.until || among(here, x.Host) })
		for _, h := range was {
			if !among(here, h) {
				stay = append(stay, leaver{h, now.Add(max(leavingLeast, leavingChecks*interval))})
			}
		}
		l[pool] = stay
		if len(stay) == 0 {
			delete(l, pool)
		}
		for _, x := range stay {
			if !some || x.until < next {
				next, some = x.until, true
			}
		}
	}
	return next, some
}

// among looks for a node at its address, whatever its zone: that may change.
func among(all []resources.Host, h resources.Host) bool {
	return slices.ContainsFunc(all, func(x resources.Host) bool { return x.Node == h.Node && x.Address == h.Address })
}

// present are the hosts of a pool by a decision.
func present(snap *topology.Snapshot, name string) []resources.Host {
	var all []resources.Host
	for _, p := range snap.Pools {
		if resources.Name(snap.Cluster, p.Pool) != name {
			continue
		}
		all = append(all, resources.Hosts(snap, p)...)
	}
	return all
}
