package runtimeapi

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// moves knows which servers were at another address before. A worker that a reload
// replaced for such a change has its sessions at the address of before, which is
// no node of the cluster any more.
type moves struct {
	now    map[server]netip.AddrPort
	former map[server]map[netip.AddrPort]bool
	of     map[int]map[server]running // the servers of old workers, which do not move
}

func newMoves() moves {
	return moves{now: make(map[server]netip.AddrPort), former: make(map[server]map[netip.AddrPort]bool), of: make(map[int]map[server]running)}
}

// note takes the addresses of a snapshot over.
func (m moves) note(o *Options, s *topology.Snapshot) {
	for _, p := range s.Pools {
		backend := o.Names(s.Cluster, p.Pool)
		for _, n := range p.Nodes {
			ip, ok := n.Address.IP()
			if !ok {
				continue
			}
			srv, at := server{Backend: backend, Server: n.Node}, netip.AddrPortFrom(ip, n.Address.Port)
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

// in returns the servers that an old worker has at an address of before.
func (m moves) in(ctx context.Context, at haproxycli.Socket, pid int) (map[server]bool, error) {
	if len(m.former) == 0 {
		return nil, nil
	}
	if m.of[pid] == nil {
		answer, err := at.Ask(ctx, fmt.Sprintf("@!%d show servers state", pid))
		if err != nil || strings.Contains(answer, noSuchPID) {
			return nil, err
		}
		has, err := parseState(answer)
		if err != nil {
			return nil, err
		}
		m.of[pid] = has
	}
	out := make(map[server]bool)
	for srv, former := range m.former {
		if former[m.of[pid][srv].address] {
			out[srv] = true
		}
	}
	return out, nil
}
