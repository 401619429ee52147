package engine

import (
	"github.com/pgsteer/pgsteer/agent/topology"
)

// port is what is known of a pool's own port at a node, such as a PgBouncer's.
type port struct {
	okAt, failingAt      topology.Mono // last good answer, first failure since
	refusedAt, refusedTo topology.Mono // first and last refusal since
	failure              *topology.Failure
}

func (n *node) port(number uint16) *port {
	p := n.ports[number]
	if p == nil {
		p = &port{}
		n.ports[number] = p
	}
	return p
}

// observePort folds a good answer of a pool's own port.
func (s *State) observePort(o topology.Observation) {
	n := s.nodes[o.Port.Node]
	if n == nil || n.Address != o.Port.Address {
		return
	}
	*n.port(o.Port.Port) = port{okAt: o.At.Mono}
}

// failed folds a failed check. A pooler that refuses the check's login by word
// serves others all the same, so that is no failure of the port.
func (p *port) failed(f *topology.Failure, at topology.Mono) {
	switch f.Class {
	case topology.FailLocal:
		return
	case topology.FailAuth, topology.FailDatabase, topology.FailSlots, topology.FailTLS:
		*p = port{okAt: at}
		return
	case topology.FailRefused, topology.FailReset:
		if p.refusedAt == 0 {
			p.refusedAt = at
		}
		p.refusedTo = at
	default:
	}
	if p.failingAt == 0 {
		p.failingAt = at
	}
	p.failure = f
}

// portEffect is the rule on a pool's own port (field report FR-23): refused twice
// it is down, silent it drains and then is down, as the server itself would be.
func (r *round) portEffect(pool topology.Pool, n *node) (effect, bool) {
	if pool.Port == 0 || pool.PortCheck == topology.PortCheckNone {
		return effect{}, false
	}
	p := n.ports[pool.Port]
	word := n.knownAt
	if p != nil {
		word = max(word, p.okAt, r.s.resumedAt)
	}
	switch {
	case p == nil:
		return r.effect(topology.Undecided, topology.CodePort, n.knownAt, "port %d not checked yet", pool.Port), true
	case p.failingAt == 0:
		return effect{}, false
	case p.refusedAt != 0 && p.refusedTo.Sub(p.refusedAt) >= r.p.RefusedConfirm:
		return r.effect(topology.Down, topology.CodePort, p.refusedAt, "port %d: refused", pool.Port), true
	case r.s.isolated == topology.Yes || !r.since(word, r.p.SilentAfter):
		// A first check in vain is no word for the port: what stands, stands on.
		return r.effect(topology.Undecided, topology.CodePort, n.knownAt, "port %d: no answer yet", pool.Port), p.okAt == 0
	case pool.Mode == topology.ModeRead && r.since(word, r.p.KillAfter):
		return r.effect(topology.Down, topology.CodePort, p.failingAt, "port %d: %s", pool.Port, p.failure.Class), true
	}
	return r.effect(topology.Drain, topology.CodePort, p.failingAt, "port %d: %s", pool.Port, p.failure.Class), true
}
