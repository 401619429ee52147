package patroni

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// factsAge is how long the dynamic configuration is believed after it was read.
const factsAge = 2 * time.Minute

// picture is what is known of the cluster beyond one round.
type picture struct {
	known   bool
	leader  string
	members []topology.Member
	viewAt  topology.Mono // when the members were asked for
	pause   topology.Tri
	standby bool
	sync    []string

	facts   topology.Authority // of the dynamic configuration and the history
	factsAt topology.Mono      // 0: never read

	documents  *topology.Documents // nil: never read
	papers     map[string]topology.MemberDocument
	switchover *topology.Switchover

	systemID uint64
	proofs   uint64 // rounds in which the leader's PostgreSQL answered its Patroni
}

// viewDue reports whether the list should be read again.
func (p *picture) viewDue(now topology.Mono, every time.Duration) bool {
	return p.viewAt == 0 || now.Sub(p.viewAt) >= every
}

// take folds the lists that agree with a verdict. A member stays if any of them
// has it; a leader stays although its own entry is missing, since Patroni deletes
// that and writes it anew when its session has changed. The texts tell of
// members that are left out.
func (p *picture) take(r *round, v verdict) (faults []string) {
	views := r.agreeing(v)
	p.leader, p.known = v.leader, true
	if len(views) == 0 {
		return nil
	}
	var members []topology.Member
	add := func(from []topology.Member) {
		for _, m := range from {
			if !slices.ContainsFunc(members, func(o topology.Member) bool { return o.Name == m.Name }) {
				members = append(members, m)
			}
		}
	}
	for _, o := range views {
		add(o.members)
	}
	add(slices.DeleteFunc(slices.Clone(p.members), func(m topology.Member) bool { return m.Name != v.leader }))
	slices.SortFunc(members, func(a, b topology.Member) int { return strings.Compare(a.Name, b.Name) })
	p.members, faults = watchers.Distinct(members, p.members, v.leader)
	first := views[0]
	p.viewAt, p.pause, p.sync = r.began.Mono, first.pause, first.sync
	p.papers, p.switchover = first.papers, first.switchover
	if first.leader != "" {
		p.standby = first.standby
	}
	return faults
}

// authority puts together what the engine is told. What is not known stays zero.
func (p *picture) authority(v verdict, e evidence, now topology.Mono) *topology.Authority {
	a := topology.Authority{}
	if p.factsAt != 0 && now.Sub(p.factsAt) < factsAge {
		a = p.facts
	}
	if len(p.sync) > 0 && a.SyncMode == "" {
		a.SyncMode = "sync"
	}
	a.Leader, a.SessionAgrees = v.leader, v.agrees
	a.Pause, a.StandbyCluster = cmp.Or(p.pause, a.Pause), p.standby
	a.Members, a.SyncStandbys = p.members, p.sync
	for _, m := range p.members {
		a.Timeline = max(a.Timeline, m.Timeline)
	}
	w := e.words[v.leader]
	a.Timeline = max(a.Timeline, w.timeline)
	if w.systemID != 0 {
		p.systemID = w.systemID
	}
	if w.location != 0 {
		p.proofs++
		if w.timeline == a.Timeline {
			a.Optime = w.location
		}
	}
	a.SystemID, a.OptimeIndex = p.systemID, p.proofs
	return &a
}

// nodes are the members whose PostgreSQL can be reached; nil when there are none,
// which is never taken for the truth.
func (p *picture) nodes() *topology.NodeList {
	var out []topology.Node
	for _, m := range p.members {
		if !m.Address.IsZero() {
			out = append(out, topology.Node{Name: m.Name, Address: m.Address, Tags: m.Tags})
		}
	}
	if len(out) == 0 {
		return nil
	}
	return &topology.NodeList{Nodes: out}
}
