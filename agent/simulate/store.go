package simulate

import (
	"fmt"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// The paces of the watcher of Patroni's keys (package watchers/consul) and of
// who asks it for confirmation (package agent).
const (
	readTimeout  = 3 * time.Second // of Consul; the monitor's is the cluster's own
	retryFirst   = 100 * time.Millisecond
	retryMost    = 5 * time.Second
	retryHung    = 2 * time.Second // after an attempt that took its whole timeout
	repeatEvery  = 3 * time.Second // a lasting failure is told again
	confirmEvery = 500 * time.Millisecond
)

// store plays the watcher of an authority: of Patroni's keys, or of the monitor of
// pg_auto_failover.
type store struct {
	run       *run
	origin    origin
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
	class := s.origin.outcome()
	switch {
	case s.pending != 0:
		class = outcome(topology.FailTimeout)
		s.pending = 0
	case class == outcome(topology.FailTimeout):
		s.asked, s.pending = r.now, now.Add(s.origin.timeout)
		return
	default:
		s.asked = r.now
	}
	if class != "" {
		s.fail(class)
		return
	}
	o, ok := s.origin.picture()
	if !ok {
		s.fail(outcome(topology.FailContent))
		return
	}
	s.failing, s.pause, s.next = "", 0, now.Add(r.s.probing.Authority)
	o.Source = s.origin.id
	r.fold(o)
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
	r.fold(topology.Observation{Source: s.origin.id, AskedAt: s.asked, Failure: &topology.Failure{
		Class: topology.FailureClass(class), Text: fmt.Sprintf("reading %s: %s", s.origin.what, class),
	}})
}
