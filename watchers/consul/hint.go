package consul

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	// unsettledFor is how long one of many clusters keeps a blocking query after
	// the newest doubt. Doubt is told again twice a second while it lasts.
	unsettledFor = 15 * time.Second
	// manyWait is how long Consul holds such a query. It is short because Consul
	// does not notice that a query was given up before its wait is over.
	manyWait = 10 * time.Second
	// placeEvery is how often a place for a blocking query is asked for anew.
	placeEvery = time.Second
)

// watchLeader makes the blocking query on the leader key. It only wakes the
// reader; what is reported comes from a read of the whole scope.
func (w *Watcher) watchLeader() *Watch[leaderKey] {
	key := w.prefix + leaderName
	return NewWatch(WatchOptions[leaderKey]{
		Client: w.o.Client, What: "key " + key, Wait: w.o.LeaderWait, Now: w.o.Now, Logger: w.log,
		Query: func(_ context.Context, q *api.QueryOptions) (leaderKey, *api.QueryMeta, error) {
			if w.o.Client.fleet.many() {
				q.WaitTime = min(q.WaitTime, manyWait)
			}
			pair, meta, err := w.o.Client.KV().Get(key, q)
			return reduceLeader(pair), meta, err
		},
		Equal:   func(a, b leaderKey) bool { return a == b },
		Deliver: w.leaderTold,
	})
}

func (w *Watcher) leaderTold(r Result[leaderKey]) {
	if r.Failure != nil || r.Unsure != "" {
		w.doubt.Set()
		return
	}
	w.mu.Lock()
	w.watched, w.seen = r.Value, true
	w.mu.Unlock()
	w.wake.Set()
}

// keepWatch runs the watch on the leader key while it is wanted.
func (w *Watcher) keepWatch(ctx context.Context) {
	var end func() // nil while there is none
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		wanted, left := w.wantsWatch()
		switch {
		case wanted && end == nil:
			if end = w.beginWatch(ctx); end == nil {
				left = placeEvery
			}
		case !wanted && end != nil:
			end()
			end = nil
		}
		timer.Reset(left)
		select {
		case <-ctx.Done():
		case <-w.stir.C():
		case <-timer.C:
		}
	}
	if end != nil {
		end()
	}
}

// beginWatch starts the watch and returns what ends it; nil when there is no
// place for one more.
func (w *Watcher) beginWatch(ctx context.Context) (end func()) {
	if !w.o.Client.fleet.takeWatch() {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { w.leader.Run(ctx) })
	return func() {
		cancel()
		watch.Wait()
		w.o.Client.fleet.dropWatch()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seen = false // from now on it misses every change
	}
}

// wantsWatch reports whether the leader key should be watched, and for how long
// that holds.
func (w *Watcher) wantsWatch() (wanted bool, left time.Duration) {
	const ever = time.Hour // until it is stirred
	if !w.o.Client.fleet.many() {
		return true, ever
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if left = w.hot.Sub(w.o.Now().Mono); left > 0 {
		return true, left
	}
	return false, ever
}

// heat makes the cluster count as unsettled from now on for a while.
func (w *Watcher) heat() {
	until := w.o.Now().Mono.Add(unsettledFor)
	w.mu.Lock()
	w.hot = until
	w.mu.Unlock()
	w.stir.Set()
}

// pictured notes what a read found.
func (w *Watcher) pictured(k leaderKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.picture, w.known = k, true
}

// glimpsed compares the newest picture with a look at the leader key, by a server
// that may be behind: an older key is no news. News is read for sure.
func (w *Watcher) glimpsed(k leaderKey) {
	w.mu.Lock()
	news := w.known && k != w.picture && (k == leaderKey{} || k.ModifyIndex > w.picture.ModifyIndex)
	w.mu.Unlock()
	if news {
		w.heat()
		w.wake.Set()
	}
}
