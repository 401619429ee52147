package consul

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// fleetRig runs many watchers of one client against a fake agent.
type fleetRig struct {
	t     testing.TB
	agent *consultest.Agent
	c     *Client
	began time.Time
	ships []*shipRig
}

// shipRig is one watcher and what it told.
type shipRig struct {
	name   string
	w      *Watcher
	cancel context.CancelFunc
	done   chan struct{}

	mu  sync.Mutex
	obs []told
}

func (s *shipRig) all() []told {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.obs)
}

// last is the newest observation in short: the leader, "(none)" or "!class".
func (s *shipRig) last() string {
	obs := s.all()
	if len(obs) == 0 {
		return "nothing"
	}
	return short(obs[len(obs)-1].o)
}

func short(o topology.Observation) string {
	switch {
	case o.Failure != nil:
		return "!" + string(o.Failure.Class)
	case o.Authority.Leader == "":
		return "(none)"
	default:
		return o.Authority.Leader
	}
}

func scopeOf(i int) string { return fmt.Sprintf("c%04d", i) }

// settle writes the keys of a cluster with members a and b, of which one leads.
func settle(a *consultest.Agent, scope, leader string) {
	p := "service/" + scope + "/"
	a.Put(p+"config", `{"ttl":30,"loop_wait":10,"retry_timeout":10}`, p+"status", `{"optime":50000000}`)
	for i, n := range []string{"a", "b"} {
		a.Acquire(p+"members/"+n, member("replica", fmt.Sprintf("192.0.2.%d:5432", 11+i)), scope+"-"+n)
	}
	a.Acquire(p+"leader", leader, scope+"-"+leader)
}

func newFleetRig(tb testing.TB, n int, o ClientOptions) *fleetRig {
	tb.Helper()
	r := &fleetRig{t: tb, agent: consultest.New(), began: time.Now()}
	if o.Transport == nil {
		o.Transport = r.agent
	}
	var err error
	if r.c, err = NewClient(o); err != nil {
		tb.Fatal(err)
	}
	for i := range n {
		settle(r.agent, scopeOf(i), "a")
		r.launch(scopeOf(i))
	}
	return r
}

// words counts the watchers by their newest word.
func (r *fleetRig) words() map[string]int {
	out := map[string]int{}
	for _, s := range r.ships {
		out[s.last()]++
	}
	return out
}

// launch runs one more watcher.
func (r *fleetRig) launch(scope string) {
	r.t.Helper()
	w, err := New(Options{Cluster: scope, Scope: scope, Client: r.c, Now: topology.NewTicker(time.Now)})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.t.Context())
	s := &shipRig{name: scope, w: w, cancel: cancel, done: make(chan struct{})}
	r.ships = append(r.ships, s)
	go func() {
		defer close(s.done)
		_ = w.Run(ctx, func(o topology.Observation) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.obs = append(s.obs, told{time.Since(r.began), o})
		})
	}()
}

func (r *fleetRig) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// stop ends all watchers and checks that it takes no time.
func (r *fleetRig) stop() {
	r.t.Helper()
	at := time.Now()
	for _, s := range r.ships {
		s.cancel()
	}
	for _, s := range r.ships {
		<-s.done
	}
	if took := time.Since(at); took != 0 {
		r.t.Errorf("the watchers ended %v after their contexts, want at once", took)
	}
	r.c.fleet.mu.Lock()
	defer r.c.fleet.mu.Unlock()
	if f := r.c.fleet; len(f.ships)+len(f.open)+f.watches != 0 || f.looks != nil {
		r.t.Errorf("left of the fleet: %d ships, %d batches, %d watches, looks %v", len(f.ships), len(f.open), f.watches, f.looks)
	}
}

// want compares the newest word of every watcher; except names those that differ.
func (r *fleetRig) want(word string, except map[string]string) {
	r.t.Helper()
	bad := map[string][]string{}
	for _, s := range r.ships {
		want, ok := except[s.name]
		if !ok {
			want = word
		}
		if got := s.last(); got != want {
			bad[got+" instead of "+want] = append(bad[got+" instead of "+want], s.name)
		}
	}
	for _, what := range slices.Sorted(maps.Keys(bad)) {
		r.t.Errorf("%d watchers last told %s: %s …", len(bad[what]), what, strings.Join(bad[what][:min(3, len(bad[what]))], " "))
	}
}

// since returns the requests from number n on, sorted by what they are.
func (r *fleetRig) since(n int) requests {
	var q requests
	for _, req := range r.agent.Requests()[n:] {
		switch {
		case req.Path == "/txn" && req.Stale:
			q.stale++
		case req.Path == "/txn":
			q.sure++
		case req.Index > 0:
			q.blocking++
		default:
			q.plain++
		}
	}
	return q
}

type requests struct{ stale, sure, blocking, plain int }

func (q requests) all() int { return q.stale + q.sure + q.blocking + q.plain }

func (r *fleetRig) mark() int { return len(r.agent.Requests()) }

// bubble is synctest.Test for fleets. The race detector's own runtime dies of that
// many goroutines in fake time, so make test runs these once more without it.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	if raceDetector {
		t.Skip("run without -race")
	}
	synctest.Test(t, f)
}

// sail starts a rig of n clusters in a bubble of fake time.
func sail(t *testing.T, n int, f func(t *testing.T, r *fleetRig)) {
	t.Helper()
	bubble(t, func(t *testing.T) {
		r := newFleetRig(t, n, ClientOptions{})
		defer r.stop()
		r.wait(2 * time.Second)
		r.want("a", nil)
		f(t, r)
	})
}
