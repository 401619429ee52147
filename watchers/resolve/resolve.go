// Package resolve gives nodes literal addresses where a source knows them by DNS
// name, so that probes, balancers and evidence all speak of the same server
// (field report FR-29: no balancer resolves anything).
//
// Guarantees: a name is asked for again every Refresh, and at once after Nudge.
// An answer that still has the present address changes nothing; another one is an
// address change of the node, with all that follows for its sessions. A name that
// cannot be asked for, or is gone, keeps its last address. Until each name of a
// first list was answered, the source counts as failing rather than as one whose
// nodes cannot be reached, so that a start without DNS empties nothing; after
// Patience the list goes on, and nodes whose names nobody knows keep them.
package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// Options of a Source.
type Options struct {
	// Lookup returns the addresses of a name. Nil: the system's resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Refresh is how long an answer is believed: 30 s.
	Refresh time.Duration
	// Timeout is for one question: 2 s.
	Timeout time.Duration
	// Patience is how long a first list waits for names that cannot be asked: 30 s.
	Patience time.Duration
	// Now reads the clocks. Required.
	Now topology.Ticker
	// Logger gets changes of addresses and failures. Nil: nothing is logged.
	Logger *slog.Logger
}

// again is the shortest time between two rounds of questions.
const again = time.Second

// Source is a source of nodes whose names are resolved. Make it with Wrap.
type Source struct {
	inner watchers.Source
	o     Options
	nudge watchers.Nudge

	follow    func()     // has the names asked for again and again
	mu        sync.Mutex // guards what follows and the order of reports
	report    func(topology.Observation)
	seq       uint64
	failing   *topology.Observation // the source's last word, when that is a failure
	newest    *topology.Observation // the last one with nodes, as the source gave it
	held      bool                  // newest waits for its names
	heldSince topology.Mono
	delivered bool // a list went on; none is held any more
	known     map[string]netip.Addr
	last      map[string]topology.Node // by node name, as delivered or as Know had it
	lost      map[string]error         // why a name has no answer of now
}

// Wrap returns a source that resolves the names of another one's nodes.
func Wrap(inner watchers.Source, o Options) *Source {
	o.Refresh = cmp.Or(o.Refresh, 30*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 2*time.Second)
	o.Patience = cmp.Or(o.Patience, 30*time.Second)
	if o.Lookup == nil {
		o.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Source{inner: inner, o: o, nudge: watchers.NewNudge(), known: make(map[string]netip.Addr), last: make(map[string]topology.Node), lost: make(map[string]error)}
}

// Know tells what an earlier source found out, before Run: those addresses stay
// until a name has an answer of now.
func (s *Source) Know(nodes []topology.Node) {
	for _, n := range nodes {
		ip, literal := n.Address.IP()
		if !literal {
			continue
		}
		s.last[n.Name] = n
		if n.HostName != "" {
			s.known[n.HostName] = ip
		}
	}
}

// Nudge asks for all names again, at most once a second: a node does not answer,
// and may have moved. It never blocks and may be called by anyone.
func (s *Source) Nudge() { s.nudge.Set() }

// Run runs the source until ctx ends or the source does.
func (s *Source) Run(ctx context.Context, report func(topology.Observation)) error {
	ctx, cancel := context.WithCancel(ctx)
	var refresher sync.WaitGroup
	s.report, s.follow = report, sync.OnceFunc(func() { refresher.Go(func() { s.refresh(ctx) }) })
	err := s.inner.Run(ctx, s.observe)
	cancel()
	refresher.Wait()
	return err
}

// observe passes an observation on, with addresses for the names that are known.
// It never waits for an answer: the authority's word comes this way too.
func (s *Source) observe(o topology.Observation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = nil
	if o.Failure != nil {
		s.failing = &o
	}
	if o.Nodes == nil || o.Failure != nil {
		s.pass(o)
		return
	}
	s.newest = &o
	if len(s.names()) > 0 { // most lists have none, and a goroutine for nothing costs too
		s.follow()
	}
	open := s.open()
	if len(open) > 0 || !s.delivered { // what Know told is asked for too
		s.nudge.Set()
	}
	if len(open) > 0 && !s.delivered {
		if !s.held {
			s.held, s.heldSince = true, s.o.Now().Mono
		}
		return
	}
	s.deliver()
}

// deliver passes the newest observation on.
func (s *Source) deliver() {
	o := *s.newest
	s.held, s.delivered = false, true
	o.Nodes = s.translated()
	s.pass(o)
}

// pass numbers an observation and hands it on.
func (s *Source) pass(o topology.Observation) {
	s.seq++
	o.Seq, o.At = s.seq, s.o.Now()
	s.report(o)
}

// names are the DNS names in the newest list, each once, sorted.
func (s *Source) names() (all []string) {
	if s.newest == nil {
		return nil
	}
	for _, n := range s.newest.Nodes.Nodes {
		if _, literal := n.Address.IP(); !literal && n.Address.Host != "" {
			all = append(all, n.Address.Host)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// open are the names that have no address and may have one: a resolver that says
// "no such name" has answered.
func (s *Source) open() []string {
	return slices.DeleteFunc(s.names(), func(name string) bool {
		dns, _ := errors.AsType[*net.DNSError](s.lost[name])
		return s.known[name].IsValid() || dns != nil && dns.IsNotFound
	})
}

// translated is the newest list with the addresses that are known. A node whose
// name nobody can tell keeps the address that it had, be it by another name.
func (s *Source) translated() *topology.NodeList {
	list := *s.newest.Nodes
	list.Nodes = slices.Clone(list.Nodes)
	for i, n := range list.Nodes {
		_, literal := n.Address.IP()
		ip, known := s.known[n.Address.Host]
		last, had := s.last[n.Name]
		switch to := &list.Nodes[i]; {
		case literal:
		case known:
			to.HostName, to.Address.Host = n.Address.Host, ip.String()
		case had:
			to.HostName, to.Address = last.HostName, last.Address
		default:
			continue
		}
		s.last[n.Name] = list.Nodes[i]
	}
	return &list
}

// refresh asks for the names again and again, until ctx ends.
func (s *Source) refresh(ctx context.Context) {
	timer := time.NewTimer(s.o.Refresh)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.nudge.C():
		}
		next := s.round(ctx)
		timer.Reset(again) // the least time between two rounds
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
			timer.Reset(next - again)
		}
	}
}

// round asks for every name in use once, reports what changed, and returns when
// the next round is due without a nudge.
func (s *Source) round(ctx context.Context) time.Duration {
	s.mu.Lock()
	names := s.names()
	s.mu.Unlock()
	answers := s.ask(ctx, names)
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		return s.o.Refresh
	}
	changed := false
	for i, name := range names {
		changed = s.keep(name, answers[i]) || changed
	}
	open := s.open()
	switch {
	case s.held:
		s.wait(open)
	case changed && s.failing == nil: // a source that fails brings them with its next word
		s.pass(topology.Observation{Cluster: s.newest.Cluster, Source: s.newest.Source, AskedAt: s.o.Now(), Nodes: s.translated()})
	}
	switch {
	case s.held:
		return again
	case len(open) > 0:
		return min(5*again, s.o.Refresh)
	}
	return s.o.Refresh
}

// wait ends the wait of a first list when its names have answers, or after
// Patience, and else says why the nodes are not known. A source that fails by now
// has the last word.
func (s *Source) wait(open []string) {
	if len(open) == 0 || s.o.Now().Mono.Sub(s.heldSince) >= s.o.Patience {
		s.deliver()
		if s.failing != nil {
			s.pass(*s.failing)
		}
		return
	}
	if s.failing != nil {
		return
	}
	s.pass(topology.Observation{
		Cluster: s.newest.Cluster, Source: s.newest.Source, AskedAt: s.o.Now(),
		Failure: &topology.Failure{Class: topology.FailName, Text: fmt.Sprintf("the nodes are held back, since %s cannot be resolved (%v); "+
			"it is asked for again every second, and after %v the nodes go on as they are", open[0], s.lost[open[0]], s.o.Patience)},
	})
}

// answer is what the resolver said.
type answer struct {
	found []netip.Addr
	err   error
}

// ask looks names up, side by side.
func (s *Source) ask(ctx context.Context, names []string) []answer {
	answers := make([]answer, len(names))
	var g errgroup.Group
	g.SetLimit(32)
	for i, name := range names {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
			defer cancel()
			answers[i].found, answers[i].err = s.o.Lookup(ctx, name)
			return nil
		})
	}
	_ = g.Wait() // its functions return nil
	return answers
}

// keep notes an answer and reports whether the name has another address now.
func (s *Source) keep(name string, a answer) bool {
	was, failed := s.known[name], s.lost[name] != nil
	ip := choose(was, a.found)
	if a.err == nil && !ip.IsValid() {
		a.err = errors.New("no address that can be connected to")
	}
	if a.err != nil {
		s.lost[name] = a.err
		if !failed {
			s.o.Logger.Warn("a node's name cannot be resolved; its last address stays", "name", name, "address", was, "err", a.err)
		}
		return false
	}
	delete(s.lost, name)
	s.known[name] = ip
	if was == ip {
		return false
	}
	s.o.Logger.Info("a node's name has an address", "name", name, "address", ip, "was", was)
	return true
}

// choose keeps the present address while it is among those found, so that the
// order of answers moves nobody. Else it is the lowest, IPv4 before IPv6: the same
// on every agent.
func choose(present netip.Addr, found []netip.Addr) netip.Addr {
	var usable []netip.Addr
	for _, ip := range found {
		ip = ip.Unmap()
		if ip == present {
			return present
		}
		if !ip.IsUnspecified() && !ip.IsMulticast() && ip.Zone() == "" {
			usable = append(usable, ip)
		}
	}
	if len(usable) == 0 {
		return netip.Addr{}
	}
	return slices.MinFunc(usable, netip.Addr.Compare) // IPv4 sorts before IPv6
}
