package apply

import "time"

// State is what a group is doing.
type State string

// The states of a group.
const (
	// StateWaiting: a cluster has not delivered its nodes yet; what stands is held.
	StateWaiting State = "waiting"
	// StateHeld: what stands is held on purpose, Error says why: a template fails,
	// or a cluster has suddenly no nodes.
	StateHeld State = "held"
	// StatePending: the desired files are not live yet; NextTry says when it is tried (again).
	StatePending State = "pending"
	// StateRejected: the check or the preflight refused the desired files; what stands
	// goes on, and NextTry says when they are checked again.
	StateRejected State = "rejected"
	// StateApplied: what is desired is on disk and running.
	StateApplied State = "applied"
)

// Status of one group, for people and metrics.
type Status struct {
	Group string    `json:"group"`
	State State     `json:"state"`
	Since time.Time `json:"since"` // when State began

	// Applied is the generation of each cluster whose nodes run: the last one for
	// which nothing was left to do.
	Applied map[string]uint64 `json:"applied_generations"`
	// The hashes of the group's texts; "" is unknown.
	Desired string `json:"desired"`
	OnDisk  string `json:"on_disk"`
	Running string `json:"running"`

	// Error says what keeps the group from StateApplied, or "".
	Error string `json:"error"`
	// LastError and LastOutput are the last failure's, kept after it is over.
	LastError   string    `json:"last_error"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
	LastOutput  string    `json:"last_output"` // the end of what the command printed
	NextTry     time.Time `json:"next_try,omitzero"`

	Reloads uint64 `json:"reloads"` // good ones
	// Runtime counts changes that were made in the running process, without a reload.
	Runtime       uint64 `json:"runtime"`
	ReloadsFailed uint64 `json:"reloads_failed"` // failed or unconfirmed ones
	// Refused counts texts that were not applied, by reason: template, empty, check, preflight; empty is all or most nodes gone.
	Refused map[string]uint64 `json:"refused"`
	// LeftOut says what of the newest nodes no file can hold, see render.View.
	LeftOut []string `json:"left_out,omitempty"`
	// OldProcesses is the number of replaced HAProxy workers that still have
	// sessions, as of the last reload; known with MasterSocket only.
	OldProcesses int `json:"old_processes"`
}

// The reasons of Status.Refused.
const (
	RefusedTemplate  = "template"
	RefusedEmpty     = "empty"
	RefusedCheck     = "check"
	RefusedPreflight = "preflight"
)
