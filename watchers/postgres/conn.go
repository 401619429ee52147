package postgres

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// lingerFor is how long a connection that was given up is read on, so that a
	// late answer meets an open socket and not a reset.
	lingerFor = 15 * time.Second
	// partFor bounds the clean end of the sessions when a prober stops.
	partFor = time.Second
	// lingerMost is how many unanswered connections a node may have before further
	// attempts slow down to one in crowdedAgain. A frozen postmaster keeps each of
	// them in its backlog, and more of them prove little. None is closed earlier to
	// make room: its late answer would meet a reset.
	lingerMost = 4
)

// conns is the set of a door's open sockets.
type conns struct {
	heard func() // called when a connection that was given up hears something
	done  sync.WaitGroup

	mu     sync.Mutex
	open   map[*conn]struct{}
	parted bool // no socket joins any more
}

func newConns(heard func()) *conns {
	return &conns{heard: heard, open: make(map[*conn]struct{})}
}

// add takes a fresh socket into the set, nil when the set has parted: a driver may
// still dial after a login that failed.
func (s *conns) add(c net.Conn) *conn {
	k := &conn{Conn: c, set: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.parted {
		return nil
	}
	s.done.Add(1)
	s.open[k] = struct{}{}
	return k
}

// unanswered counts the connections that were given up and still hear nothing.
func (s *conns) unanswered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for c := range s.open {
		if c.doubt {
			n++
		}
	}
	return n
}

// count returns how many sockets are open.
func (s *conns) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.open)
}

// part waits until the servers have closed what we have ended, at most partFor,
// and then closes every socket.
func (s *conns) part() {
	s.mu.Lock()
	s.parted = true
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.done.Wait(); close(done) }()
	s.closeAll(true)
	t := time.NewTimer(partFor)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		s.closeAll(false)
		<-done
	}
}

func (s *conns) closeAll(onlyInDoubt bool) {
	s.mu.Lock()
	var end []*conn
	for c := range s.open {
		if c.doubt || !onlyInDoubt {
			end = append(end, c)
		}
	}
	s.mu.Unlock()
	for _, c := range end {
		c.drop()
	}
}

// conn is a socket that never resets. Close sends FIN, reads on until the server
// closes too, and only then lets go of the socket: closing one with unread bytes
// makes the kernel send a reset, which PostgreSQL logs (field report P2).
type conn struct {
	net.Conn
	set     *conns
	closing sync.Once
	dropped sync.Once
	doubt   bool // guarded by set.mu: given up while an answer was due
	ended   bool // guarded by set.mu: the server has closed, or the link is broken

	first    [1]byte // read while idle: enough to know that there is more
	ahead    []byte  // what of first is unread; belongs to whoever reads
	aheadErr error
}

// giveUp marks the connection as one whose answer did not come in time.
func (c *conn) giveUp() {
	c.set.mu.Lock()
	defer c.set.mu.Unlock()
	c.doubt = !c.ended
}

// idle watches the connection while no answer is due: a server that ends a
// session says so at once, not when it is asked next. What comes in is kept for
// the next Read, and stirred is called. No Read may run until stop has returned.
func (c *conn) idle(stirred func()) (stop func()) {
	if c.stirred() {
		stirred()
		return func() {}
	}
	_ = c.SetReadDeadline(time.Time{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c.listen(); c.stirred() {
			stirred()
		}
	}()
	return func() {
		_ = c.SetReadDeadline(time.Unix(1, 0)) // ends the Read; a closed socket has ended it already
		<-done
	}
}

// next reads what came in while idle, then from the socket.
func (c *conn) next(b []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(b, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	if err := c.aheadErr; err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.next(b)
	gone := err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	if n == 0 && !gone {
		return n, err
	}
	c.set.mu.Lock()
	late := c.doubt
	c.doubt = false
	c.ended = c.ended || gone
	c.set.mu.Unlock()
	if late {
		c.set.heard()
	}
	return n, err
}

// Close ends the connection and returns at once.
func (c *conn) Close() error {
	c.closing.Do(func() {
		c.set.mu.Lock()
		ended := c.ended
		c.set.mu.Unlock()
		if ended || !halfClose(c.Conn) {
			c.drop()
			return
		}
		// A deadline for the kernel, no rule: it is never compared with evidence.
		_ = c.SetDeadline(time.Now().Add(lingerFor))
		go c.linger()
	})
	return nil
}

// linger reads what still comes, and then lets go of the socket.
func (c *conn) linger() {
	b := make([]byte, 128)
	for {
		if _, err := c.Read(b); err != nil {
			break
		}
	}
	c.drop()
}

// drop lets go of the socket.
func (c *conn) drop() {
	c.dropped.Do(func() {
		_ = c.Conn.Close()
		c.set.mu.Lock()
		delete(c.set.open, c)
		c.set.mu.Unlock()
		c.set.done.Done()
	})
}

// halfClose sends FIN and reports whether reading on makes sense.
func halfClose(c net.Conn) bool {
	h, ok := c.(interface{ CloseWrite() error })
	return ok && h.CloseWrite() == nil
}
