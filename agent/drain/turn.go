package drain

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/maintenance"
)

// The pace of a drain.
const (
	// settleFor is how long balancers may take until the node gets no new session.
	settleFor = 2 * time.Second
	// lookEvery is the time between two looks, and lookSoon while sessions end.
	lookEvery, lookSoon = 2 * time.Second, 250 * time.Millisecond
	// turnFor bounds one look with what it ends.
	turnFor = 4 * time.Second
	// endFor is how long those who were told to end have for it.
	endFor = 10 * time.Second
	// lateMost is how long after the deadline the server may still be out of reach, or
	// another one: sessions that end later than this would surprise everybody.
	lateMost = 5 * time.Minute
)

// follow takes turns at a target until ctx ends.
func (r *Runner) follow(ctx context.Context, d *drain) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.wake:
		case <-timer.C:
		}
		if wait, more := r.take(ctx, d); more {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
	}
}

// take takes one turn and says when the next one is due, if there is to be one.
func (r *Runner) take(ctx context.Context, d *drain) (wait time.Duration, more bool) {
	d.turn <- struct{}{}
	defer func() { <-d.turn }()
	ctx, cancel := context.WithTimeout(ctx, turnFor)
	defer cancel()
	e, due := r.current(d)
	if !due {
		r.stop(ctx, d)
		return 0, false
	}
	err := r.work(ctx, d, &e)
	if ctx.Err() != nil && err == nil {
		err = ctx.Err()
	}
	now := r.o.Now()
	e.Report.Trouble = ""
	if err != nil {
		e.Report.Trouble = err.Error()
		if now.Sub(e.Report.Deadline) > lateMost {
			e.Report.Phase = Failed
		}
	}
	r.put(d, e)
	switch wait = lookEvery; {
	case e.Report.Phase.Over():
		return 0, false
	case e.Report.Phase == Settling || len(e.Doomed) > 0:
		wait = lookSoon
	}
	if rest := e.Report.Deadline.Sub(now); rest > 0 {
		wait = min(wait, rest)
	}
	return wait, true
}

// current returns what is to be done at a target now: what the records say, if it is
// this agent's.
func (r *Runner) current(d *drain) (e entry, due bool) {
	rec, active := r.record(d.target)
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := d.asked(rec.Sessions.ID); i >= 0 {
		n := d.next[i]
		if !d.now.Report.Phase.Over() { // it goes on by other words
			n.Report.Ended, n.Report.Left, n.Doomed = append(n.Report.Ended, d.now.Report.Ended...), d.now.Report.Left, d.now.Doomed
		}
		d.now, d.next = n, d.next[i+1:]
	}
	if d.now.Report.ID == "" || d.now.Report.Phase.Over() {
		return entry{}, false
	}
	if d.now.Seen.IsZero() {
		d.now.Seen = r.o.Now()
	}
	return d.now.clone(), active && rec.Sessions.ID == d.now.Report.ID
}

// stop ends a drain whose maintenance has ended, unless it is over. Nobody is ended
// any more; who was told to end before is looked for once.
func (r *Runner) stop(ctx context.Context, d *drain) {
	r.mu.Lock()
	e := d.now.clone()
	r.mu.Unlock()
	if e.Report.ID == "" || e.Report.Phase.Over() {
		return
	}
	if len(e.Doomed) > 0 {
		if s, err := r.reach(ctx, d, e); err == nil {
			if left, err := s.look(ctx); err == nil {
				r.account(d, &e, left)
			}
			s.Close()
		}
	}
	e.Report.Phase, e.Report.Trouble = Stopped, ""
	r.put(d, e)
}

// reach logs in to the node of a drain, if it is what it was.
func (r *Runner) reach(ctx context.Context, d *drain, e entry) (server, error) {
	j, err := r.o.Judged(d.target.Cluster, d.target.Node)
	if err == nil {
		err = e.Server.differs(j)
	}
	if err != nil {
		return server{}, err
	}
	s, err := r.enter(ctx, e, j)
	if err == nil {
		if err = e.Server.otherRun(s.run); err != nil {
			s.Close()
			return server{}, err
		}
	}
	return s, err
}

// record is that of a target, and whether it holds.
func (r *Runner) record(t maintenance.Target) (maintenance.Record, bool) {
	rec, _ := r.o.Records().Get(t)
	return rec, rec.Active(r.o.Now())
}

// clone is a copy that a turn may change while others read.
func (e entry) clone() entry {
	e.Report.Ended, e.Doomed = slices.Clone(e.Report.Ended), slices.Clone(e.Doomed)
	return e
}

// put makes a turn's result what is known, and writes down what must not be lost.
func (r *Runner) put(d *drain, e entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := d.now.Report
	d.now = e
	if before.Phase != e.Report.Phase || len(before.Ended) != len(e.Report.Ended) {
		r.saved(d, r.save())
	}
	if before.Phase != e.Report.Phase {
		r.o.Logger.Info("drain", "target", d.target.String(), "phase", string(e.Report.Phase), "left", len(e.Report.Left), "ended", len(e.Report.Ended))
	}
	if e.Report.Trouble != "" && before.Trouble == "" {
		r.o.Logger.Warn("the drain does not go on: nobody is ended", "target", d.target.String(), "err", e.Report.Trouble)
	}
}

// work looks at the server once, and ends whom it should.
func (r *Runner) work(ctx context.Context, d *drain, e *entry) error {
	if e.Report.Phase != Ending && r.o.Now().Sub(e.Report.Deadline) > lateMost {
		return fmt.Errorf("the deadline was at %s: nobody is ended so long after it", e.Report.Deadline.Format(time.RFC3339))
	}
	if e.Report.Phase == Settling {
		if settled, err := r.settled(d, *e); !settled {
			return err
		}
		e.Report.Phase = Waiting
	}
	s, err := r.reach(ctx, d, *e)
	if err != nil {
		return err
	}
	defer s.Close()
	left, err := s.look(ctx)
	if err != nil {
		return fmt.Errorf("look at the sessions of %s: %w", d.target, err)
	}
	r.account(d, e, left)
	before := e.Report
	whom, why := e.choose(r.o.Now())
	if len(whom) == 0 {
		e.close(r.o.Now())
		return nil
	}
	return r.end(ctx, s, d, e, endings{whom, why, before})
}

// settled reports whether balancers have had their time, and this agent's decision
// keeps new sessions away.
func (r *Runner) settled(d *drain, e entry) (bool, error) {
	if r.o.Now().Sub(e.Seen) < settleFor {
		return false, nil
	}
	j, err := r.o.Judged(d.target.Cluster, d.target.Node)
	if err == nil && j.Open {
		err = fmt.Errorf("%s still gets new sessions", d.target)
	}
	return err == nil, err
}

// endings are those to be ended, and why.
type endings struct {
	whom   []Client
	why    string
	before Report // the report if nobody is: the time to end the rest has not begun then
}

// The reasons for which a session is ended.
const (
	whyIdle     = "idle"
	whyDeadline = "deadline"
)

// choose says who is to be ended now.
func (e *entry) choose(now time.Time) (whom []Client, why string) {
	rep := &e.Report
	if now.Before(rep.Deadline) {
		if !rep.EndIdle {
			return nil, ""
		}
		for _, c := range rep.Left {
			if c.idle() {
				whom = append(whom, c)
			}
		}
		return whom, whyIdle
	}
	if !rep.Terminate {
		return nil, ""
	}
	if rep.Phase != Ending {
		rep.Phase, rep.EndingAt = Ending, now
	}
	if now.Sub(rep.EndingAt) >= endFor {
		return nil, ""
	}
	return rep.Left, whyDeadline
}

// close ends the drain when nothing is left to be done.
func (e *entry) close(now time.Time) {
	switch rep := &e.Report; {
	case len(rep.Left) == 0:
		rep.Phase = Done
	case !now.Before(rep.Deadline):
		rep.Phase = Left
	}
}

// account takes over what a look has seen: who was told to end and is gone was ended.
func (r *Runner) account(d *drain, e *entry, left []Client) {
	var still []EndedClient
	for _, c := range e.Doomed {
		if has(left, c.Client) {
			still = append(still, c)
			continue
		}
		e.Report.Ended = append(e.Report.Ended, c)
		r.ended.Add(1)
		r.o.Logger.Log(context.Background(), slog.LevelInfo, "maintenance",
			"audit", "session ended", "target", d.target.String(), "why", c.Why, "pid", c.PID, "user", c.User,
			"application", c.Application, "client", c.Client.Client, "state", c.State, "age", c.Age().Round(time.Millisecond).String(), "confirmed", c.Told)
	}
	e.Doomed = still
	e.Report.Left, e.Report.LookedAt = left, r.o.Now()
}

// end names those to be ended in the file, makes sure that they still are to be, and
// tells them.
func (r *Runner) end(ctx context.Context, s server, d *drain, e *entry, x endings) error {
	before := entry{Report: x.before, Doomed: slices.Clone(e.Doomed), Server: e.Server, Seen: e.Seen}
	for _, c := range x.whom {
		if !slices.ContainsFunc(e.Doomed, func(o EndedClient) bool { return o.is(c) }) {
			e.Doomed = append(e.Doomed, EndedClient{Client: c, At: r.o.Now(), Why: x.why})
		}
	}
	if err := r.doom(d, *e); err != nil {
		*e = before
		return fmt.Errorf("write down who is to be ended, before it is done: %w", err)
	}
	err := r.o.Confirm(ctx)
	if rec, active := r.record(d.target); err != nil || !active || rec.Sessions.ID != e.Report.ID {
		*e = before
		r.saved(d, r.doom(d, *e))
		if err != nil {
			return fmt.Errorf("make sure that %s is still to be drained: %w; nobody is ended until that is known", d.target, err)
		}
		return nil // the next turn says so
	}
	t, err := s.end(ctx, e.Server, x.whom, x.why == whyIdle)
	if err != nil || !t.Same { // nobody may have been told: the time to end the rest has not begun
		e.Report.Phase, e.Report.EndingAt = x.before.Phase, x.before.EndingAt
	}
	if err != nil {
		return fmt.Errorf("end %d sessions of %s: %w", len(x.whom), d.target, err) // the next look shows who is gone
	}
	for i := range e.Doomed {
		if slices.Contains(t.Told, e.Doomed[i].PID) && has(x.whom, e.Doomed[i].Client) {
			e.Doomed[i].Told = true
		}
	}
	e.Doomed = slices.DeleteFunc(e.Doomed, func(c EndedClient) bool { return !c.Told && has(x.whom, c.Client) })
	if !t.Same {
		return fmt.Errorf("the server of %s became another one between two statements, or changed its role", d.target)
	}
	return nil
}

// doom writes down who is to be ended.
func (r *Runner) doom(d *drain, e entry) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	d.now.Doomed = slices.Clone(e.Doomed)
	return r.save()
}

// saved reports what could not be written down.
func (r *Runner) saved(d *drain, err error) {
	if err != nil {
		r.o.Logger.Error("what a drain has done cannot be written down", "target", d.target.String(), "file", r.o.Path, "err", err)
	}
}

// list writes roles as a JSON array.
func list(roles []string) string {
	text, err := json.Marshal(append([]string{}, roles...))
	if err != nil {
		return "[]" // texts always can be written
	}
	return string(text)
}
