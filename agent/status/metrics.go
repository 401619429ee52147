package status

import "github.com/prometheus/client_golang/prometheus"

// The metrics, each with the sentence that docs/metrics.md repeats. They are
// computed from the newest views at scrape. Every series of a node that is known
// is there at every scrape: what is unknown is NaN, never zero and never absent
// (field report FR-35).
var (
	descUp         = desc("pgsteer_node_up", "1 when the node answered its last SQL probe, 0 when it is failing or was never heard.", "cluster", "node")
	descFailure    = desc("pgsteer_node_failure", "1 for the way in which the node's probe fails now (refused, timeout, tls, auth, slots …); class none while it answers.", "cluster", "node", "class")
	descVerdict    = desc("pgsteer_node_verdict", "1 for the present verdict of a node in a pool (up, drain, down, undecided), 0 for the others.", "cluster", "pool", "node", "verdict")
	descReason     = desc("pgsteer_node_reason", "1 for the leading reason of a node's verdict in a pool; reasons.md has the closed list.", "cluster", "pool", "node", "reason")
	descWeight     = desc("pgsteer_node_weight_ratio", "Weight of a node in a pool, of 1; 0 unless it is up.", "cluster", "pool", "node")
	descLag        = desc("pgsteer_node_lag_bytes", "Bytes of WAL that a replica's replay is behind the writer, as last known; NaN for a primary and before the first measurement.", "cluster", "node")
	descLagTime    = desc("pgsteer_node_lag_seconds", "Seconds since the writer first passed the position that the replica has replayed, as last known; NaN for a primary and before the first measurement.", "cluster", "node")
	descLagAge     = desc("pgsteer_node_lag_age_seconds", "Age of the lag: since the replica was asked; since the start of the agent when it was never measured, NaN for a primary.", "cluster", "node")
	descAge        = desc("pgsteer_node_evidence_age_seconds", "Age of the last answer of a node; since the start of the agent when it never answered.", "cluster", "node")
	descSlots      = desc("pgsteer_node_slots_exhausted", "1 while logins find no free connection slot (SQLSTATE 53300), though the server is alive.", "cluster", "node")
	descPort       = desc("pgsteer_port_up", "1 when a pool's own port at a node (a PgBouncer in front, say) answered its last check, 0 when it fails or was not checked yet.", "cluster", "node", "port")
	descPrivileges = desc("pgsteer_probe_privileges_missing", "1 when the probe's role may not see the WAL receiver of a standby: it lacks pg_monitor.", "cluster", "node")
	descLogin      = desc("pgsteer_probe_login_failing", "1 while new logins of the probe fail although its open session answers: a changed password or certificate, or no slot.", "cluster", "node")

	descPoolNodes  = desc("pgsteer_pool_nodes", "Nodes of a pool, whatever their verdict.", "cluster", "pool")
	descPoolSize   = desc("pgsteer_pool_up_nodes", "Nodes that are up in a pool: those that take new sessions.", "cluster", "pool")
	descFallback   = desc("pgsteer_pool_fallback", "1 while the primary, or a replica beyond max_lag, serves a read pool for want of replicas.", "cluster", "pool")
	descPoolChange = desc("pgsteer_pool_last_change_timestamp_seconds", "When a verdict, a weight, an address or a leading reason in the pool changed last.", "cluster", "pool")

	descGeneration = desc("pgsteer_generation", "Decisions of a cluster that differed from the one before, since the start of the agent.", "cluster")
	descHash       = desc("pgsteer_decision_info", "1; the label has the hash of the decision, equal on agents that decide alike.", "cluster", "hash")
	descValid      = desc("pgsteer_decision_valid", "1 while the decision may be believed, 0 when it is too old and every answer is that of undecided, and before the first.", "cluster")
	descComplete   = desc("pgsteer_cluster_complete", "1 once every source of nodes has delivered.", "cluster")
	descAuthority  = desc("pgsteer_authority_current", "1 while the authority's word is current, 0 while it is lost or unknown; absent without an authority.", "cluster")
	descPaused     = desc("pgsteer_authority_paused", "1 while the authority is paused and fails over nobody, NaN while that is unknown; absent without an authority.", "cluster")
	descAlarm      = desc("pgsteer_cluster_alarm", "1 for each trouble of the cluster as a whole; reasons.md has them.", "cluster", "reason")
	descStalled    = desc("pgsteer_writes_stalled", "1 while small writes on the writer get no answer although it answers reads.", "cluster")
	descBlocked    = desc("pgsteer_writes_blocked", "1 while commits wait for a synchronous standby and the writer's position stands still.", "cluster")
	descClaims     = desc("pgsteer_primary_claims", "Nodes that said within kill_after that they are writable; above 1 is a split brain in the making.", "cluster")
	descTimeline   = desc("pgsteer_highest_timeline", "Highest timeline ever seen.", "cluster")
	descSource     = desc("pgsteer_source_up", "1 while a source (consul/main, postgres/n1 …) delivers, 0 while it fails or has not delivered yet.", "cluster", "source")
	descSourceAge  = desc("pgsteer_source_age_seconds", "Age of a source's last good answer; since the start of the agent before the first.", "cluster", "source")
	descSink       = desc("pgsteer_sink_ok", "1 while nothing keeps a sink from applying what is decided.", "sink")
	descSinkCount  = desc("pgsteer_sink_events_total", "Events of a sink by kind, since the sink was started.", "sink", "event")
	descSinkGauge  = desc("pgsteer_sink_present", "How much of something a sink has now, such as the open streams of xds and its held_listeners and held_clusters (those that differ from the configuration until they may change), of a template group old_processes (HAProxy's workers of before) and left_out (nodes and tags that no file can carry), of mesh publisher (1 on the agent that publishes the cluster), instances, instances_up (that take new sessions) and written_timestamp_seconds (of the last write), and of runtimeapi old_workers and, for the present process and for the old ones, sessions_down and sessions_draining (sessions with servers that are down, which are being ended, and that drain). Of a PgBouncer: its databases that are paused (by pgsteer), paused_elsewhere or disabled, and servers_leaving, connections that it replaces once they are free.", "sink", "what")
	descReload     = desc("pgsteer_config_last_reload_success", "1 when the last reading of the configuration was taken, 0 when it was refused.")
	descReloadAt   = desc("pgsteer_config_last_reload_success_timestamp_seconds", "When the configuration that runs was taken.")
	descMode       = desc("pgsteer_maintenance_mode", "1 while the agent itself is in maintenance and every node of every cluster is out, else 0.")
	descOut        = desc("pgsteer_maintenance_records", "Records of what operators took out and that hold now, that of the agent itself included; pgsteer_node_reason has the nodes.")
	descRefused    = desc("pgsteer_maintenance_refused_total", "Agent checks and health checks that were refused because of maintenance, since the listeners were started.")
	descEnded      = desc("pgsteer_maintenance_sessions_ended_total", "Sessions that this agent has ended at nodes that are out, by pg_terminate_backend, since its start; the log names each.")
	descLeft       = desc("pgsteer_maintenance_sessions_left", "Sessions that are left at the nodes which this agent is draining now, as seen last.")
	descBuild      = desc("pgsteer_build_info", "1; the label has the version.", "version")
)

// metric describes one metric, for Prometheus and for the manual.
type metric struct {
	name, help string
	labels     []string
	desc       *prometheus.Desc
}

// metrics is the list of all, in the order of the manual.
var metrics = []metric{
	descBuild, descReload, descReloadAt,
	descVerdict, descReason, descWeight, descPoolNodes, descPoolSize, descFallback, descPoolChange,
	descUp, descFailure, descAge, descLag, descLagTime, descLagAge, descSlots, descPort, descPrivileges, descLogin,
	descGeneration, descHash, descValid, descComplete, descAlarm, descStalled, descBlocked,
	descAuthority, descPaused, descClaims, descTimeline,
	descMode, descOut, descRefused, descEnded, descLeft,
	descSource, descSourceAge, descSink, descSinkCount, descSinkGauge,
}

func desc(name, help string, labels ...string) metric {
	return metric{name, help, labels, prometheus.NewDesc(name, help, labels, nil)}
}
