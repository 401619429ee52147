package mesh

import (
	"context"
	"errors"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// How a cluster is kept published.
const (
	// lookEvery is how often facts, which wake nobody, are looked at.
	lookEvery = time.Second
	// goneFor is how long a node must have been none of the cluster until its instance
	// is deregistered.
	goneFor = 30 * time.Second
	// retryMost keeps an outage of Consul from lasting longer here than there.
	retryMost = 2 * time.Second
	// What others change is undone this often.
	repairEvery = 10 * time.Second
	repairBurst = 3
)

// station publishes one cluster. Its goroutine owns all but the status.
type station struct {
	p       *Publisher
	cluster string
	s       Settings
	store   store
	log     *slog.Logger
	wake    watchers.Nudge
	back    *watchers.BackOff
	repairs *rate.Limiter

	standing map[string]Registration // what stands, as read or written last
	known    bool                    // standing need not be read anew first
	readDue  topology.Mono
	hints    hints
	session  string // under which it was read
	fedAt    topology.Mono
	retryAt  topology.Mono
	written  map[string]Registration // by this agent, since it publishes; nil: nothing
	began    topology.Mono           // the first turn; zero: there was none
	decided  bool                    // there was something to publish since then
	drifted  []string                // IDs of which not what was written stands
	twice    error                   // the service is somebody else's too
	left     error                   // the other mode has left something
	tidiedAt topology.Mono
	untidy   bool // what the other mode has left could not be looked for
	gone     map[string]topology.Mono
	view     *topology.View // that was looked at last, and what it wants
	wanted   []Instance
	level    *topology.View // what it wants stood as it should; nil: not known
	// seen and urgent are the generations of the last urgent change: that was looked
	// at, and that is published.
	seen, urgent uint64
	// calm is that of the last one that needs no haste: it is published, or was old when
	// this agent came to publish. recent is the newest while another one publishes.
	calm, recent uint64
	recentAt     topology.Mono

	mu     sync.Mutex // guards everything below
	status Status
}

func newStation(p *Publisher, cluster string, s Settings) *station {
	return &station{
		p: p, cluster: cluster, s: s, log: p.o.Logger.With("cluster", cluster), wake: watchers.NewNudge(), back: watchers.NewBackOff(nil),
		repairs: rate.NewLimiter(rate.Every(repairEvery), repairBurst), gone: make(map[string]topology.Mono),
		status: Status{Cluster: cluster, Waiting: whyNew},
	}
}

// run publishes until ctx ends.
func (s *station) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	settling := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake.C():
			if !s.urgently() {
				if !settling { // the turn comes within Settle, whatever else wakes
					settling = true
					timer.Reset(s.p.o.Settle)
				}
				continue
			}
		case <-timer.C:
		}
		settling = false
		s.turn(ctx)
		timer.Reset(s.rest())
	}
}

// urgently reports whether there is a change that must not settle.
func (s *station) urgently() bool {
	v := s.p.o.Views.Get(s.cluster)
	return v == nil || v.Snapshot == nil || v.Snapshot.Urgent != s.urgent
}

func (s *station) rest() time.Duration {
	if now := s.p.o.Now().Mono; s.retryAt > now {
		return min(lookEvery, s.retryAt.Sub(now))
	}
	return lookEvery
}

// turn does what is due.
func (s *station) turn(ctx context.Context) {
	now := s.p.o.Now().Mono
	if s.retryAt > now && !s.urgently() {
		return
	}
	if s.began == 0 {
		s.began = now
	}
	want, why := s.want(now)
	s.decided = s.decided || why == ""
	if s.calm == 0 { // the first decision is no change
		s.calm = s.seen
	}
	if !s.mayWrite(why) {
		s.forget()
		s.stand(now)
		s.tidy(ctx, why, now)
		return
	}
	err := s.look(ctx, now)
	looked := err == nil
	if looked && why == "" {
		err = s.publish(ctx, want, now)
	}
	if err == nil {
		s.tidy(ctx, why, now)
	}
	switch {
	case err == nil && why != whyStale && (s.decided || now.Sub(s.began) < s.s.TTL):
		err = s.feed(ctx, now, s.standing)
	case err != nil && looked: // it could not be written
		if failed := s.feed(ctx, now, s.agreeing()); failed != nil {
			s.log.Debug("what stands could not be fed either", "err", failed)
		}
	}
	if ctx.Err() == nil {
		s.note(err)
	}
}

// Why nothing is written.
const (
	whyNew     = "nothing is decided yet"
	whyStale   = "the decision is too old to be believed"
	whyPartial = "not every source of nodes has delivered yet"
	whyCut     = "this agent is cut off from the databases"
	whyAside   = "this agent itself is in maintenance, which is no word on the nodes for others"
	whyEmpty   = "the cluster has no node"
	whyUnknown = "nothing is decided of its nodes yet"
)

// want is what is to stand, or why nobody can tell.
func (s *station) want(now topology.Mono) (want []Instance, why string) {
	v := s.p.o.Views.Get(s.cluster)
	switch {
	case v == nil || v.Snapshot == nil:
		return nil, whyNew
	case !v.Valid(now):
		return nil, whyStale
	case !v.Snapshot.Complete:
		return nil, whyPartial
	case len(v.Snapshot.Nodes) == 0:
		return nil, whyEmpty
	case slices.ContainsFunc(v.Snapshot.Alarms, func(r topology.Reason) bool { return r.Code == topology.CodeIsolated }):
		return nil, whyCut
	case s.p.locks != nil && v.Maintenance.Alone(v.At):
		return nil, whyAside
	}
	s.seen = v.Snapshot.Urgent
	if v != s.view {
		s.view, s.wanted = v, Desired(v, s.s)
	}
	want = s.wanted
	if !slices.ContainsFunc(want, func(in Instance) bool { return !in.KeepPrimary }) {
		return nil, whyUnknown
	}
	if i := slices.IndexFunc(want, func(in Instance) bool { return in.Node == s.s.Node }); i >= 0 {
		return want[i : i+1], ""
	} else if s.s.Node != "" {
		return nil, ""
	}
	return want, ""
}

// mayWrite takes the lock's word, and notes who publishes.
func (s *station) mayWrite(why string) bool {
	session, other := "local", ""
	var unrenewed, ends time.Time
	if s.p.locks != nil {
		session, other = s.p.locks.hold(s.cluster, why == "")
		unrenewed, ends = s.p.locks.unrenewed(session)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &s.status
	st.Publishing, st.Publisher, st.Waiting = session != "" && unrenewed.IsZero(), other, why
	if st.Unrenewed, st.Ends = unrenewed, ends; session != "" {
		if session != s.session { // the one before is gone, and what was written under it may be too
			s.forget()
			s.session = session
		}
		st.Publisher = s.p.o.Name
		return true
	}
	s.setErr(both(s.p.locks.trouble(s.cluster), s.left))
	return false
}

// forget drops what is known of what stands.
func (s *station) forget() { s.known, s.written, s.drifted, s.urgent = false, nil, nil, 0 }

// setErr needs station.mu.
func (s *station) setErr(err error) {
	if (err == nil) != (s.status.Err == nil) || s.status.Since.IsZero() {
		s.status.Since = s.p.o.Now().Wall
	}
	s.status.Err = err
}

// look reads what stands, when that is due.
func (s *station) look(ctx context.Context, now topology.Mono) error {
	due := !s.known || now >= s.readDue
	if !due && !s.doubted() {
		return nil
	}
	return s.ask(ctx, 1, "read the instances", func(ctx context.Context) error {
		standing, warning, err := s.store.read(ctx)
		if err != nil {
			return err
		}
		s.hints.misled = (!due || s.hints.misled) && maps.EqualFunc(s.standing, standing, same)
		s.standing, s.known, s.readDue, s.twice, s.level = standing, true, s.nextRead(now), warning, nil
		s.hints.since = s.p.o.Now().Mono
		s.compare()
		return nil
	})
}

// nextRead is when what stands is read again: each cluster has a moment of its own in
// the period, so that many that were published together, or waited for Consul
// together, are not read together ever after.
func (s *station) nextRead(now topology.Mono) topology.Mono {
	every := s.store.every()
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.cluster))
	phase := time.Duration(h.Sum64() % uint64(every))
	return now.Add(every - (time.Duration(now)+phase)%every)
}

// compare finds what somebody else changed of what this agent wrote.
func (s *station) compare() {
	var ids []string
	for id, r := range s.written {
		is, stands := s.standing[id]
		is.outdated = false // that is our own affair
		if !stands || !same(is, r) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	s.drifted = ids
}

// errRepairs says that somebody else writes what this agent writes.
var errRepairs = errors.New("somebody else changes what is published again and again; it is undone every " + repairEvery.String())

// publish writes what does not stand as it should.
func (s *station) publish(ctx context.Context, want []Instance, now topology.Mono) error {
	if s.level == s.view {
		return nil
	}
	p := s.plan(want, now)
	if !p.empty() {
		if len(s.drifted) > 0 && s.urgent == s.seen && !s.repairs.Allow() {
			return errRepairs
		}
		if err := s.admit(ctx, s.store.costs(p.change)); err != nil {
			return err
		}
		var why string
		if want, why = s.want(s.p.o.Now().Mono); why != "" {
			return nil
		}
		p = s.plan(want, now) // what is decided by now
	}
	if !p.empty() {
		if err := s.within(ctx, "write the instances", func(ctx context.Context) error { return s.store.write(ctx, p.change) }); err != nil {
			return err
		}
		if len(s.drifted) > 0 {
			s.log.Warn("what stood in Consul was not what this agent had written; it was written again", "instances", s.drifted)
		}
		s.log.Info("published", "written", words(p.set), "deregistered", p.drop)
		s.fedAt, s.hints.since = now, s.p.o.Now().Mono
	}
	s.standing, s.written, s.urgent, s.calm = p.whole, maps.Clone(p.whole), s.seen, s.seen
	s.mu.Lock()
	defer s.mu.Unlock()
	if !p.empty() {
		s.status.Writes++
		s.status.WrittenAt = s.p.o.Now().Wall
		if len(s.drifted) > 0 {
			s.status.Repairs++
		}
	}
	s.drifted = nil
	if s.level = nil; p.empty() && len(p.gone) == 0 {
		s.level = s.view
	}
	return nil
}

func (s *station) plan(want []Instance, now topology.Mono) planned {
	p := plan(want, s.standing, s.s, func(id string) bool { return s.gone[id] != 0 && now.Sub(s.gone[id]) >= goneFor })
	s.remember(p, now)
	return p
}

// words tells what was written, for the log.
func words(set []Registration) []string {
	var out []string
	for _, r := range set {
		out = append(out, r.ID+" "+r.Meta[metaRole]+" "+r.Check.Status)
	}
	return out
}

// remember keeps since when nodes have been gone.
func (s *station) remember(p planned, now topology.Mono) {
	maps.DeleteFunc(s.gone, func(id string, _ topology.Mono) bool {
		return !slices.Contains(p.gone, id) && !slices.Contains(p.drop, id)
	})
	for _, id := range p.gone {
		if s.gone[id] == 0 {
			s.gone[id] = now
		}
	}
}

// agreeing is what stands that routes nobody otherwise than is wanted by now, whatever else
// of it could not be written: it must not end like that of a dead pgsteer.
func (s *station) agreeing() map[string]Registration {
	now := s.p.o.Now().Mono
	want, why := s.want(now)
	if why != "" {
		return nil
	}
	wanted := s.plan(want, now).whole
	out := maps.Clone(s.standing)
	maps.DeleteFunc(out, func(id string, is Registration) bool {
		r, stays := wanted[id]
		return !stays || is.Meta[metaRole] != r.Meta[metaRole] || isPrimary(is) != isPrimary(r) || is.Address != r.Address || is.Port != r.Port || is.Check.Status != r.Check.Status
	})
	return out
}

// feed confirms the checks that wait for it, for the first time at once: nobody knows
// when an agent before this one did last.
func (s *station) feed(ctx context.Context, now topology.Mono, standing map[string]Registration) error {
	if every := s.store.feeds(); every == 0 || s.fedAt != 0 && now.Sub(s.fedAt) < every || len(standing) == 0 {
		return nil
	}
	err := s.ask(ctx, 1, "feed the check", func(ctx context.Context) error { return s.store.feed(ctx, standing) })
	if err == nil {
		s.fedAt = now
	}
	return err
}

// note takes down how a turn went. After a failure nobody knows what stands.
func (s *station) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Instances, s.status.Passing = len(s.standing), 0
	for _, r := range s.standing {
		if r.Check.Status != Critical {
			s.status.Passing++
		}
	}
	before := s.status.Err
	if s.p.locks != nil && !errors.Is(err, errLost) && !errors.Is(err, errRepairs) {
		s.p.locks.fares(s.cluster, err)
	}
	switch {
	case err == nil:
		s.back.Reset()
		s.retryAt = 0
		err = both(s.twice, s.left)
	case errors.Is(err, errLost):
		s.known = false
		return // whose it is comes from the locks
	case !errors.Is(err, errRepairs):
		s.known = false
		s.retryAt = s.p.o.Now().Mono.Add(min(s.back.Next(), s.store.patience()))
		clear(s.gone) // it counts what is seen; after an outage they may be back soon
		s.status.Failures++
	}
	if s.setErr(err); err != nil && before == nil {
		s.log.Warn("not everything is published; what stands in Consul stays, and it is tried again within 2 s", "err", err)
	} else if err == nil && before != nil {
		s.log.Info("everything is published again")
	}
}

func (s *station) report() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}
