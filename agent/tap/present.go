package tap

import (
	"cmp"
	"maps"
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// kept has what must be folded again to know what the agent knows: of each
// source and way of asking the newest answer, and of the failures since then the
// first and the last of each class, since rules measure how long a failure lasts.
type kept struct {
	sources map[topology.SourceID]map[slot]entry
	count   uint64
}

// slot is what the next observation of the same kind replaces.
type slot struct {
	asked topology.ProbeKind // empty: another source than postgres
	port  uint16
	class topology.FailureClass // empty: an answer
	holds holds
	first bool // the first one of those that last, not the newest
}

// holds says what an answer holds, for sources that do not always tell all.
type holds struct{ nodes, unconfirmed, authority, leader bool }

type entry struct {
	order uint64
	topology.Observation
}

// take notes an observation that was folded.
func (k *kept) take(o topology.Observation) {
	if k.sources == nil {
		k.sources = make(map[topology.SourceID]map[slot]entry)
	}
	slots := k.sources[o.Source]
	if slots == nil {
		slots = make(map[slot]entry)
		k.sources[o.Source] = slots
	}
	k.count++
	s, e := slotOf(o), entry{k.count, o}
	slots[s] = e
	if s.class == "" {
		drop(slots, s, o)
	}
	if s.lasts() {
		s.first = true
		if _, known := slots[s]; !known {
			slots[s] = e
		}
	}
}

func slotOf(o topology.Observation) slot {
	var s slot
	switch {
	case o.Failure != nil:
		s.asked, s.port, s.class = o.Failure.Asked, o.Failure.Port, o.Failure.Class
	case o.Probe != nil:
		s.asked = o.Probe.Kind
	case o.Port != nil:
		s.asked, s.port = topology.ProbePort, o.Port.Port
	}
	if o.Nodes != nil {
		s.holds.nodes, s.holds.unconfirmed = true, len(o.Nodes.Nodes) == 0 && !o.Nodes.ConfirmedEmpty
	}
	if o.Authority != nil {
		s.holds.authority, s.holds.leader = true, o.Authority.Leader != ""
	}
	return s
}

// lasts: rules measure since when it is so.
func (s slot) lasts() bool { return s.class != "" || s.holds.authority && !s.holds.leader }

// drop forgets what an answer disproves.
func drop(slots map[slot]entry, answer slot, o topology.Observation) {
	about := question(answer.asked)
	if about == topology.ProbeFull && o.Probe.InRecovery == topology.Unknown {
		return // it told no role, so that is still in doubt
	}
	for s := range slots {
		failed := s.class != "" && question(s.asked) == about && s.port == answer.port
		if failed || answer.holds.leader && s.holds.authority && !s.holds.leader {
			delete(slots, s)
		}
	}
}

// question is what a way of asking wants to know: the role tick and the full
// probe are one question.
func question(k topology.ProbeKind) topology.ProbeKind {
	if k == topology.ProbeRole {
		return topology.ProbeFull
	}
	return k
}

// forget drops what was kept of nodes that are gone.
func (k *kept) forget(now *topology.Snapshot) {
	maps.DeleteFunc(k.sources, func(id topology.SourceID, _ map[slot]entry) bool {
		_, listed := now.Node(id.Name)
		return id.Kind == topology.SourcePostgres && !listed
	})
}

// all are the observations that are kept, in the order in which they were folded.
func (k *kept) all() []topology.Observation {
	var entries []entry
	for _, slots := range k.sources {
		entries = slices.AppendSeq(entries, maps.Values(slots))
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.order, b.order) })
	out := make([]topology.Observation, 0, len(entries))
	for i, e := range entries {
		if i == 0 || e.order != entries[i-1].order { // the first and the newest may be the same
			out = append(out, e.Observation)
		}
	}
	return out
}
