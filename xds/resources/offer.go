package resources

import (
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// offer is what a pool gives to Envoy: its members and, through the chain, who
// its sessions belong to.
type offer struct {
	members []member
	// chain names the listener's filter chain.
	chain string
	zoned bool // clients prefer the nodes of their zone
	// unsure: nobody is up, and nothing is known of a node.
	unsure bool
	// refuse is where those are sent whom no node takes; zero: nowhere.
	refuse topology.Address
}

// member is one endpoint of a pool.
type member struct {
	node    string
	address topology.Address // as the pool offers it: its port may be the pool's own
	health  corev3.HealthStatus
	weight  uint32
	checkAt topology.Address // where Envoy asks about it; zero: it does not
	zone    string
}

// Names of filter chains. A node may be called "none" too: its chain is
// "writer/none", which is another name.
const (
	chainPrefix = "writer/" // the name of a write pool's writer follows
	chainNone   = "none"    // a write pool that has no writer
	chainRead   = "read"    // a read pool: never renamed, so nothing is ever cut
	// Of pools whose sessions do not hang on the chain.
	chainKept    = "kept"    // a write pool with SessionsKeep
	chainChecked = "checked" // SessionsHealthCheck, of both modes
)

// fullWeight is the weight of a node that is alone in its pool. A write pool
// always uses it, so that a weight can never make a difference there.
const fullWeight = 100

// choose says what a pool offers, and false while nothing is known of it.
func choose(snap *topology.Snapshot, p topology.PoolVerdicts, settings Settings) (offer, bool) {
	if len(p.Nodes) == 0 && !snap.Complete {
		return offer{}, false // no source of nodes has delivered yet: that is no empty pool
	}
	if p.Mode == topology.ModeWrite {
		return chooseWriter(snap, p, settings)
	}
	return chooseReaders(p, zones(snap), func(node string) topology.Verdict { return settings.Saved(snap.Cluster, p.Pool, node) })
}

// chooseWriter offers the writer alone. Other nodes are left out rather than
// listed as unhealthy: what is not listed cannot be used by mistake.
func chooseWriter(snap *topology.Snapshot, p topology.PoolVerdicts, settings Settings) (offer, bool) {
	if up := p.Up(); len(up) > 0 {
		return writer(up[0].Node, up[0].Address, corev3.HealthStatus_HEALTHY), true
	}
	if snap.Held != "" {
		return owned(snap, p, snap.Held)
	}
	standing, known := settings.Standing(snap.Cluster, p.Pool)
	switch {
	case !known:
		return onlyDraining(p)
	case standing != "":
		return owned(snap, p, standing)
	default:
		return offer{chain: chainNone}, !p.Undecided()
	}
}

// owned offers the node whose sessions the pool has, as far as it may still be
// used. A saved writer of which nothing is decided is offered exactly as it was
// before the restart, so that no byte differs. Of others that drain nothing is
// said: a replica that does not answer drains too, and was never the writer.
func owned(snap *topology.Snapshot, p topology.PoolVerdicts, owner string) (offer, bool) {
	v, judged := p.Verdict(owner)
	switch {
	case judged && v.Verdict == topology.Drain:
		return writer(v.Node, v.Address, corev3.HealthStatus_DRAINING), true
	case judged && v.Verdict == topology.Down, !judged && snap.Complete:
		return offer{chain: chainNone}, true
	case !judged || v.Address.IsZero() || owner != snap.Held:
		return offer{}, false
	}
	return writer(v.Node, v.Address, corev3.HealthStatus_HEALTHY), true
}

// onlyDraining takes the one node that drains for the writer when neither this
// process nor the saved state knows who was. Among several it does not guess: a
// wrong guess would cut the sessions of the right one.
func onlyDraining(p topology.PoolVerdicts) (offer, bool) {
	var drains []topology.NodeVerdict
	for _, v := range p.Nodes {
		if v.Verdict == topology.Drain {
			drains = append(drains, v)
		}
	}
	if p.Undecided() || len(drains) > 1 {
		return offer{}, false
	}
	if len(drains) == 0 {
		return offer{chain: chainNone}, true
	}
	return writer(drains[0].Node, drains[0].Address, corev3.HealthStatus_DRAINING), true
}

// EndsWithWriter reports whether the sessions of a listener that Build made end when
// the pool's writer changes.
func EndsWithWriter(l *listenerv3.Listener) bool {
	if len(l.GetFilterChains()) == 0 {
		return false
	}
	_, ok := writerOf(l.GetFilterChains()[0].GetName())
	return ok
}

// writerOf tells whose sessions a filter chain holds: the node for a write pool
// with a writer, "" for one without, and false for the chain of a read pool.
func writerOf(chain string) (node string, ok bool) {
	if node, ok := strings.CutPrefix(chain, chainPrefix); ok {
		return node, true
	}
	return "", chain == chainNone
}

func writer(node string, addr topology.Address, health corev3.HealthStatus) offer {
	return offer{
		chain:   chainPrefix + node,
		members: []member{{node: node, address: addr, health: health, weight: fullWeight}},
	}
}

// chooseReaders offers the nodes that are up, and those that drain as draining.
// One node that is up is enough: the others join as they are decided. Where none is,
// nodes of which nothing is decided are offered as they were before the start.
func chooseReaders(p topology.PoolVerdicts, at map[string]string, saved func(node string) topology.Verdict) (offer, bool) {
	o := offer{chain: chainRead}
	served := len(p.Up()) > 0
	again, decided, unknown := !served, false, false
	for _, v := range p.Nodes {
		verdict, weight := v.Verdict, v.Weight
		if again && verdict == topology.Undecided {
			verdict, weight = saved(v.Node), fullWeight
			unknown = unknown || verdict == topology.Undecided
		}
		m := member{node: v.Node, address: v.Address, weight: 1, zone: at[v.Node]}
		switch verdict {
		case topology.Up:
			m.health, m.weight = corev3.HealthStatus_HEALTHY, uint32(min(max(weight, 1), fullWeight))
			served = true
		case topology.Drain:
			m.health = corev3.HealthStatus_DRAINING
		default:
			continue
		}
		decided = decided || v.Verdict == verdict
		o.members = append(o.members, m)
	}
	o.unsure = !served && unknown
	return o, decided || !p.Undecided()
}
