package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
)

const statementName = "pgsteer_probe"

// session is a kept connection, of a Prober or a Line. It belongs to the goroutine
// that asks.
type session struct {
	pg      *pgconn.PgConn
	link    *link
	timeout time.Duration                // of each question
	rights  rights                       // of a prober's
	probe   *pgconn.StatementDescription // the statement of a prober's
}

// newSession asks for the rights of the role and prepares the probe that suits
// them. On an error the connection has been ended.
func newSession(pg *pgconn.PgConn, l *link, timeout time.Duration) (*session, error) {
	s := &session{pg: pg, link: l, timeout: timeout}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	row, err := one(pg.ExecParams(ctx, rightsQuery, nil, nil, nil, nil))
	if err == nil {
		err = json.Unmarshal(row, &s.rights)
	}
	if err == nil {
		s.probe, err = pg.Prepare(ctx, statementName, s.rights.statement(), nil)
	}
	if err != nil {
		s.end(err)
		return nil, err
	}
	return s, nil
}

// full asks for every field, in one round trip.
func (s *session) full() (topology.Probe, error) {
	row, err := s.row()
	var state *pgconn.PgError
	if errors.As(err, &state) && state.Code == "55000" {
		// A promotion ended recovery in the middle of the statement.
		row, err = s.row()
	}
	if err != nil {
		return topology.Probe{}, err
	}
	p, err := parseAnswer(row)
	p.ServerVersion = s.rights.Version
	return p, err
}

func (s *session) row() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	return one(s.pg.ExecStatement(ctx, s.probe, nil, nil, nil))
}

// role sends an empty query. PostgreSQL 14 and newer report a changed
// in_hot_standby and default_transaction_read_only with the answer; pgconn keeps
// the newest values. ok is false when the server has never told them.
func (s *session) role() (p topology.Probe, ok bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	if err := s.pg.Exec(ctx, "").Close(); err != nil {
		return p, false, err
	}
	standby, readOnly := s.pg.ParameterStatus("in_hot_standby"), s.pg.ParameterStatus("default_transaction_read_only")
	if standby == "" || readOnly == "" {
		return p, false, nil
	}
	return topology.Probe{
		Kind:       topology.ProbeRole,
		InRecovery: topology.Bool(standby == "on"),
		ReadOnly:   topology.Bool(standby == "on" || readOnly == "on"),
	}, true, nil
}

// idle calls stirred when the server says something unasked. Nothing may be asked
// until stop has returned.
func (s *session) idle(stirred func()) (stop func()) { return s.link.conn.Load().idle(stirred) }

// end closes the session. err is why; nil for a session that is in order.
func (s *session) end(err error) {
	if err != nil && isTimeout(err) {
		s.link.giveUp()
	}
	hangUp(s.pg)
}

// hangUp says Terminate. After a broken question pgconn does so by itself, and
// reads on; the socket below ends without a reset either way.
func hangUp(pg *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = pg.Close(ctx) // nothing is left to be done about an error
}

// one returns the only column of the only row.
func one(r *pgconn.ResultReader) ([]byte, error) {
	res := r.Read()
	if res.Err != nil {
		return nil, res.Err
	}
	if len(res.Rows) != 1 || len(res.Rows[0]) != 1 {
		return nil, fmt.Errorf("the answer has %d rows, one of one column is expected", len(res.Rows))
	}
	return res.Rows[0][0], nil
}
