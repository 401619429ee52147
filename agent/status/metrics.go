package status

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// The metrics, each with the sentence that docs/metrics.md repeats. They are
// computed from the newest views at scrape.
var (
	descUp         = desc("pgsteer_node_up", "1 when the node answered its last SQL probe, 0 when it is failing or was never heard.", "cluster", "node")
	descVerdict    = desc("pgsteer_node_verdict", "1 for the present verdict of a node in a pool (up, drain, down, undecided), 0 for the others.", "cluster", "pool", "node", "verdict")
	descReason     = desc("pgsteer_node_reason", "1 for the leading reason of a node's verdict in a pool; reasons.md has them.", "cluster", "pool", "node", "reason")
	descLag        = desc("pgsteer_node_lag_bytes", "Bytes of WAL that a replica's replay is behind the writer; absent while unknown.", "cluster", "node")
	descLagTime    = desc("pgsteer_node_lag_seconds", "Seconds since the writer first passed the position that the replica has replayed; absent while unknown.", "cluster", "node")
	descAge        = desc("pgsteer_node_evidence_age_seconds", "Age of the last answer of a node; since the start of the agent when it never answered.", "cluster", "node")
	descPoolSize   = desc("pgsteer_pool_up_nodes", "Nodes that are up in a pool.", "cluster", "pool")
	descFallback   = desc("pgsteer_pool_fallback", "1 while the primary serves a read pool for want of replicas.", "cluster", "pool")
	descGeneration = desc("pgsteer_generation", "Decisions of a cluster that differed from the one before, since the start of the agent.", "cluster")
	descHash       = desc("pgsteer_decision_info", "1; the label has the hash of the decision, equal on agents that decide alike.", "cluster", "hash")
	descValid      = desc("pgsteer_decision_valid", "1 while the decision may be believed, 0 when it is too old and every answer is that of undecided.", "cluster")
	descComplete   = desc("pgsteer_cluster_complete", "1 once every source of nodes has delivered.", "cluster")
	descAuthority  = desc("pgsteer_authority_current", "1 while the authority's word is current, 0 while it is lost or unknown; absent without an authority.", "cluster")
	descAlarm      = desc("pgsteer_cluster_alarm", "1 for each trouble of the cluster as a whole; reasons.md has them.", "cluster", "reason")
	descClaims     = desc("pgsteer_primary_claims", "Nodes that say they are writable; above 1 is a split brain in the making.", "cluster")
	descTimeline   = desc("pgsteer_highest_timeline", "Highest timeline ever seen.", "cluster")
	descSource     = desc("pgsteer_source_up", "1 while a source delivers, 0 while it fails or has not delivered yet.", "cluster", "source")
	descSourceAge  = desc("pgsteer_source_age_seconds", "Age of a source's last good answer; absent before the first.", "cluster", "source")
	descSink       = desc("pgsteer_sink_ok", "1 while nothing keeps a sink from applying what is decided.", "sink")
	descSinkCount  = desc("pgsteer_sink_events_total", "Events of a sink by kind, since the sink was started.", "sink", "event")
	descSinkGauge  = desc("pgsteer_sink_present", "How much of something a sink has now, such as the open streams of xds.", "sink", "what")
	descReload     = desc("pgsteer_config_last_reload_success", "1 when the last reading of the configuration was taken, 0 when it was refused.")
	descReloadAt   = desc("pgsteer_config_last_reload_success_timestamp_seconds", "When the configuration that runs was taken.")
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
	descVerdict, descReason, descPoolSize, descFallback,
	descUp, descAge, descLag, descLagTime,
	descGeneration, descHash, descValid, descComplete, descAlarm, descAuthority, descClaims, descTimeline,
	descSource, descSourceAge, descSink, descSinkCount, descSinkGauge,
}

func desc(name, help string, labels ...string) metric {
	return metric{name, help, labels, prometheus.NewDesc(name, help, labels, nil)}
}

// setGauge adds a series.
type setGauge func(m metric, v float64, labels ...string)

type collector struct{ s *Server }

// Describe sends every description.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics {
		ch <- m.desc
	}
}

// Collect computes every series from the newest report.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	r := c.s.report()
	gauge := func(m metric, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, v, labels...)
	}
	uptime := c.s.o.Now().Wall.Sub(r.Agent.StartedAt).Seconds()
	for _, cl := range r.Clusters {
		collectCluster(gauge, cl, uptime)
	}
	for _, s := range r.Sinks {
		gauge(descSink, b2f(s.Error == ""), s.Name)
		for _, k := range sortedKeys(s.Counters) {
			ch <- prometheus.MustNewConstMetric(descSinkCount.desc, prometheus.CounterValue, float64(s.Counters[k]), s.Name, k)
		}
		for _, k := range sortedKeys(s.Gauges) {
			gauge(descSinkGauge, float64(s.Gauges[k]), s.Name, k)
		}
	}
	gauge(descReload, b2f(r.Agent.ConfigError == ""))
	gauge(descReloadAt, float64(r.Agent.ConfigAt.UnixMilli())/1000)
	gauge(descBuild, 1, r.Agent.Version)
}

func collectCluster(gauge setGauge, c ClusterReport, uptime float64) {
	if c.Snapshot == nil {
		return
	}
	s := c.Snapshot
	gauge(descGeneration, float64(s.Generation), c.Name)
	gauge(descHash, 1, c.Name, s.Hash)
	gauge(descTimeline, float64(c.Timeline), c.Name)
	gauge(descValid, b2f(c.Valid), c.Name)
	gauge(descComplete, b2f(s.Complete), c.Name)
	for _, a := range s.Alarms {
		gauge(descAlarm, 1, c.Name, string(a.Code))
	}
	if s.Authority.Kind != topology.AuthorityNone {
		gauge(descAuthority, b2f(s.Authority.State == topology.AuthorityStateCurrent), c.Name)
	}
	claims := 0
	for _, n := range c.Nodes {
		claims += collectNode(gauge, c.Name, n, uptime)
	}
	gauge(descClaims, float64(claims), c.Name)
	for _, p := range s.Pools {
		gauge(descPoolSize, float64(len(p.Up())), c.Name, p.Pool)
		gauge(descFallback, b2f(p.Fallback), c.Name, p.Pool)
	}
	for _, src := range c.Sources {
		gauge(descSource, b2f(src.State == "current"), c.Name, src.Source)
		if src.Age != nil {
			gauge(descSourceAge, *src.Age, c.Name, src.Source)
		}
	}
}

func collectNode(gauge setGauge, cluster string, n NodeReport, uptime float64) (claims int) {
	gauge(descUp, b2f(n.Answered != nil && n.Failing == 0), cluster, n.Name)
	age := uptime
	if n.Answered != nil {
		age = *n.Answered
	}
	gauge(descAge, age, cluster, n.Name)
	if n.LagBytes != nil {
		gauge(descLag, float64(*n.LagBytes), cluster, n.Name)
		gauge(descLagTime, n.LagTime, cluster, n.Name)
	}
	for _, v := range n.Verdicts {
		for _, w := range []topology.Verdict{topology.Up, topology.Drain, topology.Down, topology.Undecided} {
			gauge(descVerdict, b2f(v.Verdict == w), cluster, v.Pool, n.Name, w.String())
		}
		gauge(descReason, 1, cluster, v.Pool, n.Name, string(v.Reason().Code))
	}
	if n.Role == "primary" {
		return 1
	}
	return 0
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
