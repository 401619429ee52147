package mesh

import (
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Desired says what is to be published of a cluster, by node. It is pure: the same
// view and settings give the same result.
func Desired(v *topology.View, s Settings) []Instance {
	d := desire{snap: v.Snapshot, facts: v.Facts, write: pool(v.Snapshot, s.WritePool, topology.ModeWrite), read: pool(v.Snapshot, s.ReadPool, topology.ModeRead)}
	if d.facts == nil {
		d.facts = new(topology.Facts)
	}
	d.findPrimary()
	out := make([]Instance, 0, len(d.snap.Nodes))
	for _, n := range d.snap.Nodes {
		out = append(out, d.instance(n))
	}
	if slices.ContainsFunc(out, func(in Instance) bool { return in.Role == RolePrimary && in.Status == Passing }) {
		for i := range out {
			out[i].KeepPrimary = out[i].KeepPrimary && out[i].Role == RolePrimary
		}
	}
	return out
}

// pool finds the pool whose verdicts count; one that is not there has none.
func pool(s *topology.Snapshot, name string, mode topology.Mode) topology.PoolVerdicts {
	i := slices.IndexFunc(s.Pools, func(p topology.PoolVerdicts) bool { return p.Mode == mode && (name == "" || p.Pool == name) })
	if i < 0 {
		return topology.PoolVerdicts{}
	}
	return s.Pools[i]
}

// desire is one cluster that is being written down.
type desire struct {
	snap        *topology.Snapshot
	facts       *topology.Facts
	write, read topology.PoolVerdicts
	primary     string // "" when it is not known which node is, or when none is
}

// findPrimary: who is up in the write pool; else who is drained there and was last
// known to be writable, since it may come back. Two of those are none.
func (d *desire) findPrimary() {
	var held []string
	for _, n := range d.write.Nodes {
		switch {
		case n.Verdict == topology.Up:
			d.primary = n.Node
			return
		case n.Verdict == topology.Drain && d.facts.Nodes[n.Node].InRecovery == topology.No:
			held = append(held, n.Node)
		}
	}
	if len(held) == 1 {
		d.primary = held[0]
	}
}

func (d *desire) instance(n topology.Node) Instance {
	f := d.facts.Nodes[n.Name]
	w, hasWrite := d.write.Verdict(n.Name)
	r, hasRead := d.read.Verdict(n.Name)
	in := Instance{Cluster: d.snap.Cluster, Node: n.Name, Address: n.Address, Role: d.role(n.Name), Zone: clip(n.Tags[topology.TagZone])}
	if f.Probe != nil {
		in.Timeline, in.Version = f.Probe.Timeline, f.Probe.ServerVersion
	}
	if in.Role == RolePrimary {
		in.judge(w)
		in.Reads = d.read.Fallback && r.Verdict == topology.Up
		return in
	}
	in.KeepPrimary = hasWrite && w.Verdict == topology.Undecided
	in.KeepOther = hasRead && r.Verdict == topology.Undecided
	if !hasRead {
		r = topology.NodeVerdict{Address: n.Address, Verdict: topology.Down, Reasons: []topology.Reason{{Code: topology.CodeNotSelected, Text: "no pool for reads"}}}
	}
	in.judge(r)
	if in.Role != RoleUnknown {
		in.Lag = lagClass(r)
	}
	if in.Role == RoleReplica {
		in.Sync = d.part(n.Name)
	}
	if in.Status == Passing && in.Lag != lagOK {
		in.Status = Warning
	}
	return in
}

// clip bounds a foreign text: Consul takes 512 bytes in a value of meta, and refuses
// the whole instance with more.
func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), 128)], "") }

func (d *desire) role(node string) string {
	switch r, _ := d.read.Verdict(node); {
	case node == d.primary:
		return RolePrimary
	case d.facts.Authority != nil && d.facts.Authority.StandbyCluster && d.facts.Authority.Leader == node:
		return RoleStandbyLeader
	case d.facts.Nodes[node].InRecovery == topology.Yes, r.Verdict == topology.Up:
		return RoleReplica
	}
	return RoleUnknown
}

// judge takes over a verdict. Consul has no drain: whoever takes no new session is
// critical, and Consul ends nobody's.
func (in *Instance) judge(v topology.NodeVerdict) {
	in.Status, in.Weight, in.Reason = Critical, 1, v.Reason()
	if !v.Address.IsZero() {
		in.Address = v.Address
	}
	if in.Address.IsZero() {
		in.KeepPrimary, in.KeepOther = true, true
	}
	if v.Verdict == topology.Up {
		in.Status, in.Weight = Passing, min(10, max(1, (v.Weight+9)/10)) // in tenths, so that not every percent is a write
	}
}

// lagClass sorts by why the node serves or does not.
func lagClass(v topology.NodeVerdict) string {
	class := lagUnknown
	if v.Verdict == topology.Up {
		class = lagOK
	}
	for _, r := range v.Reasons {
		if slices.Contains(behind, r.Code) {
			return lagBehind
		}
		if r.Code == topology.CodeLagUnknown {
			class = lagUnknown
		}
	}
	return class
}

// behind are the reasons that tell of lag, be it that the node serves all the same.
var behind = []topology.Code{topology.CodeLag, topology.CodeLagHard, topology.CodeLagOverride, topology.CodeFallbackStale}

// part is a replica's part in commits, by the authority's word and by the writer's
// view, "" while neither is known (field report FR-09).
func (d *desire) part(node string) string {
	var seen *topology.Probe
	if d.primary != "" {
		seen = d.facts.Nodes[d.primary].Probe
	}
	if d.facts.Authority == nil && seen == nil {
		return ""
	}
	a := d.facts.Authority
	return string(topology.AgreedRole(a.SyncRole(node), seen.SyncRole(a.Application(node))))
}
