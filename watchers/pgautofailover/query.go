package pgautofailover

import "strings"

// whereQuery finds the tables: our own view (docs/pg_auto_failover.md), which
// needs no right on the monitor's functions, before the extension's table. No row:
// the role can read neither.
const whereQuery = `SELECT n.nspname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = 'node' AND n.nspname IN ('pgsteer', 'pgautofailover')
   AND has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
 ORDER BY n.nspname DESC LIMIT 1`

// readQuery reads a group in one row with one column. Rows are taken as JSON, so
// that a column that a version lacks is null and one that it adds is ignored. A
// setting that the monitor does not have is null too. $1 is the formation, $2 the
// group.
func readQuery(schema string) string {
	return strings.ReplaceAll(`SELECT json_build_object(
  'version', (SELECT extversion FROM pg_extension WHERE extname = 'pgautofailover'),
  'uptime', extract(epoch FROM statement_timestamp() - pg_postmaster_start_time()),
  'unhealthy_after', extract(epoch FROM nullif(current_setting('pgautofailover.node_considered_unhealthy_timeout', true), '')::interval),
  'startup_grace', extract(epoch FROM nullif(current_setting('pgautofailover.startup_grace_period', true), '')::interval),
  'check', json_build_object(
    'period', extract(epoch FROM nullif(current_setting('pgautofailover.health_check_period', true), '')::interval),
    'timeout', extract(epoch FROM nullif(current_setting('pgautofailover.health_check_timeout', true), '')::interval),
    'max_retries', nullif(current_setting('pgautofailover.health_check_max_retries', true), '')::int,
    'retry_delay', extract(epoch FROM nullif(current_setting('pgautofailover.health_check_retry_delay', true), '')::interval)),
  'formation', (SELECT to_jsonb(f) FROM SCHEMA.formation f WHERE f.formationid = $1::text),
  'nodes', (SELECT json_agg(r.n || jsonb_build_object(
      'report_age', extract(epoch FROM statement_timestamp() - (r.n->>'reporttime')::timestamptz),
      'health_age', extract(epoch FROM statement_timestamp() - (r.n->>'healthchecktime')::timestamptz),
      'change_age', extract(epoch FROM statement_timestamp() - (r.n->>'statechangetime')::timestamptz),
      'word', (extract(epoch FROM (r.n->>'walreporttime')::timestamptz) * 1000000)::bigint))
    FROM (SELECT to_jsonb(n) FROM SCHEMA.node n WHERE n.formationid = $1::text AND n.groupid = $2::int) AS r(n))
)::text`, "SCHEMA", schema)
}
