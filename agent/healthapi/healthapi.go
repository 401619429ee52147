// Package healthapi answers HTTP health checks: Patroni's paths for one local
// node and for every node of every cluster, and one path per node and pool.
//
//	/primary /replica /sync /health /readiness …        the local node, if there is one
//	/clusters/{cluster}/nodes/{node}/primary …          any node; …/{node}/ is its /
//	/clusters/{cluster}/cluster                         its members, as Patroni's /cluster;
//	                                                    history, config and failsafe alike
//	/clusters/{cluster}/pools/{pool}/nodes/{node}       the verdict of a pool
//	/clusters/{cluster}/pools/{pool}/check              the same for Envoy: the Host header
//	                                                    names the node, drain is 200
//
// docs/patroni-api.md is the contract: every path and parameter, and the one
// table of all differences from Patroni, which the tests read.
//
// Guarantees: every answer has a Content-Length and the reason in a header, in
// the body too where there is one. The name of a node or pool that nobody knows
// is 503, like down. While nothing is decided, Patroni's paths repeat the saved
// verdict and pool paths close the connection without an answer. Answers wait for
// nobody but the client: they are read from the newest view, and kept until the
// view, or the time, changes them.
//
// With Strict, every path answers GET, HEAD and OPTIONS with the same status; an
// unknown path is 404 and another method 405, never 503, so that a slip in a
// check's configuration does not look like a dead database. Nothing that is
// unknown counts as good, and where Patroni's own answers are unsafe these are
// stricter: /primary needs proof over SQL that the node takes writes, not the
// lock alone; a malformed lag= is 400 instead of no limit. With Patroni3 and
// Patroni4 the answers are Patroni's own, unsafe ones included.
package healthapi

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// NodeRef names a node.
type NodeRef struct {
	Cluster, Node string
}

// Compat says whose answers Patroni's paths give.
type Compat string

// The choices for Compat.
const (
	Strict   Compat = "strict"   // safe ones
	Patroni3 Compat = "patroni3" // those of Patroni 3.0
	Patroni4 Compat = "patroni4" // those of Patroni 4.1
)

// Options configures a Server.
type Options struct {
	// Views are the decisions, by cluster. Required.
	Views *latest.Map[string, topology.View]
	// Now reads the clocks. Required.
	Now topology.Ticker
	// Local is the node that the short paths speak of. Zero: short paths are 404.
	Local NodeRef
	// Compat says whose answers Patroni's paths give. Empty: Strict.
	Compat Compat
	// DrainStatus is a pool path's status for drain: 503, or 404 for HAProxy's
	// disable-on-404. Zero: 503.
	DrainStatus int
	// Saved returns the verdict of before the last restart, for Patroni's paths
	// while nothing is decided. Nil: none is known.
	Saved func(cluster, pool, node string) topology.Verdict
	// AnsweredWithin is how old the last SQL answer of a healthy node may be. Zero: 3 s.
	AnsweredWithin time.Duration
	// TLS makes Serve speak TLS, with HTTP/1.1 over it. Nil: without TLS.
	TLS *tls.Config
	// Version stands in bodies as patroni.version. Empty: "pgsteer".
	Version string
	// MaxConns is how many connections a listener may have open; those above are
	// closed. Zero: 4096.
	MaxConns int
	// HeaderTimeout bounds the reading of a request, Timeout the whole exchange,
	// IdleTimeout the time between two requests. Zero: 2 s, 5 s, 60 s.
	HeaderTimeout, Timeout, IdleTimeout time.Duration
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
}

// Settings are the options that can change while the server runs.
type Settings struct {
	Local       NodeRef // see Options
	Compat      Compat
	DrainStatus int
}

// Counters count since the start. They are read while the server runs.
type Counters struct {
	OK, Unavailable, Other atomic.Uint64 // answers by status: 200, 503, any other
	Unanswered             atomic.Uint64 // pool paths closed since nothing is decided
	Maintenance            atomic.Uint64 // refusals that an operator's word leads
	Rejected               atomic.Uint64 // connections closed because of MaxConns
	Handshakes             atomic.Uint64 // TLS handshakes that failed
}

// Server answers health checks. It is an http.Handler.
type Server struct {
	opts     Options
	settings atomic.Pointer[Settings]
	counters Counters
	memory   memory
}

// New returns a server. It fails when an option is missing or makes no sense.
func New(o Options) (*Server, error) {
	if o.Views == nil || o.Now == nil {
		return nil, errors.New("healthapi needs Views and Now")
	}
	o.MaxConns = cmp.Or(o.MaxConns, 4096)
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
	return s, s.Reconfigure(Settings{Local: o.Local, Compat: o.Compat, DrainStatus: o.DrainStatus})
}

// Reconfigure takes other settings, from the next request on. Settings that make
// no sense are refused, and those of before go on.
func (s *Server) Reconfigure(v Settings) error {
	v.Compat = cmp.Or(v.Compat, Strict)
	v.DrainStatus = cmp.Or(v.DrainStatus, http.StatusServiceUnavailable)
	if !slices.Contains([]Compat{Strict, Patroni3, Patroni4}, v.Compat) {
		return fmt.Errorf("healthapi: compat %q is none of %s, %s, %s", v.Compat, Strict, Patroni3, Patroni4)
	}
	if v.DrainStatus != http.StatusServiceUnavailable && v.DrainStatus != http.StatusNotFound {
		return fmt.Errorf("healthapi: status %d for drain is neither 503 nor 404", v.DrainStatus)
	}
	s.settings.Store(&v)
	return nil
}

// Counters returns the server's counters.
func (s *Server) Counters() *Counters { return &s.counters }
