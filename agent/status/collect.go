package status

import (
	"math"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// collector computes every series from the newest report. It remembers nothing
// but each replica's last known lag, from one scrape to the next.
type collector struct {
	s *Server

	mu   sync.Mutex // guards lags
	lags map[place]knownLag
}

// place is a node at its address; another address is another server.
type place struct {
	cluster, node string
	address       topology.Address
}

// knownLag is a lag, and when the replica was asked.
type knownLag struct {
	bytes, seconds float64
	at             time.Time
}

// Describe sends every description.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range metrics {
		ch <- m.desc
	}
}

// Collect sends every series.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	r := c.s.report()
	gauge := func(m metric, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, v, labels...)
	}
	now := c.s.o.Now().Wall
	lags := c.knownLags(r, now)
	for _, cl := range r.Clusters {
		collectCluster(clusterScrape{gauge, cl, c.s.o.Policy(cl.Name), lags, now, now.Sub(r.Agent.StartedAt).Seconds()})
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
	c.collectMaintenance(ch, r)
	gauge(descReload, b2f(r.Agent.ConfigError == ""))
	gauge(descReloadAt, unix(r.Agent.ConfigAt))
	gauge(descBuild, 1, r.Agent.Version)
}

// counterMaintenance is the counter of a sink for answers that maintenance refused.
const counterMaintenance = "maintenance"

// The counter and the gauge of a sink for drains.
const (
	SessionsEnded = "sessions_ended"
	SessionsLeft  = "sessions_left"
)

func (c *collector) collectMaintenance(ch chan<- prometheus.Metric, r Report) {
	var refused, ended, left uint64
	for _, s := range r.Sinks {
		refused += s.Counters[counterMaintenance]
		ended += s.Counters[SessionsEnded]
		left += s.Gauges[SessionsLeft]
	}
	ch <- prometheus.MustNewConstMetric(descMode.desc, prometheus.GaugeValue, b2f(!r.Agent.EnteredAt.IsZero()))
	ch <- prometheus.MustNewConstMetric(descRefused.desc, prometheus.CounterValue, float64(refused))
	ch <- prometheus.MustNewConstMetric(descEnded.desc, prometheus.CounterValue, float64(ended))
	ch <- prometheus.MustNewConstMetric(descLeft.desc, prometheus.GaugeValue, float64(left))
	ch <- prometheus.MustNewConstMetric(descOut.desc, prometheus.GaugeValue, float64(len(r.Agent.Maintenance)))
}

// knownLags takes over what is known now, keeps what was known of the nodes that
// are still there, and forgets the rest.
func (c *collector) knownLags(r Report, now time.Time) map[place]knownLag {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := make(map[place]knownLag)
	for _, cl := range r.Clusters {
		for _, n := range cl.Nodes {
			at := place{cl.Name, n.Name, n.Address}
			if old, ok := c.lags[at]; ok {
				next[at] = old
			}
			if n.LagBytes != nil && n.RoleAge != nil {
				asked := now.Add(-time.Duration(*n.RoleAge * float64(time.Second)))
				next[at] = knownLag{float64(*n.LagBytes), n.LagTime, asked}
			}
		}
	}
	c.lags = next
	return next
}

// clusterScrape is what the series of one cluster are made of.
type clusterScrape struct {
	gauge  func(m metric, v float64, labels ...string)
	c      ClusterReport
	policy topology.Policy
	lags   map[place]knownLag
	now    time.Time
	uptime float64
}

func collectCluster(x clusterScrape) {
	c, s := x.c, x.c.Snapshot
	x.gauge(descValid, b2f(c.Valid), c.Name)
	x.gauge(descComplete, b2f(s != nil && s.Complete), c.Name)
	if s == nil {
		return
	}
	x.gauge(descGeneration, float64(s.Generation), c.Name)
	x.gauge(descHash, 1, c.Name, s.Hash)
	x.gauge(descTimeline, float64(c.Timeline), c.Name)
	for _, a := range s.Alarms {
		x.gauge(descAlarm, 1, c.Name, string(a.Code))
	}
	x.gauge(descStalled, b2f(x.holds(topology.CodeWritesStalled)), c.Name)
	x.gauge(descBlocked, b2f(x.holds(topology.CodeWritesBlocked)), c.Name)
	if s.Authority.Kind != topology.AuthorityNone {
		x.gauge(descAuthority, b2f(s.Authority.State == topology.AuthorityStateCurrent), c.Name)
		paused := topology.Unknown
		if c.Authority != nil {
			paused = c.Authority.Pause
		}
		x.gauge(descPaused, tri(paused), c.Name)
	}
	claims := 0
	for _, n := range c.Nodes {
		x.collectNode(n)
		if x.claims(n) {
			claims++
		}
	}
	x.gauge(descClaims, float64(claims), c.Name)
	for _, p := range s.Pools {
		x.collectPool(p)
	}
	for _, src := range c.Sources {
		x.gauge(descSource, b2f(src.State == "current"), c.Name, src.Source)
		x.gauge(descSourceAge, or(src.Age, x.uptime), c.Name, src.Source)
	}
}

// holds reports whether a code is an alarm, or a reason of any verdict.
func (x clusterScrape) holds(code topology.Code) bool {
	if slices.ContainsFunc(x.c.Snapshot.Alarms, isCode(code)) {
		return true
	}
	return slices.ContainsFunc(x.c.Nodes, func(n NodeReport) bool {
		return slices.ContainsFunc(n.Verdicts, func(v PoolVerdict) bool { return slices.ContainsFunc(v.Reasons, isCode(code)) })
	})
}

// claims: the node's own word that it is writable, for as long as its sessions
// could still be writing. Another cluster's server claims nothing here.
func (x clusterScrape) claims(n NodeReport) bool {
	foreign := n.SystemID != 0 && x.c.SystemID != 0 && n.SystemID != x.c.SystemID
	gone := n.Failure != nil && (n.Failure.Class == topology.FailRefused || n.Failure.Class == topology.FailReset)
	return slices.Contains(x.c.Claims, n.Name) && !foreign && !gone && or(n.RoleAge, math.Inf(1)) <= x.policy.KillAfter.Seconds()
}

func (x clusterScrape) collectPool(p topology.PoolVerdicts) {
	x.gauge(descPoolNodes, float64(len(p.Nodes)), x.c.Name, p.Pool)
	x.gauge(descPoolSize, float64(len(p.Up())), x.c.Name, p.Pool)
	x.gauge(descFallback, b2f(p.Fallback), x.c.Name, p.Pool)
	x.gauge(descPoolChange, unix(p.ChangedAt), x.c.Name, p.Pool)
}

func (x clusterScrape) collectNode(n NodeReport) {
	x.gauge(descUp, b2f(n.Answered != nil && n.Failing == 0), x.c.Name, n.Name)
	class := "none"
	if n.Failure != nil {
		class = string(n.Failure.Class)
	}
	x.gauge(descFailure, 1, x.c.Name, n.Name, class)
	x.gauge(descAge, or(n.Answered, x.uptime), x.c.Name, n.Name)
	x.collectLag(n)
	x.gauge(descSlots, b2f(n.SlotsExhausted), x.c.Name, n.Name)
	x.gauge(descPrivileges, b2f(n.PrivilegesMissing), x.c.Name, n.Name)
	x.gauge(descLogin, b2f(n.LoginFailure != nil), x.c.Name, n.Name)
	x.collectPorts(n)
	for _, v := range n.Verdicts {
		for _, w := range []topology.Verdict{topology.Up, topology.Drain, topology.Down, topology.Undecided} {
			x.gauge(descVerdict, b2f(v.Verdict == w), x.c.Name, v.Pool, n.Name, w.String())
		}
		x.gauge(descReason, 1, x.c.Name, v.Pool, n.Name, string(v.Reason().Code))
		weight := 0.0
		if v.Verdict == topology.Up {
			weight = float64(v.Weight) / 100
		}
		x.gauge(descWeight, weight, x.c.Name, v.Pool, n.Name)
	}
}

func (x clusterScrape) collectLag(n NodeReport) {
	bytes, seconds, age := math.NaN(), math.NaN(), x.uptime
	if lag, ok := x.lags[place{x.c.Name, n.Name, n.Address}]; ok {
		bytes, seconds, age = lag.bytes, lag.seconds, x.now.Sub(lag.at).Seconds()
	}
	if n.Role != roleReplica && n.Role != roleUnknown { // a primary's replay position is frozen and no lag
		bytes, seconds, age = math.NaN(), math.NaN(), math.NaN()
	}
	x.gauge(descLag, bytes, x.c.Name, n.Name)
	x.gauge(descLagTime, seconds, x.c.Name, n.Name)
	x.gauge(descLagAge, age, x.c.Name, n.Name)
}

// collectPorts: every port that is to be checked has its series, also before the
// first check.
func (x clusterScrape) collectPorts(n NodeReport) {
	up := make(map[uint16]bool)
	for _, p := range x.policy.Pools {
		if p.Port != 0 && p.PortCheck != topology.PortCheckNone {
			up[p.Port] = false
		}
	}
	for _, p := range n.Ports {
		up[p.Port] = p.up()
	}
	for port, ok := range up {
		x.gauge(descPort, b2f(ok), x.c.Name, n.Name, strconv.Itoa(int(port)))
	}
}

func unix(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// or is a value that may be missing, or what stands for it.
func or(v *float64, missing float64) float64 {
	if v == nil {
		return missing
	}
	return *v
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// tri is NaN for what is unknown, never 0.
func tri(t topology.Tri) float64 {
	if t == topology.Unknown {
		return math.NaN()
	}
	return b2f(t == topology.Yes)
}
