// Package status answers questions about the agent: /livez, /readyz, /metrics,
// the JSON report behind `pgsteer status` and `pgsteer explain`, and their text.
//
// Guarantees: /livez is 200 as long as every cluster's decisions turn, whatever
// the databases or Consul do. /readyz is 503 only while the agent is in maintenance
// and before the first complete state. Nothing here changes anything, but for what
// Options.Admin takes; every answer is made from the newest
// views at the moment of the question, so series of nodes that are gone are gone.
// A node that is known has all its series at every scrape, whatever its state:
// what is unknown is NaN, never zero and never absent.
package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Options configures a Server. All fields are required but Observations and Logger.
type Options struct {
	Views    *latest.Map[string, topology.View]
	Now      topology.Ticker
	Clusters func() []string              // every configured cluster
	Policy   func(string) topology.Policy // thresholds, for explanations
	Agent    func() Agent
	Sinks    func() []Sink
	// Observations streams what a cluster's rules are fed with, as
	// GET /api/v1/observations/{cluster}; nil: it is not served.
	Observations http.Handler
	// Envoys tells what is served to Envoys, stream by stream, as GET /debug/xds;
	// nil, and nil from it: there is no such server.
	Envoys func() any
	// Admin takes changes, below /admin/ and /api/v1/maintenance; nil: it is not served.
	Admin  http.Handler
	Logger *slog.Logger // nil: nothing is logged
}

// Server answers status requests. It is an http.Handler.
type Server struct {
	o   Options
	mux *http.ServeMux
}

// New returns a server with a metrics registry of its own.
func New(o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, mux: http.NewServeMux()}
	reg := prometheus.NewRegistry()
	reg.MustRegister(&collector{s: s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.mux.HandleFunc("GET /", unknownPath)
	s.mux.HandleFunc("GET /livez", s.livez)
	s.mux.HandleFunc("GET /readyz", s.readyz)
	s.mux.HandleFunc("GET /api/v1/status", s.status)
	s.mux.HandleFunc("GET /api/v1/explain/{cluster}/{node}", s.explain)
	s.mux.HandleFunc("GET /api/v1/explain/{node}", s.explain)
	s.mux.HandleFunc("GET /api/v1/check/{cluster}/{pool}/{node}", s.check)
	s.mux.HandleFunc("GET /api/v1/check/{backend}/{server}", s.checkBackend)
	if o.Observations != nil {
		s.mux.Handle("GET /api/v1/observations/{cluster}", o.Observations)
	}
	if o.Admin != nil {
		for _, pattern := range []string{"GET /admin/", "POST /admin/", "DELETE /admin/", "GET /api/v1/maintenance"} {
			s.mux.Handle(pattern, o.Admin)
		}
	}
	s.mux.HandleFunc("GET /debug/xds", s.envoys)
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// Serve answers requests on a listener until ctx ends. It closes the listener.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler: s, ReadHeaderTimeout: 2 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(s.o.Logger.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("status server on %s: %w", l.Addr(), err)
	}
	return nil
}

// livez: every cluster's decision turned lately.
func (s *Server) livez(w http.ResponseWriter, _ *http.Request) {
	now := s.o.Now()
	var stuck []string
	for _, c := range s.o.Clusters() {
		if v := s.o.Views.Get(c); v != nil && !v.Valid(now.Mono) {
			stuck = append(stuck, c)
		}
	}
	if len(stuck) > 0 {
		answer(w, http.StatusServiceUnavailable, map[string]string{
			"status": "stuck", "reason": "no decision lately for " + strings.Join(stuck, ", "),
		})
		return
	}
	answer(w, http.StatusOK, map[string]string{"status": "alive"})
}

// readyz: the agent is not in maintenance, which counts before anything else, and
// the first complete state of every cluster was seen.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if !s.o.Agent().EnteredAt.IsZero() {
		answer(w, http.StatusServiceUnavailable, map[string]string{"status": "not_ready", "reason": "maintenance mode active"})
		return
	}
	var missing []string
	for _, c := range s.o.Clusters() {
		if v := s.o.Views.Get(c); v == nil || v.Snapshot == nil || !v.Snapshot.Complete {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		answer(w, http.StatusServiceUnavailable, map[string]string{
			"status": "not_ready", "reason": "no complete state yet of " + strings.Join(missing, ", "),
		})
		return
	}
	answer(w, http.StatusOK, map[string]string{"status": "ready"})
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.report()) }

func (s *Server) envoys(w http.ResponseWriter, _ *http.Request) {
	if s.o.Envoys != nil {
		if v := s.o.Envoys(); v != nil {
			answer(w, http.StatusOK, v)
			return
		}
	}
	answer(w, http.StatusNotFound, map[string]string{"error": "this agent serves no Envoys: listen.xds is off"})
}

func (s *Server) explain(w http.ResponseWriter, r *http.Request) {
	now, node, cluster := s.o.Now(), r.PathValue("node"), r.PathValue("cluster")
	clusters, asked := []string{cluster}, cluster+"/"+node
	if cluster == "" {
		clusters, asked = slices.Sorted(slices.Values(s.o.Clusters())), node
	}
	var found []why
	for _, name := range clusters {
		v := s.o.Views.Get(name)
		if v == nil || v.Snapshot == nil {
			continue
		}
		if _, ok := v.Snapshot.Node(node); !ok {
			continue
		}
		c := clusterReport(name, v, now)
		for _, n := range c.Nodes {
			if n.Name == node {
				found = append(found, why{cluster: c, node: n, policy: s.o.Policy(name), now: now.Wall})
			}
		}
	}
	switch len(found) {
	case 0:
		answer(w, http.StatusNotFound, map[string]string{"error": s.unknownNode(asked)})
	case 1:
		answer(w, http.StatusOK, explanation(found[0]))
	default:
		answer(w, http.StatusConflict, map[string]string{"error": manyNodes(found)})
	}
}

func unknownPath(w http.ResponseWriter, r *http.Request) {
	answer(w, http.StatusNotFound, map[string]string{
		"error": fmt.Sprintf("there is no path %s; known are: /livez /readyz /metrics /api/v1/status /api/v1/explain/[CLUSTER/]NODE /api/v1/check/CLUSTER/POOL/NODE /api/v1/check/BACKEND/SERVER /api/v1/observations/CLUSTER /debug/xds /admin/maintenance[/CLUSTER[/NODE]] /admin/switchover/CLUSTER /admin/pgbouncer/PGBOUNCER/ACTION /api/v1/maintenance", r.URL.Path),
	})
}

func answer(w http.ResponseWriter, code int, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n'))
}
