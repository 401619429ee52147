package pgtest

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// end is one end of a connection in memory. Unlike net.Pipe it buffers what is
// written, can be closed for writing alone, and tells a reset from an end, as
// TCP does.
type end struct {
	in, out *stream
	onReset func()
}

// pipe returns the two ends of a connection. onReset is called when the client
// closes in a way for which a kernel would send a reset: bytes of the server
// are unread, or arrive afterwards.
func pipe(onReset func()) (client, server *end) {
	up, down := newStream(), newStream()
	client = &end{in: down, out: up, onReset: onReset}
	server = &end{in: up, out: down, onReset: func() {}}
	return client, server
}

func (e *end) Read(b []byte) (int, error)  { return e.in.read(b) }
func (e *end) Write(b []byte) (int, error) { return e.out.write(b) }

// CloseWrite sends the end of the stream.
func (e *end) CloseWrite() error { e.out.finish(); return nil }

func (e *end) Close() error {
	e.out.finish()
	if e.in.abandon(e.onReset) {
		e.onReset()
	}
	return nil
}

func (e *end) LocalAddr() net.Addr  { return address{} }
func (e *end) RemoteAddr() net.Addr { return address{} }

func (e *end) SetDeadline(t time.Time) error     { return e.SetReadDeadline(t) }
func (e *end) SetWriteDeadline(time.Time) error  { return nil }
func (e *end) SetReadDeadline(t time.Time) error { e.in.setDeadline(t); return nil }

type address struct{}

func (address) Network() string { return "memory" }
func (address) String() string  { return "memory" }

// stream is one direction of a connection.
type stream struct {
	mu       sync.Mutex
	buf      []byte
	finished bool   // the writer has sent its end
	gone     bool   // the reader has closed
	onLate   func() // called for bytes that arrive when the reader has closed
	deadline time.Time
	changed  chan struct{} // closed and replaced at every change
}

func newStream() *stream { return &stream{changed: make(chan struct{})} }

// change wakes the reader; the caller holds mu.
func (s *stream) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stream) write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.finished {
		return 0, net.ErrClosed
	}
	if s.gone {
		// As with TCP, the first write finds out that nobody reads, the next one fails.
		if late := s.onLate; late != nil {
			s.onLate = nil
			late()
			return len(b), nil
		}
		return 0, &net.OpError{Op: "write", Net: "memory", Err: syscall.EPIPE}
	}
	s.buf = append(s.buf, b...)
	s.change()
	return len(b), nil
}

func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finished = true
	s.change()
}

// abandon ends the reader's interest and reports whether it left bytes unread.
func (s *stream) abandon(onLate func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return false
	}
	s.gone, s.onLate = true, onLate
	s.change()
	return len(s.buf) > 0
}

func (s *stream) setDeadline(t time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = t
	s.change()
}

func (s *stream) read(b []byte) (int, error) {
	for {
		n, wait, changed, err := s.poll(b)
		if n > 0 || err != nil {
			return n, err
		}
		if wait == 0 {
			<-changed
			continue
		}
		t := time.NewTimer(wait)
		select {
		case <-changed:
		case <-t.C:
		}
		t.Stop()
	}
}

// poll reads what is there. Without bytes it says how long to wait (zero: for
// ever) and what to wait for.
func (s *stream) poll(b []byte) (n int, wait time.Duration, changed <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.gone:
		return 0, 0, nil, net.ErrClosed
	case !s.deadline.IsZero() && time.Until(s.deadline) <= 0:
		return 0, 0, nil, os.ErrDeadlineExceeded
	case len(s.buf) > 0:
		n = copy(b, s.buf)
		s.buf = s.buf[n:]
		return n, 0, nil, nil
	case s.finished:
		return 0, 0, nil, io.EOF
	case !s.deadline.IsZero():
		wait = time.Until(s.deadline)
	}
	return 0, wait, s.changed, nil
}
