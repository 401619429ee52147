package engine

import (
	"cmp"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Facts returns what is known beside the decision, as a value of its own.
func Facts(s *State, now topology.Clock) *topology.Facts {
	f := &topology.Facts{
		At: now, Timeline: s.timelines[s.systemID], SystemID: s.systemID, WriteLSN: s.ring.newest(),
		Nodes: make(map[string]topology.NodeFacts, len(s.nodes)), Authority: s.authority.picture,
		AuthoritySource: s.authority.source, Documents: s.authority.documents,
	}
	for name, n := range s.nodes {
		f.Nodes[name] = topology.NodeFacts{
			Probe: n.full, InRecovery: n.inRecovery, ReadOnly: n.readOnly, RoleAt: n.roleAt,
			AnsweredAt: n.answeredAt, FailingAt: n.failingAt, Failure: n.failure,
			LoginAt: n.loginAt, Lag: n.lag, Member: n.member,
			WriteAt: n.writeAt, WriteFailingAt: n.writeFailAt, Ports: n.portFacts(),
		}
		if nf := f.Nodes[name]; n.failure == nil && n.loginFailure != nil {
			nf.Failure = n.loginFailure // the kept session lives, and nobody could log in anew
			f.Nodes[name] = nf
		}
		if n.writable() {
			f.Claims = append(f.Claims, name)
		}
	}
	slices.Sort(f.Claims)
	for id, src := range s.sources {
		f.Sources = append(f.Sources, topology.SourceFacts{
			Source: id, OKAt: src.okAt, ChangedAt: src.changedAt, FailingAt: src.failingAt, Failure: src.failure,
		})
	}
	slices.SortFunc(f.Sources, func(a, b topology.SourceFacts) int {
		return cmp.Compare(a.Source.String(), b.Source.String())
	})
	return f
}

func (n *node) portFacts() map[uint16]topology.PortFacts {
	if len(n.ports) == 0 {
		return nil
	}
	out := make(map[uint16]topology.PortFacts, len(n.ports))
	for number, p := range n.ports {
		out[number] = topology.PortFacts{OKAt: p.okAt, FailingAt: p.failingAt, Failure: p.failure}
	}
	return out
}
