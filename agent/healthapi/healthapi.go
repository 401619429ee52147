// Package healthapi answers HTTP health checks: Patroni's health paths for one
// local node and for every node of every cluster, and one path per node and pool.
//
//	/primary /replica /leader /read-only /health …      the local node, if there is one
//	/clusters/{cluster}/nodes/{node}/primary …          any node
//	/clusters/{cluster}/pools/{pool}/nodes/{node}       the verdict of a pool
//	/clusters/{cluster}/pools/{pool}/check              the same for Envoy: the Host header
//	                                                    names the node, drain is 200
//
// Guarantees: every path answers GET, HEAD and OPTIONS with the same status and a
// Content-Length; an unknown path is 404 and another method 405, never 503, so
// that a slip in a check's configuration does not look like a dead database. The
// name of a node or pool that nobody knows is 503, like down. Nothing that is
// unknown counts as good: an unknown lag exceeds every limit. While nothing is
// decided, Patroni's paths repeat the saved verdict and pool paths close the
// connection without an answer.
//
// Where Patroni's own answers are unsafe these are stricter: /primary needs proof
// over SQL that the node takes writes, not the lock alone; a malformed lag= is 400
// instead of no limit; /health and /replica come from SQL, not from Patroni.
package healthapi

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// NodeRef names a node.
type NodeRef struct {
	Cluster, Node string
}

// Options configures a Server.
type Options struct {
	// Views are the decisions, by cluster. Required.
	Views *latest.Map[string, topology.View]
	// Now reads the clocks. Required.
	Now topology.Ticker
	// Local is the node that the short paths speak of; SetLocal changes it later.
	// Zero: short paths are 404.
	Local NodeRef
	// DrainStatus is a pool path's status for drain: 503, or 404 for HAProxy's
	// disable-on-404. Zero: 503.
	DrainStatus int
	// Saved returns the verdict of before the last restart, for Patroni's paths
	// while nothing is decided. Nil: none is known.
	Saved func(cluster, pool, node string) topology.Verdict
	// AnsweredWithin is how old the last SQL answer of a healthy node may be. Zero: 3 s.
	AnsweredWithin time.Duration
	// Version stands in bodies as patroni.version. Empty: "pgsteer".
	Version string
	// MaxConns is how many connections may be open; those above are closed. Zero: 1024.
	MaxConns int
	// HeaderTimeout bounds the reading of a request, Timeout the whole exchange,
	// IdleTimeout the time between two requests. Zero: 2 s, 5 s, 60 s.
	HeaderTimeout, Timeout, IdleTimeout time.Duration
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
}

// Counters count since the start. They are read while the server runs.
type Counters struct {
	OK, Unavailable, Other atomic.Uint64 // answers by status: 200, 503, any other
	Unanswered             atomic.Uint64 // pool paths closed since nothing is decided
	Rejected               atomic.Uint64 // connections closed because of MaxConns
}

// Server answers health checks. It is an http.Handler.
type Server struct {
	opts     Options
	local    atomic.Pointer[NodeRef]
	counters Counters
}

// New returns a server. It fails when an option is missing or makes no sense.
func New(o Options) (*Server, error) {
	if o.Views == nil || o.Now == nil {
		return nil, errors.New("healthapi needs Views and Now")
	}
	if o.DrainStatus != 0 && o.DrainStatus != http.StatusServiceUnavailable && o.DrainStatus != http.StatusNotFound {
		return nil, fmt.Errorf("healthapi: status %d for drain is neither 503 nor 404", o.DrainStatus)
	}
	o.DrainStatus = cmp.Or(o.DrainStatus, http.StatusServiceUnavailable)
	o.MaxConns = cmp.Or(o.MaxConns, 1024)
	o.AnsweredWithin = cmp.Or(o.AnsweredWithin, 3*time.Second)
	o.HeaderTimeout = cmp.Or(o.HeaderTimeout, 2*time.Second)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, time.Minute)
	o.Version = cmp.Or(o.Version, "pgsteer")
	if o.Saved == nil {
		o.Saved = func(string, string, string) topology.Verdict { return topology.Undecided }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{opts: o}
	s.SetLocal(o.Local)
	return s, nil
}

// SetLocal changes the node that the short paths speak of, from the next request on.
func (s *Server) SetLocal(ref NodeRef) { s.local.Store(&ref) }

// Counters returns the server's counters.
func (s *Server) Counters() *Counters { return &s.counters }
