package topology

import "time"

// Verdict says what a node does in a pool.
type Verdict uint8

// The verdicts. The zero value is Undecided: every sink keeps silent.
const (
	Undecided Verdict = iota
	Up                // takes new sessions, with a weight
	Drain             // keeps its sessions, takes no new ones
	Down              // takes none, its sessions end
)

func (v Verdict) String() string {
	switch v {
	case Up:
		return "up"
	case Drain:
		return "drain"
	case Down:
		return "down"
	default:
		return "undecided"
	}
}

// MarshalText writes the verdict's word.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText reads the verdict's word; an unknown one is undecided.
func (v *Verdict) UnmarshalText(b []byte) error {
	*v = Undecided
	for _, w := range []Verdict{Up, Drain, Down} {
		if w.String() == string(b) {
			*v = w
		}
	}
	return nil
}

// Severity says how much a reason should worry an operator.
type Severity string

// The severities.
const (
	SeverityOK    Severity = "ok"    // as it should be
	SeverityInfo  Severity = "info"  // a normal state that keeps a node out
	SeverityWarn  Severity = "warn"  // degraded, still served
	SeverityError Severity = "error" // somebody must act
)

// Code identifies a reason. The list is closed: Codes has every one.
type Code string

// The reason codes.
const (
	CodeWriter           Code = "writer"
	CodeReplica          Code = "replica"
	CodeFallback         Code = "fallback"
	CodeNoEvidence       Code = "no_evidence"
	CodeAuthorityUnknown Code = "authority_unknown"
	CodeIdentity         Code = "identity"
	CodeMaintenance      Code = "maintenance"
	CodeFenced           Code = "fenced"
	CodeTwoWriters       Code = "two_writers"
	CodeRefused          Code = "refused"
	CodeSilent           Code = "silent"
	CodeNoLeader         Code = "no_leader"
	CodeStarting         Code = "starting"
	CodeWrongRole        Code = "wrong_role"
	CodeReadOnly         Code = "read_only"
	CodeNotNamed         Code = "not_named"
	CodePromoting        Code = "promoting"
	CodeSessionMismatch  Code = "session_mismatch"
	CodeOldTimeline      Code = "old_timeline"
	CodeMinDown          Code = "min_down"
	CodeStandbyCluster   Code = "standby_cluster"
	CodeRoleUnknown      Code = "role_unknown"
	CodeNoFailover       Code = "nofailover"
	CodeNoLoadBalance    Code = "noloadbalance"
	CodeDelayed          Code = "delayed"
	CodeNotStreaming     Code = "not_streaming"
	CodePaused           Code = "paused"
	CodeTimeline         Code = "timeline"
	CodeLagHard          Code = "lag_hard"
	CodeLag              Code = "lag"
	CodeLagUnknown       Code = "lag_unknown"
	CodeLagOverride      Code = "lag_override"
	CodeReturning        Code = "returning"
	CodeAuthorityLost    Code = "authority_lost"
	CodeIsolated         Code = "isolated"
	CodeLinkCut          Code = "link_cut"
	CodeFallbackStale    Code = "fallback_stale"
	CodeNotSelected      Code = "not_selected"
	CodeOtherZone        Code = "other_zone"
	CodePort             Code = "port"
	CodePathBroken       Code = "path_broken"
	CodeDamped           Code = "damped"
	CodeSaturated        Code = "saturated"
	CodeRamping          Code = "ramping"
	CodeWritesStalled    Code = "writes_stalled"
	CodeWritesBlocked    Code = "writes_blocked"
	CodeForeignKey       Code = "foreign_key"
	CodeAssigned         Code = "assigned"
	CodeTwoGoals         Code = "two_goals"
)

// Reason is one cause of a verdict.
type Reason struct {
	Code Code `json:"code"`
	// Text is for people: printable UTF-8, no line break, no comma, at most 80 bytes.
	Text  string    `json:"text"`
	Since time.Time `json:"since"`
}
