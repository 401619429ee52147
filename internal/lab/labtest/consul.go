package labtest

import (
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// ConsulCount is a way to a real Consul that counts what goes over it.
type ConsulCount struct {
	URL string

	mu       sync.Mutex
	open     int
	most     int
	requests map[string]int // by path, all keys as one
}

// CountConsul puts a counting proxy before a Consul until the test ends.
func CountConsul(tb testing.TB, server *lab.Consul) *ConsulCount {
	tb.Helper()
	g := &ConsulCount{requests: make(map[string]int)}
	transport := &http.Transport{MaxIdleConnsPerHost: 200}
	tb.Cleanup(transport.CloseIdleConnections)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: server.Addr()})
	proxy.Transport = transport
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // a dead Consul is the test
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.count(r)
		proxy.ServeHTTP(w, r)
	}))
	srv.Config.ConnState = g.connection
	srv.Start()
	tb.Cleanup(srv.Close)
	g.URL = srv.URL
	return g
}

func (g *ConsulCount) count(r *http.Request) {
	path := r.URL.Path
	switch {
	case r.URL.Query().Has("index"):
		path = "blocking"
	case strings.HasPrefix(path, "/v1/kv/"):
		path = "/v1/kv/"
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests[path]++
}

func (g *ConsulCount) connection(_ net.Conn, s http.ConnState) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch s { //nolint:exhaustive // only these change the number
	case http.StateNew:
		g.open++
		g.most = max(g.most, g.open)
	case http.StateClosed, http.StateHijacked:
		g.open--
	}
}

// Peak is how many connections were open at once at most since the call before.
func (g *ConsulCount) Peak() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	most := g.most
	g.most = g.open
	return most
}

// Counts tells how many requests there were by path: those on keys as one, and those that
// wait for a change as "blocking".
func (g *ConsulCount) Counts() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.requests)
}

// Requests is the number of all requests so far.
func (g *ConsulCount) Requests() (sum float64) {
	for _, n := range g.Counts() {
		sum += float64(n)
	}
	return sum
}
