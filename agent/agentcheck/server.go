package agentcheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
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
	return s.serve(ctx, ln, s.converse)
}

// ServeBound is Serve for a port that answers for one key whatever is asked,
// also when nothing is: for proxies whose agent checks send no request. The key is
// asked for at each connection.
func (s *Server) ServeBound(ctx context.Context, ln net.Listener, key func() Key) error {
	return s.serve(ctx, ln, func(c net.Conn) {
		k := key()
		s.tell(c, []byte(k.Cluster+" "+k.Pool+" "+k.Node))
	})
}

func (s *Server) serve(ctx context.Context, ln net.Listener, converse func(net.Conn)) error {
	var open sync.WaitGroup
	defer open.Wait()
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	for pause := time.Duration(0); ; {
		c, err := ln.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				c.Close()
			}
			return nil
		case err == nil:
			pause = 0
			s.admit(&open, c, converse)
		case passing(err):
			pause = s.pause(ctx, ln, pause, err)
		default:
			return fmt.Errorf("agentcheck: accept on %s: %w", ln.Addr(), err)
		}
	}
}

// admit serves a connection in a goroutine of its own, unless there are too many.
func (s *Server) admit(open *sync.WaitGroup, c net.Conn, converse func(net.Conn)) {
	if s.conns.Add(1) > int64(s.opts.MaxConns) {
		s.conns.Add(-1)
		s.counters.Rejected.Add(1)
		c.Close()
		return
	}
	open.Go(func() {
		converse(c)
		c.Close()
		s.conns.Add(-1)
	})
}

// passing reports accept errors that go away: no descriptors, no memory, a client
// that left before it was accepted.
func passing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// pause waits after a passing error, twice as long as the last time, and warns
// of the first.
func (s *Server) pause(ctx context.Context, ln net.Listener, last time.Duration, err error) time.Duration {
	if last == 0 {
		s.opts.Logger.Warn("agent checks cannot be accepted for the moment, trying again", "listener", ln.Addr().String(), "err", err)
	}
	next := min(max(2*last, 5*time.Millisecond), time.Second)
	t := time.NewTimer(next)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
	return next
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
		linger(c)
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
		linger(c)
	}
}

// maxLinger bounds what is read of a client that does not stop sending.
const maxLinger = 64 << 10

// linger reads what the client still sends, until it has seen the answer or the
// connection's deadline is over: a socket that is closed with unread bytes resets
// the connection, and the answer could be lost with it.
func linger(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok && h.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, maxLinger)
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
