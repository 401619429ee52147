package lab_test

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// echo answers every connection with what it sent, until the test ends.
func echo(t *testing.T) string {
	t.Helper()
	ln := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return ln.Addr().String()
}

func TestLink(t *testing.T) {
	l := labtest.ForTest(t)
	k := must(l.Link(t.Context(), echo(t)))(t)
	first := dial(t, k)
	talk(t, first, "a", "a")

	if err := k.Cut(); err != nil {
		t.Fatal(err)
	}
	say(t, first, "b")
	silent(t, first)
	second := dial(t, k) // the kernel completes it
	say(t, second, "c")
	silent(t, second)
	third := dial(t, k)
	_ = third.Close() // while cut: its end must not pass either
	if k.Conns() < 2 {
		t.Errorf("%d connections, want at least 2", k.Conns())
	}

	if err := k.Heal(); err != nil {
		t.Fatal(err)
	}
	hear(t, first, "b")
	hear(t, second, "c")

	if err := k.Refuse(); err != nil {
		t.Fatal(err)
	}
	reset(t, first)
	if conn, err := net.Dial("tcp", k.Addr()); err == nil {
		t.Error("a refusing link took a connection")
		_ = conn.Close()
	}
	if err := k.Heal(); err != nil {
		t.Fatal(err)
	}
	talk(t, dial(t, k), "d", "d")
}

// TestLinkPassesEnds: half closed connections and dead targets look through a
// link as they do without it.
func TestLinkPassesEnds(t *testing.T) {
	l := labtest.ForTest(t)
	k := must(l.Link(t.Context(), echo(t)))(t)
	conn := dial(t, k)
	say(t, conn, "last words")
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got := must(io.ReadAll(conn))(t); string(got) != "last words" {
		t.Errorf("got %q", got)
	}
	nobody := must(l.FreeAddr())(t)
	dead, err := net.Dial("tcp", must(l.Link(t.Context(), nobody))(t).Addr())
	if err == nil { // else the reset came before dial had returned
		reset(t, dead)
		_ = dead.Close()
	}
}

func TestFreePortsDiffer(t *testing.T) {
	a, b := labtest.ForTest(t), labtest.ForTest(t)
	seen := map[int]bool{}
	for range 200 {
		for _, l := range []*lab.Lab{a, b} {
			p := must(l.FreePort())(t)
			if seen[p] {
				t.Fatalf("port %d was given twice", p)
			}
			seen[p] = true
		}
	}
}

func dial(t *testing.T, k *lab.Link) *net.TCPConn {
	t.Helper()
	conn := must(net.DialTimeout("tcp", k.Addr(), 5*time.Second))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.TCPConn)
}

func talk(t *testing.T, conn net.Conn, text, answer string) {
	t.Helper()
	say(t, conn, text)
	hear(t, conn, answer)
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	buf := make([]byte, len(want))
	if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != want {
		t.Fatalf("got %q, %v, want %q", buf, err, want)
	}
}

func silent(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %d bytes, %v from a cut link", n, err)
	}
}

func reset(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, io.EOF) {
		t.Fatalf("got %v, want a reset", err)
	}
}
