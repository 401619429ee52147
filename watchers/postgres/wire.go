package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// wire is a session after its login. pgconn logs in and is left then: it would
// keep 14 KB of buffers and state a session, and a session is asked for some
// milliseconds of a second. A wire borrows what a question needs for as long as
// that takes. It belongs to the goroutine that asks.
type wire struct {
	sock *conn    // the socket
	conn net.Conn // what is spoken over: TLS, or the socket itself
	// What the server has reported of itself, with the login and since.
	standby, readOnly topology.Tri
	// rest holds what came in behind an answer; nil: nothing did.
	rest *speaker
	told bool // a notification came in before the end of an answer
	over bool // nothing can be asked any more
	left bool // the server has been left
}

// takeOver makes a wire of a session that has just logged in. On an error the
// session has been ended.
func takeOver(ctx context.Context, pg *pgconn.PgConn, s *speaker, l *link) (*wire, error) {
	err := pg.SyncConn(ctx)
	var h *pgconn.HijackedConn
	if err == nil {
		h, err = pg.Hijack()
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = pg.Close(ctx) // nothing is left to be done about an error
		return nil, fmt.Errorf("after the login: %w", err)
	}
	w := &wire{sock: l.conn.Load(), conn: h.Conn}
	for name, value := range h.ParameterStatuses {
		w.reported(name, value)
	}
	s.giveBack()
	return w, nil
}

// reported notes a parameter's value.
func (w *wire) reported(name, value string) {
	switch name {
	case "in_hot_standby":
		w.standby = topology.Bool(value == "on")
	case "default_transaction_read_only":
		w.readOnly = topology.Bool(value == "on")
	}
}

// query puts one statement and returns the rows of its answer.
func (w *wire) query(ctx context.Context, sql string, args [][]byte) (rows [][][]byte, err error) {
	until, _ := ctx.Deadline() // zero: for ever
	_ = w.conn.SetDeadline(until)
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = w.conn.SetDeadline(time.Unix(1, 0))
		close(cut)
	})
	err = w.ask(func(f *pgproto3.Frontend) {
		f.SendParse(&pgproto3.Parse{Query: sql})
		f.SendBind(&pgproto3.Bind{Parameters: args})
		f.SendDescribe(&pgproto3.Describe{ObjectType: 'P'})
		f.SendExecute(&pgproto3.Execute{})
	}, func(values [][]byte) {
		row := make([][]byte, len(values))
		for i, v := range values {
			row[i] = append([]byte(nil), v...)
		}
		rows = append(rows, row)
	})
	if !stop() {
		<-cut // the goodbye has a deadline of its own, which comes after this one
		w.over = true
		if err == nil || isTimeout(err) {
			err = ctx.Err()
		}
	}
	return rows, err
}

// prepare gives a statement a name.
func (w *wire) prepare(name, sql string, timeout time.Duration) error {
	_ = w.conn.SetDeadline(time.Now().Add(timeout))
	return w.ask(func(f *pgproto3.Frontend) { f.SendParse(&pgproto3.Parse{Name: name, Query: sql}) }, nil)
}

// execute runs a prepared statement. each gets the values of every row, which are
// valid during the call alone.
func (w *wire) execute(name string, timeout time.Duration, each func(values [][]byte)) error {
	_ = w.conn.SetDeadline(time.Now().Add(timeout))
	return w.ask(func(f *pgproto3.Frontend) {
		f.SendBind(&pgproto3.Bind{PreparedStatement: name})
		f.SendExecute(&pgproto3.Execute{})
	}, each)
}

// empty puts the empty query.
func (w *wire) empty(timeout time.Duration) error {
	_ = w.conn.SetDeadline(time.Now().Add(timeout))
	return w.askSimply(func(f *pgproto3.Frontend) { f.SendQuery(&pgproto3.Query{}) }, nil)
}

// ask puts a question of the extended protocol.
func (w *wire) ask(send func(*pgproto3.Frontend), each func(values [][]byte)) error {
	return w.askSimply(func(f *pgproto3.Frontend) {
		send(f)
		f.SendSync(&pgproto3.Sync{})
	}, each)
}

// askSimply sends what send puts down and reads the answer to its end. An error of
// the server's leaves the session in order unless it is a fatal one; any other ends
// it.
func (w *wire) askSimply(send func(*pgproto3.Frontend), each func(values [][]byte)) error {
	if w.over {
		return net.ErrClosed
	}
	s := w.rest
	if w.rest = nil; s == nil {
		s = borrow(w.conn)
	}
	w.over, w.told = true, false // until the answer has come to its end
	send(s.Frontend)
	if err := s.Flush(); err != nil {
		return err
	}
	var refused error
	for {
		msg, err := s.Receive()
		if err != nil {
			return err
		}
		switch m := msg.(type) {
		case *pgproto3.DataRow:
			if each != nil {
				each(m.Values)
			}
		case *pgproto3.ParameterStatus:
			w.reported(m.Name, m.Value)
		case *pgproto3.NotificationResponse:
			w.told = true
		case *pgproto3.ErrorResponse:
			if refused == nil {
				refused = pgconn.ErrorResponseToPgError(m)
			}
			if m.Severity == "FATAL" || m.SeverityUnlocalized == "FATAL" {
				w.leave()
				return refused
			}
		case *pgproto3.ReadyForQuery:
			w.over = false
			if s.ReadBufferLen() > 0 {
				w.rest = s
			} else {
				s.giveBack()
			}
			return refused
		}
	}
}

// terminate is the message that ends a session.
var terminate = [5]byte{'X', 0, 0, 0, 4}

// hangUp says Terminate, also in the middle of an answer, and ends the session.
func (w *wire) hangUp() {
	if !w.left {
		_ = w.conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = w.conn.Write(terminate[:]) // nothing is left to be done about an error
		w.leave()
	}
}

// end is hangUp with the reason; nil for a session that is in order.
func (w *wire) end(err error) {
	if err != nil && isTimeout(err) {
		w.sock.giveUp()
	}
	w.hangUp()
}

func (w *wire) leave() {
	w.over, w.left = true, true
	_ = w.conn.Close() // the socket below reads on until the server closes too
}

// speaker speaks the protocol over one connection after the other. Between two
// whole answers nothing of a connection is in a Frontend but its buffers.
type speaker struct {
	*pgproto3.Frontend
	io.Reader
	io.Writer
}

var speakers = sync.Pool{New: func() any {
	s := new(speaker)
	s.Frontend = pgproto3.NewFrontend(s, s)
	return s
}}

// borrow returns a speaker for a connection.
func borrow(c net.Conn) *speaker { return lend(c, c) }

func lend(r io.Reader, w io.Writer) *speaker {
	s := speakers.Get().(*speaker)
	s.Reader, s.Writer = r, w
	return s
}

// giveBack is called after a whole answer alone. A speaker that stopped in the
// middle of one is of no use to another connection.
func (s *speaker) giveBack() {
	s.Reader, s.Writer = nil, nil
	speakers.Put(s)
}

// one returns the only column of the only row.
func one(rows [][][]byte, err error) ([]byte, error) {
	switch {
	case err != nil:
		return nil, err
	case len(rows) != 1 || len(rows[0]) != 1:
		return nil, errNotOne
	}
	return rows[0][0], nil
}

var errNotOne = errors.New("the answer is not one row of one column")
