package agentcheck

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// cell is what is kept of one cluster.
type cell struct {
	name  string
	table atomic.Pointer[table]
}

// table holds every answer of one decision, by "<pool> <node>" and by
// "<pool> <node> <address>".
type table struct {
	snapshot *topology.Snapshot
	admin    AdminWords
	answers  map[string]answer
}

// answer is a verdict and its line; undecided has none.
type answer struct {
	verdict topology.Verdict
	line    []byte
	// maintained: an operator's word leads the verdict, which is not up.
	maintained bool
}

// answersOf returns the cluster's table for a snapshot. Two readers may make the
// same table at the same time; each then answers from its own, correct one.
func (c *cell) answersOf(s *topology.Snapshot, admin AdminWords) map[string]answer {
	if t := c.table.Load(); t != nil && t.snapshot == s && t.admin == admin {
		return t.answers
	}
	t := &table{snapshot: s, admin: admin, answers: make(map[string]answer)}
	for _, p := range s.Pools {
		for _, n := range p.Nodes {
			a := answer{n.Verdict, nodeLine(n, admin), n.Reason().Code == topology.CodeMaintenance}
			t.answers[p.Pool+" "+n.Node] = a
			if at := addressText(n.Address); at != "" {
				t.answers[p.Pool+" "+n.Node+" "+at] = a
			}
		}
		g := s.Guard(p)
		t.answers[p.Pool+" "+Guard] = answer{verdict: g, line: guardLine(g, p, admin)}
	}
	c.table.Store(t)
	return t.answers
}

// addressText is how templates write an address: a literal IP in its shortest form,
// IPv6 in brackets.
func addressText(a topology.Address) string {
	if ip, ok := a.IP(); ok {
		a.Host = ip.Unmap().String()
	}
	return a.String()
}

// Answer returns the line for a request, or nil when none may be given. The
// slice is shared; it must not be changed. A request that is written exactly as
// "<cluster> <pool> <node>" or "<cluster> <pool> <node> <address>" costs no allocation.
func (s *Server) Answer(request []byte) []byte {
	if cluster, key, ok := bytes.Cut(request, []byte{' '}); ok {
		if c := (*s.cells.Load())[string(cluster)]; c != nil {
			if v := s.opts.Views.Get(c.name); v.Valid(s.opts.Now().Mono) {
				if a, ok := c.answersOf(v.Snapshot, s.adminWords())[string(key)]; ok {
					return s.count(a)
				}
			}
		}
	}
	return s.answerLoose(request)
}

// answerLoose answers what the short way did not find: the first request of a
// cluster, odd blanks, views that are not valid, names nobody knows.
func (s *Server) answerLoose(request []byte) []byte {
	words := strings.Fields(string(request))
	if len(words) != 3 && len(words) != 4 {
		return s.unknown(request, "", s.opts.Clusters())
	}
	cluster, key := words[0], words[1]+" "+words[2]
	v := s.opts.Views.Get(cluster)
	switch {
	case v == nil && slices.Contains(s.opts.Clusters(), cluster):
		return s.count(answer{})
	case v == nil:
		return s.unknown(request, words[2], s.opts.Clusters())
	case !v.Valid(s.opts.Now().Mono):
		return s.count(answer{})
	}
	if a, ok := s.cell(cluster).answersOf(v.Snapshot, s.adminWords())[key]; ok {
		if len(words) == 4 && words[2] != Guard {
			return s.at(v.Snapshot, words, a)
		}
		return s.count(a)
	}
	return s.unknown(request, words[2], []string{cluster})
}

// at answers for a server at an address. At another one than its node's it is down,
// whatever the verdict is: that was made at the node's address and is no evidence
// here. Nor does it stay as it was, since its word of before was on an address that
// the node has left. Only two literal addresses can differ: while the name of a node
// is not resolved, or a source lists it without an address, the verdict counts as if
// no address had been asked for.
func (s *Server) at(snap *topology.Snapshot, words []string, a answer) []byte {
	p, _ := snap.Pool(words[1])
	n, _ := p.Verdict(words[2])
	asked, err := topology.ParseAddress(words[3])
	if _, literal := n.Address.IP(); !literal {
		return s.count(a)
	}
	if _, literal := asked.IP(); err == nil && !literal {
		return s.count(a)
	}
	present := addressText(n.Address)
	if err == nil && addressText(asked) == present {
		return s.count(a)
	}
	text := "at another address: " + n.Node + " is at " + present
	return s.count(answer{verdict: topology.Down, line: line(s.adminWords().down(topology.SeverityError), text)})
}

// whole reports whether a request without line end names a server that is known,
// and is not the beginning of a longer one: after "main primary n1" may come the 0 of
// n10, or an address, and the one's word must never be the other's.
func (s *Server) whole(request []byte) bool {
	words := strings.Fields(string(request))
	if len(words) != 3 && len(words) != 4 {
		return false
	}
	v := s.opts.Views.Get(words[0])
	if !v.Valid(s.opts.Now().Mono) {
		return false
	}
	key, known := strings.Join(words[1:], " "), false
	for k := range s.cell(words[0]).answersOf(v.Snapshot, s.adminWords()) {
		if strings.HasPrefix(k, key) && k != key {
			return false
		}
		known = known || k == key
	}
	return known
}

// cell returns the cell of a cluster that has a view, and makes it.
func (s *Server) cell(cluster string) *cell {
	if c := (*s.cells.Load())[cluster]; c != nil {
		return c
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.cells.Load()
	if c := old[cluster]; c != nil {
		return c
	}
	next := maps.Clone(old)
	maps.DeleteFunc(next, func(name string, _ *cell) bool { return s.opts.Views.Get(name) == nil })
	next[cluster] = &cell{name: cluster}
	s.cells.Store(&next)
	return next[cluster]
}

// unknown answers a name that nobody knows, once the clusters that could know
// it have heard all their sources of nodes. A guard that nobody knows is up: it
// then refuses connections, where down would let them through.
func (s *Server) unknown(request []byte, node string, clusters []string) []byte {
	s.counters.Unknown.Add(1)
	if !s.complete(clusters) {
		return s.count(answer{})
	}
	s.logUnknown(request)
	text := strings.TrimSpace("unknown " + strings.Join(strings.Fields(string(request)), "/"))
	if node == Guard {
		return s.count(answer{verdict: topology.Up, line: line(s.adminWords().up(100), text)})
	}
	return s.count(answer{verdict: topology.Down, line: line(s.adminWords().down(topology.SeverityError), text)})
}

func (s *Server) complete(clusters []string) bool {
	now := s.opts.Now().Mono
	for _, name := range clusters {
		if v := s.opts.Views.Get(name); !v.Valid(now) || !v.Snapshot.Complete {
			return false
		}
	}
	return len(clusters) > 0
}

// logUnknown warns at most once a minute: such a name is asked for twice a second.
func (s *Server) logUnknown(request []byte) {
	now, last := int64(s.opts.Now().Mono), s.logged.Load()
	if last != 0 && now-last < int64(time.Minute) || !s.logged.CompareAndSwap(last, now) {
		return
	}
	s.opts.Logger.Warn("HAProxy asks for a name that nobody knows; the answer keeps it out. Compare agent-send in HAProxy's file with the configured clusters, pools and nodes",
		"request", string(request))
}

func (s *Server) count(a answer) []byte {
	if a.maintained {
		s.counters.Maintenance.Add(1)
	}
	switch a.verdict {
	case topology.Up:
		s.counters.Up.Add(1)
	case topology.Drain:
		s.counters.Drain.Add(1)
	case topology.Down:
		s.counters.Down.Add(1)
	default:
		s.counters.Silent.Add(1)
	}
	return a.line
}
