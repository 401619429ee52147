// Package admin lets operators take things out and put them back over HTTP.
//
// Guarantees: without an admin token in a file nobody can change anything. Every
// change, and every one that was refused, is one line in the log: who, from where,
// what, and why it was refused; never a token. Of changes that a host asks too often
// for the first one is, until it is heard again. What would take out the primary or empty a pool is refused without force,
// and the refusal says what force would do. A repeated call is no error.
package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/agent/drain"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Options configures a Server. All but Drains and Logger are required.
type Options struct {
	Book *maintenance.Book
	// Drains are those of this agent; nil: it ends no sessions.
	Drains   *drain.Runner
	Views    *latest.Map[string, topology.View]
	Now      topology.Ticker
	Clusters func() []string
	Policy   func(cluster string) topology.Policy
	// Shared is the key of the records that all agents obey, "" while they are this
	// agent's own; nil: they always are.
	Shared func() string
	// Tokens are those of now; they may change at any time.
	Tokens func() Tokens
	Logger *slog.Logger // nil: nothing is logged
}

// The bounds of what one caller may ask, of what one request may carry, and how
// long a change may wait for the store.
const (
	perSecond  = 10
	burst      = 20
	maxCallers = 1024
	maxBody    = 16 << 10
	storeWait  = 3 * time.Second
	// prepareWait bounds the look at a node whose sessions are to be ended.
	prepareWait = 3 * time.Second
)

// Server is an http.Handler for the paths below /admin/ and /api/v1/maintenance.
type Server struct {
	o   Options
	mux *http.ServeMux

	mu      sync.Mutex // guards everything below
	callers map[string]*frequency
}

// frequency is how often a host asks.
type frequency struct {
	rate.Limiter
	told bool // that it asks for changes too often is in the log
}

// New returns a server.
func New(o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, mux: http.NewServeMux(), callers: make(map[string]*frequency)}
	for _, path := range []string{"/admin/maintenance", "/admin/maintenance/{cluster}", "/admin/maintenance/{cluster}/{node}"} {
		s.mux.Handle("GET "+path, s.guarded(viewer, ofMaintenance, s.show))
		s.mux.Handle("POST "+path, s.guarded(admin, ofMaintenance, s.enter))
		s.mux.Handle("DELETE "+path, s.guarded(admin, ofMaintenance, s.leave))
	}
	s.mux.Handle("GET /api/v1/maintenance", s.guarded(viewer, ofMaintenance, s.list))
	return s
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// call is a request of a caller who may make it.
type call struct {
	*http.Request
	caller caller
	from   string
}

func (c call) who() Caller { return Caller{c.caller.by, c.caller.name, c.from} }

// subject is what calls are about, for the log: the message of its line, and the target.
type subject struct {
	message string
	target  func(*http.Request) string
}

var ofMaintenance = subject{"maintenance", func(r *http.Request) string { return target(r).String() }}

// guarded lets those through who have a role, and no more often than they may.
func (s *Server) guarded(needs role, about subject, serve func(http.ResponseWriter, call)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from := origin(r)
		admitted, news := s.admit(from, needs)
		if !admitted {
			why := "too many requests from " + from + "; ask again in a second"
			w.Header().Set("Retry-After", "1")
			fail(w, http.StatusTooManyRequests, why)
			if news {
				s.write(call{r, s.o.Tokens().who(r, s.o.Now().Wall), from}, about.message, "refused: too many requests", about.target(r), "why", why)
			}
			return
		}
		tokens := s.o.Tokens()
		c := call{r, tokens.who(r, s.o.Now().Wall), from}
		code := http.StatusForbidden
		var why string
		switch {
		case c.caller.role >= needs:
			serve(w, c)
			return
		case needs == admin && tokens.closed():
			why = "this agent takes no changes: maintenance.admin_token_file is not set"
		case c.caller.role == nobody:
			w.Header().Set("WWW-Authenticate", "Bearer")
			code, why = http.StatusUnauthorized, "a valid token is needed (Authorization: Bearer …)"
		default:
			why = "this " + c.caller.by + " may look and change nothing: an admin's is needed"
		}
		fail(w, code, why)
		if needs == admin {
			s.write(c, about.message, "refused: no right", about.target(r), "why", why)
		}
	})
}

// origin is the host that asks; callers on this host's socket are one.
func origin(r *http.Request) string {
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return "socket"
}

// admit reports whether a host may ask now. news: that it may not is the first refusal of
// a change since it was admitted, so that who asks all the time does not fill the log.
func (s *Server) admit(from string, needs role) (admitted, news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.callers[from]
	if f == nil {
		if len(s.callers) >= maxCallers {
			clear(s.callers) // somebody has very many addresses; memory stays bounded
		}
		f = &frequency{Limiter: *rate.NewLimiter(perSecond, burst)}
		s.callers[from] = f
	}
	if f.AllowN(s.o.Now().Wall, 1) {
		f.told = false
		return true, false
	}
	news = needs == admin && !f.told
	f.told = f.told || news
	return false, news
}

// audit writes the one line of a change.
func (s *Server) audit(c call, what string, t maintenance.Target, more ...any) {
	s.write(c, ofMaintenance.message, what, t.String(), more...)
}

// refuse answers a change that is not made, and writes the line of it.
func (s *Server) refuse(w http.ResponseWriter, c call, code int, why string) {
	s.audit(c, "refused", target(c.Request), "why", shortened(why))
	fail(w, code, why)
}

// maxWhy bounds, in bytes, what a caller may have repeated in a line of the log.
const maxWhy = 500

func shortened(text string) string {
	if len(text) <= maxWhy {
		return text
	}
	return strings.ToValidUTF8(text[:maxWhy], "") + "…"
}

// write writes a line of the log for those who audit.
func (s *Server) write(c call, message, what, target string, more ...any) {
	level := slog.LevelInfo
	if c.caller.role < admin {
		level = slog.LevelWarn
	}
	line := append([]any{"audit", what, "target", target}, c.who().Audit()...)
	s.o.Logger.Log(context.WithoutCancel(c.Context()), level, message, append(line, more...)...) //nolint:sloglint // a constant of each subject
}

func target(r *http.Request) maintenance.Target {
	return maintenance.Target{Cluster: r.PathValue("cluster"), Node: r.PathValue("node"), Pool: r.URL.Query().Get("pool")}
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // a client that went away is no news
}

func fail(w http.ResponseWriter, code int, text string) {
	answer(w, code, map[string]string{"error": text})
}
