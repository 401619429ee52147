package patroni

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// The bucket of rounds: half of it is for the rounds that come by themselves, the
// other half for confirmation and for what needs a second round.
const (
	roundsPerSecond = 2
	roundsBurst     = 5
)

// confirmTimes is how many rounds in succession must show that there is no
// leader, or no proof of anything, until it is told.
const confirmTimes = 2

// confirmAfter is the pause before the second round that finds no leader.
const confirmAfter = 250 * time.Millisecond

// hastyRounds is how many rounds without a proof come sooner than others.
const hastyRounds = 10

// repeatEvery is how often a lasting failure is told again.
const repeatEvery = 3 * time.Second

var (
	errNoStore  = errors.New("it closed the connection without an answer, as Patroni does when it cannot read its store")
	errStranger = errors.New("it answers, but not for one member that is known; Patroni tells its name since 3.2")
)

// poll is one call of Run.
type poll struct {
	w      *Watcher
	report func(topology.Observation)
	bucket *rate.Limiter
	back   *watchers.BackOff

	dir     directory
	pic     picture
	factsAt topology.Mono // when they were asked for

	open   int // rounds in succession after which nothing could be told
	absent int // of them, the last ones that showed no leader

	failing topology.FailureClass // empty: the last word was good
	told    topology.Mono         // when the failure was last reported
	failure *topology.Failure     // the newest
	askedAt topology.Clock        // of it

	warned, warnedFacts map[string]bool // faults of the newest lists, and of the dynamic configuration
}

func newPoll(w *Watcher, report func(topology.Observation)) *poll {
	p := &poll{
		w: w, report: report, bucket: rate.NewLimiter(roundsPerSecond, roundsBurst),
		back: watchers.NewBackOff(w.jitter),
	}
	for _, base := range w.bases {
		p.dir.all = append(p.dir.all, &endpoint{base: base, configured: true})
	}
	return p
}

func (p *poll) run(ctx context.Context) {
	sure := true
	for p.bucket.Wait(ctx) == nil {
		next := p.turn(ctx, sure)
		if ctx.Err() != nil {
			return
		}
		sure = p.wait(ctx, next)
	}
}

// wait returns after a pause, or when somebody is in doubt; then true.
func (p *poll) wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
		select {
		case <-p.w.confirm.C():
			return true
		default:
		}
	case <-p.w.confirm.C():
		return true
	}
	return false
}

// turn asks the members once around, tells what that proves, and returns when to
// ask again.
func (p *poll) turn(ctx context.Context, sure bool) time.Duration {
	r := p.begin()
	v := r.run(ctx, sure)
	if ctx.Err() != nil {
		return 0
	}
	if len(r.asked) == 0 { // every endpoint is being left alone
		p.tell()
		return p.rest()
	}
	p.w.count(func(s *Stats) { s.Rounds++ })
	next := p.conclude(r, v)
	if len(r.looked) > 0 {
		p.warned = p.warn(p.warned, r.faults)
	}
	if v.conclusion == named {
		p.refresh(ctx, r)
	}
	return next
}

// conclude tells what a round proves and returns when the next one is due.
func (p *poll) conclude(r *round, v verdict) time.Duration {
	switch v.conclusion {
	case named:
		p.absent = 0
		p.deliver(r, v)
		return p.calm(v.agrees == topology.Yes)
	case absent:
		if p.absent++; p.absent >= confirmTimes {
			p.deliver(r, v)
			return p.calm(false)
		}
		p.open++
		return confirmAfter
	case unproven:
	}
	p.absent = 0
	p.open++
	p.doubt(r, v)
	switch {
	case len(r.words) == 0:
		return p.rest()
	case p.open < hastyRounds: // somebody is there, and may take the key at any moment
		return min(p.back.Next(), p.calm(true))
	}
	return p.calm(false)
}

// calm draws the time to the next round. Without a leader's own word a round
// takes two questions a member, so it is due half as often.
func (p *poll) calm(one bool) time.Duration {
	i := p.w.o.Interval
	if !one {
		i *= 2
	}
	return i*9/10 + p.w.jitter(i/5)
}

// rest is how long everybody is left alone, as far as that need not be told again.
func (p *poll) rest() time.Duration {
	return min(p.dir.next(p.w.o.Now().Mono), repeatEvery)
}

// deliver tells a picture. Every one is told, since it also says how fresh the
// knowledge is.
func (p *poll) deliver(r *round, v verdict) {
	before := p.pic
	r.faults = append(r.faults, p.pic.take(r, v)...)
	p.note(before, v)
	if p.failing != "" {
		p.w.log.Info("Patroni's members prove again who leads", "leader", v.leader)
	}
	p.back.Reset()
	p.open, p.failing, p.failure = 0, "", nil
	now := p.w.o.Now()
	o := topology.Observation{
		AskedAt: r.began, At: now, Authority: p.pic.authority(v, r.evidence(), now.Mono), Documents: p.pic.published(),
	}
	if p.pic.viewAt == r.began.Mono {
		p.dir.keep(p.pic.members)
		o.Nodes = p.pic.nodes()
	}
	p.w.count(func(s *Stats) {
		s.ConfirmedAt, s.FailingSince = now.Mono, 0
		if !before.known || before.leader != v.leader {
			s.ChangedAt = now.Mono
		}
	})
	p.observe(o)
}

func (p *poll) observe(o topology.Observation) {
	p.w.seq++
	o.Cluster, o.Source, o.Seq = p.w.o.Cluster, p.w.ID(), p.w.seq
	p.report(o)
}

// doubt keeps why nothing is proven, and tells it once that was so twice.
func (p *poll) doubt(r *round, v verdict) {
	p.w.count(func(s *Stats) { s.Unproven++ })
	p.failure, p.askedAt = r.evidence().failure(p.w.o.Cluster, v.why), r.began
	if p.open >= confirmTimes {
		p.tell()
	}
}

// tell reports the failure when its class is new or the last word is old.
func (p *poll) tell() {
	now := p.w.o.Now()
	if p.failure == nil || p.open < confirmTimes || p.failure.Class == p.failing && now.Mono.Sub(p.told) < repeatEvery {
		return
	}
	if p.failure.Class != p.failing {
		p.w.log.Warn("Patroni's members prove no leader, the last picture stays", "class", p.failure.Class, "err", p.failure.Text)
	}
	p.failing, p.told = p.failure.Class, now.Mono
	p.w.count(func(s *Stats) {
		if s.FailingSince == 0 {
			s.FailingSince = now.Mono
		}
	})
	f := *p.failure
	p.observe(topology.Observation{AskedAt: p.askedAt, At: now, Failure: &f})
}

// refresh reads the dynamic configuration now and then, from the leader or else
// from the first who answered.
func (p *poll) refresh(ctx context.Context, r *round) {
	if p.factsAt != 0 && r.began.Mono.Sub(p.factsAt) < p.w.o.FactsEvery {
		return
	}
	from := r.holder()
	for _, e := range p.dir.all {
		if _, ok := r.words[e]; ok && from == nil {
			from = e
		}
	}
	if from != nil {
		p.factsAt = r.began.Mono
		p.learnFacts(ctx, from)
	}
}

// note logs what changed.
func (p *poll) note(before picture, v verdict) {
	if !before.known || before.leader != v.leader {
		p.w.log.Info("leader changed", "from", before.leader, "to", v.leader)
	}
	was, is := names(before.members), names(p.pic.members)
	if !slices.Equal(was, is) {
		p.w.log.Info("members changed", "from", strings.Join(was, " "), "to", strings.Join(is, " "))
	}
}

func names(ms []topology.Member) []string {
	out := make([]string, len(ms))
	for i, m := range ms {
		out[i] = m.Name
	}
	return out
}

// warn logs each fault when it appears, not again while it stays, and returns
// those that there are now.
func (p *poll) warn(before map[string]bool, faults []string) map[string]bool {
	now := make(map[string]bool, len(faults))
	for _, f := range faults {
		if !before[f] && !now[f] {
			p.w.log.Warn("a part of what Patroni's members say cannot be used as it is, the rest can", "err", f)
		}
		now[f] = true
	}
	return now
}
