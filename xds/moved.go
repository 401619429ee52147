package xds

import (
	"maps"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// moves are the write pools whose writer has another address than when their listener was
// made, by name.
//
// The name of a filter chain has the writer's name and not its address, so that agents
// agree on it whatever each of them has seen. A writer that moves is down for a while by the
// rules, and that ends its sessions; but a publisher may not get to see that, as after a
// start while nothing is known of another node. Then the sessions to the old address would
// go on.
type moves map[string]move

type move struct {
	node  string
	until topology.Mono // zero: Envoys have not been told yet
}

// moveGap is how long a pool then has no writer at Envoys, from when they can hear of it
// on: as long as most of them take to come back to an agent that was started again.
const moveGap = 5 * time.Second

// toldMoves has the gaps begin of which Envoys can hear now.
func (p *publisher) toldMoves() {
	if !p.started {
		return
	}
	for pool, m := range p.moves {
		if cluster := clusterOf(pool); m.until == 0 && p.published[cluster] != nil {
			m.until = p.now().Mono.Add(moveGap)
			p.moves[pool] = m
			p.again(cluster, m.until)
		}
	}
}

// drop forgets the pools of a cluster.
func (m moves) drop(cluster string) {
	maps.DeleteFunc(m, func(pool string, _ move) bool { return clusterOf(pool) == cluster })
}

// apart is a decision as Envoys are to have it: without a writer in pools where it moved,
// for as long as it takes to end the sessions to its old address. Nobody else can be the
// writer meanwhile, also where nothing is known of a node yet.
func (p *publisher) apart(snap *topology.Snapshot) *topology.Snapshot {
	for i, pool := range snap.Pools {
		name := resources.Name(snap.Cluster, pool.Pool)
		if pool.Mode != topology.ModeWrite || !p.hasMoved(name, pool, snap) {
			continue
		}
		if m := p.moves[name]; m.until != 0 {
			p.again(snap.Cluster, m.until)
		}
		pool.Nodes = slices.Clone(pool.Nodes)
		for j := range pool.Nodes {
			pool.Nodes[j].Verdict = topology.Down
		}
		other := *snap
		other.Pools = slices.Clone(snap.Pools)
		other.Pools[i] = pool
		snap = &other
	}
	return snap
}

// hasMoved reports whether a pool's writer has left the address to which the pool's
// sessions go, and these have not ended yet.
func (p *publisher) hasMoved(name string, pool topology.PoolVerdicts, snap *topology.Snapshot) bool {
	now := p.now().Mono
	m, moving := p.moves[name]
	if moving && m.until != 0 && now >= m.until {
		delete(p.moves, name)
		return false
	}
	if !moving {
		l, stands := p.hold.at(name)
		if !stands || l.Writer == nil || *l.Writer == "" || l.At == "" {
			return false
		}
		m = move{node: *l.Writer}
		if at := addressOf(snap, m.node); at == "" || at == l.At || !endsAnyway(l.Bytes) {
			return false
		}
	}
	if v, listed := pool.Verdict(m.node); !listed || v.Verdict != topology.Up && v.Verdict != topology.Drain {
		return false
	}
	if !moving {
		p.moves[name] = m
		p.log.Info("a writer has another address; the sessions to its old one are ended first", "pool", name, "node", m.node, "address", addressOf(snap, m.node))
	}
	return true
}

// addressOf is the address of a node, "" for none. The port of a pool makes no difference: sessions
// by another port are at the same server.
func addressOf(snap *topology.Snapshot, node string) string {
	n, ok := snap.Node(node)
	if !ok || n.Address.IsZero() {
		return ""
	}
	return n.Address.String()
}
