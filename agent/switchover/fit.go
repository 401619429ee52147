package switchover

import (
	"fmt"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// lags are the reasons by which a node is too far behind, also where a pool still has
// it for want of others.
var lags = []topology.Code{topology.CodeLag, topology.CodeLagHard, topology.CodeLagOverride, topology.CodeFallbackStale}

// unfit says what speaks against a candidate. Without one the authority chooses.
func unfit(v *topology.View, to string) (against []string) {
	s := v.Snapshot
	switch {
	case to == "":
		return nil
	case to == s.Writer:
		return []string{to + " is the writer already"}
	case !isNode(s, to):
		return []string{"there is no node " + to}
	}
	if nofailover(v, to) {
		against = append(against, to+" is tagged nofailover")
	}
	up, why := false, []string{}
	for _, p := range s.Pools {
		n, ok := p.Verdict(to)
		if !ok {
			continue
		}
		up = up || n.Verdict == topology.Up
		for i, r := range n.Reasons {
			switch {
			case r.Code == topology.CodeDelayed || slices.Contains(lags, r.Code):
				against = appendNew(against, fmt.Sprintf("%s in pool %s: %s", to, p.Pool, r.Text))
			case i == 0 && p.Mode == topology.ModeRead:
				why = append(why, fmt.Sprintf("%s (%s)", p.Pool, r.Text))
			}
		}
	}
	if v.Facts != nil {
		if p := v.Facts.Nodes[to].Probe; p != nil && p.ApplyDelay > 0 {
			against = appendNew(against, fmt.Sprintf("%s delays its replay by %s", to, p.ApplyDelay))
		}
	}
	if !up {
		against = append(against, fmt.Sprintf("%s is up in no pool: %v", to, why))
	}
	return against
}

func appendNew(all []string, s string) []string {
	if slices.Contains(all, s) {
		return all
	}
	return append(all, s)
}

func isNode(s *topology.Snapshot, name string) bool {
	_, ok := s.Node(name)
	return ok || name == ""
}

// nofailover: by the node's tags, or as its authority has them.
func nofailover(v *topology.View, to string) bool {
	n, _ := v.Snapshot.Node(to)
	if n.HasTag(topology.TagNoFailover) || v.Facts == nil || v.Facts.Authority == nil {
		return n.HasTag(topology.TagNoFailover)
	}
	return slices.ContainsFunc(v.Facts.Authority.Members, func(m topology.Member) bool {
		return m.Name == to && (topology.Node{Tags: m.Tags}).HasTag(topology.TagNoFailover)
	})
}
