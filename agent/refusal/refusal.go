// Package refusal tells PostgreSQL clients why they cannot be served. Balancers
// send a session here when no node of a pool takes it; the client gets its
// server's kind of error, with an SQLSTATE, in place of a closed connection:
//
//	57P01  the pool is out for maintenance. libpq tries no other host.
//	57P03  no node of the pool takes sessions right now. libpq tries its next host.
//
// A listener belongs to one pool, since a session says nothing of where it comes
// from. Nothing that a client sends is evaluated but the kind of its first
// messages (PostgreSQL 17 manual, 53.2.1 and 53.7), and a connection never lives
// longer than Timeout.
package refusal

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/accept"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Options configures a Server.
type Options struct {
	// Cluster and Pool are whose clients come here. Required.
	Cluster, Pool string
	// Views are the decisions, by cluster. Required.
	Views *latest.Map[string, topology.View]
	// Now reads the clocks; a view that is no longer valid counts as undecided. Required.
	Now topology.Ticker
	// TLS is offered to clients that ask for it, and spoken with those that begin
	// with it. Nil: those that ask are told that there is none, and one that insists
	// gives up before it hears why it is refused.
	TLS *tls.Config
	// MaxConns is how many are refused at the same time; those above are closed
	// without a word. Zero: 1024.
	MaxConns int
	// Timeout bounds one refusal, from accept to close. Zero: 5 s.
	Timeout time.Duration
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
}

// Counters count since the start. They are read while the server runs.
type Counters struct {
	Maintenance atomic.Uint64 // sent 57P01
	Unavailable atomic.Uint64 // sent 57P03
	Cancels     atomic.Uint64 // requests to cancel a query, which get no answer by the protocol
	Unheard     atomic.Uint64 // clients that left, or said what is no PostgreSQL, before a word was sent
	Rejected    atomic.Uint64 // closed because of MaxConns
}

// Server refuses the clients of one pool.
type Server struct {
	o        Options
	counters Counters
	loop     accept.Loop
}

// New returns a server. It fails when a required option is missing.
func New(o Options) (*Server, error) {
	if o.Views == nil || o.Now == nil || o.Cluster == "" || o.Pool == "" {
		return nil, errors.New("refusal needs Cluster, Pool, Views and Now")
	}
	o.MaxConns = cmp.Or(o.MaxConns, 1024)
	o.Timeout = cmp.Or(o.Timeout, 5*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o}
	s.loop = accept.Loop{What: "refusal", Max: o.MaxConns, Rejected: &s.counters.Rejected, Logger: o.Logger}
	return s, nil
}

// Counters returns the server's counters.
func (s *Server) Counters() *Counters { return &s.counters }

// Serve refuses on ln until ctx ends, then closes ln, waits for the refusals that
// are under way (Timeout at most) and returns nil. It returns an error when ln
// cannot accept any more.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	return s.loop.Serve(ctx, ln, s.refuse)
}
