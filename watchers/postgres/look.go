package postgres

import (
	"context"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Look is one session for a look at a server by hand.
type Look struct {
	door *door
	wire *wire
}

// Login logs in once, as a prober with these options would, and says in a prober's
// classes why not. Interval, WriteProbe and Agent have no meaning here.
func Login(ctx context.Context, o Options) (*Look, *topology.Failure) {
	o.setDefaults()
	if err := o.check(); err != nil {
		return nil, o.failure(topology.FailLocal, err.Error())
	}
	d := newDoor(&o, o.Address, func() {})
	w, f := d.login(ctx, o.LoginTimeout)
	if f != nil {
		d.conns.part()
		return nil, f
	}
	return &Look{d, w}, nil
}

// Value asks a question whose answer is one row of one column.
func (l *Look) Value(ctx context.Context, sql string) (string, error) { return l.Ask(ctx, sql) }

// Ask is Value for a question with parameters, $1 and so on.
func (l *Look) Ask(ctx context.Context, sql string, args ...string) (string, error) {
	values := make([][]byte, len(args))
	for i, a := range args {
		values[i] = []byte(a)
	}
	b, err := one(l.wire.query(ctx, sql, values))
	return string(b), err
}

// Probe asks what a prober asks, in this session.
func (l *Look) Probe() (topology.Probe, error) {
	s, err := newSession(l.wire, l.door.o.QueryTimeout)
	if err != nil {
		return topology.Probe{}, err
	}
	return s.full()
}

// Close ends the session so that PostgreSQL logs nothing.
func (l *Look) Close() {
	l.wire.hangUp()
	l.door.conns.part()
}
