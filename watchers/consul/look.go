package consul

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/watchers"
)

// How the leader keys of many clusters are looked at.
const (
	lookEvery   = time.Second
	lookTimeout = 3 * time.Second
	// looksAtOnce bounds the looks under way; one that finds no place is left out.
	looksAtOnce = 8
)

// looker looks at the leader keys of a fleet. What it sees is one server's word,
// which only makes a watcher read for sure.
type looker struct {
	f    *fleet
	back *watchers.BackOff

	mu       sync.Mutex // guards everything below
	failures int        // since the last pause
	answers  int        // since the last pause
	failing  bool       // the ships were told
}

// lookOn looks at all leader keys once a second, spread over that second, until
// ctx ends. While looks fail it pauses between them for up to 5 s.
func (f *fleet) lookOn(ctx context.Context) {
	l := &looker{f: f, back: watchers.NewBackOff(rand.N[time.Duration])}
	var under sync.WaitGroup
	defer under.Wait()
	places := make(chan struct{}, looksAtOnce)
	for {
		pages := slices.Collect(slices.Chunk(f.visible(), maxTrees))
		gap := lookEvery / time.Duration(max(1, len(pages)))
		for _, page := range pages {
			select {
			case places <- struct{}{}:
				under.Go(func() {
					defer func() { <-places }()
					l.look(ctx, page)
				})
			default:
			}
			if !passed(ctx, gap) {
				return
			}
		}
		pause := l.pause()
		if len(pages) == 0 {
			pause = lookEvery
		}
		if !passed(ctx, pause) {
			return
		}
	}
}

// look looks at one page of keys, in one transaction.
func (l *looker) look(ctx context.Context, page []*ship) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	keys := make([]string, len(page))
	for i, m := range page {
		keys[i] = m.prefix + leaderName
	}
	pairs, meta, err := l.f.c.trees(ctx, Stale, keys)
	if err != nil || judgeAge(meta, defaultLastContact) != nil {
		l.failed()
		return
	}
	l.answered()
	tell(page, keys, pairs, meta.ResultsFilteredByACLs)
}

// tell tells each ship its leader key. When keys were left out of the answer, one
// that is missing may be among them.
func tell(page []*ship, keys []string, pairs api.KVPairs, filtered bool) {
	found := make(map[string]*api.KVPair, len(pairs))
	for _, p := range pairs {
		found[p.Key] = p
	}
	for i, m := range page {
		if p := found[keys[i]]; p == nil && filtered {
			m.lost()
		} else {
			m.seen(reduceLeader(p))
		}
	}
}

// failed notes a look without an answer; the first one makes every watcher read.
func (l *looker) failed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures++
	if l.failing {
		return
	}
	l.failing = true
	for _, m := range l.f.visible() {
		m.lost()
	}
}

func (l *looker) answered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers++
}

// pause returns how long to wait after a second of looks. A failure lasts until
// there were answers and nothing else.
func (l *looker) pause() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failures == 0 && l.answers > 0 {
		l.failing = false
	}
	l.failures, l.answers = 0, 0
	if l.failing {
		return l.back.Next()
	}
	l.back.Reset()
	return 0
}
