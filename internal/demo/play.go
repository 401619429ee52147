package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// play runs the events one after another and sums up.
func (s *stage) play(ctx context.Context) (*Summary, error) {
	sum := &Summary{}
	before := s.reloads(ctx)
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	go s.show(watched)
	if err := s.calm(ctx); err != nil {
		return nil, err
	}
	for _, name := range s.o.Events {
		e, err := s.event(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("event %s: %w", name, err)
		}
		sum.Events = append(sum.Events, e)
		if err := s.calm(ctx); err != nil {
			return nil, err
		}
	}
	cancel()
	sum.Reloads = s.reloads(ctx) - before
	var samples [][]lab.Sample
	for _, l := range s.loads {
		samples = append(samples, l.Stop())
	}
	s.measure(sum, samples)
	sum.Seconds = time.Since(s.start).Seconds()
	return sum, nil
}

// calm lets the clients work undisturbed for a while, and the last event's
// node come back into the read pool.
func (s *stage) calm(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.o.Calm):
	}
	return s.until(ctx, "three healthy nodes", func() bool {
		v := s.view()
		pool, _ := v.Snapshot.Pool("replica")
		return v.Snapshot.Writer != "" && len(pool.Up()) == len(s.cluster.Nodes())-1
	})
}

func (s *stage) event(ctx context.Context, name string) (Event, error) {
	old := s.writers[len(s.writers)-1].node
	e := Event{Name: name, From: old.Name()}
	var t lab.Timeline
	var next *lab.Node
	var err error
	switch name {
	case EventSwitchover:
		if next, err = s.successor(ctx, old); err != nil {
			return e, err
		}
		s.say("switchover from %s to %s", old.Name(), next.Name())
		t, err = s.cluster.Switchover(ctx, next.Name())
		e.down = t.OldStopping
	case EventCrash:
		s.say("kill -9 of %s; then another node is promoted", old.Name())
		e.down = time.Now()
		next, t, err = s.failover(ctx, old, old.Kill, 0)
	case EventFreeze:
		s.say("%s freezes; after 3 s another node is promoted, and then %s wakes, still writable", old.Name(), old.Name())
		e.down = time.Now()
		next, t, err = s.failover(ctx, old, func() error {
			err := old.Freeze() // process by process, so that it answers for a while yet
			e.still = time.Now()
			return err
		}, 3*time.Second)
	default:
		err = fmt.Errorf("there is no such event; there are %s", strings.Join(Events, ", "))
	}
	if err != nil {
		return e, err
	}
	s.succeed(next, e.down, t)
	e.To, e.writable = next.Name(), t.NewWritable
	if name == EventFreeze {
		e.woken = time.Now()
		if err := old.Thaw(); err != nil {
			return e, err
		}
		s.say("%s is awake again, on the old timeline and writable", old.Name())
		if err := s.fenced(ctx, old); err != nil {
			return e, err
		}
	}
	if name != EventSwitchover {
		s.say("%s is rebuilt as a standby", old.Name())
		err = s.cluster.Rejoin(ctx, old.Name())
	}
	return e, err
}

// failover does something to the old primary and promotes another node a while later.
func (s *stage) failover(ctx context.Context, old *lab.Node, harm func() error, later time.Duration) (*lab.Node, lab.Timeline, error) {
	if err := harm(); err != nil {
		return nil, lab.Timeline{}, err
	}
	select {
	case <-time.After(later):
	case <-ctx.Done():
	}
	next, err := s.successor(ctx, old)
	if err != nil {
		return nil, lab.Timeline{}, err
	}
	t, err := s.cluster.Failover(ctx, next.Name())
	return next, t, err
}

// fenced waits until pgsteer has seen the woken primary and refuses it, and
// lets the clients try for another second.
func (s *stage) fenced(ctx context.Context, old *lab.Node) error {
	err := s.until(ctx, old.Name()+" being fenced", func() bool {
		pool, _ := s.view().Snapshot.Pool("primary")
		v, _ := pool.Verdict(old.Name())
		return v.Verdict == topology.Down && v.Reason().Code == topology.CodeOldTimeline
	})
	if err != nil {
		return err
	}
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// succeed notes who was the writer when. Until the new node was told to
// promote itself, the old one is where writes belong, dead or alive.
func (s *stage) succeed(next *lab.Node, down time.Time, t lab.Timeline) {
	s.writers[len(s.writers)-1].until = t.Promoted
	s.writers = append(s.writers, reign{node: next, port: next.Port(), from: t.NewWritable})
	s.say("%s is writable, %d ms after the old one went", next.Name(), t.NewWritable.Sub(down).Milliseconds())
}

// successor is the standby that has received most, as any failover manager
// would choose: another one could not be followed by those ahead of it.
func (s *stage) successor(ctx context.Context, old *lab.Node) (*lab.Node, error) {
	var best *lab.Node
	var most topology.LSN
	for _, n := range s.cluster.Nodes() {
		if n == old {
			continue
		}
		at, err := received(ctx, n)
		if err != nil {
			return nil, err
		}
		if best == nil || at > most {
			best, most = n, at
		}
	}
	return best, nil
}

func received(ctx context.Context, n *lab.Node) (topology.LSN, error) {
	conn, err := n.Conn(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask %s how much it has received: %w", n.Name(), err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var text string
	if err := conn.QueryRow(ctx, "SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())::text").Scan(&text); err != nil {
		return 0, fmt.Errorf("ask %s how much it has received: %w", n.Name(), err)
	}
	return topology.ParseLSN(text)
}

// show prints each change of the verdicts.
func (s *stage) show(ctx context.Context) {
	sub := s.agent.Views().Subscribe()
	defer sub.Close()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.Ready():
			sub.Take()
		}
		if line := verdicts(s.view().Snapshot); line != last {
			last = line
			s.say("  %s", line)
		}
	}
}

// verdicts is a snapshot in one line.
func verdicts(snap *topology.Snapshot) string {
	var b strings.Builder
	for _, p := range snap.Pools {
		fmt.Fprintf(&b, "%s:", p.Pool)
		for _, n := range p.Nodes {
			word := n.Verdict.String()
			if n.Verdict == topology.Up && n.Reason().Code == topology.CodeFallback {
				word = "fallback"
			}
			fmt.Fprintf(&b, " %s=%s", n.Node, word)
			if c := n.Reason().Code; n.Verdict != topology.Up && c != topology.CodeWrongRole {
				fmt.Fprintf(&b, "(%s)", c)
			}
		}
		b.WriteString("   ")
	}
	return strings.TrimRight(b.String(), " ")
}
