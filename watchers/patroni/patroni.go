package patroni

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// SourceKind is the kind of this source; its name is the scope.
const SourceKind topology.SourceKind = "patroni"

// The defaults of a watcher.
const (
	defaultInterval   = time.Second
	defaultListEvery  = 5 * time.Second
	defaultFactsEvery = 30 * time.Second
	defaultTimeout    = 2 * time.Second
)

// Options of a watcher. Cluster, Scope, Endpoints and Now are required.
type Options struct {
	Cluster string // as in observations
	// Scope is Patroni's; answers of another one are no evidence.
	Scope string
	// Endpoints are where to begin, http://host:port or https://host:port. One for
	// each member is best; the others are learned from the members' api_url.
	Endpoints []string
	// TLS makes the configuration for a member's host, for each connection anew;
	// nil: the system's roots.
	TLS func(host string) *tls.Config
	// Interval is the time between two rounds while all is well; zero: 1 s.
	Interval time.Duration
	// ListEvery is how often the leader's list of members is read; zero: 5 s.
	ListEvery time.Duration
	// FactsEvery is how often the dynamic configuration is read; zero: 30 s.
	FactsEvery time.Duration
	// Timeout is each question's deadline, connecting included; a member that let
	// it pass has half of it from then on. Zero: 2 s.
	Timeout time.Duration
	// Transport replaces the connections to Patroni, for tests. It must obey the
	// context of a request.
	Transport http.RoundTripper
	Now       topology.Ticker
	Logger    *slog.Logger // nil discards
}

// Watcher asks the members of one Patroni cluster. It is a watchers.Source.
type Watcher struct {
	o       Options
	bases   []string // of Endpoints
	client  *client
	log     *slog.Logger
	jitter  func(time.Duration) time.Duration // draws from 0 to its argument
	confirm watchers.Nudge
	seq     uint64 // of the last observation; owned by Run

	mu    sync.Mutex // guards stats
	stats Stats
}

var _ watchers.Source = (*Watcher)(nil)

// Stats count what a watcher did since it was made.
type Stats struct {
	Rounds       uint64
	Requests     uint64
	Failures     uint64 // of them without a usable answer, not counting the dynamic configuration
	Unproven     uint64 // rounds without a proof of a leader or of its absence
	ChangedAt    topology.Mono
	ConfirmedAt  topology.Mono
	FailingSince topology.Mono // zero: the newest word was good
}

// New prepares a watcher; it asks nothing yet. An error is a fault of the options.
func New(o Options) (*Watcher, error) {
	switch {
	case o.Now == nil:
		return nil, errors.New("a watcher of Patroni's REST interface needs a clock")
	case o.Cluster == "" || o.Scope == "":
		return nil, errors.New("a watcher of Patroni's REST interface needs the names of a cluster and of its scope")
	case len(o.Endpoints) == 0:
		return nil, errors.New("a watcher of Patroni's REST interface needs at least one endpoint")
	}
	o.Interval, o.ListEvery = or(o.Interval, defaultInterval), or(o.ListEvery, defaultListEvery)
	o.FactsEvery, o.Timeout = or(o.FactsEvery, defaultFactsEvery), or(o.Timeout, defaultTimeout)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Watcher{
		o: o, client: newClient(o), log: o.Logger.With("cluster", o.Cluster, "scope", o.Scope),
		jitter:  func(d time.Duration) time.Duration { return rand.N(d + 1) },
		confirm: watchers.NewNudge(),
	}
	for _, e := range o.Endpoints {
		base, err := parseBase(strings.TrimSpace(e))
		if err != nil {
			return nil, fmt.Errorf("endpoint of Patroni's REST interface: %w", err)
		}
		if !slices.Contains(w.bases, base) {
			w.bases = append(w.bases, base)
		}
	}
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
	return topology.SourceID{Kind: SourceKind, Name: w.o.Scope}
}

// Confirm asks for another round now, with a list of the leader. It never
// blocks; several calls before the round are one, and more than two a second are
// spread out. Members that do not answer are left alone all the same.
func (w *Watcher) Confirm() { w.confirm.Set() }

// Stats returns the counters.
func (w *Watcher) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

func (w *Watcher) count(f func(*Stats)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.stats)
}

// Run asks until ctx ends; its error is always nil. It may be called again
// afterwards, but not twice at once.
func (w *Watcher) Run(ctx context.Context, report func(topology.Observation)) error {
	defer w.client.http.CloseIdleConnections()
	newPoll(w, report).run(ctx)
	return nil
}
