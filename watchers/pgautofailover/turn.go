package pgautofailover

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

const (
	// settle is how long a notification waits for others: one decision of the
	// monitor sends several, and the first has the goal of before.
	settle = 30 * time.Millisecond
	// The bucket of reads: every role of the monitor's database can notify, as often
	// as it likes.
	readsPerSecond = 10
	readsBurst     = 5
	// repeatEvery is how often a lasting failure is told again.
	repeatEvery = 3 * time.Second
)

// turns is one call of Run.
type turns struct {
	w      *Watcher
	report func(topology.Observation)
	bucket *rate.Limiter
	back   *watchers.BackOff

	known   bool
	said    topology.Authority // the newest picture
	warned  map[string]bool    // its faults
	failing topology.FailureClass
	told    topology.Mono // when the failure was last told
}

func newTurns(w *Watcher, report func(topology.Observation)) *turns {
	return &turns{
		w: w, report: report, bucket: rate.NewLimiter(readsPerSecond, readsBurst), back: watchers.NewBackOff(w.o.Jitter),
	}
}

func (t *turns) run(ctx context.Context) {
	for t.bucket.Wait(ctx) == nil {
		next, idle := t.turn(ctx)
		if ctx.Err() != nil {
			return
		}
		t.wait(ctx, next, idle)
	}
}

// turn reads once and returns how long to wait, on which line.
func (t *turns) turn(ctx context.Context) (time.Duration, *line) {
	asked := t.w.o.Now()
	l, a, f := t.read(ctx)
	if ctx.Err() != nil {
		return 0, nil
	}
	if f != nil {
		t.fail(asked, f)
		return t.back.Next(), nil
	}
	t.deliver(asked, a)
	return t.w.o.Poll, l
}

// wait returns after a pause, or a moment after somebody wants to know or the
// monitor says something. While it fails the pause is kept.
func (t *turns) wait(ctx context.Context, d time.Duration, l *line) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	if l == nil {
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		return
	}
	stop := l.Idle(t.w.stirred.Set)
	defer stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
		return
	case <-t.w.confirm.C():
		return
	case <-t.w.stirred.C():
	}
	timer.Reset(settle)
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// read asks the monitors in their order, the one with a session first, and returns
// the first answer that can be used, else the first failure.
func (t *turns) read(ctx context.Context) (*line, Answer, *topology.Failure) {
	var first *topology.Failure
	for i, l := range t.w.lines {
		a, f := t.ask(ctx, l)
		if f == nil {
			// It stays the first; sessions to others are of no use.
			copy(t.w.lines[1:i+1], t.w.lines[:i])
			t.w.lines[0] = l
			return l, a, nil
		}
		l.schema = ""
		l.Hang()
		if first == nil {
			first = f
		}
	}
	return nil, Answer{}, first
}

// ask reads one monitor.
func (t *turns) ask(ctx context.Context, l *line) (Answer, *topology.Failure) {
	o := &t.w.o
	if l.schema == "" {
		rows, f := l.Ask(ctx, whereQuery)
		switch {
		case f != nil:
			return Answer{}, f
		case len(rows) == 0:
			return Answer{}, t.unusable(l, topology.FailDenied, fmt.Errorf(
				"role %s can read neither the view pgsteer.node nor the table pgautofailover.node, or they do not exist", o.User))
		}
		l.schema = string(rows[0])
	}
	rows, f := l.Ask(ctx, readQuery(l.schema), o.Formation, strconv.Itoa(o.Group))
	switch {
	case f != nil:
		return Answer{}, f
	case len(rows) != 1:
		return Answer{}, t.unusable(l, topology.FailContent, fmt.Errorf("the answer has %d rows, one is expected", len(rows)))
	}
	a, err := Parse(rows[0])
	if err != nil {
		return Answer{}, t.unusable(l, topology.FailContent, err)
	}
	return a, nil
}

func (t *turns) unusable(l *line, class topology.FailureClass, err error) *topology.Failure {
	return &topology.Failure{Class: class, Address: l.at, Text: fmt.Sprintf(
		"the monitor at %s, database %s, asked for formation %s, group %d: %v", l.at, t.w.o.Database, t.w.o.Formation, t.w.o.Group, err)}
}

// deliver tells a picture. Every one is told, since it also says how fresh the
// knowledge is.
func (t *turns) deliver(asked topology.Clock, a Answer) {
	authority, nodes, faults := Picture(a, t.w.o.Addresses, t.said.Members)
	if t.failing != "" {
		t.w.log.Info("the monitor answers again", "leader", authority.Leader)
	}
	t.note(authority)
	t.warn(faults)
	t.back.Reset()
	t.known, t.said, t.failing = true, authority, ""
	t.observe(topology.Observation{
		AskedAt: asked, At: t.w.o.Now(), Authority: &authority, Nodes: &topology.NodeList{Nodes: nodes},
	})
}

// fail tells a failure when its class is new or the last word is old.
func (t *turns) fail(asked topology.Clock, f *topology.Failure) {
	now := t.w.o.Now()
	if f.Class == t.failing && now.Mono.Sub(t.told) < repeatEvery {
		return
	}
	if f.Class != t.failing {
		t.w.log.Warn("the monitor cannot be read, its last word stays", "class", f.Class, "err", f.Text)
	}
	t.failing, t.told = f.Class, now.Mono
	t.observe(topology.Observation{AskedAt: asked, At: now, Failure: f})
}

func (t *turns) observe(o topology.Observation) {
	t.w.seq++
	o.Cluster, o.Source, o.Seq = t.w.o.Cluster, t.w.ID(), t.w.seq
	t.report(o)
}

// note logs what changed.
func (t *turns) note(now topology.Authority) {
	if !t.known {
		t.w.log.Info("the monitor answers", "version", now.Monitor.Version, "leader", now.Leader, "goals", goals(now.Members))
		return
	}
	if was, is := goals(t.said.Members), goals(now.Members); was != is {
		t.w.log.Info("goals changed", "from", was, "to", is)
	}
}

// goals are the nodes with their goals, for the log.
func goals(ms []topology.Member) string {
	out := make([]string, len(ms))
	for i, m := range ms {
		out[i] = m.Name + "=" + m.Assigned.Goal
	}
	return strings.Join(out, " ")
}

// warn logs each fault when it appears, not again while it stays.
func (t *turns) warn(faults []string) {
	now := make(map[string]bool, len(faults))
	for _, f := range faults {
		if !t.warned[f] && !now[f] {
			t.w.log.Warn("a part of what the monitor says cannot be used as it is, the rest can", "err", f)
		}
		now[f] = true
	}
	t.warned = now
}
