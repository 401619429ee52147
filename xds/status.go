package xds

import (
	"cmp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Status is what the server does at one moment.
type Status struct {
	// Answering is false while answers are withheld. Waiting names the clusters of
	// which nothing is known; what Envoys have of them stays.
	Answering bool     `json:"answering"`
	Waiting   []string `json:"waiting,omitempty"`
	// Held names listeners that differ from what is configured, since the change
	// would end their sessions, see Settings.Release.
	Held []string `json:"held,omitempty"`
	// HeldClusters are those of pools with health checks that differ.
	HeldClusters []string `json:"held_clusters,omitempty"`
	// Refused counts refusals of all streams since the start, by type: CDS, EDS, LDS.
	Refused map[string]uint64 `json:"refused"`
	// Rejected counts streams that were too many, Impostors those whose node id is
	// no name in their certificate.
	Rejected  uint64 `json:"rejected"`
	Impostors uint64 `json:"impostors"`
	// Streams are the open streams, by node and age.
	Streams []StreamStatus `json:"streams"`
}

// Nodes counts the open streams of each node.
func (s Status) Nodes() map[string]int {
	nodes := make(map[string]int)
	for _, st := range s.Streams {
		nodes[st.Node]++
	}
	return nodes
}

// StreamStatus is one client's stream.
type StreamStatus struct {
	Node     string       `json:"node"` // the id it claims; "" before its first request
	Cluster  string       `json:"cluster"`
	Zone     string       `json:"zone,omitempty"` // where it says it is
	Peer     string       `json:"peer"`           // where it comes from
	Protocol string       `json:"protocol"`
	Since    time.Time    `json:"since"`
	Types    []TypeStatus `json:"types"` // those it asked for, in the order CDS, EDS, LDS
	// Uncut are the write pools whose listener it refused: a change of the writer does not
	// end their sessions there.
	Uncut []string `json:"uncut,omitempty"`
}

// TypeStatus is what one stream was sent of one type. A time is zero for never.
type TypeStatus struct {
	Type      string    `json:"type"`
	All       bool      `json:"all"`       // it wants all that there are
	Names     int       `json:"names"`     // it asked for by name
	Sent      uint64    `json:"sent"`      // answers
	Resources uint64    `json:"resources"` // in all answers
	SentAt    time.Time `json:"sent_at"`
	Acked     uint64    `json:"acked"`
	AckedAt   time.Time `json:"acked_at"`
	Refused   uint64    `json:"refused"`
	RefusedAt time.Time `json:"refused_at"`
	Refusal   string    `json:"refusal,omitempty"` // the client's text, of the last refusal
}

// Asked says what the client wants, for people.
func (t TypeStatus) Asked() string {
	if t.All {
		return "all"
	}
	return strconv.Itoa(t.Names)
}

// ledger counts what concerns all streams, and remembers which refusals were
// logged.
type ledger struct {
	mu      sync.Mutex // guards what follows
	refused [kinds]uint64
	// Counted without the mutex:
	rejected, impostors atomic.Uint64
	logged              map[refusal]struct{}
}

// refusal identifies what is logged once.
type refusal struct {
	node string
	kind kind
	text string
}

// loggedMax bounds the memory of refusals; a client chooses the text.
const loggedMax = 1000

// record counts a refusal and reports whether it is a new one.
func (l *ledger) record(r refusal) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused[r.kind]++
	if _, old := l.logged[r]; old {
		return false
	}
	if l.logged == nil || len(l.logged) >= loggedMax {
		l.logged = make(map[refusal]struct{})
	}
	l.logged[r] = struct{}{}
	return true
}

func (l *ledger) counts() map[string]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := make(map[string]uint64, kinds)
	for k := range kinds {
		counts[k.String()] = l.refused[k]
	}
	return counts
}

// notes is the record of one stream.
type notes struct {
	now    topology.Ticker
	ledger *ledger

	mu     sync.Mutex // guards what follows
	named  bool
	stream StreamStatus
	types  [kinds]TypeStatus
}

func newNotes(l *ledger, now topology.Ticker, protocol, peer string) *notes {
	return &notes{now: now, ledger: l, stream: StreamStatus{Protocol: protocol, Peer: peer, Since: now().Wall}}
}

// identify keeps the node of the first request, and reports whether it is that.
func (n *notes) identify(node *corev3.Node) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.named || node == nil {
		return false
	}
	n.named, n.stream.Node, n.stream.Cluster = true, node.GetId(), node.GetCluster()
	n.stream.Zone = node.GetLocality().GetZone()
	return true
}

// known reports whether the client has said who it is.
func (n *notes) known() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.named
}

func (n *notes) node() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stream.Node
}

func (n *notes) asked(url string) { n.with(url, func(*TypeStatus) {}) }

func (n *notes) sent(url string, resources int) {
	n.with(url, func(t *TypeStatus) {
		t.Sent, t.SentAt = t.Sent+1, n.now().Wall
		t.Resources += uint64(resources)
	})
}

func (n *notes) acked(url string) {
	n.with(url, func(t *TypeStatus) { t.Acked, t.AckedAt = t.Acked+1, n.now().Wall })
}

// nacked notes a refusal and reports whether its text is new from this node.
func (n *notes) nacked(url, text string) (news bool) {
	n.with(url, func(t *TypeStatus) { t.Refused, t.RefusedAt, t.Refusal = t.Refused+1, n.now().Wall, text })
	k, served := kindOf(url)
	return served && n.ledger.record(refusal{n.node(), k, text})
}

func (n *notes) with(url string, f func(*TypeStatus)) {
	k, served := kindOf(url)
	if !served {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.types[k].Type = k.String()
	f(&n.types[k])
}

func (n *notes) status() StreamStatus {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := n.stream
	for _, t := range n.types {
		if t.Type != "" {
			st.Types = append(st.Types, t)
		}
	}
	return st
}

// status adds to the notes what is subscribed. The store's mutex is held.
func (s *stream) status() StreamStatus {
	st := s.notes.status()
	for i := range st.Types {
		for k, u := range s.subs {
			if u != nil && kind(k).String() == st.Types[i].Type {
				st.Types[i].All, st.Types[i].Names = u.all, u.asked
			}
		}
	}
	if u := s.subs[kindListener]; u != nil {
		st.Uncut = u.uncut()
	}
	return st
}

// Status tells what the server does now.
func (s *Server) Status() Status {
	st := Status{Refused: s.ledger.counts(), Waiting: s.publisher.waitingFor(), Rejected: s.ledger.rejected.Load(), Impostors: s.ledger.impostors.Load()}
	st.Held, st.HeldClusters = s.publisher.hold.names()
	s.store.mu.Lock()
	st.Answering = s.store.open
	for stream := range s.store.roster.streams {
		st.Streams = append(st.Streams, stream.status())
	}
	s.store.mu.Unlock()
	slices.SortFunc(st.Streams, func(a, b StreamStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), a.Since.Compare(b.Since))
	})
	return st
}
