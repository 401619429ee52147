package consul

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// rig runs a watcher of scope alpha against a fake agent.
type rig struct {
	t      *testing.T
	agent  *consultest.Agent
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

const alpha = "service/alpha/"

// healthy writes the base state of the field reports: a leads b and c.
func healthy(a *consultest.Agent) {
	a.Put(alpha+"config", `{"ttl":30,"loop_wait":10,"retry_timeout":10}`, alpha+"initialize", "7713754238407433424")
	for i, n := range []string{"a", "b", "c"} {
		role := "replica"
		if n == "a" {
			role = "primary"
		}
		a.Acquire(alpha+"members/"+n, member(role, fmt.Sprintf("192.0.2.%d:5432", 11+i)), "s-"+n)
	}
	a.Acquire(alpha+"leader", "a", "s-a")
	a.Put(alpha+"status", `{"optime":50000000}`)
}

func member(role, addr string) string {
	return fmt.Sprintf(`{"conn_url":"postgres://%s/postgres","role":%q,"state":"running","timeline":5,"xlog_location":50000000}`, addr, role)
}

func newRig(t *testing.T, a *consultest.Agent) *rig {
	t.Helper()
	c, err := NewClient(ClientOptions{Transport: a})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, agent: a, log: &logtest.Log{}, done: make(chan struct{}), began: time.Now()}
	r.w, err = New(Options{
		Cluster: "main", Scope: "alpha", Namespace: "/service/", Client: c, Now: topology.NewTicker(time.Now),
		Logger: slog.New(slog.NewTextHandler(r.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
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

// words tells the observations in short, dropping repeats.
func (r *rig) words() []string {
	var out []string
	for _, g := range r.all() {
		switch o := g.o; {
		case o.Failure != nil:
			out = append(out, "!"+string(o.Failure.Class))
		case o.Authority.Leader == "":
			out = append(out, fmt.Sprintf("(none) of %d", len(o.Nodes.Nodes)))
		default:
			out = append(out, fmt.Sprintf("%s of %d", o.Authority.Leader, len(o.Nodes.Nodes)))
		}
	}
	return compact(out)
}

func (r *rig) want(words ...string) {
	r.t.Helper()
	if diff := cmp.Diff(words, r.words()); diff != "" {
		r.t.Errorf("observed (-want +got):\n%s", diff)
	}
}

func (r *rig) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *rig) stop() {
	r.t.Helper()
	at := time.Now()
	r.cancel()
	<-r.done
	if took := time.Since(at); took != 0 {
		r.t.Errorf("Run returned %v after its context ended, want at once", took)
	}
	for i, g := range r.all() {
		if g.o.Seq != uint64(i+1) || g.o.Cluster != "main" || g.o.Source != r.w.ID() {
			r.t.Errorf("observation %d is %d of %s from %v", i+1, g.o.Seq, g.o.Cluster, g.o.Source)
		}
		if g.o.AskedAt.Mono == 0 || g.o.At.Mono < g.o.AskedAt.Mono {
			r.t.Errorf("observation %d was asked at %v and answered at %v", i+1, g.o.AskedAt, g.o.At)
		}
		if (g.o.Failure == nil) == (g.o.Authority == nil) || (g.o.Authority == nil) != (g.o.Nodes == nil) || (g.o.Authority == nil) != (g.o.Documents == nil) {
			r.t.Errorf("observation %d mixes failure and content: %+v", i+1, g.o)
		}
	}
}

// run starts a rig in a bubble of fake time over a healthy cluster.
func run(t *testing.T, f func(t *testing.T, a *consultest.Agent, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a := consultest.New()
		healthy(a)
		r := newRig(t, a)
		defer r.stop()
		r.wait(time.Second)
		f(t, a, r)
	})
}
