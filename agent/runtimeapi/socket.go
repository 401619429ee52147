package runtimeapi

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// never is later than every moment.
const never = topology.Mono(1<<63 - 1)

// socket pushes to one admin socket. Its fields belong to the goroutine of run,
// except those behind mu.
type socket struct {
	o                *Options
	network, address string
	log              *slog.Logger
	back             *backoff.ExponentialBackOff

	pending   map[string]bool            // clusters with a decision that is not told yet
	urgent    map[string]uint64          // the last urgent generation seen, by cluster
	confirmed map[string]map[server]want // what HAProxy has confirmed, by cluster
	told      map[string]uint64          // the last generation that was put into commands, by cluster
	refused   map[string]bool            // clusters with a bad answer in the present push
	process   process
	bad       map[string]bool // servers and answers that were complained about
	delay     time.Duration   // until the next push of everything, after bad answers

	pushAt    topology.Mono // when pending is told; never: nothing is pending
	changedAt topology.Mono // the first change that waits
	retryAt   topology.Mono // the socket is left alone until then
	recheckAt topology.Mono
	repushAt  topology.Mono // when everything is told again; never: no need

	mu     sync.Mutex
	status Status
}

func newSocket(o *Options, network, address string) *socket {
	s := &socket{
		o: o, network: network, address: address,
		log: o.Logger.With("socket", address),
		back: &backoff.ExponentialBackOff{
			InitialInterval: 100 * time.Millisecond, MaxInterval: 5 * time.Second,
			Multiplier: 2, RandomizationFactor: 0.2,
		},
		pending:   make(map[string]bool),
		urgent:    make(map[string]uint64),
		confirmed: make(map[string]map[server]want),
		told:      make(map[string]uint64),
		refused:   make(map[string]bool),
		bad:       make(map[string]bool),
		delay:     o.Repush,
		pushAt:    never, repushAt: never,
		status: Status{Socket: address, Applied: make(map[string]uint64)},
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
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.Ready():
			s.collect(sub)
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

func (s *socket) now() topology.Mono { return s.o.Now().Mono }

// nextAt is when there is something to do without a change.
func (s *socket) nextAt() topology.Mono {
	return max(min(s.pushAt, s.recheckAt, s.repushAt), s.retryAt)
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

// push tells HAProxy all that is pending, or only looks at its process.
func (s *socket) push(ctx context.Context) {
	now := s.now()
	full := s.repushAt <= now
	if full {
		s.repushAt = never
		s.everything()
	}
	look := s.recheckAt <= now
	if look {
		s.catchUp()
	}
	var steps []step
	var clusters []string
	if full || s.pushAt <= now { // what has not settled yet waits on
		steps, clusters = s.steps(now)
		clear(s.pending)
		s.pushAt = never
	}
	clear(s.refused)
	talks := len(steps) > 0 || look
	if talks {
		s.recheckAt = now.Add(s.o.Recheck)
		if err := s.tell(ctx, steps); err != nil {
			s.fail(ctx, err)
			return
		}
	}
	if talks && s.repushAt == never {
		if full {
			s.delay = s.o.Repush
			clear(s.bad)
		}
		s.setErr(nil)
	}
	s.record(clusters)
}

// steps plans every pending cluster whose view may be believed, and names them.
func (s *socket) steps(now topology.Mono) (steps []step, clusters []string) {
	for cluster := range s.pending {
		v := s.o.Views.Get(cluster)
		if !v.Valid(now) {
			continue
		}
		clusters = append(clusters, cluster)
		s.told[cluster] = v.Snapshot.Generation
		steps = append(steps, plan(s.o, v.Snapshot, s.confirmed[cluster])...)
	}
	inOrder(steps)
	return steps, clusters
}

// tell carries steps out in order. Every push asks for the process first: what
// another process has confirmed says nothing of this one.
func (s *socket) tell(ctx context.Context, steps []step) error {
	parts := chunks(steps)
	if len(parts) == 0 {
		parts = [][]step{nil}
	}
	for i, part := range parts {
		var commands []string
		if i == 0 {
			commands = append(commands, "show info")
		}
		for _, st := range part {
			commands = append(commands, st.commands...)
		}
		answers, err := s.exchange(ctx, commands)
		if err != nil {
			return err
		}
		if i == 0 {
			s.compareProcess(answers[0])
			answers = answers[1:]
		}
		s.take(part, answers)
	}
	s.back.Reset()
	s.retryAt = 0
	return nil
}

// compareProcess starts over when HAProxy was restarted or reloaded. What is
// confirmed from here on was said to the new process.
func (s *socket) compareProcess(info string) {
	p := processOf(info)
	if p.pid == "" {
		s.complain("process", info)
		return
	}
	if p.replaces(s.process) {
		s.log.Info("HAProxy has a new process; it is told everything", "pid", p.pid, "was", s.process.pid)
		s.everything()
		s.pushAt = s.now()
	}
	s.process = p
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Process = p.pid
}

// take notes the answers to steps. A step counts when all its commands did.
func (s *socket) take(steps []step, answers []string) {
	for _, st := range steps {
		good := true
		for _, a := range answers[:len(st.commands)] {
			if a != "" && !st.gone {
				good, s.refused[st.cluster] = false, true
				s.complain(st.String(), a)
			}
		}
		answers = answers[len(st.commands):]
		if s.confirmed[st.cluster] == nil {
			s.confirmed[st.cluster] = make(map[server]want)
		}
		if good && !st.gone {
			s.confirmed[st.cluster][st.server] = st.want
		} else {
			delete(s.confirmed[st.cluster], st.server)
		}
	}
	if len(steps) > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.status.Pushes++
	}
}

// complain explains a bad answer once and has everything told again later.
func (s *socket) complain(about, answer string) {
	if s.repushAt == never {
		s.repushAt = s.now().Add(s.delay)
		s.delay = min(2*s.delay, time.Minute)
	}
	line := firstLine(answer)
	s.setErr(fmt.Errorf("HAProxy answers %q about %s: %s", line, about, explain(answer)))
	if key := about + " " + line; !s.bad[key] {
		s.bad[key] = true
		s.log.Warn("HAProxy did not carry a command out; it is told again later, its agent checks go on",
			"about", about, "answer", line, "means", explain(answer))
	}
}

// record notes what is applied, when there was nothing to say or it went through.
func (s *socket) record(clusters []string) {
	if s.pushAt != never {
		return // another process answered: what stands here is told again first
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cluster := range clusters {
		if !s.refused[cluster] {
			s.status.Applied[cluster] = s.told[cluster]
		}
	}
}

// fail backs off. Nobody knows how far HAProxy came, so nothing is confirmed.
func (s *socket) fail(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	wait := s.back.NextBackOff()
	s.everything()
	s.pushAt = s.now()
	s.retryAt = s.now().Add(wait)
	if s.setErr(err) {
		s.log.Warn("HAProxy cannot be told; its agent checks go on, the newest decision is tried again", "err", err, "in", wait)
	}
}

// setErr records how the socket fares and reports whether it was well before.
func (s *socket) setErr(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.status.Err
	s.status.Err = err
	if (was == nil) != (err == nil) || s.status.Since.IsZero() {
		s.status.Since = s.o.Now().Wall
	}
	if was != nil && err == nil {
		s.log.Info("HAProxy has been told everything again", "was", was)
	}
	return was == nil && err != nil
}

// report returns a copy of the status.
func (s *socket) report() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.status
	st.Applied = maps.Clone(st.Applied)
	return st
}
