package postgres

import (
	"errors"
	"os"
	"sync"
	"time"
)

// bell lets one goroutine sleep, and anybody wake it. The sleeper waits for bytes
// of a socket at the same time: in the Read itself, since a second goroutine for
// each of thousands of nodes would cost more than all that is known of them. Make
// it with newBell.
type bell struct {
	rang chan struct{} // one slot, for a sleeper without a socket

	mu    sync.Mutex // guards what follows
	in    *conn      // the sleeper reads from it; nil: from none
	asked bool       // a question is wanted now
	plan  bool       // what was planned has changed
}

func newBell() *bell { return &bell{rang: make(chan struct{}, 1)} }

// ask wants a question to be put now, replan another look at what is due when.
// Neither blocks; both may be called by anybody.
func (b *bell) ask()    { b.ring(&b.asked) }
func (b *bell) replan() { b.ring(&b.plan) }

// wake ends the sleep for a reason that the sleeper finds itself.
func (b *bell) wake() { b.ring(new(bool)) }

func (b *bell) ring(why *bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	*why = true
	if b.in != nil {
		_ = b.in.SetReadDeadline(time.Unix(1, 0)) // ends the Read; a closed socket has ended it already
		return
	}
	select {
	case b.rang <- struct{}{}:
	default:
	}
}

// sleep returns after d, or earlier when the bell rings or c stirs: its server
// said something unasked, or ended the session. That counts as asked. c may be nil.
func (b *bell) sleep(d time.Duration, c *conn) (asked, plan bool) {
	if c == nil || c.stirred() {
		t := time.NewTimer(d)
		select {
		case <-b.rang:
		case <-t.C:
		}
		t.Stop()
	} else if b.enter(c, d) {
		c.listen()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	asked, plan = b.asked || b.in != nil && c.stirred(), b.plan
	b.in, b.asked, b.plan = nil, false, false
	select {
	case <-b.rang:
	default:
	}
	return asked, plan
}

// enter reports false when the bell has rung already.
func (b *bell) enter(c *conn, d time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.rang) > 0 {
		return false
	}
	_ = c.SetReadDeadline(time.Now().Add(d))
	b.in = c
	return true
}

// stirred reports whether something came in while nothing was asked.
func (c *conn) stirred() bool { return len(c.ahead) > 0 || c.aheadErr != nil }

// listen reads until the deadline, or until something comes in: a server that ends
// a session says so at once, not when it is asked next. It is kept for the next Read.
func (c *conn) listen() {
	n, err := c.Conn.Read(c.first[:])
	if n == 0 && errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	c.ahead, c.aheadErr = c.first[:n], err
}
