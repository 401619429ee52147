package consul

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// patience is how long the watch and the reads may disagree about the leader
// key before the watch is begun anew.
const patience = 2 * time.Second

// reader reads the whole scope: when the watch wakes it, when somebody asks,
// and every ReadEvery. It is owned by one call of Run.
type reader struct {
	w      *Watcher
	pace   *pace
	report func(topology.Observation)

	failing topology.FailureClass // empty: the last read was good
	asked   topology.Clock        // of the read that failed
	told    topology.Mono         // when the failure was last reported

	last   picture // newest good one
	known  bool    // last is set
	warned map[fault]bool
	moves  map[string]move

	differs [2]leaderKey // what the watch and the last read said, while they disagree
	since   topology.Mono
}

// picture is one answer to a read of the scope.
type picture struct {
	scopeState
	askedAt, at topology.Clock
	index       uint64
	doubt       *trouble // why it may be old
}

// bare tells pictures that claim there is no leader or no member.
func (p picture) bare() bool { return p.authority.Leader == "" || len(p.authority.Members) == 0 }

func (w *Watcher) read(ctx context.Context, report func(topology.Observation)) {
	r := &reader{w: w, pace: newPace(readBurst), report: report, moves: map[string]move{}}
	mode := Default
	for r.pace.admit(ctx) {
		mode = r.take(mode)
		p, t := r.scope(ctx, mode)
		switch {
		case ctx.Err() != nil:
			return
		case t != nil:
			w.count(func(s *Stats) { s.Failures++ })
			r.fail(t)
			r.pace.rest(ctx, resting{
				pause: r.pace.pause(t), wake: w.wake.C(), token: w.o.Client.token, again: func() { r.fail(t) },
			})
			r.retry(ctx)
		default:
			r.deliver(p)
			mode = r.wait(ctx)
		}
	}
}

// retry lets a read after a failure go with others, where there are many: what
// failed for one has failed for all.
func (r *reader) retry(ctx context.Context) {
	if !r.w.o.Client.fleet.many() {
		return
	}
	select {
	case <-ctx.Done():
	case <-r.w.wake.C():
	case <-r.w.o.Client.fleet.departure():
	}
}

// take drops what asked for the read that now begins.
func (r *reader) take(mode Consistency) Consistency {
	for {
		select {
		case <-r.w.wake.C():
			mode = firmer(mode)
		case <-r.w.doubt.C():
			mode = firmer(mode)
		case <-r.w.confirm.C():
			mode = Consistent
		default:
			return mode
		}
	}
}

// firmer is for a read that somebody waits for.
func firmer(mode Consistency) Consistency {
	if mode == Stale {
		return Default
	}
	return mode
}

// wait returns when the next read is due, and how it should ask. Somebody who is
// in doubt asks for confirmation again and again; such reads leave room in the
// token bucket, so that the word of a new leader is read without a pause.
func (r *reader) wait(ctx context.Context) Consistency {
	due, room := time.NewTimer(r.w.o.ReadEvery), time.NewTimer(r.pace.until(1+roomForChange))
	defer due.Stop()
	defer room.Stop()
	var confirm, departs <-chan struct{}
	for {
		select {
		case <-room.C:
			confirm = r.w.confirm.C()
			continue
		case <-confirm:
			return Consistent
		case <-due.C:
			if r.w.o.Client.fleet.many() {
				departs = r.w.o.Client.fleet.departure()
				continue
			}
		case <-departs:
			return Stale
		case <-ctx.Done():
		case <-r.w.wake.C():
		case <-r.w.doubt.C():
		}
		return Default
	}
}

// scope reads the scope; a picture that claims an absence, or that may be old,
// needs a consistent read to be believed.
func (r *reader) scope(ctx context.Context, mode Consistency) (picture, *trouble) {
	p, t := r.ask(ctx, mode)
	if t != nil || mode == Consistent {
		return p, cmp.Or(t, p.doubt)
	}
	old := r.known && p.index < r.last.index
	if p.doubt == nil && !old && !p.bare() {
		return p, nil
	}
	claimed := p
	r.pace.charge()
	p, t = r.ask(ctx, Consistent)
	t = cmp.Or(t, p.doubt)
	if t == nil && claimed.doubt == nil && claimed.bare() && !p.bare() {
		r.w.count(func(s *Stats) { s.EmptyRefused++ })
		r.w.log.Warn("Consul's answer lacked a leader or all members, a consistent read has them", "keys", r.w.prefix)
	}
	return p, t
}

// ask puts one question with its own deadline.
func (r *reader) ask(ctx context.Context, mode Consistency) (picture, *trouble) {
	limit := r.w.o.ReadTimeout
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	c := r.w.o.Client
	r.asked = r.w.o.Now()
	r.w.count(func(s *Stats) { s.Reads++ })
	// A Consul that is no Enterprise takes a transaction for another namespace and
	// ignores that it is; it refuses a plain read, which therefore comes first, and
	// again whenever an absence is to be confirmed.
	alone := c.tenant != (tenant{}) && (!r.known || mode == Consistent)
	pairs, meta, err := c.fleet.read(ctx, mode, scopeQuery{r.w.prefix, alone})
	if err != nil {
		return picture{}, judgeError(err, limit)
	}
	if t := c.judgeMeta(meta, len(pairs) == 0); t != nil {
		return picture{}, t
	}
	p := picture{
		scopeState: parseScope(r.w.prefix, pairs, r.last.authority.Members...),
		// What any server says is as old as its last word from the leader.
		askedAt: topology.Clock{Mono: r.asked.Mono.Add(-meta.LastContact), Wall: r.asked.Wall.Add(-meta.LastContact)},
		at:      r.w.o.Now(), index: max(meta.LastIndex, 1), doubt: judgeAge(meta, defaultLastContact),
	}
	for _, pair := range pairs {
		p.index = max(p.index, pair.ModifyIndex)
	}
	return p, nil
}

// fail reports a failure when its class is new or the last word is old.
func (r *reader) fail(t *trouble) {
	now := r.w.o.Now()
	if t.class == r.failing && now.Mono.Sub(r.told) < repeatEvery {
		return
	}
	f := t.failure("keys "+r.w.prefix, r.w.o.Client)
	r.w.count(func(s *Stats) {
		if s.FailingSince == 0 {
			s.FailingSince = now.Mono
		}
	})
	if t.class != r.failing {
		r.w.log.Warn("Patroni's keys cannot be read, the last picture stays", "class", t.class, "err", f.Text)
	}
	r.failing, r.told = t.class, now.Mono
	r.observe(topology.Observation{AskedAt: r.asked, At: now, Failure: f})
}

// deliver reports a picture; each one, since it also says how fresh the
// knowledge is.
func (r *reader) deliver(p picture) {
	r.mended()
	r.compare(p)
	r.warn(p)
	r.note(p)
	r.last, r.known = p, true
	r.w.pictured(p.leaderKey)
	authority, documents := p.authority, p.documents
	r.observe(topology.Observation{
		AskedAt: p.askedAt, At: p.at, Authority: &authority, Documents: &documents,
		Nodes: &topology.NodeList{Nodes: p.nodes, ConfirmedEmpty: len(p.authority.Members) == 0},
	})
}

func (r *reader) observe(o topology.Observation) {
	r.w.seq++
	o.Cluster, o.Source, o.Seq = r.w.o.Cluster, r.w.ID(), r.w.seq
	r.report(o)
}

// mended ends a failure. The connection of the blocking query may have died in
// the outage without a sign, so the watch begins anew.
func (r *reader) mended() {
	r.pace.back.Reset()
	if r.failing == "" {
		return
	}
	r.failing = ""
	r.w.count(func(s *Stats) { s.FailingSince = 0 })
	r.w.log.Info("Patroni's keys are read again")
	r.w.leader.Restart()
}

// compare checks the watch against the read. A difference for an instant is
// natural; a lasting one means that the watch has missed a change.
func (r *reader) compare(p picture) {
	r.w.mu.Lock()
	watched, seen := r.w.watched, r.w.seen
	r.w.mu.Unlock()
	pair := [2]leaderKey{watched, p.leaderKey}
	switch {
	case !seen || watched == p.leaderKey:
		r.differs = [2]leaderKey{}
	case pair != r.differs:
		r.differs, r.since = pair, p.askedAt.Mono
	case p.askedAt.Mono.Sub(r.since) >= patience:
		r.differs = [2]leaderKey{}
		r.w.count(func(s *Stats) { s.Disagreed++ })
		r.w.log.Warn("the watch on the leader key missed a change and begins anew", "key", r.w.prefix+"leader")
		r.w.leader.Restart()
	}
}

// warn logs each fault when it appears, not again while it stays.
func (r *reader) warn(p picture) {
	now := make(map[fault]bool, len(p.faults))
	for _, f := range p.faults {
		if !r.warned[f] && !now[f] {
			r.w.log.Warn("a key of Patroni cannot be used as it is, the others can", "key", f.key, "err", f.err)
		}
		now[f] = true
	}
	r.warned = now
}

// note logs what changed and keeps the times.
func (r *reader) note(p picture) {
	was, is := r.last.authority.Leader, p.authority.Leader
	lead := !r.known || was != is
	nodes := !r.known || !slices.EqualFunc(r.last.nodes, p.nodes, sameNode)
	if p.keys == 0 && (!r.known || r.last.keys > 0) {
		r.w.log.Warn("Consul has no key of this scope, so nothing is known of its nodes; is its name right?", "keys", r.w.prefix)
	}
	if lead {
		r.w.log.Info("leader key changed", "from", was, "to", is)
	}
	if nodes {
		r.w.log.Info("members changed", "nodes", len(p.nodes))
		r.alternating(p.nodes)
	}
	r.w.count(func(s *Stats) {
		s.Faults, s.ConfirmedAt = len(p.faults), p.at.Mono
		if lead || nodes {
			s.ChangedAt = p.at.Mono
		}
	})
}

func sameNode(a, b topology.Node) bool {
	return a.Name == b.Name && a.Address == b.Address && maps.Equal(a.Tags, b.Tags)
}

// move is where a member was and is.
type move struct{ was, is topology.Address }

// alternating warns when a member returns to the address it came from: then
// two servers probably run under one name, and the last writer wins.
func (r *reader) alternating(nodes []topology.Node) {
	next := make(map[string]move, len(nodes))
	for _, n := range nodes {
		m := r.moves[n.Name]
		switch n.Address {
		case m.is:
		case m.was:
			r.w.log.Warn("a member's address alternates, do two servers share its name?",
				"member", n.Name, "one", m.is, "other", m.was)
			m.was, m.is = m.is, n.Address
		default:
			m.was, m.is = m.is, n.Address
		}
		next[n.Name] = m
	}
	r.moves = next
}
