package status

import "github.com/pgsteer/pgsteer/agent/topology"

// advice says what an operator does about a reason that somebody must act on,
// and about an authority that cannot be reached.
var advice = map[topology.Code]string{
	topology.CodeIdentity:      "Check the node's address. If the cluster was built anew, stop pgsteer, remove the cluster's file from its state folder (cluster-NAME.json) and start it again.",
	topology.CodeForeignKey:    "Compare the initialize key with pg_controldata of the servers: two clusters may share one scope, or the key is a leftover.",
	topology.CodeFenced:        "Make sure that nothing writes to the node, and let the cluster's manager restart it as a standby; what it wrote alone is lost to the cluster.",
	topology.CodeTwoWriters:    "Stop those that are not the writer at once, and rebuild them as standbys; where there is no writer, decide first which of them is right.",
	topology.CodeTwoGoals:      "Look at `pg_autoctl show state` and the monitor's events: only one node of a group may have a state that takes writes.",
	topology.CodeRefused:       "Start PostgreSQL on the node, or correct its address.",
	topology.CodePort:          "Look at what should listen on the pool's port, PgBouncer perhaps, and at its log.",
	topology.CodeSilent:        "Look at the host, at the network between it and this agent, and at a postmaster that hangs: open sessions may live on.",
	topology.CodeNoLeader:      "Look at the cluster manager's log on each node: nobody holds the leader key.",
	topology.CodeOldTimeline:   "Where another node is the writer: stop this one and rebuild it from that one, with pg_rewind or a new base backup. Where none is, after a restore from a backup: stop pgsteer, remove the cluster's file from its state folder (cluster-NAME.json) and start it again.",
	topology.CodeWritesStalled: "Look at the writer's disk. pgsteer never fails over by itself: a switchover is the cluster manager's.",
	topology.CodeWritesBlocked: "Bring a synchronous standby back, or take it out of synchronous_standby_names.",
	topology.CodeIsolated:      "Look at this host: its network, its firewall, its file descriptors. The databases are probably well.",
	topology.CodeAuthorityLost: "Look at the authority's servers, the network to them and the token. Sessions go on meanwhile; a failover is not followed.",
}

// privilegesAdvice is for a probe's role that sees too little (field report P3).
const privilegesAdvice = "Upstream, receiver and standbys are unknown, so replication is judged by lag alone: GRANT pg_monitor TO the role that pgsteer logs in as."

// loginAdvice says what to do about new logins that fail beside an open session.
// The next restart of the server, or of pgsteer, ends that session.
var loginAdvice = map[topology.FailureClass]string{
	topology.FailAuth:     "Was the password of the probe's role changed, or pg_hba.conf? The node's role is unknown as soon as the open session ends.",
	topology.FailDatabase: "Does the database that pgsteer logs in to still exist? The node's role is unknown as soon as the open session ends.",
	topology.FailTLS:      "Was a certificate changed, or has one expired? The node's role is unknown as soon as the open session ends.",
	topology.FailSlots:    "Clients get no session either: look at max_connections and at who holds them.",
}
