// Package agentcheck answers HAProxy's agent checks: one TCP port says for every
// node of every pool whether HAProxy may send it sessions.
//
// A request is "<cluster> <pool> <node> <address>", with or without a line end, where
// the address is the one at which HAProxy has the server: at another one than the
// node's present address in that pool it is down, since a verdict is no evidence
// there. Without an address the node's name alone counts; "!guard" in place of the
// node asks for the guard of the pool. The answer is one line, at most 100 bytes with
// its line end, that holds exactly one health word:
//
//	up 100%              takes new sessions
//	up 50% #reason       takes fewer
//	up 0% #reason        keeps its sessions, takes no new ones (drain)
//	down #reason         takes none; HAProxy ends its sessions where it is told to
//
// Guarantees: what is undecided gets no answer at all, so that HAProxy leaves the
// server as it is. A request that comes in pieces is not judged by its first one.
// No line is ever sent without its end, since HAProxy ignores
// such a line and keeps an old state. No administrative word is sent unless
// AdminAlways asks for it: HAProxy keeps them past our own life, and they would
// undo an operator's. Every answer
// is read from a table that was made once per decision: answering takes no lock,
// asks no database and waits for nobody but the client.
package agentcheck

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/accept"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Guard stands in a request in place of the node. The guard server of a pool is
// up until the pool has an up node, so that HAProxy can refuse connections before
// the first word of pgsteer and while nobody serves.
const Guard = "!guard"

// Options configures a Server.
type Options struct {
	// Views are the decisions, by cluster. Required.
	Views *latest.Map[string, topology.View]
	// Now reads the clocks; a view that is no longer valid counts as undecided. Required.
	Now topology.Ticker
	// Clusters names every configured cluster, also those that have no view yet.
	// Nil: the clusters in Views.
	Clusters func() []string
	// AdminWords is what SetAdminWords begins with.
	AdminWords AdminWords
	// MaxConns is how many connections are served at the same time; those above
	// are closed unanswered. Zero: 1024.
	MaxConns int
	// ReadQuiet is how long a request without line end must pause to count as
	// whole when it names a server that is known: HAProxy's runtime API cannot put a
	// line end into agent-send. Zero: 30 ms.
	ReadQuiet time.Duration
	// ReadPatience is the same for a request that may have lost its end: it names
	// nobody, or it is also how a longer known name begins. It must end within
	// HAProxy's agent-inter. Zero: 300 ms.
	ReadPatience time.Duration
	// Timeout bounds one exchange, from accept to close. Zero: 1 s.
	Timeout time.Duration
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
}

// Counters count since the start. They are read while the server runs.
type Counters struct {
	Up, Drain, Down atomic.Uint64 // answers by verdict, guards included
	Maintenance     atomic.Uint64 // those of Drain and Down that an operator's word leads
	Silent          atomic.Uint64 // requests left unanswered since nothing is decided
	Unknown         atomic.Uint64 // requests for names nobody knows, or malformed; answered once that is certain
	Oversized       atomic.Uint64 // requests that were cut at 512 bytes; they count as unknown too
	Empty           atomic.Uint64 // connections that ended without a byte
	Rejected        atomic.Uint64 // connections closed because of MaxConns
	Failed          atomic.Uint64 // answers that could not be written
}

// Server answers agent checks. One server may serve several listeners.
type Server struct {
	opts     Options
	counters Counters
	loop     accept.Loop
	buffers  sync.Pool // *[maxRequest]byte
	logged   atomic.Int64
	admin    atomic.Bool

	cells atomic.Pointer[map[string]*cell] // copied on a change of keys
	mu    sync.Mutex                       // guards the change of keys
}

// New returns a server. It fails when a required option is missing.
func New(o Options) (*Server, error) {
	if o.Views == nil || o.Now == nil {
		return nil, errors.New("agentcheck needs Views and Now")
	}
	if o.MaxConns < 0 || min(o.ReadQuiet, o.ReadPatience, o.Timeout) < 0 {
		return nil, fmt.Errorf("agentcheck: negative option: max conns %d, quiet %s, patience %s, timeout %s",
			o.MaxConns, o.ReadQuiet, o.ReadPatience, o.Timeout)
	}
	if o.Clusters == nil {
		o.Clusters = o.Views.Keys
	}
	o.MaxConns = cmp.Or(o.MaxConns, 1024)
	o.ReadQuiet = cmp.Or(o.ReadQuiet, 30*time.Millisecond)
	o.ReadPatience = cmp.Or(o.ReadPatience, 300*time.Millisecond)
	o.Timeout = cmp.Or(o.Timeout, time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{opts: o}
	s.loop = accept.Loop{What: "agentcheck", Max: o.MaxConns, Rejected: &s.counters.Rejected, Logger: o.Logger}
	s.buffers.New = func() any { return new([maxRequest]byte) }
	s.cells.Store(&map[string]*cell{})
	s.SetAdminWords(o.AdminWords)
	return s, nil
}

// SetAdminWords changes the words from the next answer on.
func (s *Server) SetAdminWords(a AdminWords) { s.admin.Store(bool(a)) }

func (s *Server) adminWords() AdminWords { return AdminWords(s.admin.Load()) }

// Counters returns the server's counters.
func (s *Server) Counters() *Counters { return &s.counters }
