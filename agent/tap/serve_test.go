package tap

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// server serves the tap of a cluster main, with the deadlines of the status listener.
func server(t *testing.T, tap *Tap, o Options) string {
	t.Helper()
	source := Source{Tap: tap, Cluster: config.DefaultCluster("main"), Secrets: func() []string { return []string{"correct-horse"} }}
	o.Find = func(name string) (Source, bool) { return source, name == "main" }
	o.Clusters = func() []string { return []string{"main"} }
	o.Now = func() topology.Clock { return topology.Clock{Mono: 7} }
	mux := http.NewServeMux()
	mux.Handle("GET "+Path+"{cluster}", NewHandler(o))
	s := httptest.NewUnstartedServer(mux)
	s.Config.ReadTimeout, s.Config.WriteTimeout = 50*time.Millisecond, 50*time.Millisecond
	s.Start()
	t.Cleanup(s.Close)
	return s.URL + Path
}

// lines reads a stream.
type lines struct {
	t    *testing.T
	code int
	from *bufio.Reader
}

func open(t *testing.T, url string) *lines {
	t.Helper()
	ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), forever)
	t.Cleanup(stop)
	return openWith(ctx, t, url)
}

func openWith(ctx context.Context, t *testing.T, url string) *lines {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return &lines{t, res.StatusCode, bufio.NewReader(res.Body)}
}

func (l *lines) next() Line {
	l.t.Helper()
	text, err := l.from.ReadBytes('\n')
	if err != nil {
		l.t.Fatalf("%v after %q", err, text)
	}
	var out Line
	if err := json.Unmarshal(text, &out); err != nil {
		l.t.Fatalf("%v: %s", err, text)
	}
	return out
}

func TestStream(t *testing.T) {
	var tap Tap
	first, second := snapshot("n1"), snapshot("n1")
	tap.seq(1)
	tap.Decided(Decided{At: topology.Clock{Mono: 5}, Snapshot: first, Saved: topology.Saved{Writer: "n1"}})
	l := open(t, server(t, &tap, Options{Version: "v1"})+"main")
	if b := l.next(); b.Kind != KindBegin || b.Begin.Version != "v1" || b.Begin.At.Mono != 7 || b.Begin.Saved.Writer != "n1" {
		t.Errorf("it begins with %+v", b)
	}
	if o := l.next(); o.Kind != KindObservation || o.Observation.Seq != 1 {
		t.Errorf("then comes %+v", o)
	}
	if d := l.next(); d.Kind != KindDecision || d.Decision.At.Mono != 7 || d.Decision.Snapshot == nil {
		t.Errorf("then comes %+v", d)
	}
	o := failure("n1", topology.ProbeFull, topology.FailAuth)
	o.Failure.Text = "no login with correct-horse"
	tap.Folded(o)
	if o := l.next(); o.Kind != KindObservation || o.Observation.Failure.Text != "no login with ****" {
		t.Errorf("then comes %+v", o.Observation.Failure)
	}
	for _, d := range []struct {
		snapshot *topology.Snapshot
		told     bool
	}{{first, false}, {second, true}, {second, false}} {
		tap.Decided(Decided{At: topology.Clock{Mono: 8}, Snapshot: d.snapshot})
		if got := l.next(); got.Kind != KindDecision || got.Decision.At.Mono != 8 || (got.Decision.Snapshot != nil) != d.told {
			t.Errorf("a decision is told as %+v", got.Decision)
		}
	}
	tap.Cut("other rules")
	if e := l.next(); e.Kind != KindEnd || e.End != "other rules" {
		t.Errorf("it ends with %+v", e)
	}
	if _, err := l.from.ReadByte(); err == nil {
		t.Error("something follows the end")
	}
}

// A stream outlives what the server allows other answers.
func TestAStreamLasts(t *testing.T) {
	var tap Tap
	l := open(t, server(t, &tap, Options{})+"main")
	l.next()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for begin, n := time.Now(), uint64(1); time.Since(begin) < 300*time.Millisecond; n++ {
		<-tick.C
		tap.seq(n)
		if got := l.next(); got.Observation.Seq != n {
			t.Fatalf("got %+v, want number %d", got, n)
		}
	}
}

// What a slow reader lost is told also when the stream ends before it has caught up.
func TestAStreamThatLostSomething(t *testing.T) {
	var tap Tap
	l := open(t, server(t, &tap, Options{Buffer: 2})+"main")
	l.next()
	tap.mu.Lock() // so that nothing is read between
	for r := range tap.readers {
		r.lost = 3
		r.end("over")
	}
	clear(tap.readers)
	tap.mu.Unlock()
	if got := l.next(); got.Kind != KindLost || got.Lost != 3 {
		t.Errorf("got %+v", got)
	}
	if got := l.next(); got.Kind != KindEnd || got.End != "over" {
		t.Errorf("got %+v", got)
	}
}

// What has no JSON form counts as lost, and the stream goes on.
func TestAnOddObservation(t *testing.T) {
	var tap Tap
	l := open(t, server(t, &tap, Options{})+"main")
	l.next()
	o := probe("n1", topology.ProbeFull)
	o.Probe.ReplayedAt = time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)
	tap.Folded(o)
	tap.seq(9)
	if got := l.next(); got.Kind != KindLost || got.Lost != 1 {
		t.Errorf("got %+v", got)
	}
	if got := l.next(); got.Kind != KindObservation || got.Observation.Seq != 9 {
		t.Errorf("got %+v", got)
	}
}

func TestWhoIsRefused(t *testing.T) {
	var tap Tap
	url := server(t, &tap, Options{})
	l := open(t, url+"nope")
	if text, _ := l.from.ReadString('\n'); l.code != http.StatusNotFound || !strings.Contains(text, `"there is no cluster nope; known are: main"`) {
		t.Errorf("%d %s", l.code, text)
	}
	for range maxReaders {
		open(t, url+"main").next()
	}
	l = open(t, url+"main")
	if text, _ := l.from.ReadString('\n'); l.code != http.StatusServiceUnavailable || !strings.Contains(text, `"4 are recording already`) {
		t.Errorf("%d %s", l.code, text)
	}
	// Whoever was refused takes no place, and an end frees one.
	tap.Close("over")
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(forever); open(t, url+"main").code != http.StatusOK; <-tick.C {
		if time.Now().After(end) {
			t.Fatal("no place is free again")
		}
	}
}

// A reader that goes away leaves nothing behind.
func TestAReaderLeaves(t *testing.T) {
	var tap Tap
	url := server(t, &tap, Options{})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	openWith(ctx, t, url+"main").next()
	leave()
	readers := func() int {
		tap.mu.Lock()
		defer tap.mu.Unlock()
		return len(tap.readers)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(forever); readers() > 0; <-tick.C {
		if time.Now().After(end) {
			t.Fatal("the reader is still known")
		}
	}
}

func TestRefusalIsJSON(t *testing.T) {
	w := httptest.NewRecorder()
	refuse(w, http.StatusNotFound, "no\nsuch \"thing\"")
	var got map[string]string
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]string{"error": "no\nsuch \"thing\""}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}
