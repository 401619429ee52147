package consul

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/watchers"
)

// The limits of one client. Consul refuses the 201st connection of a host by
// default (limits.http_max_conns_per_client).
const (
	// crowd is how many watchers may each have a blocking query of their own.
	crowd = 100
	// maxWatches is how many blocking queries a larger number of watchers share.
	maxWatches = 64
	// Transactions on demand: each may hold maxTrees reads. Those of a quiet
	// fleet are far below it.
	txnRate, txnBurst = 20, 64
	// Transactions that hold a single read, because keys were left out of the
	// answer to several: enough for one such answer, then few.
	singleRate, singleBurst = 2, maxTrees
)

// fleet is all watchers of one client. Up to crowd of them each watch and read
// for themselves. Above that their reads are put together into transactions, all
// leader keys are looked at once a second, and only a cluster in doubt has a
// blocking query.
type fleet struct {
	c       *Client
	bucket  *rate.Limiter // of transactions on demand
	singles *rate.Limiter // of those that hold one read

	mu      sync.Mutex // guards everything below
	ships   []*ship    // in the order they joined
	watches int        // blocking queries under way
	open    map[lane]*batch
	// apart has the prefixes whose keys the token may not read, as far as is
	// known: they are not asked for with others, whose answers they would spoil.
	apart map[string]bool
	looks *looks // nil while there are few watchers
	// departs is closed when the reads that wait for company go; nil: none waits.
	departs chan struct{}
}

// ship is one watcher of a fleet.
type ship struct {
	prefix string // of a cluster's keys; empty: there are none to look at
	flip   watchers.Nudge
	seen   func(leaderKey) // the leader key, as it is now
	lost   func()          // it could not be looked at
}

// looks is the goroutine that looks at all leader keys.
type looks struct {
	stop context.CancelFunc
	done chan struct{}
}

func newFleet(c *Client) *fleet {
	return &fleet{
		c: c, bucket: rate.NewLimiter(txnRate, txnBurst), singles: rate.NewLimiter(singleRate, singleBurst),
		open: make(map[lane]*batch), apart: make(map[string]bool),
	}
}

// join counts a watcher in until leave is called, which returns once nothing of
// the fleet will call the ship any more.
func (f *fleet) join(ctx context.Context, m *ship) (leave func()) {
	f.mu.Lock()
	f.ships = append(f.ships, m)
	if len(f.ships) > crowd && f.looks == nil {
		f.begin(ctx)
	}
	f.mu.Unlock()
	return func() { f.leave(m) }
}

func (f *fleet) leave(m *ship) {
	f.mu.Lock()
	for i, other := range f.ships {
		if other == m {
			f.ships = append(f.ships[:i:i], f.ships[i+1:]...)
			break
		}
	}
	delete(f.apart, m.prefix)
	end := f.looks
	if len(f.ships) > crowd {
		end = nil
	}
	if end != nil {
		f.looks = nil
		f.flipped()
	}
	f.mu.Unlock()
	if end != nil {
		end.stop()
		<-end.done
	}
}

// begin starts the looks. They outlive the watcher whose joining made the
// watchers many, so its context lends its values alone. It needs f.mu.
func (f *fleet) begin(ctx context.Context) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &looks{stop: cancel, done: make(chan struct{})}
	f.looks = l
	go func() {
		defer close(l.done)
		f.lookOn(ctx)
	}()
	f.flipped()
}

// flipped tells every ship that few have become many, or many few. It needs f.mu.
func (f *fleet) flipped() {
	for _, m := range f.ships {
		m.flip.Set()
	}
}

// many reports whether there are too many watchers for a query each.
func (f *fleet) many() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.looks != nil
}

// takeWatch reports whether one more blocking query may be made; then dropWatch
// gives the place back.
func (f *fleet) takeWatch() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.looks != nil && f.watches >= maxWatches {
		return false
	}
	f.watches++
	return true
}

func (f *fleet) dropWatch() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches--
}

// errFiltered says that keys were left out of an answer.
var errFiltered = errors.New("the answer was filtered by ACLs, so it may lack keys; the token needs key_prefix read here")

// read reads the keys of a scope: by itself, or with others.
func (f *fleet) read(ctx context.Context, mode Consistency, s scopeQuery) (api.KVPairs, *api.QueryMeta, error) {
	f.mu.Lock()
	together, apart := f.looks != nil && !s.alone, f.apart[s.prefix]
	f.mu.Unlock()
	if !together {
		q, err := f.c.Options(ctx, firmer(mode))
		if err != nil {
			return nil, nil, err
		}
		return f.c.KV().List(s.prefix, q)
	}
	pairs, meta, err := f.share(ctx, lane{mode, apart}, s.prefix)
	if !errors.Is(err, errFiltered) || !f.singles.Allow() {
		return pairs, meta, err
	}
	// Perhaps what others asked for was hidden.
	pairs, meta, err = f.c.trees(ctx, mode, []string{s.prefix})
	if err == nil {
		f.setApart(meta.ResultsFilteredByACLs, s.prefix)
	}
	return pairs, meta, err
}

// scopeQuery is a question for the keys of one scope.
type scopeQuery struct {
	prefix string
	// alone: not to be put together with others.
	alone bool
}

func (f *fleet) setApart(is bool, prefixes ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range prefixes {
		if is {
			f.apart[p] = true
		} else {
			delete(f.apart, p)
		}
	}
}

// visible are the ships whose leader keys are looked at.
func (f *fleet) visible() []*ship {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*ship
	for _, m := range f.ships {
		if m.prefix != "" && !f.apart[m.prefix] {
			out = append(out, m)
		}
	}
	return out
}

// passed waits for d; false when ctx ended before.
func passed(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	return ctx.Err() == nil
}
