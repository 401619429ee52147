package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// The paces of a prober (package watchers/postgres).
const (
	confirmAfter  = 75 * time.Millisecond  // between the two attempts that prove a refusal
	startingAgain = 2 * time.Second        // at a server that takes no session now
	refusedAgain  = 100 * time.Millisecond // at a closed port in a burst
	oddAgain      = 5 * time.Second        // at what is no PostgreSQL
	loginTimeout  = 2 * time.Second
	writeEvery    = time.Second
	writeTimeout  = 2 * time.Second
)

type pace uint8

const (
	paceNormal pace = iota
	paceBurst
	paceBackOff
)

// prober plays the prober of one node.
type prober struct {
	run     *run
	node    string
	address topology.Address
	pace    pace

	session  bool // a session stands
	nextRole topology.Mono
	reopened topology.Mono // when a lost session was last replaced at once
	// The newest role, to see it change.
	recovery, readOnly topology.Tri

	probe, login, write question
	ports               map[uint16]*question
}

// question is one of the things that a node is asked again and again.
type question struct {
	next    topology.Mono
	pending topology.Mono  // when one that gets no answer ends; 0: there is none
	asked   topology.Clock // of that one
	kind    topology.ProbeKind
	last    topology.FailureClass // of the newest answer; empty: a good one
}

const never = topology.Mono(1<<63 - 1)

func (q *question) due() topology.Mono {
	if q.pending != 0 {
		return q.pending
	}
	return q.next
}

// hangs begins to wait for an answer that will not come.
func (q *question) hangs(now topology.Clock, d time.Duration, kind topology.ProbeKind) {
	q.asked, q.pending, q.kind = now, now.Mono.Add(d), kind
}

// over reports whether a question that hung has ended now.
func (q *question) over(now topology.Mono) bool {
	if q.pending == 0 || q.pending > now {
		return false
	}
	q.pending = 0
	return true
}

// ended notes how the newest attempt ended. A first refusal is confirmed
// soon, by an attempt of its own.
func (q *question) ended(now topology.Mono, class topology.FailureClass) {
	if closed(class) && !closed(q.last) {
		q.next = now.Add(confirmAfter)
	}
	q.last = class
}

func newProber(r *run, n topology.Node) *prober {
	p := &prober{run: r, node: n.Name, address: n.Address, ports: make(map[uint16]*question)}
	first := max(r.now.Mono, r.s.start.Mono.Add(r.s.probing.Offset))
	p.probe.next, p.login.next, p.write.next = first, never, first
	for _, pool := range r.policy.Pools {
		if pool.Port != 0 && pool.PortCheck != topology.PortCheckNone {
			p.ports[pool.Port] = &question{next: first}
		}
	}
	return p
}

func (p *prober) truth() *server { return p.run.world.server(p.node) }

func (p *prober) inBurst() bool { return p.session && p.pace == paceBurst && p.probe.pending == 0 }

// due is when the node is asked, or fails to answer, next.
func (p *prober) due() topology.Mono {
	next := p.probe.due()
	if p.inBurst() {
		next = min(next, p.nextRole)
	}
	if p.logs() {
		next = min(next, p.login.due())
	}
	if p.writes() {
		next = min(next, p.write.due())
	}
	for _, q := range p.ports {
		next = min(next, q.due())
	}
	return next
}

// logs reports whether fresh logins are made.
func (p *prober) logs() bool {
	return p.login.pending != 0 || p.session && p.truth().login != nil
}

// writes reports whether the write probe is asked, where the configuration has
// one: of a node that said it is writable.
func (p *prober) writes() bool {
	return p.run.s.cluster.Postgres.WriteProbe != "" && p.session && p.recovery == topology.No && p.readOnly == topology.No
}

// nudge asks everything now, and tries a login too; what hangs is given up for it.
func (p *prober) nudge(login bool) {
	now := p.run.now.Mono
	p.probe.next, p.probe.pending = now, 0
	if login {
		p.login.next, p.login.pending = now, 0
	}
	p.write.next, p.write.pending = now, 0
	for _, q := range p.ports {
		q.next, q.pending = now, 0
	}
}

// ask puts the questions that are due.
func (p *prober) ask() {
	now := p.run.now.Mono
	switch {
	case p.probe.over(now):
		p.lose(topology.FailTimeout, p.probe.kind, p.probe.asked)
	case p.probe.pending != 0:
	case now >= p.probe.next:
		p.full()
	case p.inBurst() && now >= p.nextRole:
		p.role()
	}
	if p.logs() && p.login.due() <= now {
		p.askLogin()
	}
	if p.writes() && p.write.due() <= now {
		p.askWrite()
	}
	for _, port := range slices.Sorted(maps.Keys(p.ports)) {
		if q := p.ports[port]; q.due() <= now {
			p.askPort(port, q)
		}
	}
}

// interval is the time between two full probes, or two attempts at a session.
func (p *prober) interval() time.Duration {
	every := p.run.s.probing.Interval
	switch {
	case p.session:
	case p.pace == paceBackOff:
		return max(every, startingAgain)
	case p.pace == paceBurst && closed(p.probe.last):
		return min(every, refusedAgain)
	}
	return every
}

// full asks for everything, over a new session if there is none.
func (p *prober) full() {
	now := p.run.now
	p.probe.next = now.Mono.Add(p.interval())
	switch class := p.class(); {
	case class == topology.FailTimeout && p.session:
		p.probe.hangs(now, p.run.s.cluster.Postgres.QueryTimeout, topology.ProbeFull)
		return
	case class == topology.FailTimeout:
		p.probe.hangs(now, p.run.s.cluster.Postgres.ConnectTimeout, topology.ProbeFull)
		return
	case class != "":
		p.lose(class, topology.ProbeFull, now)
		return
	}
	if !p.session {
		p.session, p.probe.last = true, ""
		p.login.next = now.Mono.Add(p.run.s.cluster.Postgres.LoginEvery)
		p.seen(topology.Probe{Kind: topology.ProbeLogin})
	}
	probe := p.run.world.probe(p.node)
	p.remember(probe)
	p.seen(probe)
}

// class is why a probe fails now; empty: it is answered.
func (p *prober) class() topology.FailureClass {
	s := p.truth()
	if or(s.local, false) {
		return topology.FailLocal
	}
	return topology.FailureClass(s.fails)
}

// role puts the empty query, and asks for everything at once when the answer is
// news.
func (p *prober) role() {
	now := p.run.now
	p.nextRole = now.Mono.Add(p.run.s.probing.Burst)
	switch class := p.class(); {
	case class == topology.FailTimeout:
		p.probe.hangs(now, p.run.s.cluster.Postgres.QueryTimeout, topology.ProbeRole)
		return
	case class != "":
		p.lose(class, topology.ProbeRole, now)
		return
	}
	s := p.truth()
	probe := topology.Probe{
		Kind: topology.ProbeRole, InRecovery: topology.Bool(s.inRecovery()), ReadOnly: topology.Bool(or(s.readOnly, s.inRecovery())),
	}
	if p.remember(probe) {
		p.probe.next = now.Mono
	}
	p.seen(probe)
}

// remember keeps the newest role and reports whether it is another one.
func (p *prober) remember(probe topology.Probe) bool {
	news := p.recovery != probe.InRecovery || p.readOnly != probe.ReadOnly
	p.recovery, p.readOnly = probe.InRecovery, probe.ReadOnly
	if !p.writes() {
		p.write.pending = 0
	}
	p.nextRole = p.run.now.Mono.Add(p.run.s.probing.Burst)
	return news
}

func closed(c topology.FailureClass) bool {
	return c == topology.FailRefused || c == topology.FailReset
}

// lose tells a failure and plans the next attempt. When nobody listens any more,
// the session that stood is lost first, and a new one is tried at once.
func (p *prober) lose(class topology.FailureClass, kind topology.ProbeKind, asked topology.Clock) {
	now := p.run.now.Mono
	stood := p.session
	p.session, p.write.pending = false, 0
	if stood && closed(class) {
		p.failed(topology.FailLost, kind, asked)
		if p.reopened != 0 && now.Sub(p.reopened) < p.run.s.probing.Interval {
			return
		}
		p.reopened, kind = now, topology.ProbeFull
		p.probe.next = now.Add(p.interval())
	}
	switch class {
	case topology.FailStarting, topology.FailSlots:
		p.probe.next = max(p.probe.next, now.Add(startingAgain))
	case topology.FailProtocol:
		p.probe.next = max(p.probe.next, now.Add(oddAgain))
	default: // in its turn
	}
	p.probe.ended(now, class)
	p.failed(class, kind, asked)
}

// askLogin makes a fresh login beside the kept session. One in vain is tried
// again at once, since the next turn is far away.
func (p *prober) askLogin() {
	now := p.run.now
	if p.login.over(now.Mono) {
		p.failed(topology.FailTimeout, topology.ProbeLogin, p.login.asked)
		if p.truth().login == nil {
			return
		}
		p.login.next = now.Mono
	}
	class := topology.FailureClass(cmp.Or(p.truth().fails, or(p.truth().login, "")))
	p.login.next = now.Mono.Add(p.run.s.cluster.Postgres.LoginEvery)
	switch class {
	case topology.FailTimeout:
		p.login.hangs(now, loginTimeout, topology.ProbeLogin)
	case "":
		p.seen(topology.Probe{Kind: topology.ProbeLogin})
	default:
		p.failed(class, topology.ProbeLogin, now)
	}
}

// askWrite writes a row. Each failure is a line in the server's log, so the next
// attempt waits.
func (p *prober) askWrite() {
	now, q := p.run.now, &p.write
	class := topology.FailureClass(or(p.truth().write, ""))
	asked := now
	if q.over(now.Mono) {
		class, asked = topology.FailTimeout, q.asked
	} else if q.next = now.Mono.Add(writeEvery); class == topology.FailTimeout {
		q.hangs(now, writeTimeout, topology.ProbeWrite)
		return
	}
	if class == "" {
		q.last = ""
		p.seen(topology.Probe{Kind: topology.ProbeWrite})
		return
	}
	if class == topology.FailTimeout {
		q.next = now.Mono.Add(startingAgain)
	}
	q.ended(now.Mono, class)
	p.failed(class, topology.ProbeWrite, asked)
}

// askPort checks a pool's own port. Where a file says nothing of it, it answers
// unless the whole host is silent.
func (p *prober) askPort(port uint16, q *question) {
	now, s := p.run.now, p.truth()
	word, told := s.ports[port]
	if !told && s.silent() {
		word = s.fails
	}
	class, asked := topology.FailureClass(word), now
	if q.over(now.Mono) {
		class, asked = topology.FailTimeout, q.asked
	} else if q.next = now.Mono.Add(p.run.s.probing.Interval); class == topology.FailTimeout {
		q.hangs(now, p.run.s.cluster.Postgres.ConnectTimeout, topology.ProbePort)
		return
	}
	if class == "" {
		q.last = ""
		p.run.fold(topology.Observation{Source: p.source(), Port: &topology.PortOpen{Node: p.node, Address: p.address, Port: port}})
		return
	}
	q.ended(now.Mono, class)
	p.fail(asked, topology.Failure{
		Class: class, Asked: topology.ProbePort, Port: port, Text: fmt.Sprintf("port %d of %s: %s", port, p.address.Host, class),
	})
}

func (p *prober) source() topology.SourceID {
	return topology.SourceID{Kind: topology.SourcePostgres, Name: p.node}
}

func (p *prober) seen(probe topology.Probe) {
	probe.Node, probe.Address = p.node, p.address
	p.run.fold(topology.Observation{Source: p.source(), Probe: &probe})
}

func (p *prober) failed(class topology.FailureClass, kind topology.ProbeKind, asked topology.Clock) {
	p.fail(asked, topology.Failure{Class: class, Asked: kind, Text: fmt.Sprintf("%s probe of %s: %s", kind, p.address, class)})
}

func (p *prober) fail(asked topology.Clock, f topology.Failure) {
	f.Node, f.Address = p.node, p.address
	p.run.fold(topology.Observation{Source: p.source(), AskedAt: asked, Failure: &f})
}
