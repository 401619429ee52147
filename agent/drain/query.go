package drain

import (
	"context"
	"encoding/json"
	"strconv"
	"time"
)

// statementTimeout bounds each statement at the server.
const statementTimeout = 2 * time.Second

// idleFor is how long a session must have been between two transactions before it
// is ended as an idle one: who works has pauses too, and one that is about to begin
// the next transaction must not be met.
const idleFor = time.Second

// subject is the FROM and WHERE of the sessions that a drain is about. Nobody waits
// for, or ends: replication and background workers, which are no client backends;
// superusers, whom pg_signal_backend may not end, and who maintain the node; roles
// that are to be kept; pgsteer itself. $1 is the roles to keep and $2 those of
// pgsteer, JSON arrays.
const subject = ` FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid
WHERE a.backend_type = 'client backend' AND a.pid <> pg_backend_pid() AND NOT r.rolsuper
 AND NOT EXISTS (SELECT FROM json_array_elements_text($1::json) k WHERE k = a.usename)
 AND NOT (a.application_name = 'pgsteer' AND EXISTS (SELECT FROM json_array_elements_text($2::json) k WHERE k = a.usename))`

// started is when a session began: with the pid it names one session for all time.
const started = `(extract(epoch FROM a.backend_start) * 1000000)::bigint`

// run names one run of a server: when it was started, in microseconds since 1970, with
// its port and cluster_name, which cannot change while it runs. Every role may see it.
const run = `((extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint || ' ' || current_setting('port') || ' ' || current_setting('cluster_name'))`

// runQuery asks for it.
const runQuery = "SELECT " + run

// lookQuery lists the sessions; it ends nobody.
const lookQuery = `SELECT coalesce(json_agg(json_build_object(
 'pid', a.pid, 'started_us', ` + started + `, 'user', a.usename, 'application', a.application_name,
 'client', CASE WHEN a.client_addr IS NULL THEN 'local' ELSE host(a.client_addr) || ':' || a.client_port END,
 'state', coalesce(a.state, 'unknown'), 'transaction', a.xact_start IS NOT NULL,
 'age_us', (extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, a.state_change, a.backend_start)) * 1000000)::bigint
 ) ORDER BY a.pid), '[]')` + subject

// endQuery ends those sessions of $3, an array of {pid, started_us}, that are still
// what they were, if the server is still $4 (its identifier), $5 (whether it is in
// recovery) and $8 (its run). With $6 those alone that have been idle for $7
// microseconds. It says who was told to end. What it looks at and whom it ends is one statement, so
// that no time passes between.
const endQuery = `WITH here AS MATERIALIZED (
 SELECT system_identifier = $4::bigint AND pg_is_in_recovery() = $5::bool AND ` + run + ` = $8::text AS same FROM pg_control_system()),
asked AS MATERIALIZED (SELECT * FROM json_to_recordset($3::json) x(pid int, started_us bigint)),
found AS MATERIALIZED (SELECT a.pid` + subject + ` AND (SELECT same FROM here)
 AND EXISTS (SELECT FROM asked WHERE asked.pid = a.pid AND asked.started_us = ` + started + `)
 AND (NOT $6::bool OR a.state = 'idle' AND clock_timestamp() - a.state_change >= $7::bigint * interval '1 microsecond')),
told AS MATERIALIZED (SELECT pid, pg_terminate_backend(pid) AS yes FROM found)
SELECT json_build_object('same', (SELECT same FROM here), 'told', (SELECT coalesce(json_agg(pid), '[]') FROM told WHERE yes))`

// RightsQuery asks whether the role may end sessions, and see all of them; its answer
// is a Rights.
const RightsQuery = `SELECT json_build_object('user', current_user,
 'signal', pg_has_role('pg_signal_backend', 'usage'), 'stats', pg_has_role('pg_read_all_stats', 'usage'))`

// Rights is what the role may do, as RightsQuery tells.
type Rights struct {
	User   string `json:"user"`
	Signal bool   `json:"signal"` // end sessions of others
	Stats  bool   `json:"stats"`  // see what they do
}

// Missing says what the role may not do, and how to let it; "" for nothing.
func (r Rights) Missing() (what, grant string) {
	switch {
	case !r.Stats && !r.Signal:
		return "role " + r.User + " may neither see nor end other sessions", "GRANT pg_monitor, pg_signal_backend TO " + r.User
	case !r.Stats:
		return "role " + r.User + " may not see what other sessions do", "GRANT pg_monitor TO " + r.User
	case !r.Signal:
		return "role " + r.User + " may not end other sessions", "GRANT pg_signal_backend TO " + r.User
	}
	return "", ""
}

// told is the answer to endQuery.
type told struct {
	Same bool  `json:"same"`
	Told []int `json:"told"`
}

// server is a session at a node, and whom it never touches.
type server struct {
	Session
	run       string // see runQuery
	keep, own string // JSON arrays of roles
}

// bind bounds the statements of the session.
func (s server) bind(ctx context.Context) error {
	ms := strconv.FormatInt(statementTimeout.Milliseconds(), 10)
	_, err := s.Ask(ctx, "SELECT set_config('statement_timeout', $1, false)", ms)
	return err
}

func (s server) rights(ctx context.Context) (r Rights, err error) {
	return r, s.ask(ctx, &r, RightsQuery)
}

func (s server) look(ctx context.Context) (all []Client, err error) {
	return all, s.ask(ctx, &all, lookQuery, s.keep, s.own)
}

// end tells sessions to end, at the very server that id names.
func (s server) end(ctx context.Context, id Identity, whom []Client, onlyIdle bool) (t told, err error) {
	list, err := json.Marshal(whom) // further keys of it are ignored there
	if err != nil {
		return t, err
	}
	return t, s.ask(ctx, &t, endQuery, s.keep, s.own, string(list), strconv.FormatInt(int64(id.SystemID), 10), strconv.FormatBool(id.Standby),
		strconv.FormatBool(onlyIdle), strconv.FormatInt(idleFor.Microseconds(), 10), id.Run)
}

func (s server) ask(ctx context.Context, into any, sql string, args ...string) error {
	text, err := s.Ask(ctx, sql, args...)
	if err == nil {
		err = json.Unmarshal([]byte(text), into)
	}
	return err
}
