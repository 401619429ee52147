package mesh

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// TestMain lets one test more run than there are processors, since one of them waits for
// minutes.
func TestMain(m *testing.M) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		_ = flag.Set("test.parallel", strconv.Itoa(runtime.GOMAXPROCS(0)+1)) // it is a number
	}
	goleak.VerifyTestMain(m)
}

// rig is a Consul, and publishers that know it.
type rig struct {
	t      *testing.T
	consul *consultest.Agent
	now    topology.Ticker
	token  string // file; empty: none
	tenant [2]string
}

// world runs a test with a fake Consul and fake time.
func world(t *testing.T, f func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f(&rig{t: t, consul: consultest.New(), now: topology.NewTicker(time.Now)})
	})
}

// agent is a publisher with views of its own.
type agent struct {
	r     *rig
	views latest.Map[string, topology.View]
	p     *Publisher
	cut   atomic.Bool  // nothing of it reaches Consul any more
	deaf  atomic.Bool  // it hears no answer to a transaction
	slow  atomic.Int64 // how long a transaction is under way
	lame  atomic.Value // harm to what it writes, a string; "": none
	stop  context.CancelFunc
	done  chan struct{}
	gen   uint64
}

// RoundTrip is the agent's way to Consul.
func (a *agent) RoundTrip(req *http.Request) (*http.Response, error) {
	if a.cut.Load() {
		return nil, errors.New("cut off")
	}
	release := req.Method == http.MethodPut && req.URL.Query().Has("release")
	switch harm := a.lame.Load(); {
	case req.URL.Path == "/v1/txn" && harm == hangs:
		<-req.Context().Done()
		return nil, req.Context().Err()
	case req.URL.Path == "/v1/txn" && harm != nil && harm != "", release && harm == refusedAll:
		return &http.Response{
			Status: "403 Forbidden", StatusCode: http.StatusForbidden, Request: req, Header: http.Header{},
			Body: io.NopCloser(strings.NewReader("Permission denied: token lacks permission 'service:write'")),
		}, nil
	case req.URL.Path == "/v1/txn":
		time.Sleep(time.Duration(a.slow.Load()))
	}
	resp, err := a.r.consul.RoundTrip(req)
	if a.deaf.Load() && req.URL.Path == "/v1/txn" {
		return nil, errors.New("the answer is lost")
	}
	return resp, err
}

// What harms an agent's writes.
const (
	hangs      = "transactions hang"
	refused403 = "transactions are refused"
	refusedAll = "transactions and the release of locks are refused"
)

// start starts a publisher; more changes its options.
func (r *rig) start(name string, more func(*Options)) *agent {
	r.t.Helper()
	a := &agent{r: r, done: make(chan struct{})}
	client, err := consul.NewClient(consul.ClientOptions{Transport: a, TokenFile: r.token, Namespace: r.tenant[0], Partition: r.tenant[1]})
	if err != nil {
		r.t.Fatal(err)
	}
	o := Options{
		Client: client, Views: &a.views, Now: r.now, External: true, Name: name, Clusters: map[string]Settings{"main": settings},
		Logger: slog.New(slog.NewTextHandler(r.t.Output(), nil)).With("agent", name),
	}
	if more != nil {
		more(&o)
	}
	if a.p, err = New(o); err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.t.Context())
	a.stop = func() { stop(); <-a.done }
	r.t.Cleanup(a.stop)
	go func() {
		defer close(a.done)
		if err := a.p.Run(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	return a
}

// on publishes as the node on this host.
func on(node string) func(*Options) {
	return func(o *Options) {
		o.External = false
		o.Clusters = map[string]Settings{"main": {Service: "main", Node: node, TTL: 3 * time.Minute, PrimaryTTL: 30 * time.Second}}
	}
}

// see gives an agent a view; each is another decision.
func (a *agent) see(text string, change ...func(*topology.View)) {
	a.r.t.Helper()
	v := scene(a.r.t, a.r.now().Mono, text)
	a.gen++
	v.Snapshot.Generation, v.Snapshot.Urgent = a.gen, a.gen
	for _, f := range change {
		f(v)
	}
	a.views.Set("main", v)
}

func (a *agent) status() Status { return a.p.Status()[0] }

// is is what stands, on one line: n1 primary passing, n2 replica async passing.
func (r *rig) is() string {
	var out []string
	all := r.consul.Published("main")
	for _, id := range slices.Sorted(maps.Keys(all)) {
		in := all[id]
		out = append(out, strings.Join(append(append([]string{id[strings.LastIndex(id, ":")+1:]}, in.ServiceTags...), in.Check.Status), " "))
	}
	return strings.Join(out, ", ")
}

const (
	first  = "n1 primary passing, n2 replica async passing"
	second = "n1 replica async passing, n2 primary passing"
)

// within waits for what stands.
func (r *rig) within(d time.Duration, want string) {
	r.t.Helper()
	r.until(d, want, func() bool { return r.is() == want })
}

func (r *rig) until(d time.Duration, what string, ok func() bool) {
	r.t.Helper()
	begin := time.Now()
	for end := begin.Add(d); ; time.Sleep(10 * time.Millisecond) {
		synctest.Wait()
		if ok() {
			r.t.Logf("%s after %s", what, time.Since(begin))
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("waited %s for: %s; there is: %s", d, what, r.is())
		}
	}
}

// stays wants nothing to change for a while.
func (r *rig) stays(d time.Duration, want string) {
	r.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		synctest.Wait()
		if is := r.is(); is != want {
			r.t.Fatalf("%s, want %s to stay", is, want)
		}
	}
}

// asked counts the requests to a path so far.
func (r *rig) asked(prefix string) (n int) {
	for _, q := range r.consul.Requests() {
		if strings.HasPrefix(q.Path, prefix) {
			n++
		}
	}
	return n
}
