package patroni

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
	"github.com/pgsteer/pgsteer/watchers/patronitest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig runs a watcher of scope alpha against a fake cluster.
type rig struct {
	t      *testing.T
	c      *patronitest.Cluster
	w      *Watcher
	log    *logtest.Log
	cancel context.CancelFunc
	done   chan struct{}
	began  time.Time

	mu  sync.Mutex
	obs []told
}

type told struct {
	at time.Duration
	o  topology.Observation
}

// options of a watcher that knows one endpoint, a's.
func options(c *patronitest.Cluster, endpoints ...string) Options {
	if endpoints == nil {
		endpoints = []string{patronitest.URL("a")}
	}
	return Options{Cluster: "main", Scope: "alpha", Endpoints: endpoints, Transport: c, Now: topology.NewTicker(time.Now)}
}

// newRig starts a watcher; a tweak may change it before.
func newRig(t *testing.T, c *patronitest.Cluster, o Options, tweaks ...func(*Watcher)) *rig {
	t.Helper()
	r := &rig{t: t, c: c, log: &logtest.Log{}, done: make(chan struct{}), began: time.Now()}
	o.Logger = slog.New(slog.NewTextHandler(r.log, nil))
	var err error
	if r.w, err = New(o); err != nil {
		t.Fatal(err)
	}
	for _, tweak := range tweaks {
		tweak(r.w)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		if err := r.w.Run(ctx, r.report); err != nil {
			t.Error(err)
		}
	}()
	return r
}

func (r *rig) report(o topology.Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.obs = append(r.obs, told{time.Since(r.began), o})
}

func (r *rig) all() []told {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]told(nil), r.obs...)
}

func (r *rig) last() topology.Observation {
	all := r.all()
	if len(all) == 0 {
		return topology.Observation{}
	}
	return all[len(all)-1].o
}

// since forgets what was observed until now.
func (r *rig) since() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.obs, r.began = r.obs[len(r.obs):], time.Now()
}

// words tells the observations in short, dropping repeats: a leader whose own
// word says nothing has a question mark, one that denies an exclamation mark.
func (r *rig) words() []string {
	var out []string
	for _, g := range r.all() {
		var word string
		switch o := g.o; {
		case o.Failure != nil:
			word = "!" + string(o.Failure.Class)
		case o.Authority.Leader == "":
			word = fmt.Sprintf("(none) of %d", len(o.Authority.Members))
		default:
			mark := map[topology.Tri]string{topology.Yes: "", topology.No: "!", topology.Unknown: "?"}[o.Authority.SessionAgrees]
			word = fmt.Sprintf("%s%s of %d", o.Authority.Leader, mark, len(o.Authority.Members))
		}
		if len(out) == 0 || out[len(out)-1] != word {
			out = append(out, word)
		}
	}
	return out
}

func (r *rig) want(words ...string) {
	r.t.Helper()
	if diff := cmp.Diff(words, r.words()); diff != "" {
		r.t.Errorf("observed (-want +got):\n%s", diff)
	}
}

// first returns when an observation of this word came first.
func (r *rig) first(word string) time.Duration {
	r.t.Helper()
	all := r.all()
	for i := range all {
		one := &rig{obs: all[i : i+1]}
		if one.words()[0] == word {
			return all[i].at
		}
	}
	r.t.Fatalf("never observed %q, but %v", word, r.words())
	return 0
}

func (r *rig) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// requests counts those since a moment, of a path ("" for all) at a member.
func (r *rig) requests(since time.Time, member, path string) int {
	n := 0
	for _, q := range r.c.Requests() {
		if !q.At.Before(since) && q.Member == member && (path == "" || q.Path == path) {
			n++
		}
	}
	return n
}

func (r *rig) stop() {
	r.t.Helper()
	at := time.Now()
	r.cancel()
	<-r.done
	if took := time.Since(at); took != 0 {
		r.t.Errorf("Run returned %v after its context ended, want at once", took)
	}
	var before topology.Observation
	for i, g := range r.all() {
		o := g.o
		if i > 0 && o.Seq != before.Seq+1 || o.Cluster != "main" || o.Source != r.w.ID() {
			r.t.Errorf("observation %d is %d of %s from %v", i+1, o.Seq, o.Cluster, o.Source)
		}
		if o.AskedAt.Mono == 0 || o.At.Mono < o.AskedAt.Mono || o.AskedAt.Mono < before.AskedAt.Mono {
			r.t.Errorf("observation %d was asked at %v and answered at %v, the one before asked at %v", i+1, o.AskedAt, o.At, before.AskedAt)
		}
		if (o.Failure == nil) == (o.Authority == nil) || o.Failure != nil && o.Nodes != nil {
			r.t.Errorf("observation %d mixes failure and content: %+v", i+1, o)
		}
		if o.Nodes != nil && (len(o.Nodes.Nodes) == 0 || o.Nodes.ConfirmedEmpty) {
			r.t.Errorf("observation %d has an empty list of nodes", i+1)
		}
		before = o
	}
}

// run starts a rig in a bubble of fake time over a healthy cluster of three.
func run(t *testing.T, f func(t *testing.T, c *patronitest.Cluster, r *rig)) {
	t.Helper()
	runOn(t, []string{"a", "b", "c"}, f)
}

func runOn(t *testing.T, members []string, f func(t *testing.T, c *patronitest.Cluster, r *rig), tweaks ...func(*Watcher)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := patronitest.New("alpha", members...)
		r := newRig(t, c, options(c), tweaks...)
		defer r.stop()
		r.wait(100 * time.Millisecond)
		r.want(fmt.Sprintf("a of %d", len(members)))
		r.since()
		f(t, c, r)
	})
}
