package agentcheck

import (
	"bytes"
	"context"
	"net"
	"time"

	"github.com/pgsteer/pgsteer/agent/accept"
)

// maxRequest is the longest request: three names of 63 characters fit well.
const maxRequest = 512

// Key is what a bound listener answers for.
type Key struct {
	Cluster, Pool, Node string // Node may be Guard
}

// ListenConfig opens listeners for Serve. A connection lives for a second at most,
// so what it takes to set up keepalives would be spent for nothing.
func ListenConfig() *net.ListenConfig { return &net.ListenConfig{KeepAlive: -1} }

// Serve answers on ln until ctx ends, then closes ln, waits for the connections
// that are open (Timeout at most) and returns nil. It returns an error when ln
// cannot accept any more.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	return s.loop.Serve(ctx, ln, s.converse)
}

// ServeBound is Serve for a port that answers for one key whatever is asked,
// also when nothing is: for proxies whose agent checks send no request. The key is
// asked for at each connection.
func (s *Server) ServeBound(ctx context.Context, ln net.Listener, key func() Key) error {
	return s.loop.Serve(ctx, ln, func(c net.Conn) {
		k := key()
		s.tell(c, []byte(k.Cluster+" "+k.Pool+" "+k.Node))
	})
}

// converse reads one request and answers it.
func (s *Server) converse(c net.Conn) {
	// Deadlines of sockets are moments of the wall clock by their API; no verdict
	// depends on them.
	end := time.Now().Add(s.opts.Timeout)
	c.SetDeadline(end)
	buf := s.buffers.Get().(*[maxRequest]byte)
	defer s.buffers.Put(buf)
	request := s.read(c, buf[:], end)
	if request == nil {
		s.counters.Empty.Add(1)
		return
	}
	over := len(request) == len(buf)
	if over {
		s.counters.Oversized.Add(1)
	}
	if s.write(c, s.Answer(request)) && over {
		accept.Linger(c)
	}
}

// read returns a request without its line end: what stands before the first '\n',
// or all that came before a pause, the end of the stream or the full buffer. It
// returns nil when not one byte came. Such a client gets no answer: its request
// may be lost on the way, and "down" would then cut a healthy server's sessions.
func (s *Server) read(c net.Conn, buf []byte, end time.Time) []byte {
	n, patient := 0, false
	for n < len(buf) {
		k, err := c.Read(buf[n:])
		if i := bytes.IndexByte(buf[n:n+k], '\n'); i >= 0 {
			return buf[:n+i]
		}
		n += k
		switch {
		case err != nil && n == 0:
			return nil
		case err == nil:
			patient = false
			c.SetReadDeadline(earlier(end, time.Now().Add(s.opts.ReadQuiet)))
		case patient || s.whole(buf[:n]):
			return buf[:n]
		default: // the rest may still be on its way; the end of a stream is read again at once
			patient = true
			c.SetReadDeadline(earlier(end, time.Now().Add(s.opts.ReadPatience-s.opts.ReadQuiet)))
		}
	}
	return buf[:n]
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// tell answers without waiting for a request.
func (s *Server) tell(c net.Conn, request []byte) {
	c.SetDeadline(time.Now().Add(s.opts.Timeout))
	if s.write(c, s.Answer(request)) {
		accept.Linger(c)
	}
}

// write sends a line whole and reports whether it did.
func (s *Server) write(c net.Conn, l []byte) bool {
	if l == nil {
		return false
	}
	if _, err := c.Write(l); err != nil {
		s.counters.Failed.Add(1)
		return false
	}
	return true
}
