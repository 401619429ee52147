package healthapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestRepliesAreKept: a reply serves again until something may have changed it.
func TestRepliesAreKept(t *testing.T) {
	const path = "/clusters/main/nodes/n1/health"
	at := clock()
	views := new(latest.Map[string, topology.View])
	put := func(w *world, valid time.Duration) {
		views.Set("main", &topology.View{Snapshot: w.snapshot, Facts: w.facts, ValidUntil: at.Mono.Add(valid)})
	}
	s, err := New(Options{Views: views, Now: func() topology.Clock { return at }})
	if err != nil {
		t.Fatal(err)
	}
	kept := func(method string) bool {
		return s.recall(httptest.NewRequest(method, path, nil), s.settings.Load()) != nil
	}
	for _, tt := range []struct {
		name   string
		valid  time.Duration // of the view
		change func()
		keeps  bool
	}{
		{"nothing", time.Minute, func() {}, true},
		{"another view", time.Minute, func() { put(replicaWorld(), time.Minute) }, false},
		{"the cluster is gone", time.Minute, func() { views.Delete("main") }, false},
		{"other settings", time.Minute, func() { _ = s.Reconfigure(Settings{}) }, false},
		{"the view's end", time.Second, func() { at.Mono = at.Mono.Add(time.Second + 1) }, false},
		{"just before the view's end", time.Second, func() { at.Mono = at.Mono.Add(time.Second) }, true},
		{"the last answer is too old", time.Minute, func() { at.Mono = at.Mono.Add(3 * time.Second) }, false},
		{"just before that", time.Minute, func() { at.Mono = at.Mono.Add(2900 * time.Millisecond) }, true},
	} {
		at = clock()
		put(replicaWorld(), tt.valid)
		if status, _ := ask(s, "GET", path); status != 200 || !kept("GET") {
			t.Fatalf("%s: the answer %d is not kept", tt.name, status)
		}
		if kept("HEAD") || kept("OPTIONS") || kept("POST") {
			t.Errorf("%s: the reply to GET answers another method", tt.name)
		}
		tt.change()
		if got := kept("GET"); got != tt.keeps {
			t.Errorf("%s: kept is %t, want %t", tt.name, got, tt.keeps)
		}
	}
	at, s.opts.Saved = clock(), func(string, string, string) topology.Verdict { return topology.Up }
	views.Delete("main")
	if status, _ := ask(s, "GET", path); status != 200 || kept("GET") {
		t.Errorf("a saved verdict's answer %d is kept", status)
	}
}

// TestOddRequestsFillNothing: whatever is asked, no more than a bound is kept.
func TestOddRequestsFillNothing(t *testing.T) {
	w := replicaWorld()
	s := server(t, w.snapshot, w.facts, Options{})
	for i := range maxKept + 10 {
		ask(s, "HEAD", fmt.Sprintf("/clusters/main/nodes/n1/health?x=%d", i))
	}
	count := 0
	s.memory.head.Range(func(any, any) bool { count++; return true })
	if count == 0 || count > maxKept {
		t.Errorf("%d replies are kept, want some and at most %d", count, maxKept)
	}
	long := fmt.Sprintf("/clusters/main/nodes/n1/health?x=%0*d", maxTarget, 1)
	ask(s, "GET", long)
	if _, ok := s.memory.get.Load(long); ok {
		t.Error("the reply to a long request is kept")
	}
}

// TestOldViewsAreFreed: a kept reply does not keep the view that it was made of.
func TestOldViewsAreFreed(t *testing.T) {
	w := replicaWorld()
	s := server(t, w.snapshot, w.facts, Options{})
	freed := make(chan struct{})
	func() {
		v := *s.opts.Views.Get("main")
		s.opts.Views.Set("main", &v)
		runtime.AddCleanup(&v, func(struct{}) { close(freed) }, struct{}{})
		ask(s, "GET", "/clusters/main/nodes/n1/health")
	}()
	v := *replicaView(w)
	s.opts.Views.Set("main", &v)
	ask(s, "GET", "/clusters/main/nodes/n1/replica") // one other path is enough
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		runtime.GC()
		select {
		case <-freed:
			return
		default:
			runtime.Gosched()
		}
	}
	t.Error("the old view is still held")
}

func replicaView(w *world) *topology.View {
	return &topology.View{Snapshot: w.snapshot, Facts: w.facts, ValidUntil: now + 1}
}

// TestNoAnswerOfBefore: once a view has been set, no answer is by an older one,
// however many ask at the same time.
func TestNoAnswerOfBefore(t *testing.T) {
	up, down := replicaWorld(), replicaWorld()
	down.node(func(f *topology.NodeFacts) {
		f.FailingAt, f.Failure = aMomentAgo, &topology.Failure{Class: topology.FailRefused}
	})
	s := server(t, up.snapshot, up.facts, Options{})
	const path = "/clusters/main/nodes/n1/health"
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					ask(s, "GET", path)
				}
			}
		})
	}
	for i := range 2000 {
		w, want := up, http.StatusOK
		if i%2 == 0 {
			w, want = down, http.StatusServiceUnavailable
		}
		s.opts.Views.Refresh("main", replicaView(w))
		if got, _ := ask(s, "GET", path); got != want {
			t.Errorf("turn %d: %d, want %d", i, got, want)
			break
		}
	}
	close(stop)
	wg.Wait()
}

// TestEnvoysPathIsNotKept: its answer is a matter of the Host header.
func TestEnvoysPathIsNotKept(t *testing.T) {
	w := replicaWorld()
	s := server(t, w.snapshot, w.facts, Options{})
	for _, host := range []string{"n1", "n2", "n1"} {
		r, answer := httptest.NewRequest(http.MethodGet, "/clusters/main/pools/primary/check", nil), httptest.NewRecorder()
		r.Host = host
		s.ServeHTTP(answer, r)
		if want := map[string]int{"n1": 503, "n2": 200}[host]; answer.Code != want {
			t.Errorf("host %s: %d, want %d", host, answer.Code, want)
		}
	}
}
