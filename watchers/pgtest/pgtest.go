// Package pgtest is a scripted PostgreSQL in memory, for tests with a fake
// clock: it hangs, refuses, starts up, runs out of slots, changes its role and
// ends sessions on command, and counts what a prober does to it.
//
// Guarantees: it does no I/O and reads the clock only for deadlines, so it runs
// inside a testing/synctest bubble. It speaks PostgreSQL's protocol as far as
// the prober of watchers/postgres does, and holds it to good manners: a
// connection that a kernel would reset is counted.
package pgtest

import (
	"cmp"
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// State is what a server does. The zero value is a healthy PostgreSQL 15 that
// says nothing of itself.
type State struct {
	// Probe is what the server says of itself; Node, Address and Kind are not used.
	Probe topology.Probe
	// Password is the one that a login needs; empty: none is asked for.
	Password string
	// Refuse makes a connection fail at once, with ECONNREFUSED.
	Refuse bool
	// Silent lets no connection be established: the dial hangs.
	Silent bool
	// HangLogin accepts connections and answers none of their messages before a
	// session stands. HangQuery answers no query, HangWrite no write.
	HangLogin, HangQuery, HangWrite bool
	// HalfOpen keeps a connection open whose client has left before it logged in.
	HalfOpen bool
	// LoginError refuses every login with this SQLSTATE, QueryError every full
	// probe, WriteError every write.
	LoginError, QueryError, WriteError string
	// Message is the text of every error; empty: "scripted failure".
	Message string
	// QueryErrors is how many probes QueryError refuses; zero: all of them.
	QueryErrors int
	// Mute never reports in_hot_standby, as servers before 14 and some proxies.
	Mute bool
}

// Counts is what was done to a server since it was made.
type Counts struct {
	Dials      int // connections asked for, refused ones too
	Logins     int // start-up messages
	Sessions   int // logins that succeeded
	Alive      int // requests for encryption, with which a client sees a server live
	Full, Role int // probes answered
	Writes     int // rows written
	Ones       int // SELECT 1 answered
	Terminated int // sessions that ended with Terminate
	Cancels    int // cancel requests: a prober should send none
	Resets     int // connections that a kernel would have reset: there should be none
}

// Server is a scripted PostgreSQL. Make it with New and end it with Close.
type Server struct {
	mu      sync.Mutex
	state   State
	counts  Counts
	changed chan struct{} // closed and replaced at every change of state
	closed  bool
	conns   map[*end]bool // server's ends; true once a session stands
	done    sync.WaitGroup
}

// New returns a server that begins in a state.
func New(s State) *Server {
	return &Server{state: s, changed: make(chan struct{}), conns: make(map[*end]bool)}
}

// Set changes what the server does from now on; what hangs looks again.
func (s *Server) Set(change func(*State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.state)
	s.wake()
}

func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Counts returns what was done to the server so far.
func (s *Server) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.counts
}

// Open returns how many connections are open.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Kill ends every session: with a FATAL of this SQLSTATE, or without a word when
// it is empty.
func (s *Server) Kill(sqlstate string) {
	s.mu.Lock()
	var sessions []*end
	for c, session := range s.conns {
		if session {
			sessions = append(sessions, c)
		}
	}
	s.mu.Unlock()
	for _, c := range sessions {
		if sqlstate != "" {
			b, err := s.fatal(sqlstate).Encode(nil)
			if err == nil {
				_, _ = c.Write(b) // whoever has left needs no word
			}
		}
		_ = c.Close()
	}
}

// Close ends every connection and waits until all is quiet.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.wake()
	open := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
	s.done.Wait()
}

// Lookup answers like a resolver that knows every name.
func (s *Server) Lookup(_ context.Context, host string) ([]string, error) { return []string{host}, nil }

// Dial connects to the server, whatever the address.
func (s *Server) Dial(ctx context.Context, network, _ string) (net.Conn, error) {
	s.count(func(c *Counts) { c.Dials++ })
	if !s.until(ctx.Done(), func(st State) bool { return !st.Silent }) {
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Refuse || s.closed {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	client, server := pipe(func() { s.count(func(c *Counts) { c.Resets++ }) })
	s.conns[server] = false
	s.done.Go(func() { s.serve(server) })
	return client, nil
}

func (s *Server) count(add func(*Counts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	add(&s.counts)
}

// now returns the state of this moment.
func (s *Server) now() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// until waits for a state. It returns false when stop or the server's end comes
// first.
func (s *Server) until(stop <-chan struct{}, ready func(State) bool) bool {
	for {
		s.mu.Lock()
		ok, closed, changed := ready(s.state), s.closed, s.changed
		s.mu.Unlock()
		if ok || closed {
			return ok && !closed
		}
		select {
		case <-stop:
			return false
		case <-changed:
		}
	}
}

// queryError returns the SQLSTATE that the next full probe gets; empty: none.
func (s *Server) queryError() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	sqlstate := s.state.QueryError
	if s.state.QueryErrors > 0 {
		if s.state.QueryErrors--; s.state.QueryErrors == 0 {
			s.state.QueryError = ""
		}
	}
	return sqlstate
}

func (s *Server) fatal(sqlstate string) *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{
		Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: sqlstate, Message: cmp.Or(s.now().Message, "scripted failure"),
	}
}

// refusal is an error that a session survives.
func (s *Server) refusal(sqlstate string) *pgproto3.ErrorResponse {
	e := s.fatal(sqlstate)
	e.Severity, e.SeverityUnlocalized = "ERROR", "ERROR"
	return e
}
