package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Link is a TCP proxy between one party and one server, whose cable can be cut.
// Give each party a Link of its own to cut the one without the other.
//
// A new Link is whole. While it is cut, existing connections stay open but no
// byte and no end of stream passes in either direction. New connections are
// completed by the kernel, which cannot be avoided from user space, and then
// get no answer; they reach the server when the link is healed.
type Link struct {
	addr string
	work sync.WaitGroup

	mu      sync.Mutex
	target  string
	ln      net.Listener       // nil while refusing
	closed  bool               // for good
	whole   chan struct{}      // closed while bytes may pass
	streams map[*stream]func() // each with what resets it
}

// stream is one connection through a link.
type stream struct {
	client *net.TCPConn
	server *net.TCPConn    // nil until dialled; guarded by Link.mu
	gone   <-chan struct{} // closed when the stream is to end
}

// Link starts a proxy in front of target, "host:port".
func (l *Lab) Link(_ context.Context, target string) (*Link, error) {
	addr, err := l.FreeAddr()
	if err != nil {
		return nil, err
	}
	k := &Link{target: target, addr: addr, whole: make(chan struct{}), streams: map[*stream]func(){}}
	close(k.whole)
	if err := k.listen(); err != nil {
		return nil, err
	}
	l.onClose(k.Close)
	return k, nil
}

// Addr returns the address to connect to, "127.0.0.1:port".
func (k *Link) Addr() string { return k.addr }

// Target returns the address of the server.
func (k *Link) Target() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.target
}

// Lead has new connections lead to another server, as a virtual address that moves.
func (k *Link) Lead(target string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.target = target
}

// Cut lets no byte pass any more. After Refuse it listens again first.
func (k *Link) Cut() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.isWhole() {
		k.whole = make(chan struct{})
	}
	return k.listen()
}

// Heal lets bytes pass again, also those that were held back.
func (k *Link) Heal() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.isWhole() {
		close(k.whole)
	}
	return k.listen()
}

// Refuse closes the listener and resets all connections, until Heal or Cut.
func (k *Link) Refuse() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.refuse()
}

// Close ends the link for good. It is safe to call it twice.
func (k *Link) Close() error {
	k.mu.Lock()
	k.closed = true
	err := k.refuse()
	k.mu.Unlock()
	k.work.Wait()
	return err
}

// Conns returns how many connections are open through the link.
func (k *Link) Conns() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.streams)
}

func (k *Link) isWhole() bool {
	select {
	case <-k.whole:
		return true
	default:
		return false
	}
}

// listen opens the listener if there is none. The caller holds mu, or is alone.
func (k *Link) listen() error {
	if k.closed {
		return fmt.Errorf("lab: link to %s is closed", k.target)
	}
	if k.ln != nil {
		return nil
	}
	ln, err := listen("tcp", k.addr)
	if err != nil {
		return fmt.Errorf("lab: link to %s: %w", k.target, err)
	}
	k.ln = ln
	k.work.Go(func() { k.accept(ln) })
	return nil
}

func (k *Link) refuse() error {
	var err error
	if k.ln != nil {
		err = k.ln.Close()
		k.ln = nil
	}
	for s, reset := range k.streams {
		delete(k.streams, s)
		reset()
	}
	return err
}

func (k *Link) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as no file descriptors
			<-time.After(pollEvery)
			continue
		}
		k.work.Go(func() { k.serve(ln, conn.(*net.TCPConn)) })
	}
}

// serve carries one connection until it ends on both sides or is reset.
func (k *Link) serve(ln net.Listener, client *net.TCPConn) {
	defer client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s := &stream{client: client, gone: ctx.Done()}
	if !k.add(ln, s, cancel) {
		return
	}
	defer k.remove(s)
	if !k.pass(s) {
		return
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", k.Target())
	if err != nil {
		_ = client.SetLinger(0) // what a refused client sees
		return
	}
	server := conn.(*net.TCPConn)
	defer server.Close()
	if !k.setServer(s, server) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { k.pump(s, client, server) })
	both.Go(func() { k.pump(s, server, client) })
	both.Wait()
}

// add records a stream, unless its listener was closed meanwhile.
func (k *Link) add(ln net.Listener, s *stream, cancel context.CancelFunc) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ln != ln {
		_ = s.client.SetLinger(0)
		return false
	}
	k.streams[s] = func() {
		cancel()
		for _, c := range []*net.TCPConn{s.client, s.server} {
			if c != nil {
				_ = c.SetLinger(0)
				_ = c.Close()
			}
		}
	}
	return true
}

func (k *Link) remove(s *stream) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.streams, s)
}

func (k *Link) setServer(s *stream, server *net.TCPConn) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	s.server = server
	_, open := k.streams[s]
	return open
}

// pass waits until bytes may pass. It returns false when the stream is to end.
func (k *Link) pass(s *stream) bool {
	for {
		k.mu.Lock()
		whole := k.whole
		k.mu.Unlock()
		select {
		case <-s.gone:
			return false
		case <-whole:
		}
		// It may have been cut again between the two.
		k.mu.Lock()
		ok := k.isWhole()
		k.mu.Unlock()
		if ok {
			return true
		}
	}
}

// pump carries one direction. Ends and resets of a side are passed on as such.
func (k *Link) pump(s *stream, from, to *net.TCPConn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if !k.pass(s) {
			return
		}
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				_ = from.SetLinger(0)
				_ = from.Close()
				return
			}
		}
		if err == nil {
			continue
		}
		if errors.Is(err, io.EOF) {
			_ = to.CloseWrite()
			return
		}
		_ = to.SetLinger(0)
		_ = to.Close()
		return
	}
}
