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
)

// CodeInfo describes a code: the sentence for the manual and how bad it is.
type CodeInfo struct {
	Code     Code
	Severity Severity
	Manual   string
}

// Codes is the closed list of reasons, in the order of the verdict ladder.
var Codes = []CodeInfo{
	{CodeWriter, SeverityOK, "The node is the writer: named by the authority (or alone on the highest timeline) and proven writable over SQL."},
	{CodeReplica, SeverityOK, "The node is a healthy replica within the pool's lag limit."},
	{CodeFallback, SeverityWarn, "No replica is eligible, so the primary serves the read pool, as the pool's fallback says."},
	{CodeNoEvidence, SeverityInfo, "Nothing is known of the node yet. Every sink keeps silent, so balancers stay as they are."},
	{CodeAuthorityUnknown, SeverityWarn, "The authority has not been heard since the agent started. What stands is held, nobody is admitted."},
	{CodeIdentity, SeverityError, "The server at the node's address has another system identifier than the cluster: it is not this cluster's server."},
	{CodeMaintenance, SeverityInfo, "An operator has taken the node out."},
	{CodeFenced, SeverityError, "The node is writable although another node is the writer, or its leader key has been gone for too long. Its sessions end."},
	{CodeTwoWriters, SeverityError, "Several nodes are writable on the highest timeline and no authority says which is right. None of them gets writes."},
	{CodeRefused, SeverityError, "Nobody listens at the node's address; a second attempt confirmed it."},
	{CodeSilent, SeverityError, "The node does not answer. It takes no new session; its sessions end when another node is named, or after kill_after."},
	{CodeNoLeader, SeverityError, "The leader key is absent, confirmed by a consistent read. No new sessions; the existing ones end when another is named or after leader_gap."},
	{CodeStarting, SeverityWarn, "The server answers that it is starting up, shutting down or recovering (SQLSTATE 57P01 to 57P03)."},
	{CodeWrongRole, SeverityInfo, "The node's role does not fit the pool: a standby in a write pool, or the primary in a read pool."},
	{CodeReadOnly, SeverityWarn, "The node left recovery but its transactions are read-only, so it cannot take writes yet."},
	{CodeNotNamed, SeverityWarn, "A health check asked whether the node leads: it is neither the writer nor named by the authority."},
	{CodePromoting, SeverityInfo, "The authority names the node, which is not writable yet."},
	{CodeSessionMismatch, SeverityWarn, "The leader key and the holder's member key belong to different Consul sessions, so the node may not enter yet."},
	{CodeOldTimeline, SeverityError, "The node is writable on an older timeline than the highest ever seen: it was left behind by a failover."},
	{CodeMinDown, SeverityInfo, "The node lost the writer role a moment ago and stays down for min_down, so that no balancer's poll misses it."},
	{CodeStandbyCluster, SeverityInfo, "The cluster replicates from another cluster and has no writer."},
	{CodeRoleUnknown, SeverityWarn, "The node is alive but does not tell its role (no slot, authentication or TLS trouble)."},
	{CodeNoFailover, SeverityInfo, "The node is tagged nofailover or delays replay, so without an authority it never becomes the writer."},
	{CodeNoLoadBalance, SeverityInfo, "The node is tagged noloadbalance."},
	{CodeDelayed, SeverityInfo, "The replica delays replay on purpose (recovery_min_apply_delay)."},
	{CodeNotStreaming, SeverityWarn, "The replica has no WAL receiver although it has an upstream configured."},
	{CodePaused, SeverityWarn, "Replay is paused and the replica falls behind."},
	{CodeTimeline, SeverityWarn, "The replica follows another timeline than the writer's."},
	{CodeLagHard, SeverityWarn, "The replica is further behind than max_lag_hard."},
	{CodeLag, SeverityWarn, "The replica is further behind than max_lag."},
	{CodeLagUnknown, SeverityWarn, "The replica's lag cannot be told: no fresh position of the primary and no live WAL receiver."},
	{CodeLagOverride, SeverityWarn, "The replica is further behind than max_lag but serves, since fewer than min_replicas would be left."},
	{CodeReturning, SeverityInfo, "The replica is good again and returns after return_after of good answers."},
	{CodeAuthorityLost, SeverityWarn, "The authority cannot be reached. The present writer is held while SQL proves it; nobody new is admitted."},
	{CodeIsolated, SeverityError, "Every cluster fell silent at the same moment: the trouble is on this agent's side, so silence takes nobody out."},
	{CodeLinkCut, SeverityWarn, "The node does not answer this agent, but others hear from it: only this agent's link is cut."},
}

var codeIndex = func() map[Code]CodeInfo {
	m := make(map[Code]CodeInfo, len(Codes))
	for _, c := range Codes {
		m[c.Code] = c
	}
	return m
}()

// Info returns the description of a code.
func (c Code) Info() CodeInfo { return codeIndex[c] }

// Reason is one cause of a verdict.
type Reason struct {
	Code Code `json:"code"`
	// Text is for people: printable ASCII, no line break, no comma, at most 80 bytes.
	Text  string    `json:"text"`
	Since time.Time `json:"since"`
}
