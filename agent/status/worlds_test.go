package status

import (
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func since(d time.Duration, code topology.Code, text string) topology.Reason {
	return topology.Reason{Code: code, Text: text, Since: wall.Add(-d)}
}

// worlds are the typical states.
var worlds = map[string]func() *world{
	"up":      func() *world { return newWorld(view("main", nil)) },
	"monitor": func() *world { return monitored(nil) },
	// The same a while later: the monitor gives n1 up, but of n3 it has no position.
	"monitor-nobody": func() *world {
		return monitored(func(_ *topology.Snapshot, f *topology.Facts) {
			n1, n3 := f.Authority.Members[0].Assigned, f.Authority.Members[2].Assigned
			n1.Health, n1.ReportAge = topology.No, 25*time.Second
			n3.Goal, n3.Reported, n3.Health, n3.ReportAge = "catchingup", "secondary", topology.No, 12*time.Minute
		})
	},
	// The same, and 78 s ago the monitor was asked in vain for the first time.
	"monitor-away": func() *world {
		return monitored(func(s *topology.Snapshot, f *topology.Facts) {
			s.Authority.State = topology.AuthorityStateLost
			f.Sources[0].OKAt, f.Sources[0].FailingAt = before(80*time.Second), before(78*time.Second)
			f.Sources[0].Failure = &topology.Failure{Class: topology.FailRefused, Text: "read of the monitor at 10.0.0.9:5432: connection refused; tried again in 1s"}
			f.Authority.Monitor.Assumed = true
		})
	},
	"undecided": func() *world {
		w := newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			s.Writer, s.Held, s.Complete = "", "n1", false
			s.Authority.State, s.Authority.Leader = topology.AuthorityStateUnknown, ""
			f.Timeline, f.SystemID, f.Claims = 0, 0, nil
			for _, n := range s.Nodes {
				f.Nodes[n.Name] = topology.NodeFacts{}
				set(s, "primary", n.Name, topology.Undecided, topology.CodeAuthorityUnknown, "authority not heard yet")
				set(s, "replica", n.Name, topology.Undecided, topology.CodeNoEvidence, "not asked yet")
			}
			f.Sources = f.Sources[:1]
			f.Sources[0].OKAt, f.Sources[0].FailingAt = 0, before(12*time.Second)
			f.Sources[0].Failure = &topology.Failure{Class: topology.FailRefused, Text: "read of service/main from Consul at 127.0.0.1:8500: connection refused; tried again in 2s"}
		}))
		w.clusters = append(w.clusters, "later")
		w.sinks = []Sink{
			{Name: "xds", State: SinkWaiting, Error: "no Envoy is answered before these clusters are decided: later main", Gauges: map[string]uint64{"streams": 0}},
			{Name: "state", State: SinkOK, Since: wall},
		}
		return w
	},
	"maintenance": func() *world { // the agent itself, a node in one pool until noon, and one that is drained
		w := newWorld(view("main", func(s *topology.Snapshot, _ *topology.Facts) {
			for _, p := range s.Pools {
				for _, n := range p.Nodes {
					set(s, p.Pool, n.Node, topology.Drain, topology.CodeMaintenance, "new switch")
				}
			}
		}))
		w.agent.EnteredAt = wall.Add(-time.Minute)
		w.agent.Maintenance = []Maintenance{
			{Reason: "new switch", Who: "ann", Since: wall.Add(-time.Minute)},
			{Cluster: "main", Node: "n2", Pool: "replica", Since: wall.Add(-time.Hour), Until: wall.Add(time.Hour), DrainUntil: wall.Add(time.Minute)},
			{Cluster: "main", Node: "n3", Reason: "new disk", Who: "bob", Since: wall.Add(-time.Minute), Drain: &Drain{
				Phase: "waiting", Left: 2, Ended: 1, By: "db1", Deadline: wall.Add(9 * time.Minute), EndIdle: true, Terminate: true,
			}},
		}
		w.sinks = []Sink{{Name: "agentcheck", State: SinkOK, Counters: map[string]uint64{"maintenance": 7}}, {Name: "healthapi", State: SinkOK, Counters: map[string]uint64{"maintenance": 2}}}
		return w
	},
	"drain": func() *world {
		return newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			n2 := f.Nodes["n2"]
			n2.Lag = topology.Lag{Known: topology.Yes, Bytes: 200 << 20, Time: 31 * time.Second}
			f.Nodes["n2"] = n2
			set(s, "replica", "n2", topology.Drain, topology.CodeLag, "lag 200MB > 64MB")
			f.Nodes["n3"] = failing(f.Nodes["n3"], topology.FailTimeout, "login to 10.0.0.3:5432 as pgsteer: no answer within 800ms")
			set(s, "primary", "n3", topology.Down, topology.CodeWrongRole, "in recovery",
				topology.Reason{Code: topology.CodeSilent, Text: "no answer since 11:59:55", Since: wall.Add(-3 * time.Second)})
			set(s, "replica", "n3", topology.Drain, topology.CodeSilent, "no answer since 11:59:55")
			s.Pools[1].Nodes[2].Reasons[0].Since = wall.Add(-5 * time.Second)
			s.Pools[1].Fallback = true
			set(s, "replica", "n1", topology.Up, topology.CodeFallback, "no eligible replica")
		}))
	},
	"lost": func() *world {
		return newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			s.Authority.State = topology.AuthorityStateLost
			s.Alarms = []topology.Reason{{Code: topology.CodeAuthorityLost, Text: "last word at 11:59:30", Since: wall.Add(-30 * time.Second)}}
			set(s, "primary", "n1", topology.Up, topology.CodeWriter, "holds the leader key and is writable",
				topology.Reason{Code: topology.CodeAuthorityLost, Text: "authority lost; held by SQL evidence", Since: wall.Add(-30 * time.Second)})
			f.Sources[0].OKAt, f.Sources[0].FailingAt = before(30*time.Second), before(20*time.Second)
			f.Sources[0].Failure = &topology.Failure{Class: topology.FailTimeout, Text: "read of service/main from Consul at 127.0.0.1:8500: no answer within 3s; tried again in 5s"}
		}))
	},
	"stale": func() *world {
		v := view("main", nil)
		v.ValidUntil = before(time.Second)
		return newWorld(v)
	},
	"refused": func() *world {
		w := newWorld(view("main", nil), view("none", func(s *topology.Snapshot, _ *topology.Facts) {
			s.Authority = topology.AuthorityStatus{Kind: topology.AuthorityNone, State: topology.AuthorityStateNone}
			s.Writer = ""
			for _, n := range s.Nodes {
				set(s, "primary", n.Name, topology.Down, topology.CodeTwoWriters, "n3 is writable too")
			}
			s.Alarms = []topology.Reason{{Code: topology.CodeTwoWriters, Text: "writable: [n1 n3]", Since: wall}}
		}))
		w.agent.ConfigError = "pgsteer.yaml:3:1: unknown key polcy, did you mean policy?\npgsteer.yaml:9:5: 5 has no unit"
		w.sinks = []Sink{
			{Name: "runtimeapi /run/haproxy.sock", State: SinkFailing, Error: "connection refused", Since: wall.Add(-time.Minute), Counters: map[string]uint64{"pushes": 3}},
			{Name: "agentcheck", State: SinkOK, Counters: map[string]uint64{"up": 10, "down": 2}},
			{Name: "xds", State: SinkOK, Counters: map[string]uint64{"refused_cds": 0}, Gauges: map[string]uint64{"streams": 2}},
			{Name: "mesh main", State: SinkFailing, Detail: "published by another agent, db2", Error: "status 403", Since: wall},
		}
		return w
	},
	"roleless": func() *world { // a wrong password
		return newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			s.Authority = topology.AuthorityStatus{Kind: topology.AuthorityNone, State: topology.AuthorityStateNone}
			s.Writer, f.Claims = "", nil
			for _, n := range s.Nodes {
				f.Nodes[n.Name] = topology.NodeFacts{FailingAt: before(9 * time.Second), Failure: &topology.Failure{
					Class: topology.FailAuth, Text: `login to 10.0.0.1:5432 as pgsteer: password authentication failed for user "pgsteer" (SQLSTATE 28P01)`,
				}}
				set(s, "primary", n.Name, topology.Undecided, topology.CodeRoleUnknown, "no word on its role: auth")
				set(s, "replica", n.Name, topology.Undecided, topology.CodeRoleUnknown, "no word on its role: auth")
			}
		}))
	},
	"degraded": func() *world { // weights, damping, commits that wait, a paused authority
		return newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			set(s, "replica", "n2", topology.Up, topology.CodeRamping, "returned lately; its weight grows")
			s.Pools[1].Nodes[1].Reasons[0].Since = wall.Add(-12 * time.Second)
			weigh(s, "n2", 50)
			set(s, "replica", "n3", topology.Drain, topology.CodeDamped, "came and went too often; held for 30s")
			s.Alarms = []topology.Reason{since(14*time.Second, topology.CodeWritesBlocked, "3 commits on n1 wait for a standby")}
			change(f, "n1", func(n *topology.NodeFacts) {
				n.Probe.SyncWaiters, n.WriteAt = 3, before(2*time.Second)
				n.Probe.Standbys = []topology.Standby{{Name: "n2", State: "streaming", SyncState: "sync"}, {Name: "n3", State: "catchup", SyncState: "potential"}}
			})
			change(f, "n2", func(n *topology.NodeFacts) {
				n.Probe.Receiver.SenderHost, n.Probe.Receiver.SenderPort, n.Probe.Receiver.Timeline = "10.0.0.1", 5432, 3
				n.Probe.Receiver.MessageAge = 1200 * time.Millisecond
				n.Member = &topology.Member{Name: "n2", Role: "replica", State: "streaming", Timeline: 3}
			})
			s.Nodes[1].Tags = map[string]string{topology.TagZone: "b"}
			f.Authority = &topology.Authority{
				Leader: "n1", Pause: topology.Yes, Failsafe: topology.No, LoopWait: 5 * time.Second, RetryTimeout: 7 * time.Second,
				SyncMode: "sync", SyncStandbys: []string{"n2"},
			}
		}))
	},
	"stalled": func() *world { // storage hangs, no replica is within its limits, the leader key is gone
		w := newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			stall := since(8*time.Second, topology.CodeWritesStalled, "write probes of n1 get no answer")
			s.Writer, s.Authority.Leader = "", ""
			set(s, "primary", "n1", topology.Drain, topology.CodeNoLeader, "leader key is absent", stall)
			s.Pools[0].Nodes[0].Reasons[0].Since = wall.Add(-3 * time.Second)
			s.Pools[1].Fallback = true
			set(s, "replica", "n2", topology.Up, topology.CodeFallbackStale, "no eligible replica; this one lags least (200MB)")
			set(s, "replica", "n3", topology.Drain, topology.CodeLagHard, "lag 2GB > 1GB")
			s.Alarms = []topology.Reason{stall}
			change(f, "n1", func(n *topology.NodeFacts) {
				n.WriteAt, n.WriteFailingAt = before(10*time.Second), before(8*time.Second)
			})
			change(f, "n2", func(n *topology.NodeFacts) { n.Lag.Bytes, n.Lag.Time = 200<<20, 31*time.Second })
			change(f, "n3", func(n *topology.NodeFacts) {
				n.Lag.Bytes, n.Lag.Time, n.Lag.Estimated = 2<<30, 5*time.Minute, true
				n.Probe.ReplayPaused, n.Probe.ApplyDelay, n.Probe.SystemID, n.Probe.Receiver.MessageAge = topology.Yes, time.Hour, 8, -1
			})
			f.Authority = &topology.Authority{LoopWait: 5 * time.Second, RetryTimeout: 7 * time.Second}
		}))
		w.policy.Pools[1].Fallback = topology.FallbackStale
		return w
	},
	"ports": func() *world { // a PgBouncer in front of each node, one of them dead
		w := newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			for i := range s.Pools[1].Nodes {
				s.Pools[1].Nodes[i].Address.Port = 6432
			}
			set(s, "replica", "n2", topology.Drain, topology.CodePort, "port 6432: refused")
			change(f, "n1", func(n *topology.NodeFacts) {
				n.Ports = map[uint16]topology.PortFacts{6432: {OKAt: before(time.Second)}}
			})
			change(f, "n2", func(n *topology.NodeFacts) {
				n.Ports = map[uint16]topology.PortFacts{6432: {
					OKAt: before(9 * time.Second), FailingAt: before(8 * time.Second),
					Failure: &topology.Failure{Class: topology.FailRefused, Text: "connect to 10.0.0.2:6432: connection refused", Asked: topology.ProbePort, Port: 6432},
				}}
			})
		}))
		pool := &w.policy.Pools[1]
		pool.Port, pool.PortCheck = 6432, topology.PortCheckPgBouncer
		pool.Sessions = map[topology.Code]topology.Verdict{topology.CodePort: topology.Drain}
		return w
	},
	"probe": func() *world { // the probe's own troubles; every verdict but one is untouched
		return newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			change(f, "n1", func(n *topology.NodeFacts) {
				n.LoginAt = before(70 * time.Second)
				n.Failure = &topology.Failure{
					Class: topology.FailAuth, Asked: topology.ProbeLogin,
					Text: `login to 10.0.0.1:5432 as pgsteer: password authentication failed for user "pgsteer" (SQLSTATE 28P01)`,
				}
			})
			change(f, "n2", func(n *topology.NodeFacts) { n.Probe.Receiver = topology.Receiver{MessageAge: -1} })
			set(s, "replica", "n3", topology.Up, topology.CodeSaturated, "all connection slots are taken")
			weigh(s, "n3", 50)
			src := &f.Sources[3]
			src.Failure = &topology.Failure{Class: topology.FailSlots, Asked: topology.ProbeLogin, Text: "login to 10.0.0.3:5432 as pgsteer: too many clients (SQLSTATE 53300)"}
		}))
	},
	"returning": func() *world { // one is on its way back, one is behind in time, one has never answered
		w := newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
			s.Authority = topology.AuthorityStatus{Kind: topology.AuthorityNone, State: topology.AuthorityStateNone}
			set(s, "replica", "n2", topology.Drain, topology.CodeReturning, "good again; returns soon")
			s.Pools[1].Nodes[1].Reasons[0].Since = wall.Add(-1200 * time.Millisecond)
			f.Nodes["n3"] = topology.NodeFacts{FailingAt: before(4 * time.Second), Failure: &topology.Failure{Class: topology.FailTimeout, Text: "login to 10.0.0.3:5432 as pgsteer: no answer within 800ms"}}
			set(s, "primary", "n3", topology.Down, topology.CodeNoEvidence, "not asked yet")
			set(s, "replica", "n3", topology.Undecided, topology.CodeNoEvidence, "not asked yet")
		}))
		w.policy.Pools[1].MaxLagTime = 30 * time.Second
		return w
	},
}
