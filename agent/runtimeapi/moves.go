package runtimeapi

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// moves knows which servers were at another address before. A worker that a reload
// replaced for such a change has its sessions at the address of before, which is
// no node of the cluster any more.
type moves struct {
	now    map[server]netip.AddrPort
	former map[server]map[netip.AddrPort]bool

	mu *sync.Mutex
	of map[int]map[server]running // the servers of old workers, which do not move; guarded by mu
}

func newMoves() moves {
	return moves{now: make(map[server]netip.AddrPort), former: make(map[server]map[netip.AddrPort]bool), mu: new(sync.Mutex), of: make(map[int]map[server]running)}
}

// note takes the addresses of a snapshot over.
func (m moves) note(o *Options, s *topology.Snapshot) {
	for _, p := range s.Pools {
		backend := o.Names(s.Cluster, p.Pool)
		for _, n := range p.Nodes {
			at, ok := literal(n.Address)
			if !ok {
				continue
			}
			srv := server{Backend: backend, Server: n.Node}
			if was, known := m.now[srv]; known && was != at {
				if m.former[srv] == nil {
					m.former[srv] = make(map[netip.AddrPort]bool)
				}
				m.former[srv][was] = true
			}
			delete(m.former[srv], at)
			m.now[srv] = at
		}
	}
}

// in returns the servers that an old worker has at an address of before. Several
// workers may be asked for at once.
func (m moves) in(ctx context.Context, at haproxycli.Socket, pid int) (map[server]bool, error) {
	if len(m.former) == 0 {
		return nil, nil
	}
	has, err := m.servers(ctx, at, pid)
	out := make(map[server]bool)
	for srv, former := range m.former {
		if r, ok := has[srv]; ok && former[r.address] {
			out[srv] = true
		}
	}
	return out, err
}

// servers are those of an old worker, none when it has ended.
func (m moves) servers(ctx context.Context, at haproxycli.Socket, pid int) (map[server]running, error) {
	m.mu.Lock()
	has := m.of[pid]
	m.mu.Unlock()
	if has != nil {
		return has, nil
	}
	answer, err := at.Ask(ctx, fmt.Sprintf("@!%d show servers state", pid))
	if err != nil || strings.Contains(answer, noSuchPID) {
		return nil, err
	}
	if has, err = parseState(answer); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of[pid] = has
	return has, nil
}

// forget drops what was known of old workers.
func (m moves) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.of)
}
