package simulate

import (
	"fmt"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// The paces of the watcher of Patroni's keys (package watchers/consul) and of
// who asks it for confirmation (package agent).
const (
	readTimeout  = 3 * time.Second
	retryFirst   = 100 * time.Millisecond
	retryMost    = 5 * time.Second
	retryHung    = 2 * time.Second // after an attempt that took its whole timeout
	repeatEvery  = 3 * time.Second // a lasting failure is told again
	confirmEvery = 500 * time.Millisecond
)

// store plays the watcher of Patroni's keys.
type store struct {
	run       *run
	next      topology.Mono  // when to read next
	pending   topology.Mono  // when the read that gets no answer ends; 0: there is none
	asked     topology.Clock // of that read
	failing   outcome
	told      topology.Mono
	pause     time.Duration
	confirmed topology.Mono
}

func (s *store) due() topology.Mono {
	if s.pending != 0 {
		return s.pending
	}
	return s.next
}

// nudge asks for a read now; a read that hangs is given up for it.
func (s *store) nudge() { s.next, s.pending = s.run.now.Mono, 0 }

// confirm asks for a read now, unless there was such a one a moment ago or the
// store fails anyway.
func (s *store) confirm() {
	now := s.run.now.Mono
	if s.failing != "" || s.confirmed != 0 && now.Sub(s.confirmed) < confirmEvery {
		return
	}
	s.confirmed, s.next = now, now
}

func (s *store) ask() {
	r := s.run
	now := r.now.Mono
	class := r.world.consul
	switch {
	case s.pending != 0:
		class = outcome(topology.FailTimeout)
		s.pending = 0
	case class == outcome(topology.FailTimeout):
		s.asked, s.pending = r.now, now.Add(readTimeout)
		return
	default:
		s.asked = r.now
	}
	if class != "" {
		s.fail(class)
		return
	}
	s.failing, s.pause, s.next = "", 0, now.Add(r.s.probing.Authority)
	authority, nodes, _ := consul.Picture(r.world.keys.prefix, r.world.keys.pairs(&r.world))
	r.fold(topology.Observation{
		Source: r.consulSource(), Authority: &authority,
		Nodes: &topology.NodeList{Nodes: nodes, ConfirmedEmpty: len(authority.Members) == 0},
	})
}

// fail tells a failure when it is new or was told a while ago, and plans the
// next attempt. The real watcher draws its pauses; here the longest counts.
func (s *store) fail(class outcome) {
	r := s.run
	now := r.now.Mono
	s.pause = min(max(2*s.pause, retryFirst), retryMost)
	s.next = now.Add(s.pause)
	if class == outcome(topology.FailTimeout) {
		s.next = now.Add(min(s.pause, retryHung))
	}
	if class == s.failing && now.Sub(s.told) < repeatEvery {
		return
	}
	s.failing, s.told = class, now
	r.fold(topology.Observation{Source: r.consulSource(), AskedAt: s.asked, Failure: &topology.Failure{
		Class: topology.FailureClass(class), Text: fmt.Sprintf("reading keys %s from Consul: %s", r.world.keys.prefix, class),
	}})
}
