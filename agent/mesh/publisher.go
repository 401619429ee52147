package mesh

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// Options configure a Publisher.
type Options struct {
	// Client asks Consul; for local publishing it is the agent on this host. Required.
	Client *consul.Client
	// Views are the decisions, by cluster. Required.
	Views *latest.Map[string, topology.View]
	// Now reads the clocks. Required.
	Now topology.Ticker
	// External writes an external node a cluster into the catalog; otherwise each
	// cluster's node on this host is registered at the Consul agent.
	External bool
	// Clusters are those that are published.
	Clusters map[string]Settings
	// KeyPrefix is where the locks of publishers lie, External alone. Empty:
	// pgsteer/mesh/.
	KeyPrefix string
	// SessionTTL is that of the session that holds them, at least 10 s for Consul.
	// Zero: 10 s.
	SessionTTL time.Duration
	// Name tells this agent from others, for people. Empty: "pgsteer".
	Name string
	// Owner tells what this agent registers at a Consul agent from what others do that
	// share it: the same after a restart, and no other agent's. Local publishing alone.
	// Empty: an instance of the node that was this host's before is left alone while the
	// cluster has that node.
	Owner string
	// Timeout bounds what is asked of Consul at once. Zero: 3 s.
	Timeout time.Duration
	// ReadEvery is how often it is read what stands. Zero: 2 s. With External no
	// cluster's more often than twice a second for all of them together, and where that is
	// rare all of them are surveyed in one request every 10 s.
	ReadEvery time.Duration
	// Settle is how long a change that is not urgent waits for others. Zero: 200 ms.
	Settle time.Duration
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	o.KeyPrefix = cmp.Or(o.KeyPrefix, "pgsteer/mesh/")
	o.SessionTTL = cmp.Or(o.SessionTTL, 10*time.Second)
	o.Name = cmp.Or(o.Name, "pgsteer")
	o.Timeout = cmp.Or(o.Timeout, 3*time.Second)
	o.ReadEvery = cmp.Or(o.ReadEvery, 2*time.Second)
	o.Settle = cmp.Or(o.Settle, 200*time.Millisecond)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// readGap is the time between two reads of external nodes, of all clusters, surveys
// among them.
const readGap = 500 * time.Millisecond

// Requests of all clusters together: what an outage has held back shall not come at
// once. Changes of roles have as many for themselves.
const (
	requestRate  = 50 // a second
	requestBurst = 100
)

// Publisher publishes clusters into Consul.
type Publisher struct {
	o        Options
	requests *rate.Limiter
	hasty    *rate.Limiter // changes of roles beside those
	locks    *locks        // nil for local publishing
	survey   *survey       // nil: each cluster is read as often as it would be surveyed
	stations map[string]*station
}

// New returns a publisher. It fails when a required option is missing.
func New(o Options) (*Publisher, error) {
	if o.Client == nil || o.Views == nil || o.Now == nil {
		return nil, errors.New("mesh needs Client, Views and Now")
	}
	p := &Publisher{o: o.withDefaults(), requests: rate.NewLimiter(requestRate, requestBurst), hasty: rate.NewLimiter(requestRate, requestBurst), stations: make(map[string]*station)}
	survey, period := surveyed(len(o.Clusters), p.o.ReadEvery)
	if o.External {
		p.locks = newLocks(&p.o, p.requests)
		if period > survey {
			p.survey = newSurvey(p, survey)
		}
	}
	agent := &agentServices{o: &p.o}
	for cluster, s := range o.Clusters {
		if p.locks == nil {
			s.publisher = ownerMark(o.Owner)
		}
		st := newStation(p, cluster, s)
		p.stations[cluster] = st
		if p.locks == nil {
			st.store = &local{o: &p.o, cluster: cluster, s: s, requests: p.requests, contrary: make(map[string]topology.Mono), ended: make(map[string]bool)}
			continue
		}
		p.locks.add(cluster, s.Service, st.wake)
		st.store = &external{o: &p.o, cluster: cluster, service: s.Service, locks: p.locks, period: period, agent: agent, requests: p.requests}
	}
	return p, nil
}

// Run publishes until ctx ends, then returns nil. What is published stays.
func (p *Publisher) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	if p.locks != nil {
		all.Go(func() { p.locks.run(ctx) })
	}
	if p.survey != nil {
		all.Go(func() { p.survey.run(ctx) })
	}
	for _, s := range p.stations {
		all.Go(func() { s.run(ctx) })
	}
	views := p.o.Views.Subscribe()
	defer views.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-views.Ready():
			for _, cluster := range views.Take() {
				if s := p.stations[cluster]; s != nil {
					s.wake.Set()
				}
			}
		}
	}
}

// Status is how the publishing of one cluster fares.
type Status struct {
	Cluster string
	// Publishing: this agent does it. Else Publisher is who does, "" when nobody is
	// known to.
	Publishing bool
	Publisher  string
	// Unrenewed is when this agent, which has the lock as far as it knows, could renew its
	// session last, once Consul may have ended that since; else zero. Ends is when Consul
	// has ended it for sure, unless it was away itself.
	Unrenewed, Ends time.Time
	// Waiting says why this agent does not; empty: it does, or another one.
	Waiting string
	// Err is what keeps the newest decision from being published, nil when nothing
	// does, and Since when that, or its absence, began.
	Err   error
	Since time.Time
	// WrittenAt is when something was written last; zero: not since the start.
	WrittenAt time.Time
	// Writes counts changes that were written, Repairs those of them that undid what
	// somebody else had done, Failures requests without success.
	Writes, Repairs, Failures uint64
	// Instances are those that stand, Passing those of them that take new sessions.
	Instances, Passing int
}

// Status returns how every cluster fares, by name.
func (p *Publisher) Status() []Status {
	var out []Status
	for _, cluster := range slices.Sorted(maps.Keys(p.stations)) {
		out = append(out, p.stations[cluster].report())
	}
	return out
}
