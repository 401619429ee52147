package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

const (
	// writeEvery is the least time between two writes.
	writeEvery = time.Second
	// writeTimeout is the server's statement_timeout for a write (eligibility 23),
	// writeAnswer how long its answer is waited for.
	writeTimeout = 2 * time.Second
	writeAnswer  = writeTimeout + 500*time.Millisecond
)

// writes is the write probe: a small write on a session of its own, as long as
// the node is writable. A disk that hangs still answers reads from memory; only
// a write finds it out.
type writes struct {
	check *check
	door  *door
	table string

	stretch chan context.Context // one slot: the newest time of being writable
	cancel  context.CancelFunc   // ends it; nil while the node is not writable
}

// newWrites returns the write probe into a table, or why its name is none.
func newWrites(p *Prober, table string) (*writes, error) {
	name, err := quoteTable(table)
	if err != nil {
		return nil, err
	}
	stir := watchers.NewNudge()
	d := newDoor(&p.o, p.o.Address, stir.Set)
	d.gate = p.door.gate // the same role at the same server
	d.settings = maps.Clone(ownNames)
	d.settings["synchronous_commit"] = "local"              // a missing standby is no hanging disk
	d.settings["statement_timeout"] = writeTimeout.String() // "2s", as PostgreSQL reads it
	d.settings["lock_timeout"] = (writeTimeout / 2).String()
	w := &writes{door: d, table: table, stretch: make(chan context.Context, 1)}
	w.check = &check{
		p: p, what: "write", every: max(p.o.Interval, writeEvery), kind: topology.ProbeWrite, stir: stir, ask: w.ask,
		good: topology.Observation{Probe: &topology.Probe{Node: p.o.Node, Address: p.o.Address, Kind: topology.ProbeWrite}},
		kept: &kept{
			door: d, timeout: writeAnswer, args: [][]byte{[]byte(p.o.Agent)},
			sql: "INSERT INTO " + name + " (agent, at) VALUES ($1, now()) ON CONFLICT (agent) DO UPDATE SET at = excluded.at",
		},
	}
	return w, nil
}

// quoteTable quotes a table's name, with or without its schema; without: public.
func quoteTable(table string) (string, error) {
	schema, name, ok := strings.Cut(table, ".")
	if !ok {
		schema, name = "public", table
	}
	if schema == "" || name == "" || strings.Contains(name, ".") || strings.ContainsRune(table, 0) {
		return "", fmt.Errorf("postgres prober: option WriteProbe: %q is not the name of a table, such as pgsteer.heartbeat", table)
	}
	quote := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
	return quote(schema) + "." + quote(name), nil
}

// begin lets run write from now on: the node is writable. It and end are called
// by the goroutine of Run alone, and do nothing without a write probe.
func (w *writes) begin(ctx context.Context) {
	if w == nil || w.cancel != nil {
		return
	}
	ctx, w.cancel = context.WithCancel(ctx)
	select {
	case <-w.stretch: // one that was over before run took it
	default:
	}
	w.stretch <- ctx // nobody else sends, so the slot is free
}

// end stops it: the node is not writable any more, or not known to be.
func (w *writes) end() {
	if w != nil && w.cancel != nil {
		w.cancel()
		w.cancel = nil
	}
}

// run writes until close.
func (w *writes) run() {
	for ctx := range w.stretch {
		w.check.run(ctx)
	}
	w.door.conns.part()
}

// close ends run.
func (w *writes) close() {
	w.end()
	close(w.stretch)
}

// ask writes. Want of the table or of a right is a fault of the set-up and no
// stall. Each answer but a good one is a line in the server's log, so the next
// attempt waits.
func (w *writes) ask(ctx context.Context) (*topology.Failure, time.Duration) {
	f, err := w.check.kept.ask(ctx)
	switch {
	case f != nil:
		return f, holdAfter(f.Class)
	case err == nil:
		return nil, 0
	}
	o := w.door.o
	text := fmt.Sprintf("write to %s at %s: %s", w.table, o.Address, plain(err))
	var state *pgconn.PgError
	switch {
	case !errors.As(err, &state):
		return o.failure(classOfLoss(err), text), 0
	case stalls(state.Code):
		return o.failure(topology.FailTimeout, text), startingAgain
	case state.Code == "25006": // read_only_sql_transaction
		w.check.p.bell.ask() // the role has changed: the probe is asked now
		return o.failure(topology.FailProtocol, text), 0
	case classOfState(state.Code) == topology.FailProtocol || state.Code == "42501":
		return o.failure(topology.FailProtocol, fmt.Sprintf(
			"%s; the table needs the columns agent text PRIMARY KEY and at timestamptz, and role %s the rights USAGE on its schema and "+
				"SELECT, INSERT, UPDATE on it; the next attempt follows in %s", text, o.User, loginAgain)), loginAgain
	}
	return o.failure(classOfState(state.Code), text), 0
}

// stalls reports whether an SQLSTATE says that writes do not go through, which
// is what the write probe looks for.
func stalls(code string) bool {
	switch code {
	case "57014", // query_canceled: statement_timeout
		"55P03", // lock_not_available: lock_timeout
		"53100", // disk_full
		"58030": // io_error
		return true
	}
	return false
}
