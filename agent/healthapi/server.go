package healthapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxHeader bounds a request's head: checks send a few short lines.
const maxHeader = 8 << 10

// Serve answers on ln, over TLS where Options.TLS is set, until ctx ends; requests
// that are being answered are finished (1 s at most), then it returns nil. It
// returns an error when ln cannot accept any more.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	srv := &http.Server{
		Handler:                      s,
		ReadHeaderTimeout:            s.opts.HeaderTimeout,
		ReadTimeout:                  s.opts.Timeout,
		WriteTimeout:                 s.opts.Timeout,
		IdleTimeout:                  s.opts.IdleTimeout,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true, // "OPTIONS *" is no check and must not look like a good one
		ErrorLog:                     slog.NewLogLogger(trouble{s.opts.Logger.Handler(), s}, slog.LevelDebug),
		TLSConfig:                    s.opts.TLS,
		Protocols:                    new(http.Protocols),
	}
	srv.Protocols.SetHTTP1(true)
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(closed)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if srv.Shutdown(end) != nil {
			srv.Close()
		}
	})
	serve := srv.Serve
	if s.opts.TLS != nil {
		serve = func(l net.Listener) error { return srv.ServeTLS(l, "", "") }
	}
	err := serve(&limited{Listener: ln, server: s})
	if !stop() {
		<-closed
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	_ = srv.Close() // ends the connections that are still open
	return fmt.Errorf("healthapi: accept on %s: %w", ln.Addr(), err)
}

// trouble takes net/http's lines about single connections. What balancers and
// scanners do to a port is no news, so they are counted, and logged for debugging.
type trouble struct {
	slog.Handler
	server *Server
}

// Enabled is true, since lines that nobody reads are counted too.
func (t trouble) Enabled(context.Context, slog.Level) bool { return true }

// Handle takes one line.
func (t trouble) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "http: TLS handshake error") {
		t.server.counters.Handshakes.Add(1)
	}
	if !t.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return t.Handler.Handle(ctx, r)
}

// limited closes connections above the limit at once. Letting them wait would
// answer their checks late, which balancers take for a dead server.
type limited struct {
	net.Listener
	server *Server
	open   atomic.Int64
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= int64(l.server.opts.MaxConns) {
			return &counted{Conn: c, done: sync.OnceFunc(func() { l.open.Add(-1) })}, nil
		}
		l.open.Add(-1)
		l.server.counters.Rejected.Add(1)
		c.Close()
	}
}

// counted gives its place back when it is closed.
type counted struct {
	net.Conn
	done func()
}

func (c *counted) Close() error {
	defer c.done()
	return c.Conn.Close()
}
