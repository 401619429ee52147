package mesh

import (
	"context"
	"errors"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// ask does one thing at Consul that costs so many requests, within its time.
func (s *station) ask(ctx context.Context, costs int, doing string, f func(context.Context) error) error {
	if err := s.admit(ctx, costs); err != nil {
		return err
	}
	return s.within(ctx, doing, f)
}

// admit waits until there is room for so many requests beside those of all clusters. A
// change of roles, also one that comes meanwhile, need not wait behind thousands of them
// that a new publisher reads.
func (s *station) admit(ctx context.Context, costs int) error {
	costs = min(costs, requestBurst)
	now := s.p.o.Now().Wall
	wait := s.p.requests.ReserveN(now, costs).DelayFrom(now)
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	woken := false
	defer func() {
		if woken { // the turn that follows is to hear it too
			s.wake.Set()
		}
	}()
	for !s.hasty() || !s.p.hasty.AllowN(s.p.o.Now().Wall, costs) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-s.wake.C():
			woken = true
		}
	}
	return nil
}

// hasty reports whether the newest change of roles is one to publish before all else.
func (s *station) hasty() bool {
	v := s.p.o.Views.Get(s.cluster)
	return s.calm != 0 && v != nil && v.Snapshot != nil && v.Snapshot.Urgent != s.calm
}

// within does one thing that counts its requests itself, within its time.
func (s *station) within(ctx context.Context, doing string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.p.o.Timeout)
	defer cancel()
	err := f(ctx)
	if err == nil || errors.Is(err, errLost) {
		return err
	}
	return failure(&s.p.o, doing+" of service "+s.s.Service, err)
}

// stand notes, while another agent publishes, which changes are old: one that is not may
// be unpublished, since a dead publisher has the lock for twice the session's TTL.
func (s *station) stand(now topology.Mono) {
	if s.recent != s.seen {
		s.recent, s.recentAt = s.seen, now
	} else if now.Sub(s.recentAt) >= 3*s.p.o.SessionTTL {
		s.calm = s.seen
	}
}
