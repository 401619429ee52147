package consul

import (
	"context"
	"errors"
	"log/slog"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// The defaults of a watcher.
const (
	defaultNamespace   = "service"
	defaultLeaderWait  = 5 * time.Minute
	defaultReadEvery   = 10 * time.Second
	defaultReadTimeout = 3 * time.Second
	maxWait            = 10 * time.Minute // Consul's limit
)

// readBurst is how many reads may follow each other at once. A switchover takes
// four: the key vanishes (twice read), appears, and the engine confirms.
const readBurst = 5

// roomForChange is how many of these a confirmation leaves: the key vanishes
// (twice read) and appears.
const roomForChange = 3

// Options of a watcher. Cluster, Scope, Client and Now are required.
type Options struct {
	Cluster string // as in observations
	// Scope is Patroni's; with Citus "scope/group".
	Scope string
	// Namespace is Patroni's prefix; empty: "service". Slashes at its ends do not count.
	Namespace string
	Client    *Client
	// LeaderWait is how long Consul may hold the query on the leader key, at most
	// 10 min; zero: 5 min.
	LeaderWait time.Duration
	// ReadEvery is how often the scope is read although nothing woke us; zero: 10 s.
	ReadEvery time.Duration
	// ReadTimeout is the deadline of such a read; zero: 3 s.
	ReadTimeout time.Duration
	Now         topology.Ticker
	Logger      *slog.Logger // nil discards
}

// Watcher watches one Patroni cluster's keys. It is a watchers.Source.
type Watcher struct {
	o      Options
	prefix string // of every key, with a slash at its end
	log    *slog.Logger
	leader *Watch[leaderKey]
	seq    uint64 // of the last observation; owned by Run

	wake    watchers.Nudge // the watch told a new leader key
	confirm watchers.Nudge // somebody wants to know for sure
	doubt   watchers.Nudge // the watch fails

	stir watchers.Nudge // whether a watch is wanted may have changed

	mu      sync.Mutex // guards everything below
	stats   Stats
	watched leaderKey     // newest of the watch
	seen    bool          // watched is set
	picture leaderKey     // newest of a read
	known   bool          // picture is set
	hot     topology.Mono // until then the cluster counts as unsettled
}

var _ watchers.Source = (*Watcher)(nil)

// Stats count what a watcher did since it was made.
type Stats struct {
	Watch        WatchStats // of the leader key
	Reads        uint64     // requests for the whole scope
	Failures     uint64     // of them without a usable answer
	EmptyRefused uint64     // an absent leader or an empty scope that a consistent read did not confirm
	Disagreed    uint64     // reads that found a leader which the watch had missed; it was restarted
	Faults       int        // keys of the newest picture that could not be used
	ChangedAt    topology.Mono
	ConfirmedAt  topology.Mono
	FailingSince topology.Mono // zero: the newest read was good
}

// New prepares a watcher; it asks nothing yet. An error is a fault of the options.
func New(o Options) (*Watcher, error) {
	scope := strings.Trim(o.Scope, "/")
	switch {
	case o.Client == nil || o.Now == nil:
		return nil, errors.New("a watcher of Patroni's keys needs a client and a clock")
	case o.Cluster == "" || scope == "":
		return nil, errors.New("a watcher of Patroni's keys needs the names of a cluster and of its scope")
	case o.LeaderWait > maxWait:
		return nil, errors.New("the wait on the leader key is above 10m, which Consul does not grant")
	}
	if strings.Trim(o.Namespace, "/") == "" {
		o.Namespace = defaultNamespace
	}
	o.LeaderWait = or(o.LeaderWait, defaultLeaderWait)
	o.ReadEvery = or(o.ReadEvery, defaultReadEvery)
	o.ReadTimeout = or(o.ReadTimeout, defaultReadTimeout)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Watcher{
		o: o, prefix: strings.TrimPrefix(path.Join("/", o.Namespace, scope), "/") + "/",
		log:  o.Logger.With("cluster", o.Cluster, "scope", scope),
		wake: watchers.NewNudge(), confirm: watchers.NewNudge(), doubt: watchers.NewNudge(), stir: watchers.NewNudge(),
	}
	w.leader = w.watchLeader()
	return w, nil
}

func or(d, otherwise time.Duration) time.Duration {
	if d <= 0 {
		return otherwise
	}
	return d
}

// ID is the source's identity in observations.
func (w *Watcher) ID() topology.SourceID {
	return topology.SourceID{Kind: topology.SourceConsul, Name: strings.Trim(w.o.Scope, "/")}
}

// Confirm asks for a consistent read now. It never blocks; several calls before
// the read are one, and more than one a second are spread out. While Consul
// fails, the pause between attempts goes on. The cluster counts as unsettled for
// a while.
func (w *Watcher) Confirm() {
	w.heat()
	w.confirm.Set()
}

// Stats returns the counters.
func (w *Watcher) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Watch = w.leader.Stats()
	return s
}

func (w *Watcher) count(f func(*Stats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.stats)
}

// Run watches until ctx ends; its error is always nil. It may be called again
// afterwards, but not twice at once.
func (w *Watcher) Run(ctx context.Context, report func(topology.Observation)) error {
	defer w.o.Client.fleet.join(ctx, &ship{prefix: w.prefix, flip: w.stir, seen: w.glimpsed, lost: w.doubt.Set})()
	var watch sync.WaitGroup
	defer watch.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch.Go(func() { w.keepWatch(ctx) })
	w.read(ctx, report)
	return nil
}
