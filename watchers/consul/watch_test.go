package consul

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watchRig runs a watch over the keys below x/, reduced to "key=value" texts.
type watchRig struct {
	t      *testing.T
	agent  *consultest.Agent
	watch  *Watch[string]
	cancel context.CancelFunc
	done   chan struct{}
	began  time.Time

	mu  sync.Mutex
	got []stamped
}

type stamped struct {
	at time.Duration
	r  Result[string]
}

func newWatchRig(t *testing.T, o ClientOptions, a *consultest.Agent) *watchRig {
	t.Helper()
	o.Transport = a
	c, err := NewClient(o)
	if err != nil {
		t.Fatal(err)
	}
	r := &watchRig{t: t, agent: a, began: time.Now(), done: make(chan struct{})}
	r.watch = NewWatch(WatchOptions[string]{
		Client: c, What: "keys x/", Now: topology.NewTicker(time.Now),
		Query: func(_ context.Context, q *api.QueryOptions) (string, *api.QueryMeta, error) {
			pairs, meta, err := c.KV().List("x/", q)
			return joined(pairs), meta, err
		},
		Equal:   func(a, b string) bool { return a == b },
		Empty:   func(s string) bool { return s == "" },
		Deliver: r.deliver,
	})
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.watch.Run(ctx)
	}()
	return r
}

func joined(pairs api.KVPairs) string {
	var out []string
	for _, p := range pairs {
		out = append(out, strings.TrimPrefix(p.Key, "x/")+"="+string(p.Value))
	}
	return strings.Join(out, " ")
}

func (r *watchRig) deliver(res Result[string]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, stamped{time.Since(r.began), res})
}

// words returns what was delivered, in short: the value, "unsure V", or "!class".
func (r *watchRig) words() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []string
	for _, g := range r.got {
		switch {
		case g.r.Failure != nil:
			out = append(out, "!"+string(g.r.Failure.Class))
		case g.r.Unsure != "":
			out = append(out, "unsure "+g.r.Value)
		case g.r.Empty:
			out = append(out, "(empty)")
		default:
			out = append(out, g.r.Value)
		}
	}
	return out
}

// nth returns a delivery; there must be so many.
func (r *watchRig) nth(i int) stamped {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if i < 0 || i >= len(r.got) {
		r.t.Fatalf("%d deliveries, want more than %d", len(r.got), i)
	}
	return r.got[i]
}

func (r *watchRig) last() stamped {
	r.t.Helper()
	return r.nth(len(r.words()) - 1)
}

// stop cancels and checks that the watch ends without any time going by.
func (r *watchRig) stop() {
	r.t.Helper()
	at := time.Now()
	r.cancel()
	<-r.done
	if took := time.Since(at); took != 0 {
		r.t.Errorf("Run returned %v after its context ended, want at once", took)
	}
}

func (r *watchRig) want(words ...string) {
	r.t.Helper()
	if diff := cmp.Diff(words, r.words()); diff != "" {
		r.t.Errorf("delivered (-want +got):\n%s", diff)
	}
}

func pairs(value string, index uint64) []consultest.Pair {
	return []consultest.Pair{{Key: "x/k", Value: []byte(value), CreateIndex: 1, ModifyIndex: index}}
}

// compact drops repeats of the same word in a row.
func compact(words []string) []string {
	var out []string
	for _, w := range words {
		if len(out) == 0 || out[len(out)-1] != w {
			out = append(out, w)
		}
	}
	return out
}

// storm is an answer that comes at once, again and again.
type storm struct {
	name   string
	script func(consultest.Request) consultest.Fault
	want   []string
}

func storms() []storm {
	turn := 0
	return []storm{
		{"index 0 for ever", func(consultest.Request) consultest.Fault {
			return consultest.Fault{IndexZero: true, NoBlock: true}
		}, []string{"k=v"}},
		{"headers missing", func(consultest.Request) consultest.Fault {
			return consultest.Fault{NoHeaders: true, NoBlock: true}
		}, []string{"unsure k=v", "!store"}},
		{"index moving with equal content", func(consultest.Request) consultest.Fault {
			turn++
			return consultest.Fault{Index: uint64(1000 + turn), NoBlock: true}
		}, []string{"k=v"}},
		{"index backwards for ever", func(consultest.Request) consultest.Fault {
			turn++
			return consultest.Fault{Index: uint64(1000000 - turn), NoBlock: true}
		}, []string{"k=v"}},
		{"status 500 for ever", func(consultest.Request) consultest.Fault {
			return consultest.Fault{Status: 500, Text: "No cluster leader"}
		}, []string{"!store"}},
		{"status 429 for ever", func(consultest.Request) consultest.Fault {
			return consultest.Fault{Status: 429, Text: "rate limit reached"}
		}, []string{"!store"}},
		{"status 400 for ever", func(consultest.Request) consultest.Fault {
			return consultest.Fault{Status: 400, Text: "Invalid query parameter"}
		}, []string{"!store"}},
	}
}

func TestWatchBoundsRequests(t *testing.T) {
	for _, c := range storms() {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := consultest.New()
				a.Put("x/k", "v")
				a.Script(c.script)
				r := newWatchRig(t, ClientOptions{}, a)
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if n := len(a.Requests()); n > 10*60+watchBurst {
					t.Errorf("%d requests in 10 minutes, want at most one a second", n)
				}
				got := compact(r.words())
				got = got[:min(len(got), len(c.want))]
				if diff := cmp.Diff(c.want, got); diff != "" {
					t.Errorf("delivered (-want +got):\n%s", diff)
				}
				for i, q := range a.Requests() {
					if c.name == "index 0 for ever" && i == 1 && q.Index != 1 {
						t.Errorf("index 0 is followed by a question for index %d, want 1", q.Index)
					}
				}
				r.stop()
			})
		})
	}
}

func TestWatchPausesByClass(t *testing.T) {
	cases := []struct {
		status   int
		min, max int // requests in 30 minutes
	}{
		{500, 360, 1800}, // up to 5 s, 2.5 s on average
		{503, 360, 1800}, //
		{403, 60, 300},   // up to 30 s
		{400, 6, 60},     // up to 5 min
	}
	for _, c := range cases {
		synctest.Test(t, func(t *testing.T) {
			a := consultest.New()
			a.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{Status: c.status} })
			r := newWatchRig(t, ClientOptions{}, a)
			time.Sleep(30 * time.Minute)
			synctest.Wait()
			if n := len(a.Requests()); n < c.min || n > c.max {
				t.Errorf("status %d: %d requests in 30 minutes, want %d to %d", c.status, n, c.min, c.max)
			}
			r.mu.Lock()
			for i := 1; i < len(r.got); i++ {
				if gap := r.got[i].at - r.got[i-1].at; gap > 5*time.Second+repeatEvery {
					t.Errorf("status %d: the failure was silent for %v", c.status, gap)
				}
			}
			r.mu.Unlock()
			r.stop()
		})
	}
}
