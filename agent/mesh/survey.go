package mesh

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// How often the survey is made: every surveyEvery, and more rarely for more than a
// thousand clusters. Consul's answer has some 600 bytes an instance.
const (
	surveyEvery = 10 * time.Second
	surveyGap   = 10 * time.Millisecond // for each cluster
)

// survey reads the checks of all external nodes in one request, so that what somebody
// has deregistered is found long before the cluster is read again. It is a hint alone:
// of a cluster for which it tells something else than what is known to stand, that is
// read. It does not show a change of meta or weights, of tags without the check, or
// instances of others.
type survey struct {
	o        *Options
	locks    *locks
	requests *rate.Limiter // of all clusters
	every    time.Duration

	mu   sync.Mutex // guards everything below
	at   topology.Mono
	seen map[string]map[string]sighting
}

// sighting is what a check tells of an instance: what it says, and the tags that the
// instance had when it was written.
type sighting struct {
	check Check
	tags  []string
}

// surveyed returns the time between two surveys of so many clusters and that between two
// reads of one, so that both together are no more than one in readGap. When one is read
// as often as all would be surveyed, a survey is of no use.
func surveyed(clusters int, readEvery time.Duration) (survey, read time.Duration) {
	n := time.Duration(clusters)
	survey, read = max(surveyEvery, n*surveyGap), n*readGap
	if read > survey {
		read += read / (survey/readGap - 1) // a survey has the turn of a read
	}
	return survey, max(read, readEvery)
}

func newSurvey(p *Publisher, every time.Duration) *survey {
	return &survey{o: &p.o, locks: p.locks, requests: p.requests, every: every}
}

// run surveys until ctx ends.
func (v *survey) run(ctx context.Context) {
	tick := time.NewTicker(v.every)
	defer tick.Stop()
	fails := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if v.locks.idle() {
			continue
		}
		err := v.look(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !fails:
			v.o.Logger.Warn("what stands of all clusters cannot be surveyed, so what somebody deregisters is found when the cluster is read again; the next survey follows", "every", v.every, "err", cause(err))
		case err == nil && fails:
			v.o.Logger.Info("what stands of all clusters is surveyed again")
		}
		fails = err != nil
	}
}

// look makes one survey.
func (v *survey) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, v.o.Timeout)
	defer cancel()
	v.requests.Reserve() // it need not wait, being one for all of them
	at := v.o.Now().Mono
	q, err := v.o.Client.Options(ctx, consul.Consistent)
	if err != nil {
		return err
	}
	q.NodeMeta = map[string]string{"external-node": "true"}
	q.Filter = `CheckID matches "^pgsteer:"`
	checks, _, err := v.o.Client.API().Health().State("any", q)
	if err != nil {
		return failure(v.o, "survey the external nodes", err)
	}
	seen := make(map[string]map[string]sighting)
	for _, c := range checks {
		if !pgsteers(c.CheckID) || !strings.HasPrefix(c.Node, externalNode("")) {
			continue
		}
		if seen[c.Node] == nil {
			seen[c.Node] = make(map[string]sighting)
		}
		seen[c.Node][c.CheckID] = sighting{Check{Status: c.Status, Output: c.Output, Notes: c.Notes}, c.ServiceTags}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.at, v.seen = at, seen
	return nil
}

// of returns what the newest survey, which was asked for at that time, tells of a
// service; zero: there was none.
func (v *survey) of(service string) (seen map[string]sighting, at topology.Mono) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen[externalNode(service)], v.at
}

// idle reports whether this agent holds no lock.
func (k *locks) idle() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.all {
		if l.held {
			return false
		}
	}
	return true
}

// hints are what a station has of the surveys.
type hints struct {
	since  topology.Mono // when it read or wrote last; older surveys tell nothing
	heard  topology.Mono // the survey that it has compared
	misled bool          // the last read because of one found nothing new
}

// doubted reports whether a survey since the last read or write tells something else
// than what is known to stand. After a read that did not bear one out the surveys count
// no more until one agrees: what they cannot see must not cost a read each.
func (s *station) doubted() bool {
	if s.p.survey == nil {
		return false
	}
	seen, at := s.p.survey.of(s.s.Service)
	h := &s.hints
	if at <= h.since || at == h.heard {
		return false
	}
	if h.heard = at; agrees(seen, s.standing) {
		h.misled = false
		return false
	}
	return !h.misled
}

// agrees reports whether a survey tells of the same instances as stand. One without a
// check is not seen.
func agrees(seen map[string]sighting, standing map[string]Registration) bool {
	checks := 0
	for id, r := range standing {
		if r.Check.Status == "" {
			continue
		}
		is, ok := seen[id]
		if !ok || is.check != (Check{Status: r.Check.Status, Output: r.Check.Output, Notes: r.Check.Notes}) || !slices.Equal(is.tags, r.Tags) {
			return false
		}
		checks++
	}
	return checks == len(seen)
}
