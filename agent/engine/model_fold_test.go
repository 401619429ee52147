package engine

import (
	"slices"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// fold is the model's memory of one observation.
func (m *model) fold(o topology.Observation) {
	l, again := m.last[o.Source]
	if again && o.Seq <= l.Seq && o.AskedAt.Mono <= l.At.Mono {
		return
	}
	m.last[o.Source] = o
	switch {
	case o.Local != nil:
		if m.isolated {
			m.resumed = o.At.Mono
		}
		m.isolated = o.Local.Isolated == topology.Yes
	case o.Nodes != nil:
		m.list(o.Nodes.Nodes, o.At.Mono)
	case o.Authority != nil:
		m.picture(o)
	case o.Source == consulSource:
		m.unheard = true
	case o.Port != nil: // a pool's own port is no word on the role
	case o.Probe != nil:
		if n := m.nodes[o.Probe.Node]; n != nil && n.Address == o.Probe.Address {
			m.answer(n, o)
		}
	default:
		if n := m.nodes[o.Failure.Node]; n != nil && n.Address == o.Failure.Address {
			m.failure(n, o)
		}
	}
}

func (m *model) list(nodes []topology.Node, at topology.Mono) {
	old := m.nodes
	m.nodes = make(map[string]*word)
	for _, n := range nodes {
		m.nodes[n.Name] = &word{Node: n, known: at}
		if o := old[n.Name]; o != nil && o.Address == n.Address {
			o.Node, m.nodes[n.Name] = n, o
		}
	}
}

func (m *model) picture(o topology.Observation) {
	a, old := o.Authority, m.authority
	if n := m.nodes[a.Leader]; n != nil && old != nil && old.Leader == a.Leader && a.OptimeIndex > m.index {
		n.told = max(n.told, m.asked) // it wrote its status after that
	}
	if a.OptimeIndex != 0 {
		m.index = a.OptimeIndex
	}
	switch {
	case a.Leader != "":
		m.absent = 0
	case m.absent == 0:
		m.absent = o.At.Mono
	}
	if a.Leader != "" && a.Leader != m.writer.name {
		m.writer.noted = "another was named"
	}
	if m.pinned == 0 {
		m.pinned = a.SystemID
	}
	m.learn(m.pinned, a.Timeline)
	m.authority, m.asked, m.unheard = a, o.AskedAt.Mono, false
}

func (m *model) learn(id uint64, tl topology.Timeline) {
	if id != 0 {
		m.highest[id] = max(m.highest[id], tl)
	}
}

func (m *model) answer(n *word, o topology.Observation) {
	p := o.Probe
	switch {
	case p.Kind == topology.ProbeLogin:
		n.loginFail = 0
		return
	case p.InRecovery == topology.Unknown || p.InRecovery == topology.No && p.ReadOnly == topology.Unknown:
		return // half an answer
	case o.AskedAt.Mono < n.roleAt:
		return // asked before what is known
	}
	n.role, n.roleAt = *p, o.AskedAt.Mono
	if o.AskedAt.Mono >= n.refusedTo { // else a refusal is the newer word
		n.answered, n.failed, n.alive, n.refusal, n.refusedTo, n.silent = o.At.Mono, 0, 0, 0, 0, 0
		n.refused, n.closed, n.starting, n.dead, n.unproven = false, false, false, false, false
	}
	if m.heard == 0 {
		m.heard = o.At.Mono
	}
	if p.Kind == topology.ProbeFull {
		n.full, n.asked = *p, o.AskedAt.Mono
		m.learn(p.SystemID, max(p.Timeline, p.Receiver.Timeline))
	}
	if n.Name == m.writer.name && (!n.writable() || m.foreign(n)) {
		m.writer.noted = "it was seen in recovery, read-only or foreign"
	}
}

func (m *model) failure(n *word, o topology.Observation) {
	f, at := o.Failure, o.At.Mono
	lives := slices.Contains(aliveClasses, f.Class)
	switch {
	case f.Class == topology.FailLocal:
		n.ours = at
		return
	case f.Asked == topology.ProbeLogin:
		if n.loginFail == 0 && !lives && f.Class != topology.FailName {
			n.loginFail = at
		}
		return
	}
	n.failed = at
	switch {
	case f.Class == topology.FailRefused || f.Class == topology.FailReset:
		if n.refusal == 0 {
			n.refusal = at
		}
		n.refusedTo, n.refused, n.closed = at, true, n.closed || at.Sub(n.refusal) >= m.w.p.RefusedConfirm
		n.cut = n.cut || n.closed
	case lives || f.Class == topology.FailStarting:
		n.alive, n.refusal, n.starting = at, 0, n.starting || !lives
	default:
		return // silence
	}
	if m.heard == 0 {
		m.heard = at
	}
}
