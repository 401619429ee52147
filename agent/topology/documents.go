package topology

import "encoding/json"

// Documents are what an authority keeps beside its word on roles, for those who
// ask for it as it is. No rule reads them, so a change of them is no decision and
// wakes nobody. They are immutable. A text is valid JSON of the kind that is told,
// and nil when there is no such key or it cannot be read.
type Documents struct {
	Config   json.RawMessage // Patroni's dynamic configuration: an object
	History  json.RawMessage // ends of timelines, oldest first: a list of lists
	Failsafe json.RawMessage // whom the leader asks without the store, by name: an object
	// MaxLag is the configuration's maximum_lag_on_failover; nil: it does not say.
	MaxLag     *Size
	Switchover *Switchover               // scheduled; nil: none
	Members    map[string]MemberDocument // by name
}

// Switchover is a change of leader that an operator has scheduled.
type Switchover struct {
	At       string // ISO 8601, as Patroni wrote it
	From, To string // empty: whoever leads then, whoever is best
}

// MemberDocument is what a member says of itself beyond Member.
type MemberDocument struct {
	PendingRestart bool
	// RestartReason is which settings wait for it, ScheduledRestart when it is due
	// and under which conditions: objects, or nil.
	RestartReason, ScheduledRestart json.RawMessage
	// Replication is how it gets its WAL: streaming, in archive recovery; empty:
	// it does not say.
	Replication           string
	ReceiveLSN, ReplayLSN LSN // zero: it does not say
}
