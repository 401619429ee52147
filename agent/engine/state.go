package engine

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// sourceSaved marks the nodes of an earlier run, until every source has delivered.
const sourceSaved topology.SourceKind = "saved"

// Options describe a cluster to NewState.
type Options struct {
	Cluster string
	// NodeSources are the sources that list nodes; until each has delivered once
	// the cluster is not complete.
	NodeSources []topology.SourceID
	// Continues says that Saved is of this process and a moment old: the sources
	// were exchanged. Nodes that came with them then do not keep the writer waiting.
	Continues bool
	// Generation is the generation before the first: a cluster that is set up
	// anew in a running agent goes on counting.
	Generation uint64
	// Saved is what an earlier run left; nil when there is nothing. It may hold
	// what stands, never admit.
	Saved *topology.Saved
	// Start is the moment from which silence is counted for nodes never heard.
	Start topology.Clock
}

// State is everything remembered of one cluster. Observe and Decide change it;
// nothing else does.
type State struct {
	cluster     string
	nodeSources []topology.SourceID
	start       topology.Clock
	saved       *topology.Saved

	sources map[topology.SourceID]*source
	lists   map[topology.SourceID][]topology.Node
	missing map[string]topology.Mono // since when an authority's list lacks a node
	nodes   map[string]*node
	order   []*node // by name
	at      map[topology.Address]*node

	authority authorityState
	systemID  uint64                       // pinned; 0: not known yet
	timelines map[uint64]topology.Timeline // highest ever seen, by system identifier
	ring      lsnRing
	isolated  topology.Tri

	holder  holder
	lost    map[string]topology.Clock // when a node lost the writer role
	decided bool                      // a writer has been admitted since the start

	planned   topology.Mono // when Decide asked to be woken
	heardAt   topology.Mono // first sign of life of any node
	resumedAt topology.Mono // end of the last time in which we could ask nobody
	hintAt    topology.Mono // last sign that something changes
	unsettled topology.Mono // since when the writer is in doubt; zero: settled

	continues  bool   // the saved state is a moment old
	generation uint64 // before the first snapshot
	last       *topology.Snapshot
	keep       keep  // what Save returned last
	round      round // its buffers are used again
}

// source is the health of one source.
type source struct {
	seq       uint64
	at        topology.Mono // when the last one folded was there
	okAt      topology.Mono
	changedAt topology.Mono
	failingAt topology.Mono
	failure   *topology.Failure
}

// holder is the node that has the writer role.
type holder struct {
	name     string
	address  topology.Address
	since    topology.Clock
	timeline topology.Timeline // on which it was admitted
	// restored: known from the saved state only; it holds what stands and is not
	// up until it has entered by evidence.
	restored bool
	// Contrary evidence is noted when it is folded, so that none is lost when
	// better word follows before the next decision.
	deposed    bool // in recovery, read-only, or another cluster's server
	superseded bool // the authority named another, or took the writes from it
}

// node is the evidence about one node, at its present address.
type node struct {
	topology.Node
	i       int           // index by name
	knownAt topology.Mono // since when it is known at this address

	full   *topology.Probe // newest full probe
	fullAt topology.Mono   // when it was asked
	// Newest word on the role, from a full probe or a role tick.
	inRecovery, readOnly topology.Tri
	roleAt               topology.Mono

	answeredAt topology.Mono // last answer to a question about the role
	wordAt     topology.Mono // last sign of life by way of another party
	heardAt    topology.Mono // last message that a standby got from it
	localAt    topology.Mono // last failure of our own making
	loginAt    topology.Mono // last good fresh login

	// Since the last answer; only an answer ends these.
	failure              *topology.Failure
	loginFailure         *topology.Failure // of the last fresh login; a good one ends it
	failingAt, failedAt  topology.Mono     // first and last failure
	refusedAt, refusedTo topology.Mono     // first and last refusal with no sign of life between
	refusedPast          time.Duration     // longest such span before
	refusedOnce          topology.Mono     // first refusal, whatever other failure followed
	aliveAt              topology.Mono     // last failure that proves life (no slot, bad password …)
	startingAt           topology.Mono     // first 57P03
	silentAt             topology.Mono     // silence was declared
	killed               bool              // and lasted for kill_after
	unprovenAt           topology.Mono     // it was declared that nothing proves its role
	loginFail            topology.Mono     // first fresh login in vain; a good one ends it

	refusedSeen  topology.Mono // the last refusal that a decision has seen
	refusedFor   time.Duration // span of refusals that an answer ended unseen
	lag          topology.Lag
	pausedAt     topology.Mono // lagging with paused replay since
	unstreamedAt topology.Mono // without receiver since
	brokenAt     topology.Mono // its upstream, or one above, without receiver since
	strayAt      topology.Mono // on another timeline than the writer since
	restartedAt  topology.Mono // its server was seen with a new start time

	slotsAt     topology.Mono // last login that found no slot
	writeAt     topology.Mono // last write probe that went through
	writeFailAt topology.Mono // first write probe in vain since
	blockedAt   topology.Mono // commits wait for a standby since
	blockedLSN  topology.LSN  // the writer's position then

	ports   map[uint16]*port
	tenures map[string]*tenure // by read pool
	member  *topology.Member
}

// NewState returns the state of a cluster of which nothing has been observed.
func NewState(o Options) *State {
	s := &State{
		cluster: o.Cluster, nodeSources: o.NodeSources, start: o.Start, saved: o.Saved, generation: o.Generation, continues: o.Continues,
		sources: make(map[topology.SourceID]*source),
		lists:   make(map[topology.SourceID][]topology.Node),
		missing: make(map[string]topology.Mono),
		nodes:   make(map[string]*node),
		lost:    make(map[string]topology.Clock),

		timelines: make(map[uint64]topology.Timeline),
	}
	if o.Saved == nil {
		return s
	}
	s.systemID = o.Saved.SystemID
	s.learnTimeline(s.systemID, o.Saved.Timeline)
	s.lists[topology.SourceID{Kind: sourceSaved}] = o.Saved.Nodes
	s.mergeNodes(o.Start.Mono)
	for name, at := range o.Saved.Lost {
		// A wall clock that was set back makes no loss younger than the start.
		ago := max(0, o.Start.Wall.Sub(at))
		s.lost[name] = topology.Clock{Mono: o.Start.Mono.Add(-ago), Wall: at}
	}
	if w := s.nodes[o.Saved.Writer]; w != nil {
		s.holder = holder{name: w.Name, address: w.Address, since: o.Start, timeline: o.Saved.Timeline, restored: true}
	}
	return s
}

// ForgetTimeline resets the memory of the highest timeline, after a restore
// from backup under authority none.
func (s *State) ForgetTimeline() { delete(s.timelines, s.systemID) }

// Nodes returns the cluster's nodes by name: who is to be probed, and where.
func (s *State) Nodes() []topology.Node {
	out := make([]topology.Node, 0, len(s.order))
	for _, n := range s.order {
		out = append(out, n.Node)
	}
	return out
}

// complete reports whether every source of nodes has delivered.
func (s *State) complete() bool {
	for _, id := range s.nodeSources {
		if _, ok := s.lists[id]; !ok {
			return false
		}
	}
	return true
}

// mergeNodes makes the set of nodes from the lists of all sources.
func (s *State) mergeNodes(at topology.Mono) {
	if s.complete() && len(s.nodeSources) > 0 {
		delete(s.lists, topology.SourceID{Kind: sourceSaved})
	}
	ids := slices.SortedFunc(maps.Keys(s.lists), func(a, b topology.SourceID) int {
		return strings.Compare(rank(a)+a.Name, rank(b)+b.Name)
	})
	merged := make(map[string]topology.Node)
	for _, id := range ids {
		for _, n := range s.lists[id] {
			merged[n.Name] = overlay(merged[n.Name], n)
		}
	}
	maps.DeleteFunc(s.nodes, func(name string, _ *node) bool { _, ok := merged[name]; return !ok })
	for name, n := range merged {
		old := s.nodes[name]
		if old == nil || old.Address != n.Address {
			// Evidence made at another address says nothing about this one.
			old = &node{knownAt: at, ports: make(map[uint16]*port), tenures: make(map[string]*tenure)}
			s.nodes[name] = old
		}
		old.Node = n
	}
	s.keep = keep{}
	s.order, s.at = s.order[:0], make(map[topology.Address]*node, len(s.nodes))
	for i, name := range slices.Sorted(maps.Keys(s.nodes)) {
		s.nodes[name].i = i
		s.order = append(s.order, s.nodes[name])
		n := s.nodes[name]
		s.at[n.Address] = n
		if n.HostName != "" { // a standby's primary_conninfo may have either
			s.at[topology.Address{Host: n.HostName, Port: n.Address.Port}] = n
		}
	}
	s.attachMembers()
}

// rank orders sources so that later ones overlay earlier ones. A list of the
// configuration wins over the authority's, since an operator who writes an
// address down knows how clients reach the node; the saved list stands between,
// so that an address does not change back and forth during a start.
func rank(id topology.SourceID) string {
	switch id.Kind {
	case sourceSaved:
		return "2"
	case topology.SourceFile:
		return "3"
	default:
		return "1"
	}
}

func overlay(base, top topology.Node) topology.Node {
	out := topology.Node{Name: top.Name, Address: top.Address, HostName: top.HostName, Tags: make(map[string]string)}
	if out.Address.IsZero() {
		out.Address, out.HostName = base.Address, base.HostName
	}
	maps.Copy(out.Tags, base.Tags)
	maps.Copy(out.Tags, top.Tags)
	return out
}

func (s *State) attachMembers() {
	for _, n := range s.nodes {
		n.member = nil
	}
	if s.authority.picture == nil {
		return
	}
	for i := range s.authority.picture.Members {
		m := &s.authority.picture.Members[i]
		if n := s.nodes[m.Name]; n != nil {
			n.member = m
		}
	}
}

// keep is what Save returned last, and all it was made of: it is asked for after
// every decision, and hardly ever another one.
type keep struct {
	topology.Saved
	last *topology.Snapshot
}

func (s *State) kept() bool {
	k := &s.keep
	if s.last == nil || k.last != s.last || k.Writer != s.holder.name || k.SystemID != s.systemID ||
		k.Timeline != s.timelines[s.systemID] || len(k.Lost) != len(s.lost) {
		return false
	}
	for name, at := range s.lost {
		if was, ok := k.Lost[name]; !ok || !was.Equal(at.Wall) {
			return false
		}
	}
	return true
}

// Save returns what should outlive this process, by the last decision. Its lists
// and maps may be those of earlier and later calls, and nobody may change them.
func (s *State) Save(now topology.Clock) topology.Saved {
	if !s.kept() {
		s.keep = keep{s.save(now), s.last}
	}
	out := s.keep.Saved
	out.SavedAt = now.Wall
	return out
}

func (s *State) save(now topology.Clock) topology.Saved {
	out := topology.Saved{
		Version: 1, Cluster: s.cluster, Writer: s.holder.name,
		SystemID: s.systemID, Timeline: s.timelines[s.systemID], Nodes: s.Nodes(), SavedAt: now.Wall,
		Verdicts: make(map[string]map[string]topology.Verdict),
	}
	for name, at := range s.lost {
		if out.Lost == nil {
			out.Lost = make(map[string]time.Time)
		}
		out.Lost[name] = at.Wall
	}
	if s.last == nil {
		return out
	}
	for _, p := range s.last.Pools {
		m := make(map[string]topology.Verdict, len(p.Nodes))
		for _, n := range p.Nodes {
			m[n.Node] = s.standing(p, n.Node)
		}
		out.Verdicts[p.Pool] = m
	}
	return out
}
