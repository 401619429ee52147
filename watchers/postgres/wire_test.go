package postgres

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// played is a wire to a server whose answers are the test's: one after each
// question.
func played(t *testing.T, answers ...[]pgproto3.BackendMessage) *wire {
	t.Helper()
	client, server := net.Pipe()
	go func() {
		defer server.Close()
		be := pgproto3.NewBackend(server, server)
		for _, answer := range answers {
			for {
				msg, err := be.Receive()
				if err != nil {
					return
				}
				if _, last := msg.(*pgproto3.Query); last {
					break
				}
			}
			for _, m := range answer {
				be.Send(m)
			}
			if be.Flush() != nil { // in one Write
				return
			}
		}
		_, _ = server.Read(make([]byte, 100)) // Terminate, or the end
	}()
	set := newConns(func() {})
	sock := set.add(client)
	t.Cleanup(func() { sock.drop() })
	return &wire{sock: sock, conn: sock}
}

var (
	ready   = &pgproto3.ReadyForQuery{TxStatus: 'I'}
	nothing = &pgproto3.EmptyQueryResponse{}
)

func errorOf(severity, code string) *pgproto3.ErrorResponse {
	return &pgproto3.ErrorResponse{Severity: severity, SeverityUnlocalized: severity, Code: code}
}

func code(err error) string {
	if state, ok := errors.AsType[*pgconn.PgError](err); ok {
		return state.Code
	}
	return ""
}

// TestWireKeepsWhatCameBehind: a server's last word may lie in one packet with an
// answer. It is for the next question, and for no other connection.
func TestWireKeepsWhatCameBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := played(t, []pgproto3.BackendMessage{nothing, ready, errorOf("FATAL", "57P01")}, nil)
		if err := w.empty(time.Second); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			other := played(t, []pgproto3.BackendMessage{nothing, ready})
			if err := other.empty(time.Second); err != nil {
				t.Fatal("another connection: ", err)
			}
			other.hangUp()
		}
		if err := w.empty(time.Second); code(err) != "57P01" || !w.left {
			t.Errorf("the next question gets %v, want 57P01; the server was left: %t", err, w.left)
		}
		if err := w.empty(time.Second); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a question after the end gets %v", err)
		}
	})
}

// TestWireAfterErrors: an error is an answer, a fatal one and silence are the end.
func TestWireAfterErrors(t *testing.T) {
	for name, c := range map[string]struct {
		answer []pgproto3.BackendMessage
		code   string
		over   bool
	}{
		"error":       {[]pgproto3.BackendMessage{errorOf("ERROR", "42501"), ready}, "42501", false},
		"translated":  {[]pgproto3.BackendMessage{&pgproto3.ErrorResponse{Severity: "FATALE", SeverityUnlocalized: "FATAL", Code: "57P01"}}, "57P01", true},
		"half answer": {[]pgproto3.BackendMessage{nothing}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := played(t, c.answer, []pgproto3.BackendMessage{nothing, ready})
				if err := w.empty(time.Second); err == nil || code(err) != c.code {
					t.Errorf("error %v, want SQLSTATE %q", err, c.code)
				}
				if w.over != c.over {
					t.Errorf("over: %t, want %t", w.over, c.over)
				}
				if err := w.empty(time.Second); (err != nil) != c.over {
					t.Errorf("the next question gets %v", err)
				}
				w.hangUp()
				for range 3 { // no other connection gets a speaker that stands in the middle
					other := played(t, []pgproto3.BackendMessage{nothing, ready})
					if err := other.empty(time.Second); err != nil {
						t.Error("another connection: ", err)
					}
					other.hangUp()
				}
			})
		})
	}
}

// deaf takes no deadline.
type deaf struct{ net.Conn }

func (deaf) SetDeadline(time.Time) error { return nil }

// TestWireWhoseContextEnds is over, whatever was answered: the end may reach the
// socket in the next question.
func TestWireWhoseContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := played(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			synctest.Wait()
			cancel()
		}()
		if _, err := w.query(ctx, "SELECT 1", nil); !errors.Is(err, context.Canceled) || !w.over {
			t.Errorf("error %v, over %t", err, w.over)
		}
		w.hangUp()

		late := played(t, nil)
		late.conn = deaf{late.conn} // the answer is faster than the end of ctx
		late.rest = lend(bytes.NewReader([]byte{'Z', 0, 0, 0, 5, 'I'}), io.Discard)
		if _, err := late.query(ctx, "SELECT 1", nil); !errors.Is(err, context.Canceled) || !late.over {
			t.Errorf("with an answer: error %v, over %t", err, late.over)
		}
		late.hangUp()
	})
}
