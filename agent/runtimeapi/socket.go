package runtimeapi

import (
	"context"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// never is later than every moment.
const never = topology.Mono(1<<63 - 1)

// socket pushes to one admin socket. Its fields belong to the goroutine of run,
// except those behind mu.
type socket struct {
	o    *Options
	at   haproxycli.Socket
	log  *slog.Logger
	back *backoff.ExponentialBackOff

	members *members
	places  places
	again   chan struct{} // everything is told again

	pending   map[string]bool            // clusters with a decision that is not told yet
	urgent    map[string]uint64          // the last urgent generation seen, by cluster
	confirmed map[string]map[server]want // what HAProxy has confirmed, by cluster
	told      map[string]uint64          // the last generation that was put into commands, by cluster
	refused   map[string]bool            // clusters with a bad answer in the present push
	rosters   map[string]roster          // by cluster
	bad       map[string]bool            // answers that were complained about
	delay     time.Duration              // until the next push of everything, after bad answers

	process haproxycli.Process
	young   bool            // the process began after we did
	heard   map[server]bool // servers that were decided while it ran

	began     topology.Mono // when this socket's goroutine did
	pushAt    topology.Mono // when pending is told; never: nothing is pending
	changedAt topology.Mono // the first change that waits
	retryAt   topology.Mono // the socket is left alone until then
	recheckAt topology.Mono
	countAt   topology.Mono
	repushAt  topology.Mono // when everything is told again; never: no need
	placesAt  topology.Mono // when clusters with servers that are not right are planned again; never: none has

	mu     sync.Mutex
	status Status
}

func newSocket(o *Options, at haproxycli.Socket) *socket {
	at.Timeout, at.Dial = o.Timeout, o.Dial
	s := &socket{
		o: o, at: at,
		log: o.Logger.With("socket", at.Address),
		back: &backoff.ExponentialBackOff{
			InitialInterval: 100 * time.Millisecond, MaxInterval: 5 * time.Second,
			Multiplier: 2, RandomizationFactor: 0.2,
		},
		members:   &members{at: at, log: o.Logger.With("socket", at.Address)},
		again:     make(chan struct{}, 1),
		pending:   make(map[string]bool),
		urgent:    make(map[string]uint64),
		confirmed: make(map[string]map[server]want),
		told:      make(map[string]uint64),
		refused:   make(map[string]bool),
		rosters:   make(map[string]roster),
		bad:       make(map[string]bool),
		heard:     make(map[server]bool),
		delay:     o.Repush,
		places:    newPlaces(),
		pushAt:    never, repushAt: never, placesAt: never,
		status: Status{Socket: at.Address, Applied: make(map[string]uint64)},
	}
	s.back.Reset()
	return s
}

// run waits for the next thing to do: a decision changed, a change has settled, a
// failed socket may be tried again, HAProxy's process must be looked at.
func (s *socket) run(ctx context.Context) {
	sub := s.o.Views.Subscribe()
	defer sub.Close()
	s.setErr(nil)
	s.began = s.now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.Ready():
			s.collect(sub)
		case <-s.again:
			s.everything()
			s.pushAt = s.now()
		case <-timer.C:
		}
		for s.due() {
			if ctx.Err() != nil {
				return
			}
			s.push(ctx)
		}
		timer.Reset(s.nextAt().Sub(s.now()))
	}
}

// sayAgain has everything told again at once.
func (s *socket) sayAgain() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

func (s *socket) now() topology.Mono { return s.o.Now().Mono }

// nextAt is when there is something to do without a change.
func (s *socket) nextAt() topology.Mono {
	return max(min(s.pushAt, s.recheckAt, s.repushAt, s.placesAt), s.retryAt)
}

func (s *socket) due() bool { return s.nextAt() <= s.now() }

// collect notes what changed. An urgent change is told at once, also to a socket
// that failed a moment ago; others wait until they have settled.
func (s *socket) collect(sub *latest.Subscription[string, topology.View]) {
	now := s.now()
	for _, cluster := range sub.Take() {
		v := s.o.Views.Get(cluster)
		if v == nil || v.Snapshot == nil {
			s.forget(cluster)
			continue
		}
		s.pending[cluster] = true
		seen, ok := s.urgent[cluster]
		s.urgent[cluster] = v.Snapshot.Urgent
		if !ok || seen != v.Snapshot.Urgent {
			s.pushAt, s.retryAt = now, 0
			s.back.Reset()
			continue
		}
		if s.pushAt == never {
			s.changedAt = now
		}
		if s.pushAt > now {
			s.pushAt = min(now.Add(s.o.Settle), s.changedAt.Add(s.o.MaxSettle))
		}
	}
}

// forget drops a cluster that is no longer configured. HAProxy keeps what it was
// told: taking a cluster out of our configuration must not end its sessions.
func (s *socket) forget(cluster string) {
	delete(s.pending, cluster)
	delete(s.urgent, cluster)
	delete(s.confirmed, cluster)
	delete(s.told, cluster)
	s.places.forget(maps.Keys(s.rosters[cluster]))
	delete(s.places.waiting, cluster)
	delete(s.rosters, cluster)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.status.Applied, cluster)
}

// everything makes all that HAProxy was ever told unconfirmed. What cannot be told
// now, since its view is not valid, is caught up with later.
func (s *socket) everything() {
	clear(s.confirmed)
	clear(s.told)
	for _, cluster := range s.o.Views.Keys() {
		s.pending[cluster] = true
	}
}

// catchUp notes clusters whose newest generation was not told without a change
// having woken us: views that became valid again.
func (s *socket) catchUp() {
	now := s.now()
	for _, cluster := range s.o.Views.Keys() {
		v := s.o.Views.Get(cluster)
		if v.Valid(now) && v.Snapshot.Generation != s.told[cluster] && !s.pending[cluster] {
			s.pending[cluster] = true
			s.pushAt = now
		}
	}
}

// setErr records how the socket fares and reports whether it was well before.
func (s *socket) setErr(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.status.Err
	s.status.Err = err
	fell, rose := turned(was, err, &s.status.Since, s.o.Now().Wall)
	if rose {
		s.log.Info("HAProxy has been told everything again", "was", was)
	}
	return fell
}

// turned compares how something fared with how it fares, and moves since when it
// turned for the worse or for the better.
func turned(was, is error, since *time.Time, now time.Time) (fell, rose bool) {
	fell, rose = was == nil && is != nil, was != nil && is == nil
	if fell || rose || since.IsZero() {
		*since = now
	}
	return fell, rose
}

// report returns a copy of the status.
func (s *socket) report() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Applied = maps.Clone(st.Applied)
	return st
}
