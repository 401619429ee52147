package runtimeapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// errStopping: a reload is in flight and the process before it still answers.
var errStopping = errors.New("HAProxy is being reloaded: the process that answers is about to end")

// push tells HAProxy all that is pending, or only looks at its process.
func (s *socket) push(ctx context.Context) {
	s.members.wire.Lock()
	defer s.members.wire.Unlock()
	now := s.now()
	full := s.repushAt <= now
	if full {
		s.repushAt, s.places.has = never, nil
		s.everything()
	}
	look := s.recheckAt <= now
	if look {
		s.catchUp()
	}
	s.askAgain(now)
	var steps []step
	var clusters []string
	if full || s.pushAt <= now { // what has not settled yet waits on
		if err := s.see(ctx, now); err != nil {
			s.fail(ctx, err)
			return
		}
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
		s.wellBut()
	}
	s.record(clusters)
	if look && s.countAt <= now && len(s.rosters) > 0 {
		s.countAt = now.Add(s.o.Count)
		s.count(ctx)
	}
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
		if s.rosters[cluster] == nil {
			s.rosters[cluster] = make(roster)
		}
		ours := backends(s.o, v.Snapshot)
		maps.DeleteFunc(s.confirmed[cluster], func(srv server, _ want) bool { return !ours[srv.Backend] })
		departed := s.rosters[cluster].note(s.o, v.Snapshot)
		s.places.forget(slices.Values(departed))
		wanted := desired(s.o, v.Snapshot, departed, s.unheard)
		for _, srv := range s.places.correct(s.o, v.Snapshot, wanted, now) {
			delete(s.confirmed[cluster], srv)
		}
		s.hear(v.Snapshot)
		steps = append(steps, plan(cluster, wanted, s.confirmed[cluster])...)
	}
	if len(s.places.waiting) > 0 {
		s.placesAt = now.Add(min(s.o.Repush, s.o.Patience))
	}
	inOrder(steps)
	return steps, clusters
}

// unheard reports whether HAProxy's process cannot know a server's state from
// anybody: it is younger than we are and nothing was decided about the server
// since it began. An older process may have its state from an earlier pgsteer.
func (s *socket) unheard(srv server) bool { return s.young && !s.heard[srv] }

// hear notes what is decided: from now on HAProxy learns it by a push or by its
// own agent checks.
func (s *socket) hear(snap *topology.Snapshot) {
	for _, p := range snap.Pools {
		backend := s.o.Names(snap.Cluster, p.Pool)
		for _, n := range p.Nodes {
			if n.Verdict != topology.Undecided {
				s.heard[server{Backend: backend, Server: n.Node}] = true
			}
		}
	}
}

// look are the questions before every push: what another process has confirmed
// says nothing of this one.
var look = []string{"show info", "show cli level"}

// tell carries steps out in order.
func (s *socket) tell(ctx context.Context, steps []step) error {
	parts := chunks(steps)
	if len(parts) == 0 {
		parts = [][]step{nil}
	}
	bad := make(complaints)
	defer s.settle(bad)
	for i, part := range parts {
		var commands []string
		if i == 0 {
			commands = append(commands, look...)
		}
		for _, st := range part {
			commands = append(commands, st.commands...)
		}
		answers, err := s.at.Answers(ctx, commands)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := s.compareProcess(answers[0], bad); err != nil {
				return err
			}
			if level := answers[1]; level == "operator" || level == "user" {
				return &levelError{level}
			}
			answers = answers[len(look):]
		}
		s.take(part, answers, bad)
	}
	s.back.Reset()
	s.retryAt = 0
	return nil
}

// levelError says that a socket lacks the right to command.
type levelError struct{ level string }

func (e *levelError) Error() string {
	return fmt.Sprintf("the socket has only \"level %s\", which may not change servers: write \"stats socket … level admin\" into HAProxy's file; until then its agent checks alone are heard", e.level)
}

// compareProcess starts over when HAProxy was restarted or reloaded. What is
// confirmed from here on was said to the new process.
func (s *socket) compareProcess(info string, bad complaints) error {
	p := haproxycli.ParseInfo(info)
	if p.PID == "" {
		bad.add("its process", info)
		return nil
	}
	if p.Stopping {
		return errStopping
	}
	s.meet(p)
	return nil
}

// meet takes over which process answers. One that replaced another is told everything,
// once its servers are known.
func (s *socket) meet(p haproxycli.Process) {
	if p.Replaces(s.process) {
		s.log.Info("HAProxy has a new process; it is told everything", "pid", p.PID, "was", s.process.PID)
		s.young, s.places.has = true, nil
		clear(s.heard)
		s.everything()
		s.pushAt = s.now()
	} else if s.process.PID == "" && s.now().Sub(s.began).Seconds() > float64(p.Uptime+1) { // uptime is cut to whole seconds
		s.young = true
		s.everything()
		s.pushAt = s.now()
	}
	if p.Version != s.process.Version {
		haproxycli.Warn(s.log, p.Version)
	}
	s.process = p
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Process = p.PID
}

// take notes the answers to steps. A step counts when all its commands did; a
// server that has left the list may be unknown to HAProxy as well.
func (s *socket) take(steps []step, answers []string, bad complaints) {
	for _, st := range steps {
		if s.confirmed[st.cluster] == nil {
			s.confirmed[st.cluster] = make(map[server]want)
		}
		s.confirmed[st.cluster][st.server] = st.want
		for _, a := range answers[:len(st.commands)] {
			switch {
			case a == "":
			case st.gone && strings.Contains(a, notEnabled): // taken out by Bring
			case st.gone && strings.Contains(a, noSuchServer):
				delete(s.rosters[st.cluster], st.server)
				delete(s.confirmed[st.cluster], st.server)
			default:
				s.refused[st.cluster] = true
				bad.add(st.String(), a)
				delete(s.confirmed[st.cluster], st.server)
			}
		}
		answers = answers[len(st.commands):]
	}
	if len(steps) > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.status.Pushes++
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
		if _, waits := s.places.waiting[cluster]; !s.refused[cluster] && !waits {
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
	s.places.has = nil
	s.pushAt = s.now()
	s.retryAt = s.now().Add(wait)
	if errors.Is(err, errStopping) {
		return // the next process is there in a moment
	}
	if s.setErr(err) {
		s.log.Warn("HAProxy cannot be told; its agent checks go on, the newest decision is tried again", "err", err, "in", wait)
	}
}
