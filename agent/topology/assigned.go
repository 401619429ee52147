package topology

import "time"

// Monitor is what an authority that assigns a state to every node says of the
// whole group (pg_auto_failover's monitor). Its presence in an Authority means
// that every Member has an Assignment, and that a node without one is no node of
// the group.
type Monitor struct {
	Version string `json:"version,omitempty"` // of its extension; empty: unknown
	// Claimants are the nodes with a goal in which they take writes, by name, when
	// they are several. Then the Authority names nobody.
	Claimants []string `json:"claimants,omitempty"`
	// SyncStandbys is number_sync_standbys of the formation.
	SyncStandbys int `json:"number_sync_standbys,omitempty"`
	// Uptime is how long the monitor's server has run; negative: unknown.
	Uptime time.Duration `json:"uptime"`
	// UnhealthyAfter and StartupGrace are the monitor's settings
	// node_considered_unhealthy_timeout and startup_grace_period.
	UnhealthyAfter time.Duration `json:"unhealthy_after"`
	StartupGrace   time.Duration `json:"startup_grace"`
	// Check is how the monitor checks nodes by itself; zero: unknown.
	Check HealthCheck `json:"check"`
	// Assumed: these settings could not be read, so they are its defaults.
	Assumed bool `json:"assumed,omitempty"`
}

// HealthCheck are the monitor's settings health_check_period, health_check_timeout,
// health_check_max_retries and health_check_retry_delay. A round asks every node at
// once; one that does not answer is tried again, and the next round begins when all
// are decided and the period is over.
type HealthCheck struct {
	Period     time.Duration `json:"period"`
	Timeout    time.Duration `json:"timeout"` // of each try
	MaxRetries int           `json:"max_retries"`
	RetryDelay time.Duration `json:"retry_delay"`
}

// BadWithin returns after how long at most the check of a node is bad that answers
// nothing from now on, zero when that is unknown. A round may have asked it a moment
// ago, and the monitor pauses after the last try too. It takes longer while a
// round waits for another node.
func (h HealthCheck) BadWithin() time.Duration {
	return h.Period + time.Duration(h.MaxRetries+1)*(h.Timeout+h.RetryDelay)
}

// Assignment is what a monitor wants of one node, and what it thinks of its
// health. Ages are by the monitor's own clock, at the moment of the question.
type Assignment struct {
	Goal     string `json:"goal"`     // the assigned state, in the monitor's words
	Reported string `json:"reported"` // the state that the node confirmed last, maybe long ago
	// Writes: the goal lets the node take writes; Unknown: pgsteer does not know
	// the goal, which is no evidence either way.
	Writes Tri `json:"writes"`
	// Promoting: the node is on its way to take writes, so being writable already
	// is no fault of it.
	Promoting bool `json:"promoting,omitempty"`
	// Reads: Up when the node's own evidence decides, Drain for no new sessions,
	// Down when they end too.
	Reads Verdict `json:"reads"`
	// Stale: a pool whose fallback is stale may use it, since its server answers
	// with what it has.
	Stale bool `json:"stale,omitempty"`
	// Operator: somebody ordered it, so it holds while the monitor is away too.
	Operator bool `json:"operator,omitempty"`
	// Why explains Reads where the goal alone does not.
	Why string `json:"why,omitempty"`

	Running   Tri           `json:"running"`    // the node's keeper says that PostgreSQL runs
	ReportAge time.Duration `json:"report_age"` // since the keeper's last report; negative: unknown
	Health    Tri           `json:"health"`     // the monitor's own connection check
	HealthAge time.Duration `json:"health_age"` // since that check; negative: unknown
	ChangeAge time.Duration `json:"change_age"` // since goal or reported state changed; negative: unknown
	Priority  int           `json:"candidate_priority"`
	Quorum    bool          `json:"replication_quorum"`
}

// Assignment is what the authority has assigned to a node; nil when it assigns
// nothing, or does not know the node.
func (a *Authority) Assignment(node string) *Assignment {
	if a == nil || a.Monitor == nil {
		return nil
	}
	for i := range a.Members {
		if a.Members[i].Name == node {
			return a.Members[i].Assigned
		}
	}
	return nil
}

// Withdrawn reports whether the authority has taken the writes from a node, by an
// explicit word: its goal does not allow them, or nobody can tell whose goal holds.
func (a *Authority) Withdrawn(node string) bool {
	if a == nil || a.Monitor == nil {
		return false
	}
	x := a.Assignment(node)
	return len(a.Monitor.Claimants) > 1 || x != nil && x.Writes == No
}
