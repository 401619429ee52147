package pgtest

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The rule by which probers are judged must be able to fail them.
func TestAResetIsCounted(t *testing.T) {
	for _, c := range []struct {
		name  string
		close func(e *end)
		want  int
	}{
		{"closed with an answer unread", func(e *end) { synctest.Wait(); _ = e.Close() }, 1},
		{"closed before the answer", func(e *end) { _ = e.Close() }, 1},
		{"read to the end", func(e *end) { _ = e.CloseWrite(); _, _ = io.Copy(io.Discard, e); _ = e.Close() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := New(State{HangLogin: true})
				conn, err := s.Dial(t.Context(), "tcp", "")
				if err != nil {
					t.Fatal(err)
				}
				startup, err := (&pgproto3.StartupMessage{
					ProtocolVersion: pgproto3.ProtocolVersion30, Parameters: map[string]string{"user": "x"},
				}).Encode(nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := conn.Write(startup); err != nil {
					t.Fatal(err)
				}
				if c.name != "closed before the answer" {
					s.Set(func(s *State) { s.HangLogin = false })
				}
				c.close(conn.(*end))
				s.Set(func(s *State) { s.HangLogin = false })
				synctest.Wait()
				if n := s.Counts().Resets; n != c.want {
					t.Errorf("%d resets counted, want %d", n, c.want)
				}
				s.Close()
			})
		})
	}
}

func TestDeadlinesAndRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(State{})
		defer s.Close()
		conn, err := s.Dial(t.Context(), "tcp", "")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		began := time.Now()
		_ = conn.SetReadDeadline(began.Add(time.Minute))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("a Read without an answer ended after %v with %v", time.Since(began), err)
		}
		s.Set(func(s *State) { s.Refuse = true })
		if _, err := s.Dial(t.Context(), "tcp", ""); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a refused dial says %v", err)
		}
	})
}
