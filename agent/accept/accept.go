// Package accept is the loop of a TCP server with short conversations: each
// connection is served in a goroutine of its own, so many at a time and no more.
package accept

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Loop accepts connections. One loop may serve several listeners; Max counts for
// all of them.
type Loop struct {
	// What is accepted, for errors and the log: "agent checks".
	What string
	// Max is how many connections are served at the same time; those above are
	// closed at once and counted in Rejected.
	Max      int
	Rejected *atomic.Uint64
	Logger   *slog.Logger

	conns atomic.Int64
}

// Serve accepts on ln until ctx ends, then closes ln, waits for the conversations
// that are under way and returns nil. Connections are closed when converse
// returns; to bound it is converse's matter. It returns an error when ln cannot
// accept any more.
func (l *Loop) Serve(ctx context.Context, ln net.Listener, converse func(net.Conn)) error {
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
			l.admit(&open, c, converse)
		case passing(err):
			pause = l.pause(ctx, ln, pause, err)
		default:
			return fmt.Errorf("%s: accept on %s: %w", l.What, ln.Addr(), err)
		}
	}
}

// Open is how many connections are served now.
func (l *Loop) Open() int { return int(l.conns.Load()) }

// admit serves a connection in a goroutine of its own, unless there are too many.
func (l *Loop) admit(open *sync.WaitGroup, c net.Conn, converse func(net.Conn)) {
	if l.conns.Add(1) > int64(l.Max) {
		l.conns.Add(-1)
		l.Rejected.Add(1)
		c.Close()
		return
	}
	open.Go(func() {
		converse(c)
		c.Close()
		l.conns.Add(-1)
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
func (l *Loop) pause(ctx context.Context, ln net.Listener, last time.Duration, err error) time.Duration {
	if last == 0 {
		l.Logger.Warn("connections cannot be accepted for the moment, trying again", "what", l.What, "listener", ln.Addr().String(), "err", err)
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

// maxLinger bounds what is read of a client that does not stop sending.
const maxLinger = 64 << 10

// Linger reads what the client still sends, until it has seen the answer or the
// connection's deadline is over: a socket that is closed with unread bytes resets
// the connection, and the answer could be lost with it.
func Linger(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok && h.CloseWrite() == nil {
		_, _ = io.CopyN(io.Discard, c, maxLinger)
	}
}
