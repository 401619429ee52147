package pgautofailover

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/postgres"
)

// Versions of the monitor's extension whose tables are known.
var Versions = []string{"2.0", "2.1", "2.2", "2.3"}

// Rights is what a login at a monitor may do there, and what the monitor is.
type Rights struct {
	Role      string  `json:"role"`
	Superuser bool    `json:"superuser"`
	Acts      bool    `json:"acts"`     // it may start failovers or remove nodes
	Recovery  bool    `json:"recovery"` // a copy of the monitor
	Version   *string `json:"version"`  // of the extension; nil: the database has none
	Schema    *string `json:"schema"`   // whose tables a watcher reads; nil: it can read none
	Views     bool    `json:"views"`    // those of the recipe are there
	TLS       bool    `json:"tls"`
	Limit     int     `json:"limit"` // of the role's connections; -1: none
}

// RightsQuery is answered by one Rights, in JSON. It needs no right beyond the login.
const RightsQuery = `SELECT json_build_object(
 'role', current_user,
 'superuser', r.rolsuper,
 'acts', EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
   WHERE n.nspname = 'pgautofailover' AND p.proname IN ('perform_failover', 'perform_promotion', 'remove_node', 'start_maintenance')
     AND has_schema_privilege(n.oid, 'USAGE') AND has_function_privilege(p.oid, 'EXECUTE')),
 'recovery', pg_is_in_recovery(),
 'version', (SELECT extversion FROM pg_extension WHERE extname = 'pgautofailover'),
 'schema', (` + whereQuery + `),
 'views', EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'pgsteer' AND c.relname = 'node'),
 'tls', (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()),
 'limit', r.rolconnlimit)
FROM pg_roles r WHERE r.rolname = current_user`

// CountQuery counts the nodes of a group. The schema is that of Rights.
func CountQuery(schema, formation string, group int) string {
	return fmt.Sprintf("SELECT count(*) FROM %s.node WHERE formationid = '%s' AND groupid = %d",
		pgx.Identifier{schema}.Sanitize(), strings.ReplaceAll(formation, "'", "''"), group)
}

// Login logs in once to a monitor, exactly as the watcher does.
func (w *Watcher) Login(ctx context.Context, at topology.Address) (*postgres.Look, *topology.Failure) {
	l, f := postgres.Login(ctx, w.lineOptions(at).Options)
	if f != nil {
		f.Node = "" // it is no node of the cluster
	}
	return l, f
}
