package postgres

import (
	"context"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// loop is what the goroutine of Run remembers between two questions.
type loop struct {
	session *session
	proven  bool // the session has answered a probe

	nextFull, nextRole, nextLogin topology.Mono
	hold                          topology.Mono         // no full probe before, whoever asks
	lastFailure                   topology.FailureClass // of the attempts to open a session
	reopened                      topology.Mono         // when a lost session was last replaced at once
	role                          topology.Probe        // the newest role, to see it change
	said                          topology.FailureClass // what the log knows
	wanted                        *Ports                // the newest ones of SetPorts
	ports                         map[uint16]portRun
}

// due returns when the next question is to be put.
func (p *Prober) due() topology.Mono {
	next := min(p.loop.nextFull, p.loop.nextLogin)
	if p.inBurst() {
		next = min(next, p.loop.nextRole)
	}
	return next
}

func (p *Prober) inBurst() bool {
	return p.loop.session != nil && Pace(p.pace.Load()) == Burst
}

// sleep waits until the next question is due or the pace has changed. It returns
// false when ctx has ended. A kept session that stirs meanwhile has been ended by
// the server, so it is asked now; in a burst the next question finds that out.
func (p *Prober) sleep(ctx context.Context) bool {
	if p.loop.session != nil && p.loop.session.wire.rest != nil { // it said more than it was asked
		p.loop.nextFull = min(p.loop.nextFull, max(p.o.Now().Mono, p.loop.hold))
	}
	for ctx.Err() == nil {
		wait := p.due().Sub(p.o.Now().Mono)
		if wait <= 0 {
			return true
		}
		var c *conn
		if p.loop.session != nil && !p.inBurst() {
			c = p.loop.session.wire.sock
		}
		asked, plan := p.bell.sleep(wait, c)
		if asked {
			p.loop.nextFull = min(p.loop.nextFull, max(p.o.Now().Mono, p.loop.hold))
		}
		if plan { // what was burst until now is to be watched
			return true
		}
	}
	return false
}

// step puts the questions that are due.
func (p *Prober) step(ctx context.Context) {
	now := p.o.Now().Mono
	switch l := &p.loop; {
	case now >= l.nextFull:
		p.full(ctx)
	case p.inBurst() && now >= l.nextRole:
		p.roleTick(ctx)
	}
	if p.o.Now().Mono >= p.loop.nextLogin {
		p.startLogin(ctx)
	}
}

// full puts the full probe, over a new session if there is none.
func (p *Prober) full(ctx context.Context) {
	l := &p.loop
	asked := p.o.Now()
	l.nextFull = asked.Mono.Add(p.interval())
	l.hold = asked.Mono.Add(p.o.BurstInterval)
	if l.session == nil && !p.open(ctx, asked) {
		return
	}
	asked = p.o.Now()
	probe, err := l.session.full()
	if err != nil {
		p.lose(asked, err, topology.ProbeFull)
		return
	}
	l.proven = true
	p.remember(ctx, probe)
	p.seen(asked, probe)
	p.say("", "")
}

// interval is the time between two full probes, or two attempts at a session.
func (p *Prober) interval() time.Duration {
	switch pace := Pace(p.pace.Load()); {
	case p.loop.session != nil:
	case pace == BackOff:
		return max(p.o.Interval, startingAgain)
	case pace == Burst && closed(p.loop.lastFailure):
		// It may be the next writer that restarts; nobody pays for a refusal.
		return min(p.o.Interval, refusedAgain)
	}
	return p.o.Interval
}

// roleTick puts the empty query, and asks for everything at once when the
// answer is news.
func (p *Prober) roleTick(ctx context.Context) {
	asked := p.o.Now()
	probe, ok, err := p.loop.session.role()
	switch {
	case err != nil:
		p.lose(asked, err, topology.ProbeRole)
		return
	case !ok: // a server or a proxy that does not tell: ask in full instead
		p.loop.nextFull = asked.Mono
	default:
		if p.remember(ctx, probe) {
			p.loop.nextFull = asked.Mono
		}
		p.seen(asked, probe)
	}
	p.loop.nextRole = asked.Mono.Add(p.o.BurstInterval)
}

// remember keeps the newest role and reports whether it is another one.
func (p *Prober) remember(ctx context.Context, probe topology.Probe) bool {
	old := p.loop.role
	if probe.InRecovery == topology.No && probe.ReadOnly == topology.No {
		p.writes.begin(ctx)
	} else {
		p.writes.end()
	}
	p.loop.role = probe
	p.loop.nextRole = p.o.Now().Mono.Add(p.o.BurstInterval)
	return old.InRecovery != probe.InRecovery || old.ReadOnly != probe.ReadOnly
}

// open makes the kept session. Its login is as good as a fresh one and is
// reported as that too.
func (p *Prober) open(ctx context.Context, asked topology.Clock) bool {
	w, f := p.door.login(ctx, p.o.ConnectTimeout)
	if f != nil {
		if ctx.Err() == nil {
			p.refused(asked, f)
		}
		return false
	}
	p.loop.lastFailure = ""
	p.loop.nextLogin = p.o.Now().Mono.Add(p.o.LoginEvery)
	p.seen(asked, topology.Probe{Kind: topology.ProbeLogin})
	question := p.o.Now()
	s, err := newSession(w, p.o.QueryTimeout)
	if err != nil {
		p.lose(question, err, topology.ProbeFull)
		return false
	}
	p.loop.session, p.loop.proven = s, false
	p.o.Logger.Info("session opened", "server_version", s.rights.Version)
	if !s.rights.Settings {
		p.o.Logger.Info("the probe role lacks pg_monitor: WAL receiver, upstream and standbys are unknown", "user", p.o.User)
	}
	return true
}

// refused reports a failed attempt and plans the next one. The first refusal is
// confirmed by a second attempt, which is an observation of its own.
func (p *Prober) refused(asked topology.Clock, f *topology.Failure) {
	l := &p.loop
	now := p.o.Now().Mono
	l.hold = max(l.hold, now.Add(holdAfter(f.Class)))
	l.nextFull = max(l.nextFull, l.hold)
	if closed(f.Class) && !closed(l.lastFailure) {
		l.hold = now.Add(confirmAfter)
		l.nextFull = l.hold
	}
	l.lastFailure = f.Class
	p.failed(asked, f, topology.ProbeFull)
	p.say(f.Class, f.Text)
}

func closed(c topology.FailureClass) bool {
	return c == topology.FailRefused || c == topology.FailReset
}

// lose reports the end of the session and asks for a new one at once, but not
// more than once in an interval: somebody may be ending our sessions in a loop.
// After a timeout the next attempt keeps its time, and a server that has never
// answered the probe's statement is asked again slowly.
func (p *Prober) lose(asked topology.Clock, err error, kind topology.ProbeKind) {
	l := &p.loop
	p.writes.end()
	if l.session != nil {
		l.session.end(err)
		l.session = nil
	}
	f := p.o.failure(classOfLoss(err), "query on "+p.o.Address.String()+": "+plain(err))
	now := p.o.Now().Mono
	l.hold = now
	switch {
	case f.Class == topology.FailTimeout:
	case f.Class == topology.FailProtocol && !l.proven:
		l.hold = now.Add(oddAgain)
	case l.reopened == 0 || now.Sub(l.reopened) >= p.o.Interval:
		l.reopened, l.nextFull = now, now
	}
	l.nextFull, l.proven = max(l.nextFull, l.hold), false
	p.failed(asked, f, kind)
	p.say(f.Class, f.Text)
}

// say logs a change of the node's state, and nothing else.
func (p *Prober) say(class topology.FailureClass, text string) {
	if class == p.loop.said {
		return
	}
	p.loop.said = class
	if class == "" {
		p.o.Logger.Info("node answers")
		return
	}
	p.o.Logger.Info("node does not answer", "class", string(class), "error", text)
}
