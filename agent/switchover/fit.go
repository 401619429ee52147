package switchover

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// lags are the reasons by which a node is too far behind, also where a pool still has
// it for want of others.
var lags = []topology.Code{topology.CodeLag, topology.CodeLagHard, topology.CodeLagOverride, topology.CodeFallbackStale}

// unfit says what speaks against a candidate. Without one the authority chooses.
func unfit(v *topology.View, to string) (against []string) {
	s := v.Snapshot
	if to == "" {
		return nil
	}
	if nofailover(v, to) {
		against = append(against, to+" is tagged nofailover")
	}
	up, why, taken := false, []string{}, ""
	for _, p := range s.Pools {
		n, ok := p.Verdict(to)
		if !ok {
			continue
		}
		up = up || n.Verdict == topology.Up
		for i, r := range n.Reasons {
			switch {
			case r.Code == topology.CodeMaintenance:
				taken = maintained(s.Cluster, to, r)
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
	switch {
	case taken != "":
		against = append(against, taken)
	case !up:
		against = append(against, fmt.Sprintf("%s is up in no pool: %s", to, strings.Join(why, ", ")))
	}
	return against
}

// impossible refuses what no force helps against.
func impossible(s *topology.Snapshot, to string) error {
	switch _, known := s.Node(to); {
	case to == "":
	case to == s.Writer:
		return &Refusal{to + " is the writer already; nothing was done"}
	case !known:
		return &Refusal{fmt.Sprintf("there is no node %s in cluster %s; there are: %s (%s is the writer); nothing was done", to, s.Cluster, others(s), s.Writer)}
	}
	return nil
}

// others are the nodes that could take over.
func others(s *topology.Snapshot) string {
	var names []string
	for _, n := range s.Nodes {
		if n.Name != s.Writer {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return "none besides the writer"
	}
	return strings.Join(names, ", ")
}

// maintained says that a node is out by an operator's word, and how that ends.
func maintained(cluster, node string, r topology.Reason) string {
	if strings.HasPrefix(r.Text, "the monitor's") { // pg_auto_failover's own
		return fmt.Sprintf("%s is in maintenance (%s), which `pg_autoctl disable maintenance` ends", node, r.Text)
	}
	return fmt.Sprintf("%s is in maintenance (%s): `pgsteer maintenance list` shows by whom, and `pgsteer maintenance stop %s/%s` puts it back, or what was taken out with it",
		node, r.Text, cluster, node)
}

// takenOut says that what would be the writer is in maintenance, "" when none is.
func takenOut(v *topology.View) string {
	if v == nil || v.Snapshot == nil {
		return ""
	}
	for _, p := range v.Snapshot.Pools {
		for _, n := range p.Nodes {
			if p.Mode != topology.ModeWrite || v.Facts == nil || v.Facts.Nodes[n.Node].InRecovery != topology.No {
				continue
			}
			if r := n.Reason(); r.Code == topology.CodeMaintenance {
				return ": " + maintained(v.Snapshot.Cluster, n.Node, r)
			}
		}
	}
	return ""
}

func appendNew(all []string, s string) []string {
	if slices.Contains(all, s) {
		return all
	}
	return append(all, s)
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
