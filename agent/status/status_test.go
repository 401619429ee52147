package status

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func get(s *Server, path string) (code int, body string) {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// TestStatusText compares what `pgsteer status` prints of the JSON answer.
func TestStatusText(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(worlds)) {
		_, body := get(worlds[name]().server(), "/api/v1/status")
		var r Report
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		WriteStatus(&b, r)
		golden(t, "status/"+name+".txt", b.String())
	}
}

// explained are the explanations that are held byte by byte.
var explained = []struct{ world, node string }{
	{"monitor", "n1"},
	{"monitor", "n3"},
	{"monitor-nobody", "n1"},
	{"monitor-nobody", "n3"},
	{"monitor-away", "n1"},
	{"monitor-away", "n3"},
	{"up", "n1"},
	{"up", "n2"},
	{"undecided", "n1"},
	{"drain", "n1"},
	{"drain", "n2"},
	{"drain", "n3"},
	{"lost", "n1"},
	{"stale", "n1"},
	{"roleless", "n1"},
	{"degraded", "n1"},
	{"degraded", "n2"},
	{"degraded", "n3"},
	{"stalled", "n1"},
	{"stalled", "n2"},
	{"stalled", "n3"},
	{"ports", "n2"},
	{"probe", "n1"},
	{"probe", "n2"},
	{"probe", "n3"},
	{"returning", "n2"},
	{"returning", "n3"},
}

func TestExplainText(t *testing.T) {
	for _, c := range explained {
		code, body := get(worlds[c.world]().server(), "/api/v1/explain/main/"+c.node)
		var e Explanation
		if err := json.Unmarshal([]byte(body), &e); code != http.StatusOK || err != nil {
			t.Fatalf("%d: %s", code, body)
		}
		golden(t, "explain/"+c.world+"-"+c.node+".txt", e.Text)
	}
}

func TestNoGoldenFileIsLeftOver(t *testing.T) {
	if *update {
		t.Skip("they are being written")
	}
	n := 0
	err := filepath.WalkDir("testdata", func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			n++
		}
		return err
	})
	if want := len(worlds) + len(explained) + len(scraped) + 2; err != nil || n != want {
		t.Errorf("testdata has %d files, %v; the tests read %d", n, err, want)
	}
}

// TestStatusJSON holds the names of the JSON answer, which others build upon.
func TestStatusJSON(t *testing.T) {
	keys := make(map[string]bool)
	for _, w := range worlds {
		_, body := get(w().server(), "/api/v1/status")
		var v any
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		collectKeys(keys, "", v)
	}
	golden(t, "status-keys.txt", strings.Join(slices.Sorted(maps.Keys(keys)), "\n")+"\n")
	_, body := get(worlds["drain"]().server(), "/api/v1/status")
	golden(t, "drain.json", body)
}

// collectKeys lists every path of a JSON value, names of things replaced by *.
func collectKeys(keys map[string]bool, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if strings.HasSuffix(path, ".listeners") || strings.HasSuffix(path, ".counters") || strings.HasSuffix(path, ".gauges") || strings.HasSuffix(path, ".tags") {
				k = "*"
			}
			collectKeys(keys, path+"."+k, e)
		}
	case []any:
		for _, e := range v {
			collectKeys(keys, path+"[]", e)
		}
	default:
		keys[fmt.Sprintf("%s %s", path, kindOf(v))] = true
	}
}

func kindOf(v any) string {
	switch v.(type) {
	case string:
		return "text"
	case float64:
		return "number"
	case bool:
		return "bool"
	}
	return "null"
}

func TestLiveAndReady(t *testing.T) {
	incomplete := func() *world {
		return newWorld(view("main", func(s *topology.Snapshot, _ *topology.Facts) { s.Complete = false }), view("two", nil))
	}
	early := func() *world {
		w := newWorld(view("main", nil))
		w.clusters = append(w.clusters, "later")
		return w
	}
	for _, c := range []struct {
		name          string
		w             *world
		path          string
		code          int
		status, cause string
	}{
		{"all is well", worlds["up"](), "/livez", 200, "alive", ""},
		{"all is well", worlds["up"](), "/readyz", 200, "ready", ""},
		{"databases silent, Consul lost", worlds["lost"](), "/livez", 200, "alive", ""},
		{"databases silent, Consul lost", worlds["lost"](), "/readyz", 200, "ready", ""},
		{"no source of nodes has delivered", incomplete(), "/livez", 200, "alive", ""},
		{"no source of nodes has delivered", incomplete(), "/readyz", 503, "not_ready", "no complete state yet of main"},
		{"nothing decided yet", early(), "/livez", 200, "alive", ""},
		{"nothing decided yet", early(), "/readyz", 503, "not_ready", "no complete state yet of later"},
		{"the state goroutine stands still", worlds["stale"](), "/livez", 503, "stuck", "no decision lately for main"},
		{"no cluster", newWorld(), "/readyz", 200, "ready", ""},
	} {
		code, body := get(c.w.server(), c.path)
		want := map[string]string{"status": c.status}
		if c.cause != "" {
			want["reason"] = c.cause
		}
		var got map[string]string
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" || code != c.code {
			t.Errorf("%s: %s answers %d, want %d (-want +got)\n%s", c.name, c.path, code, c.code, d)
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- worlds["up"]().server().Serve(ctx, l) }()
	idle, err := net.Dial("tcp", l.Addr().String()) // one that never asks must not delay the end
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = idle.Close() }()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Get("http://" + l.Addr().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the server goes on")
	}
}

func TestServeReportsALostListener(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	if err := worlds["up"]().server().Serve(t.Context(), l); err == nil || !strings.Contains(err.Error(), "status server on 127.0.0.1:") {
		t.Errorf("Serve says %v", err)
	}
}
