package accept

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a listener that accepts by a list, and then nothing until it is closed.
type script struct {
	next   []any // error, or net.Conn
	closed chan struct{}
}

func (s *script) Accept() (net.Conn, error) {
	if len(s.next) == 0 {
		<-s.closed
		return nil, net.ErrClosed
	}
	x := s.next[0]
	s.next = s.next[1:]
	if err, bad := x.(error); bad {
		return nil, err
	}
	return x.(net.Conn), nil
}

func (s *script) Close() error   { close(s.closed); return nil }
func (s *script) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5432} }

func loop(log io.Writer) *Loop {
	return &Loop{What: "test", Max: 1, Rejected: new(atomic.Uint64), Logger: slog.New(slog.NewTextHandler(log, nil))}
}

// Errors that go away are waited out, each time longer, and told once; one that
// does not ends the loop.
func TestPassingErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		broken := errors.New("broken")
		ln := &script{closed: make(chan struct{}), next: []any{syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, ours, broken}}
		var log strings.Builder
		begin, served := time.Now(), time.Duration(0)
		err := loop(&log).Serve(t.Context(), ln, func(net.Conn) { served = time.Since(begin) })
		if !errors.Is(err, broken) || !strings.Contains(err.Error(), "test: accept on 127.0.0.1:5432") {
			t.Errorf("ended with %v, want the last error and where it was", err)
		}
		if want := 35 * time.Millisecond; served != want { // 5, 10, 20
			t.Errorf("the connection was served after %s, want %s", served, want)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != 1 {
			t.Errorf("%d warnings, want one:\n%s", n, log.String())
		}
	})
}

// A connection above the limit is closed and counted; the end waits for what is
// under way.
func TestLimitAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, holder := net.Pipe()
		second, above := net.Pipe()
		ln := &script{closed: make(chan struct{}), next: []any{first, second}}
		l := loop(io.Discard)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- l.Serve(ctx, ln, func(c net.Conn) { io.ReadAll(c) }) }()
		if _, err := above.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection above the limit reads %v, want its end", err)
		}
		if n := l.Rejected.Load(); n != 1 || l.Open() != 1 {
			t.Errorf("%d rejected and %d open, want 1 and 1", n, l.Open())
		}
		stop()
		synctest.Wait()
		select {
		case err := <-ended:
			t.Fatalf("ended with %v while a connection was served", err)
		default:
		}
		holder.Close()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v, want nil", err)
		}
		if l.Open() != 0 {
			t.Errorf("%d open at the end", l.Open())
		}
	})
}
