package pgtest

import (
	"context"
	"io"
	"net"
	"sync"
)

// Serve carries the connections of a real listener to the server, for tests of
// whole programs, until ln is closed and the server is; it waits for all of them.
// A connection that the server refuses is accepted and closed.
func (s *Server) Serve(ln net.Listener) {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		open.Go(func() { s.carry(c) })
	}
}

// Listen serves on a free port of loopback and returns its address. stop ends
// that and the server, and waits for it.
func (s *Server) Listen() (addr string, stop func(), err error) {
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	var served sync.WaitGroup
	served.Go(func() { s.Serve(ln) })
	return ln.Addr().String(), func() {
		_ = ln.Close()
		s.Close()
		served.Wait()
	}, nil
}

func (s *Server) carry(c net.Conn) {
	defer func() { _ = c.Close() }()
	server, err := s.Dial(context.Background(), "tcp", "")
	if err != nil {
		return
	}
	var there sync.WaitGroup
	there.Go(func() {
		_, _ = io.Copy(server, c)
		_ = server.Close()
	})
	_, _ = io.Copy(c, server)
	_ = c.Close()
	there.Wait()
}
