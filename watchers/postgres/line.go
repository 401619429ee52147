package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// LineOptions describe a Line. What Options say of a login counts for it too: the
// address, role, database, password, TLS, ConnectTimeout, QueryTimeout and the
// network. Node stands for the server in texts.
type LineOptions struct {
	Options
	// Opening are run after each login, before the first question.
	Opening []string
	// Settings are sent with the login, besides those of every session.
	Settings map[string]string
}

// Line is one kept session to a server that is asked other things than a node
// is: with the dialing, the spacing of refused logins, the classes of failures and
// the clean ends of a Prober's. It belongs to one goroutine.
type Line struct {
	o      LineOptions
	door   *door
	wire   *wire // nil: there is no session
	holdTo topology.Mono
	held   *topology.Failure // why nothing is asked before holdTo
}

// NewLine returns a line, or every option that is missing. It dials nothing yet.
// heard is called, from any goroutine, when a connection that was given up hears
// something: then asking again makes sense.
func NewLine(o LineOptions, heard func()) (*Line, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.setDefaults()
	l := &Line{o: o}
	l.door = newDoor(&l.o.Options, o.Address, heard)
	l.door.settings = maps.Clone(ownNames)
	maps.Copy(l.door.settings, o.Settings)
	return l, nil
}

// Ask returns the one column of a statement's rows, over a new session if there
// is none. A failure ends the session. One that the server has to pay for (it is
// starting, it refused us by word) keeps the next question back for a while, during
// which Ask repeats it.
func (l *Line) Ask(ctx context.Context, sql string, args ...string) ([][]byte, *topology.Failure) {
	if now := l.o.Now().Mono; l.held != nil && now < l.holdTo {
		return nil, l.held
	}
	l.held = nil
	rows, f := l.ask(ctx, sql, args)
	if f == nil {
		return rows, nil
	}
	f.Node = "" // it is a server, not a node of the cluster
	if d := holdAfter(f.Class); d > 0 {
		l.held, l.holdTo = f, l.o.Now().Mono.Add(d)
	}
	return nil, f
}

func (l *Line) ask(ctx context.Context, sql string, args []string) ([][]byte, *topology.Failure) {
	fresh := l.wire == nil
	if fresh {
		if f := l.open(ctx); f != nil {
			return nil, f
		}
	}
	rows, err := l.put(ctx, sql, args)
	if err != nil && !fresh && ctx.Err() == nil && ended(classOfLoss(err)) {
		// Somebody ended it, which proves nothing of the server: ask over a new one.
		l.end(err)
		if f := l.open(ctx); f != nil {
			return nil, f
		}
		rows, err = l.put(ctx, sql, args)
	}
	if err != nil {
		return nil, l.lost(err, "question to")
	}
	return rows, nil
}

func ended(c topology.FailureClass) bool {
	return c == topology.FailLost || c == topology.FailShutdown
}

// open logs in and runs the opening statements.
func (l *Line) open(ctx context.Context) *topology.Failure {
	w, f := l.door.login(ctx, l.o.ConnectTimeout)
	if f != nil {
		return f
	}
	l.wire = w
	for _, sql := range l.o.Opening {
		if _, err := l.put(ctx, sql, nil); err != nil {
			return l.lost(err, sql+" at")
		}
	}
	return nil
}

// put sends one statement and reads its answer.
func (l *Line) put(ctx context.Context, sql string, args []string) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, l.o.QueryTimeout)
	defer cancel()
	values := make([][]byte, len(args))
	for i, a := range args {
		values[i] = []byte(a)
	}
	rows, err := l.wire.query(ctx, sql, values)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, row := range rows {
		if len(row) != 1 {
			return nil, fmt.Errorf("the answer has %d columns, one is expected", len(row))
		}
		out = append(out, row[0])
	}
	return out, nil
}

// lost ends the session and says why.
func (l *Line) lost(err error, doing string) *topology.Failure {
	l.end(err)
	class := classOfLoss(err)
	if state, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch state.Code {
		case "42501":
			class = topology.FailDenied
		case "25006": // LISTEN in recovery: the server is a copy of the one that is meant
			class = topology.FailStore
		}
	}
	return l.o.failure(class, fmt.Sprintf("%s %s as %s, database %s: %s", doing, l.o.Address, l.o.User, l.o.Database, plain(err)))
}

// Idle calls stirred when the server says something unasked, such as a
// notification, also one that came with the last answer, or the end of the session.
// Nothing may be asked until stop has returned.
func (l *Line) Idle(stirred func()) (stop func()) {
	if l.wire == nil {
		return func() {}
	}
	if l.wire.told || l.wire.rest != nil {
		stirred()
		return func() {}
	}
	return l.wire.sock.idle(stirred)
}

// end ends the session, if there is one; the next question opens another.
func (l *Line) end(err error) {
	if l.wire != nil {
		l.wire.end(err)
		l.wire = nil
	}
}

// Hang ends the session, if there is one. The next question opens another.
func (l *Line) Hang() { l.end(nil) }

// Close ends the session and waits until every socket is closed, a second or so
// at most. The line is not used afterwards.
func (l *Line) Close() {
	l.end(nil)
	l.door.conns.part()
}

// lineGrace is how long a server keeps a session whose other end is gone.
const lineGrace = 30 * time.Second

// GoneSettings have a server drop the session when its other end has been gone for
// half a minute: a session that only listens would else stay for days.
func GoneSettings() map[string]string {
	ms := strconv.FormatInt(lineGrace.Milliseconds(), 10)
	return map[string]string{
		"tcp_user_timeout": ms, "tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "4",
	}
}
