package topology

// SessionEffect says what a reason does to a node's sessions.
type SessionEffect string

// The effects. With SessionsSilent sinks say nothing, so balancers keep what they have.
const (
	SessionsServe  SessionEffect = "serve"  // the node takes new sessions
	SessionsKeep   SessionEffect = "drain"  // sessions go on, no new ones
	SessionsEnd    SessionEffect = "kill"   // sessions end, no new ones
	SessionsSilent SessionEffect = "silent" // undecided
	SessionsNone   SessionEffect = "none"   // not a reason of a verdict
)

// CodeInfo describes a code.
type CodeInfo struct {
	Code     Code
	Severity Severity
	// Sessions is the reason's own effect; silence and maintenance of a node
	// without the writer role may be harsher in a write pool.
	Sessions SessionEffect
	// Choice: Pool.Sessions may exchange drain and kill.
	Choice bool
	// Until says what ends it, or what would change the verdict.
	Until string
	// Keys are the policy's and the pool's keys that bound it, as the
	// configuration names them.
	Keys []string
	// Manual is the sentence of the manual.
	Manual string
}

// Codes is the closed list of reasons, in the order of the verdict ladder.
var Codes = []CodeInfo{
	{
		CodeWriter, SeverityOK, SessionsServe, false, "a contrary word: another node is named, it is in recovery or read-only, nobody listens",
		[]string{"evidence_max_age"},
		"The node is the writer: named by the authority (or alone on the highest timeline) and proven writable over SQL.",
	},
	{
		CodeReplica, SeverityOK, SessionsServe, false, "lag, silence, a lost upstream or maintenance",
		[]string{"max_lag", "max_lag_time"},
		"The node is a healthy replica within the pool's lag limit.",
	},
	{
		CodeRamping, SeverityOK, SessionsServe, false, "slow_start is over, then it has its whole weight",
		[]string{"slow_start"},
		"The replica returned or was restarted a moment ago and takes sessions with a growing weight.",
	},
	{
		CodeSaturated, SeverityWarn, SessionsServe, false, "a login succeeds again",
		[]string{"evidence_max_age"},
		"All connection slots of the server are taken (SQLSTATE 53300). It is alive; a named writer stays, a replica has half its weight.",
	},
	{
		CodeFallback, SeverityWarn, SessionsServe, false, "a replica is eligible again",
		[]string{"fallback", "fallback_weight"},
		"No replica is eligible, so the primary serves the read pool, as the pool's fallback says.",
	},
	{
		CodeFallbackStale, SeverityWarn, SessionsServe, false, "a replica within max_lag is eligible again",
		[]string{"fallback", "max_lag", "max_lag_hard"},
		"No replica is eligible, so the one that lags least serves, as the pool's fallback says.",
	},
	{
		CodeNoEvidence, SeverityInfo, SessionsSilent, false, "the node answers its first question",
		[]string{"silent_after"},
		"Nothing is known of the node yet. Every sink keeps silent, so balancers stay as they are.",
	},
	{
		CodeAuthorityUnknown, SeverityWarn, SessionsSilent, false, "the authority answers",
		[]string{"silent_after"},
		"The authority has not been heard since the agent started. What stands is held, nobody is admitted.",
	},
	{
		CodeIdentity, SeverityError, SessionsEnd, false, "the cluster's own server answers at the address again",
		nil,
		"The server at the node's address has another system identifier than the cluster: it is not this cluster's server.",
	},
	{
		CodeForeignKey, SeverityError, SessionsServe, false, "the authority's initialize key and the servers agree on the system identifier",
		nil,
		"The authority's initialize key names another system identifier than the servers have. The servers are believed.",
	},
	{
		CodeMaintenance, SeverityInfo, SessionsKeep, true, "the maintenance ends",
		nil,
		"An operator has taken the node out, here or at pg_auto_failover's monitor.",
	},
	{
		CodeFenced, SeverityError, SessionsEnd, false, "the node is the one that is named, or restarts as a standby",
		[]string{"leader_gap"},
		"The node is writable although another node is the writer, its leader key has been gone for too long, or the monitor's goal for it takes no writes. Its sessions end.",
	},
	{
		CodeTwoWriters, SeverityError, SessionsEnd, false, "one of them stops being writable",
		[]string{"kill_after"},
		"Several nodes are writable. The one that the authority names, or that is alone on the highest timeline, goes on; where nothing tells them apart, none gets writes.",
	},
	{
		CodeTwoGoals, SeverityError, SessionsEnd, false, "the monitor assigns a state that takes writes to one node alone",
		nil,
		"The monitor of pg_auto_failover assigns states that take writes to several nodes of the group. None of them gets writes.",
	},
	{
		CodeRefused, SeverityError, SessionsEnd, false, "the node answers",
		[]string{"refused_confirm", "return_after"},
		"Nobody listens at the node's address; a second attempt confirmed it.",
	},
	{
		CodePort, SeverityError, SessionsEnd, true, "the pool's port answers its check",
		[]string{"refused_confirm", "silent_after"},
		"The pool's own port (a PgBouncer in front, say) is not answered, though the server itself may be.",
	},
	{
		CodeSilent, SeverityError, SessionsKeep, false, "the node answers; after kill_after its sessions end",
		[]string{"silent_after", "kill_after"},
		"The node does not answer. It takes no new session; its sessions end when another node is named, or after kill_after.",
	},
	{
		CodeNoLeader, SeverityError, SessionsKeep, false, "the leader key is back, or leader_gap is over",
		[]string{"leader_gap"},
		"The leader key is absent, confirmed by a consistent read, or the monitor assigns writes to nobody that is known. No new sessions; the existing ones end when another is named or after leader_gap.",
	},
	{
		CodeStarting, SeverityWarn, SessionsKeep, false, "the server answers a question",
		[]string{"return_after"},
		"The server answers that it is starting up, shutting down or recovering (SQLSTATE 57P01 to 57P03).",
	},
	{
		CodeWrongRole, SeverityInfo, SessionsKeep, true, "the node's role changes",
		nil,
		"The node's role does not fit the pool: a standby in a write pool, or the primary in a read pool.",
	},
	{
		CodeAssigned, SeverityInfo, SessionsKeep, true, "the monitor assigns the state secondary and the node confirms it",
		nil,
		"The state that pg_auto_failover's monitor assigns to the node is none in which it serves this pool, or the monitor does not know the node. Sessions end where the state belongs to a former primary.",
	},
	{
		CodeReadOnly, SeverityWarn, SessionsEnd, false, "default_transaction_read_only is off",
		nil,
		"The node left recovery but its transactions are read-only, so it cannot take writes yet.",
	},
	{
		CodeNotNamed, SeverityWarn, SessionsNone, false, "the authority names the node",
		nil,
		"A health check asked whether the node leads: it is neither the writer nor named by the authority.",
	},
	{
		CodePromoting, SeverityInfo, SessionsEnd, false, "the node leaves recovery",
		nil,
		"The authority names the node, which is not writable yet; or it is writable before the monitor says that its promotion is over.",
	},
	{
		CodeSessionMismatch, SeverityWarn, SessionsEnd, false, "the leader key and the member key have one session",
		nil,
		"The leader key and the holder's member key belong to different Consul sessions, so the node may not enter yet.",
	},
	{
		CodeOldTimeline, SeverityError, SessionsEnd, false, "the node follows the newer timeline; after a restore from backup: stop pgsteer and remove the cluster's file from its state folder",
		nil,
		"The node is writable on an older timeline than the highest ever seen: it was left behind by a failover.",
	},
	{
		CodeMinDown, SeverityInfo, SessionsEnd, false, "min_down is over",
		[]string{"min_down"},
		"The node lost the writer role a moment ago and stays down for min_down, so that no balancer's poll misses it.",
	},
	{
		CodeStandbyCluster, SeverityInfo, SessionsEnd, false, "the cluster is promoted: standby_cluster leaves its configuration",
		nil,
		"The cluster replicates from another cluster and has no writer.",
	},
	{
		CodeRoleUnknown, SeverityWarn, SessionsKeep, false, "the node answers the question about its role",
		[]string{"evidence_max_age"},
		"The node is alive but does not tell its role (no slot, authentication or TLS trouble).",
	},
	{
		CodeNoFailover, SeverityInfo, SessionsEnd, false, "the tag is removed, or the delay",
		nil,
		"The node is tagged nofailover or delays replay, so without an authority it never becomes the writer.",
	},
	{
		CodeNotSelected, SeverityInfo, SessionsKeep, true, "the node's tags or its role in replication fit the pool's select and role",
		[]string{"select", "role"},
		"The pool does not select this node: its tags or its role in replication do not fit.",
	},
	{
		CodeNoLoadBalance, SeverityInfo, SessionsKeep, true, "the tag is removed",
		nil,
		"The node is tagged noloadbalance.",
	},
	{
		CodeDelayed, SeverityInfo, SessionsKeep, true, "recovery_min_apply_delay is 0",
		nil,
		"The replica delays replay on purpose (recovery_min_apply_delay).",
	},
	{
		CodeNotStreaming, SeverityWarn, SessionsKeep, true, "a WAL receiver runs",
		[]string{"streaming_grace", "require_streaming"},
		"The replica has no WAL receiver although it has an upstream configured.",
	},
	{
		CodePathBroken, SeverityWarn, SessionsKeep, true, "the upstream receives WAL again",
		[]string{"streaming_grace", "require_streaming"},
		"The replica streams from a standby that itself receives nothing, so it falls behind unseen.",
	},
	{
		CodePaused, SeverityWarn, SessionsKeep, true, "replay resumes",
		[]string{"paused_grace"},
		"Replay is paused and the replica falls behind.",
	},
	{
		CodeTimeline, SeverityWarn, SessionsEnd, true, "the replica follows the writer's timeline",
		[]string{"streaming_grace"},
		"The replica follows another timeline than the writer's.",
	},
	{
		CodeLagHard, SeverityWarn, SessionsKeep, true, "its lag is within half of the limits for lag_return_after",
		[]string{"max_lag_hard", "lag_grace", "lag_return_after"},
		"The replica is further behind than max_lag_hard. It serves only while there is no proven writer to measure by and too few others are left.",
	},
	{
		CodeLag, SeverityWarn, SessionsKeep, true, "its lag is within half of the limits for lag_return_after",
		[]string{"max_lag", "max_lag_time", "lag_grace", "lag_return_after", "min_dwell"},
		"The replica is further behind than max_lag, in bytes or in time.",
	},
	{
		CodeLagUnknown, SeverityWarn, SessionsKeep, true, "the primary tells its position, or the WAL receiver lives",
		[]string{"lag_unknown_after"},
		"The replica's lag cannot be told: no fresh position of the primary and no live WAL receiver.",
	},
	{
		CodeLagOverride, SeverityWarn, SessionsServe, false, "enough replicas are within max_lag",
		[]string{"max_lag", "max_lag_hard", "min_replicas"},
		"The replica is out by lag or a hold-down but serves, since fewer than min_replicas would be left; without a proven writer whatever its lag.",
	},
	{
		CodeDamped, SeverityWarn, SessionsKeep, false, "the hold-down is over",
		[]string{"flap.count", "flap.within", "flap.hold_down", "flap.hold_down_max", "flap.calm"},
		"The replica came and went too often and is held out for a while, longer each time.",
	},
	{
		CodeReturning, SeverityInfo, SessionsKeep, false, "it has been good for return_after (after lag: lag_return_after)",
		[]string{"return_after", "lag_return_after"},
		"The replica is good again and returns after return_after of good answers.",
	},
	{
		CodeOtherZone, SeverityInfo, SessionsKeep, false, "fewer than min_replicas of the preferred zone are up",
		[]string{"zone", "min_replicas"},
		"The node stands in another zone than the pool prefers, and the preferred zone has enough nodes.",
	},
	{
		CodeWritesStalled, SeverityError, SessionsKeep, false, "a write probe succeeds",
		[]string{"writes_stalled_after", "write_stall"},
		"Small writes on the writer get no answer although it answers reads: its storage hangs. It stays the writer, or drains if write_stall says so.",
	},
	{
		CodeWritesBlocked, SeverityError, SessionsServe, false, "a synchronous standby answers, or synchronous_standby_names changes",
		[]string{"writes_blocked_after"},
		"Commits wait for a synchronous standby and the writer's position stands still. The writer stays.",
	},
	{
		CodeAuthorityLost, SeverityWarn, SessionsServe, false, "the authority answers",
		[]string{"authority_max_age", "authority_lost", "hold_max"},
		"The authority cannot be reached. The present writer is held while SQL proves it; nobody new is admitted.",
	},
	{
		CodeIsolated, SeverityError, SessionsServe, false, "any cluster answers",
		nil,
		"Every cluster fell silent at the same moment: the trouble is on this agent's side, so silence takes nobody out.",
	},
	{
		CodeLinkCut, SeverityWarn, SessionsServe, false, "the node answers this agent",
		[]string{"silent_after"},
		"The node does not answer this agent, but others hear from it: only this agent's link is cut.",
	},
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
