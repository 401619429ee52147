package pgautofailover

import "github.com/pgsteer/pgsteer/agent/topology"

// state is what a goal means to somebody who routes.
type state struct {
	writes    topology.Tri
	promoting bool // on its way to take writes
	reads     topology.Verdict
	stale     bool // its server answers with what it has
	operator  bool // somebody ordered it
}

// states are the monitor's states (FSM of version 2.0 to 2.3). The keeper stops
// PostgreSQL in those that end sessions; in the others it goes on, or is restarted
// and ends them by itself.
var states = map[string]state{
	"single":         {writes: topology.Yes, reads: topology.Up},
	"wait_primary":   {writes: topology.Yes, reads: topology.Up}, // no healthy standby; commits wait for nobody
	"primary":        {writes: topology.Yes, reads: topology.Up},
	"join_primary":   {writes: topology.Yes, reads: topology.Up},
	"apply_settings": {writes: topology.Yes, reads: topology.Up},

	"secondary": {writes: topology.No, reads: topology.Up},

	// Out of recovery with default_transaction_read_only, until the old primary has
	// confirmed or 30 s have passed.
	"stop_replication":  {writes: topology.No, promoting: true, reads: topology.Drain},
	"prepare_promotion": {writes: topology.No, promoting: true, reads: topology.Drain},

	"draining":            {writes: topology.No, reads: topology.Down},
	"demote_timeout":      {writes: topology.No, reads: topology.Down},
	"demoted":             {writes: topology.No, reads: topology.Down},
	"prepare_maintenance": {writes: topology.No, reads: topology.Down, operator: true}, // a primary, stopped next

	"maintenance":      {writes: topology.No, reads: topology.Drain, operator: true}, // a standby goes on and streams
	"wait_maintenance": {writes: topology.No, reads: topology.Drain, operator: true},
	"dropped":          {writes: topology.No, reads: topology.Drain, operator: true},

	"catchingup":     {writes: topology.No, reads: topology.Drain, stale: true},
	"report_lsn":     {writes: topology.No, reads: topology.Drain, stale: true}, // restarted without an upstream
	"fast_forward":   {writes: topology.No, reads: topology.Drain},
	"join_secondary": {writes: topology.No, reads: topology.Drain},
	"wait_standby":   {writes: topology.No, reads: topology.Drain},
	"init":           {writes: topology.No, reads: topology.Drain},
}

// secondary is the one state of a replica that serves.
const secondary = "secondary"

// syncing are the states in which a primary's commits wait for its standbys.
var syncing = []string{"primary", "join_primary", "apply_settings"}

// meaning returns what a goal means. One that is not known proves nothing: nobody
// enters by it, and nobody is thrown out.
func meaning(goal string) state {
	if s, known := states[goal]; known {
		return s
	}
	return state{writes: topology.Unknown, reads: topology.Drain}
}
