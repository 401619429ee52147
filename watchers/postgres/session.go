package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
)

const statementName = "pgsteer_probe"

// session is a prober's kept one. It belongs to the goroutine that asks.
type session struct {
	wire    *wire
	timeout time.Duration // of each question
	rights  rights
}

// newSession asks for the rights of the role and prepares the probe that suits
// them. On an error the session has been ended.
func newSession(w *wire, timeout time.Duration) (*session, error) {
	s := &session{wire: w, timeout: timeout}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	row, err := one(w.query(ctx, rightsQuery, nil))
	if err == nil {
		err = json.Unmarshal(row, &s.rights)
	}
	if err == nil {
		err = w.prepare(statementName, s.rights.statement(), timeout)
	}
	if err != nil {
		s.end(err)
		return nil, err
	}
	return s, nil
}

// full asks for every field, in one round trip.
func (s *session) full() (topology.Probe, error) {
	p, err := s.row()
	var state *pgconn.PgError
	if errors.As(err, &state) && state.Code == "55000" {
		// A promotion ended recovery in the middle of the statement.
		p, err = s.row()
	}
	p.ServerVersion = s.rights.Version
	return p, err
}

func (s *session) row() (p topology.Probe, err error) {
	told := errNotOne
	rows := 0
	err = s.wire.execute(statementName, s.timeout, func(values [][]byte) {
		if rows++; rows == 1 && len(values) == 1 {
			p, told = parseAnswer(values[0])
		} else {
			told = errNotOne
		}
	})
	if err == nil {
		err = told
	}
	if err != nil {
		return topology.Probe{}, err
	}
	return p, nil
}

// role sends an empty query. PostgreSQL 14 and newer report a changed
// in_hot_standby and default_transaction_read_only with the answer. ok is false
// when the server has never told them.
func (s *session) role() (p topology.Probe, ok bool, err error) {
	if err := s.wire.empty(s.timeout); err != nil {
		return p, false, err
	}
	standby, readOnly := s.wire.standby, s.wire.readOnly
	if standby == topology.Unknown || readOnly == topology.Unknown {
		return p, false, nil
	}
	return topology.Probe{
		Kind:       topology.ProbeRole,
		InRecovery: standby,
		ReadOnly:   topology.Bool(standby == topology.Yes || readOnly == topology.Yes),
	}, true, nil
}

// end closes the session. err is why; nil for a session that is in order.
func (s *session) end(err error) { s.wire.end(err) }
