package engine

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// model is the writer rule of design.md section 4 over again, as plainly as it
// can be said. It remembers what was observed; at each decision it says whether
// the writer must go (against), who must enter (bars) and whether the writer takes
// new sessions (drains). It serves a cluster whose nodes a file lists, and knows
// no texts, no wake-ups and no read pools.
type model struct {
	w       *world
	last    map[topology.SourceID]topology.Observation
	nodes   map[string]*word
	highest map[uint64]topology.Timeline
	pinned  uint64 // the cluster's system identifier
	writer  tenant
	lost    map[string]topology.Mono

	authority *topology.Authority
	asked     topology.Mono // when the authority was asked for that
	index     uint64        // of the last status that it told
	unheard   bool          // a read in vain came after it
	absent    topology.Mono // since when there has been no leader

	isolated                       bool
	begun, heard, resumed, planned topology.Mono
}

// tenant is who has the writer role.
type tenant struct {
	name    string
	address topology.Address
	tl      topology.Timeline
	saved   bool   // by the memory of an earlier run alone
	noted   string // seen against it since the last decision
}

// word is what is known of a node at its address.
type word struct {
	topology.Node
	known         topology.Mono
	role, full    topology.Probe // newest by the moment of asking
	roleAt, asked topology.Mono
	answered      topology.Mono
	told          topology.Mono // last sign of life by way of the authority
	ours          topology.Mono // last failure of our own making
	loginFail     topology.Mono // first fresh login in vain
	cut           bool          // refused twice since the last decision

	// Since the last answer:
	failed, alive  topology.Mono // last failure, and last that proves life
	refusal        topology.Mono // first refusal without a sign of life after it
	refusedTo      topology.Mono // last refusal
	silent         topology.Mono // silence was declared
	unproven       bool          // it was declared that nothing proves its role
	refused        bool          // at least once
	closed         bool          // twice, and far enough apart
	starting, dead bool          // 57P03; silent for kill_after
}

// follow makes the model for a world's engine. A restart needs a new one.
func follow(w *world, saved *topology.Saved) *model {
	m := &model{
		w: w, begun: w.now.Mono, nodes: make(map[string]*word), lost: make(map[string]topology.Mono),
		last: make(map[topology.SourceID]topology.Observation), highest: make(map[uint64]topology.Timeline),
	}
	if saved != nil {
		m.list(saved.Nodes, m.begun)
		m.pinned = saved.SystemID
		m.learn(m.pinned, saved.Timeline)
		for name, at := range saved.Lost {
			m.lost[name] = m.begun.Add(-max(0, w.now.Wall.Sub(at)))
		}
		if n := m.nodes[saved.Writer]; n != nil {
			m.writer = tenant{name: n.Name, address: n.Address, tl: saved.Timeline, saved: true}
		}
	}
	return m
}

// judge holds a decision against the rule.
func (m *model) judge(s *topology.Snapshot) {
	m.w.t.Helper()
	now, gone := m.w.now.Mono, ""
	if m.planned != 0 && now.Sub(m.planned) > sec {
		m.resumed = now // nobody was asked meanwhile
	}
	m.identify()
	m.hush()
	if m.writer.name != "" {
		if gone = m.against(); gone != "" {
			m.lost[m.writer.name], m.writer = now, tenant{}
		}
	}
	why := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(m.nodes)) {
		n := m.nodes[name]
		if why[name] = m.bars(n); why[name] == "" {
			m.writer = tenant{name: name, address: n.Address, tl: n.timeline()}
			m.pinned = max(m.pinned, n.full.SystemID)
			delete(m.lost, name)
		}
	}
	drains := m.drains()
	for name := range m.nodes {
		got, want := verdict(s, "primary", name), topology.Down
		switch _, lost := m.lost[name]; {
		case name == m.writer.name && m.writer.saved:
			want = topology.Undecided
		case name == m.writer.name && drains == "":
			want = topology.Up
		case name == m.writer.name:
			want = topology.Drain
		case !lost && (m.writer.name == "" || m.writer.saved || drains != "") && got != topology.Up:
			continue // it may be undecided, or drain while nothing has been decided
		}
		if got != want && (want != topology.Undecided || got != topology.Drain) {
			m.w.t.Fatalf("%s is %s, want %s (the writer went: %q, drains: %q, barred: %q)\n%s", name, got, want, gone, drains, why, show(s, m.w.now))
		}
	}
	for _, n := range m.nodes {
		n.cut = false
	}
	m.planned = m.w.wake
}

// against says why the writer must go.
func (m *model) against() string {
	now, n := m.w.now.Mono, m.nodes[m.writer.name]
	switch {
	case m.writer.noted != "":
		return m.writer.noted
	case n == nil || n.Address != m.writer.address:
		return "its address is another's"
	case m.foreign(n):
		return "another cluster's server answers"
	case n.closed || n.cut:
		return "it refuses connections"
	case m.authority != nil && m.authority.StandbyCluster:
		return "a standby cluster has no writer"
	case m.current() && m.keyless() && now.Sub(m.absent) >= m.gap():
		return "its key has been gone for too long"
	case m.current() && m.keyless() && n.silent != 0:
		return "it is silent and its key is gone"
	case m.bySQL() && m.highest[m.pinned] > m.heldOn(n):
		return "there is a higher timeline"
	case m.bySQL() && n.dead:
		return "it has been silent for too long"
	case m.bySQL():
		return m.rival(n)
	case m.authority != nil && !m.current() && m.w.p.HoldMax > 0 && now.Sub(m.asked) >= m.w.p.HoldMax:
		return "it was held for long enough"
	case m.authority == nil && now.Sub(max(m.begun, m.resumed)) < m.w.p.SilentAfter:
		return "" // the authority has the first word
	case !m.current() || m.authority.Leader == "" && !m.keyless():
		return m.rival(n)
	}
	return ""
}

// bars says why a node may not become the writer.
func (m *model) bars(n *word) string {
	now := m.w.now.Mono
	lost, wasLost := m.lost[n.Name]
	switch {
	case m.writer.name != "" && (!m.writer.saved || m.writer.name != n.Name):
		return "there is one"
	case !n.writable() || now.Sub(n.roleAt) >= m.w.p.EvidenceMaxAge:
		return "it has not said lately that it is writable"
	case n.full.SystemID == 0 || m.foreign(n):
		return "its identifier"
	case n.refused || n.cut || n.starting || n.silent != 0 || m.noLogin(n):
		return "it does not answer"
	case wasLost && now.Sub(lost) < m.w.p.MinDown:
		return "it was lost a moment ago"
	case m.bySQL():
		return m.notAlone(n)
	case !m.current():
		return "the authority does not speak"
	case m.authority.Leader != n.Name || m.authority.SessionAgrees == topology.No || m.authority.StandbyCluster:
		return "the authority does not name it"
	}
	return ""
}

// notAlone is the rule without an authority.
func (m *model) notAlone(n *word) string {
	own := n.timeline()
	switch {
	case m.authority != nil && m.authority.StandbyCluster:
		return "a standby cluster has no writer"
	case n.HasTag(topology.TagNoFailover) || n.full.ApplyDelay > 0:
		return "its tag or its delay"
	case own == 0 || own < m.highest[n.full.SystemID]:
		return "its timeline"
	}
	for _, o := range m.nodes {
		switch {
		case o == n:
		case o.roleAt == 0 && o.silent == 0 && o.alive == 0 && !o.closed, max(o.answered, o.failed) < m.resumed:
			return o.Name + " has not been heard"
		case m.pinned == 0 && o.full.Node != "" && o.full.SystemID != n.full.SystemID:
			return o.Name + " has another identifier"
		case m.claims(o) && (o.timeline() == 0 || o.timeline() >= own):
			return o.Name + " is writable too"
		}
	}
	return ""
}

// drains says why the writer takes no new session.
func (m *model) drains() string {
	now, n := m.w.now.Mono, m.nodes[m.writer.name]
	if n == nil {
		return ""
	}
	_, maintained := m.w.m.Active(n.Name, m.w.now.Wall)
	lost := m.authority != nil && !m.current() && !m.bySQL()
	switch {
	case maintained:
		return "maintenance"
	case n.refused || n.starting || n.silent != 0 || m.noLogin(n):
		return "it does not answer"
	case m.authority != nil && m.keyless() && !m.bySQL():
		return "it has no key"
	case m.writer.saved || !lost && (!m.bySQL() || n.alive == 0):
		return ""
	case n.unproven, !m.isolated && now.Sub(max(n.roleAt, n.ours, m.resumed)) >= m.w.p.EvidenceMaxAge:
		n.unproven = true
		return "nobody says that it is the writer"
	}
	return ""
}

// rival names another node that may be writing on an equal or higher timeline.
func (m *model) rival(n *word) string {
	for _, o := range m.nodes {
		tl := o.timeline()
		heard := n.roleAt != 0 || n.silent != 0 // at a start the order of the first answers decides nothing
		if o != n && tl != 0 && m.claims(o) && (tl > m.heldOn(n) || tl == m.heldOn(n) && heard) {
			return fmt.Sprintf("%s writes on timeline %d", o.Name, tl)
		}
	}
	return ""
}

// claims: sessions at the node may still be writing.
func (m *model) claims(n *word) bool {
	heard := max(n.roleAt, n.ours, m.resumed)
	return n.writable() && !m.foreign(n) && !n.closed && m.w.now.Mono.Sub(heard) < m.w.p.KillAfter
}

// hush declares silence, by the last word of a node from whomever.
func (m *model) hush() {
	now := m.w.now.Mono
	for _, n := range m.nodes {
		from := n.told
		for _, o := range m.nodes {
			rc := o.full.Receiver
			if o != n && rc.Streaming == topology.Yes && rc.MessageAge >= 0 && rc.SenderHost == n.Address.Host && rc.SenderPort == n.Address.Port {
				from = max(from, o.asked.Add(-rc.MessageAge))
			}
		}
		n.told = from // a standby that is no standby any more has heard it all the same
		word := max(n.answered, n.alive, from, n.ours, n.known, m.heard, m.resumed)
		patience := m.w.p.SilentAfter
		if n.failed == 0 || n.failed == n.alive {
			patience *= unasked // nothing says that it does not answer
		}
		switch {
		case m.heard == 0:
			return // the silence may as well be ours
		case n.silent != 0 && from > n.silent && now.Sub(from) < m.w.p.SilentAfter:
			n.silent, n.dead = 0, false
		case n.silent == 0 && !m.isolated && now.Sub(word) >= patience:
			n.silent = now
		}
		n.dead = n.dead || n.silent != 0 && !m.isolated && now.Sub(word) >= m.w.p.KillAfter
	}
}

// identify takes another identifier when the authority and whom it names agree on it.
func (m *model) identify() {
	if !m.current() || m.authority.SystemID == 0 || m.pinned == 0 {
		return
	}
	n := m.nodes[m.authority.Leader]
	if n != nil && n.full.SystemID == m.authority.SystemID && m.w.now.Mono.Sub(n.asked) < m.w.p.EvidenceMaxAge {
		m.pinned = n.full.SystemID
	}
}

func (m *model) foreign(n *word) bool {
	return n.full.SystemID != 0 && m.pinned != 0 && n.full.SystemID != m.pinned
}

func (m *model) noLogin(n *word) bool {
	return n.loginFail != 0 && m.w.now.Mono.Sub(n.loginFail) >= m.w.p.SilentAfter
}

// current: the authority's word may be believed.
func (m *model) current() bool { return m.authority != nil && !m.unheard && !m.old() }

func (m *model) old() bool { return m.w.now.Mono.Sub(m.asked) >= m.w.p.AuthorityMaxAge }

// bySQL: nobody but the nodes themselves says who writes.
func (m *model) bySQL() bool {
	return m.w.p.Authority == none || m.authority != nil && m.old() && m.w.p.AuthorityLost == topology.LostSQLOnly
}

// keyless: without a key the writer cannot be trusted, except in pause and failsafe mode.
func (m *model) keyless() bool {
	a := m.authority
	return a.Leader == "" && a.Pause != topology.Yes && a.Failsafe != topology.Yes
}

func (m *model) gap() time.Duration {
	if d := m.authority.LoopWait + m.authority.RetryTimeout; d > 0 {
		return d
	}
	return defaultLeaderGap
}

// heldOn is the timeline on which the writer writes, by its own word or at entry.
func (m *model) heldOn(n *word) topology.Timeline {
	if tl := n.timeline(); tl != 0 {
		return tl
	}
	return m.writer.tl
}

func (n *word) timeline() topology.Timeline {
	if n.full.InRecovery != topology.No {
		return 0
	}
	return n.full.Timeline
}

func (n *word) writable() bool {
	return n.role.InRecovery == topology.No && n.role.ReadOnly == topology.No
}
