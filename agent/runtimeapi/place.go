package runtimeapi

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// place is where a server of the running HAProxy stands. A verdict belongs to one
// address of a node: for a server at another one it is no evidence.
type place int

const (
	placeRight place = iota // at the node's address, or at one that cannot be compared: a name
	placeOther              // at another address
	placeGone               // not there, or taken out by Bring and not yet added again
)

// places is what is known of the servers of the process that runs.
type places struct {
	has   map[server]running       // nil: nothing is known
	since map[server]topology.Mono // servers that are not right, since when
	// waiting are the clusters with such servers. The error names one that has been at
	// another address for too long; nil: none has.
	waiting map[string]error
}

func newPlaces() places {
	return places{since: make(map[server]topology.Mono), waiting: make(map[string]error)}
}

// of is the place of a server whose node is at an address.
func (p *places) of(srv server, node topology.Address) place {
	if p.has == nil {
		return placeRight
	}
	r, there := p.has[srv]
	if !there || r.retired() {
		return placeGone
	}
	if at, known := literal(node); known && r.address.IsValid() && r.address != at {
		return placeOther
	}
	return placeRight
}

// literal is an address as HAProxy lists it, and false when the host is a name.
func literal(a topology.Address) (netip.AddrPort, bool) {
	ip, ok := a.IP()
	return netip.AddrPortFrom(ip.Unmap(), a.Port), ok
}

// doubtful reports whether a server of a snapshot is not right, so that it is worth
// asking HAProxy again.
func (p *places) doubtful(o *Options, s *topology.Snapshot) bool {
	for _, pool := range s.Pools {
		backend := o.Names(s.Cluster, pool.Pool)
		for _, n := range pool.Nodes {
			if p.of(server{Backend: backend, Server: n.Node}, n.Address) != placeRight {
				return true
			}
		}
	}
	return false
}

// correct takes the servers that are not right out of what is wanted: one at another
// address is down, whatever its node is, and one that is not there is not spoken of
// until Patience ends. It returns the servers of whom what was confirmed is void.
func (p *places) correct(o *Options, s *topology.Snapshot, wanted map[server]want, now topology.Mono) (void []server) {
	delete(p.waiting, s.Cluster)
	for _, pool := range s.Pools {
		backend := o.Names(s.Cluster, pool.Pool)
		for _, n := range pool.Nodes {
			srv := server{Backend: backend, Server: n.Node}
			where := p.of(srv, n.Address)
			if where == placeRight {
				delete(p.since, srv)
				continue
			}
			if _, known := p.since[srv]; !known {
				p.since[srv] = now
			}
			late := now.Sub(p.since[srv]) >= o.Patience
			if _, waits := p.waiting[s.Cluster]; !waits && (where == placeOther || !late) {
				p.waiting[s.Cluster] = nil
			}
			switch w, told := wanted[srv]; {
			case where == placeOther:
				wanted[srv] = want{verdict: topology.Down}
				if late {
					p.waiting[s.Cluster] = &elsewhereError{srv, p.has[srv].address, n.Address}
				}
			case !late:
				delete(wanted, srv)
				void = append(void, srv)
			case told:
				w.ready = false // MAINT is how Bring keeps a server out
				wanted[srv] = w
			}
		}
	}
	return void
}

// forget drops servers that are no longer listed.
func (p *places) forget(servers iter.Seq[server]) {
	for srv := range servers {
		delete(p.since, srv)
	}
}

// err is what keeps servers at another address for too long; nil: nothing does.
func (p *places) err() error {
	for _, cluster := range slices.Sorted(maps.Keys(p.waiting)) {
		if err := p.waiting[cluster]; err != nil {
			return err
		}
	}
	return nil
}

// elsewhereError says that HAProxy has a server at an address where its node is not.
type elsewhereError struct {
	server
	at   netip.AddrPort
	node topology.Address
}

func (e *elsewhereError) Error() string {
	return fmt.Sprintf("HAProxy has server %s at %s, its node is at %s: the server is told down until it has that address; see why HAProxy's file was not put in place", e.server, e.at, e.node)
}

// see reads which servers the running process has, when that is not known, may have
// changed, or keeps a server of a pending cluster from being told. In the plain case,
// a change of roles, it asks nobody.
func (s *socket) see(ctx context.Context, now topology.Mono) error {
	if s.places.has != nil && !s.members.changed {
		doubt := false
		for cluster := range s.pending {
			v := s.o.Views.Get(cluster)
			doubt = doubt || v.Valid(now) && s.places.doubtful(s.o, v.Snapshot)
		}
		if !doubt {
			return nil
		}
	}
	if !s.anything(now) {
		return nil
	}
	p, has, err := s.members.look(ctx)
	if err != nil {
		return err
	}
	s.meet(p)
	s.places.has, s.members.changed = has, false
	return nil
}

// anything reports whether a pending cluster has a view that may be believed.
func (s *socket) anything(now topology.Mono) bool {
	for cluster := range s.pending {
		if s.o.Views.Get(cluster).Valid(now) {
			return true
		}
	}
	return false
}

// askAgain has the clusters planned again whose servers were not right: HAProxy may
// have been changed by others than Bring and reloads.
func (s *socket) askAgain(now topology.Mono) {
	if s.placesAt > now {
		return
	}
	s.placesAt = never
	for cluster := range s.places.waiting {
		s.pending[cluster] = true
		s.pushAt = now
	}
}

// wellBut records that HAProxy answers well; what is left may be a server elsewhere.
func (s *socket) wellBut() {
	if err := s.places.err(); s.setErr(err) {
		s.log.Warn("HAProxy has a server at another address than its node; it takes no session there", "err", err)
	}
}

// one carries out the change of one server, while nobody pushes: between the look at
// the servers and the last command of a push no server moves.
func (m *members) one(change func() error) error {
	m.wire.Lock()
	defer m.wire.Unlock()
	m.changed = true
	return change()
}

// apply removes, moves and adds.
func (m *members) apply(ctx context.Context, change haproxycfg.Difference, has map[haproxycfg.Ref]running) error {
	for _, ref := range haproxycfg.InOrder(change.Remove) {
		if err := m.one(func() error { return m.remove(ctx, ref, change.Remove[ref]) }); err != nil {
			return err
		}
	}
	for _, ref := range haproxycfg.InOrder(change.Move) {
		if err := m.one(func() error { return m.move(ctx, ref, change.Move[ref]) }); err != nil {
			return err
		}
	}
	for _, ref := range haproxycfg.InOrder(change.Add) {
		if err := m.one(func() error { return m.add(ctx, ref, change.Add[ref], has) }); err != nil {
			return err
		}
	}
	return nil
}
