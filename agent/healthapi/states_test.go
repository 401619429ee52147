package healthapi

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

const (
	replayed   topology.LSN = 50331648
	longAgo                 = now - topology.Mono(time.Minute)
	lately                  = now - topology.Mono(5*time.Second)
	aMomentAgo              = now - topology.Mono(10*time.Millisecond)
)

// consulMain is the source of the authority's word.
var consulMain = topology.SourceID{Kind: topology.SourceConsul, Name: "main"}

// world is a cluster in which n1 is asked and n2 is the other node.
type world struct {
	snapshot *topology.Snapshot
	facts    *topology.Facts
}

// node changes what is known of n1.
func (w *world) node(change func(*topology.NodeFacts)) {
	f := w.facts.Nodes["n1"]
	p := *f.Probe
	f.Probe = &p
	change(&f)
	w.facts.Nodes["n1"] = f
}

// verdicts sets n1's verdicts in the write and in the read pool.
func (w *world) verdicts(write, read topology.NodeVerdict) {
	w.snapshot.Pools[0].Nodes[0], w.snapshot.Pools[1].Nodes[0] = write, read
}

// failing makes n1 fail, and lets both its verdicts be v.
func (w *world) failing(c topology.FailureClass, state string, v topology.NodeVerdict) {
	w.node(func(f *topology.NodeFacts) {
		f.AnsweredAt, f.FailingAt = lately, lately+1
		f.Failure = &topology.Failure{Class: c, Text: string(c)}
		f.Member = &topology.Member{Name: "n1", State: state}
	})
	w.verdicts(v, v)
}

// lost takes the authority away: it answered last at that moment.
func (w *world) lost(at topology.Mono, change func(*topology.Authority)) {
	w.snapshot.Authority.State = topology.AuthorityStateLost
	w.facts.Sources[0].OKAt, w.facts.Sources[0].FailingAt = at, at+1
	if change != nil {
		change(w.facts.Authority)
	}
}

// commits sets the cluster's synchronous mode and its standbys, as the authority
// and the writer n2 see them.
func (w *world) commits(mode, standby string) {
	w.facts.Authority.SyncMode, w.facts.Authority.SyncStandbys = mode, []string{standby}
	n2 := w.facts.Nodes["n2"]
	n2.Probe = &topology.Probe{InRecovery: topology.No, Timeline: 5, WriteLSN: replayed, Standbys: []topology.Standby{{Name: standby, State: "streaming", SyncState: mode}}}
	w.facts.Nodes["n2"] = n2
}

func (w *world) standbyCluster(leader string) {
	w.snapshot.Writer, w.snapshot.Authority.Leader = "", leader
	w.facts.Authority.Leader, w.facts.Authority.StandbyCluster, w.facts.WriteLSN = leader, true, 0
	w.node(func(f *topology.NodeFacts) { f.Lag = topology.Lag{} })
	w.verdicts(verdict("n1", topology.Down, topology.CodeStandbyCluster, "standby cluster"), verdict("n1", topology.Up, topology.CodeReplica, "replica"))
}

// replicaWorld: n2 is the writer, n1 its streaming replica.
func replicaWorld() *world {
	return &world{
		snapshot: &topology.Snapshot{
			Cluster: "main", Complete: true, Writer: "n2",
			Authority: topology.AuthorityStatus{Kind: topology.AuthorityPatroni, State: topology.AuthorityStateCurrent, Leader: "n2"},
			Nodes:     []topology.Node{{Name: "n1"}, {Name: "n2"}},
			Pools: []topology.PoolVerdicts{
				{Pool: "primary", Mode: topology.ModeWrite, Nodes: []topology.NodeVerdict{
					verdict("n1", topology.Down, topology.CodeWrongRole, "in recovery"), verdict("n2", topology.Up, topology.CodeWriter, "named and writable"),
				}},
				{Pool: "replica", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{
					verdict("n1", topology.Up, topology.CodeReplica, "replica"), verdict("n2", topology.Drain, topology.CodeWrongRole, "primary"),
				}},
			},
		},
		facts: &topology.Facts{
			SystemID: 7713754238407433424, WriteLSN: replayed, Timeline: 5,
			Nodes: map[string]topology.NodeFacts{
				"n1": {
					Probe: &topology.Probe{
						InRecovery: topology.Yes, Timeline: 5, ReceiveLSN: replayed + 96, ReplayLSN: replayed, ServerVersion: 150018,
						Receiver:  topology.Receiver{Running: topology.Yes, Streaming: topology.Yes, LatestEnd: replayed},
						StartedAt: time.Date(2026, 11, 30, 0, 26, 7, 139004000, time.UTC),
					},
					InRecovery: topology.Yes, AnsweredAt: aMomentAgo, Lag: topology.Lag{Known: topology.Yes},
				},
				"n2": {Probe: &topology.Probe{InRecovery: topology.No, Timeline: 5, WriteLSN: replayed}, InRecovery: topology.No, AnsweredAt: aMomentAgo},
			},
			Authority: &topology.Authority{
				Leader: "n2", TTL: 30 * time.Second, Optime: replayed,
				Members: []topology.Member{{Name: "n1", State: "running"}, {Name: "n2", State: "running"}},
			},
			Sources:         []topology.SourceFacts{{Source: consulMain, OKAt: now - topology.Mono(2*time.Second)}},
			AuthoritySource: consulMain,
			Documents:       &topology.Documents{Config: json.RawMessage(`{"ttl":30}`), History: json.RawMessage(`[[1,25623960,"no recovery target specified"]]`)},
		},
	}
}

// primaryWorld: n1 is the writer, n2 its replica.
func primaryWorld() *world {
	w := replicaWorld()
	w.snapshot.Writer, w.snapshot.Authority.Leader, w.facts.Authority.Leader = "n1", "n1", "n1"
	w.node(func(f *topology.NodeFacts) {
		p := topology.Probe{
			InRecovery: topology.No, Timeline: 5, WriteLSN: 67108864, ServerVersion: 150018, StartedAt: f.Probe.StartedAt,
			Standbys: []topology.Standby{{Name: "n2", State: "streaming", SyncState: "async"}},
		}
		f.Probe, f.InRecovery, f.Lag = &p, topology.No, topology.Lag{}
	})
	w.verdicts(verdict("n1", topology.Up, topology.CodeWriter, "named and writable"), verdict("n1", topology.Drain, topology.CodeWrongRole, "primary"))
	w.snapshot.Pools[0].Nodes[1] = verdict("n2", topology.Down, topology.CodeWrongRole, "in recovery")
	w.snapshot.Pools[1].Nodes[1] = verdict("n2", topology.Up, topology.CodeReplica, "replica")
	return w
}

// receiverless: n1 streams from nobody.
func receiverless(w *world) {
	w.node(func(f *topology.NodeFacts) {
		f.Probe.Receiver, f.Probe.ReceiveLSN = topology.Receiver{Running: topology.No, Streaming: topology.No}, 0
	})
}

// worlds are the states of Patroni's matrix as pgsteer sees them.
func worlds() map[string]*world {
	all := make(map[string]*world)
	primary := func(name string, change func(*world)) {
		all[name] = primaryWorld()
		change(all[name])
	}
	replica := func(name string, change func(*world)) {
		all[name] = replicaWorld()
		change(all[name])
	}
	primaries(primary)
	replicas(replica)
	withoutAuthority(primary, replica)
	return all
}

func primaries(add func(string, func(*world))) {
	add("M1", func(*world) {})
	add("M2", func(w *world) {
		w.snapshot.Writer, w.snapshot.Authority.Leader, w.facts.Authority.Leader = "", "n2", "n2"
		fenced := verdict("n1", topology.Down, topology.CodeFenced, "writable but n2 is named")
		w.verdicts(fenced, fenced)
	})
	add("M3", func(w *world) {
		w.snapshot.Writer = ""
		w.failing(topology.FailRefused, "stopped", verdict("n1", topology.Down, topology.CodeRefused, "connection refused"))
	})
	add("M3-crashed", func(w *world) {
		w.snapshot.Writer = ""
		w.failing(topology.FailRefused, "crashed", verdict("n1", topology.Down, topology.CodeRefused, "connection refused"))
	})
	add("M3-starting", func(w *world) {
		w.snapshot.Writer = ""
		w.failing(topology.FailStarting, "starting", verdict("n1", topology.Drain, topology.CodeStarting, "starting up"))
	})
	add("M3-unknown", func(w *world) {
		w.snapshot.Writer = ""
		w.failing(topology.FailProtocol, "running", verdict("n1", topology.Drain, topology.CodeRoleUnknown, "canceling statement due to statement timeout"))
	})
}

func replicas(add func(string, func(*world))) {
	read := func(w *world, v topology.NodeVerdict) { w.snapshot.Pools[1].Nodes[0] = v }
	add("M4", func(w *world) {
		w.snapshot.Writer, w.snapshot.Authority.Leader, w.facts.Authority.Leader = "", "n1", "n1"
		receiverless(w)
		w.node(func(f *topology.NodeFacts) { f.Lag = topology.Lag{} })
		w.verdicts(verdict("n1", topology.Down, topology.CodePromoting, "named but still in recovery"), verdict("n1", topology.Up, topology.CodeReplica, "replica"))
	})
	add("M5", func(w *world) {
		w.facts.Documents.Failsafe = json.RawMessage(`{"n1":"http://10.0.0.1:8008/patroni","n2":"http://10.0.0.2:8008/patroni"}`)
	})
	add("M5-behind", func(w *world) {
		const ahead = replayed + 4<<20
		w.facts.WriteLSN, w.facts.Authority.Optime = ahead, ahead
		w.node(func(f *topology.NodeFacts) {
			f.Lag.Bytes, f.Lag.Time, f.Probe.Receiver.LatestEnd = 4<<20, 20*time.Second, ahead
		})
	})
	add("M5-tags", func(w *world) {
		w.snapshot.Nodes[0].Tags = map[string]string{
			"zone": "az-1", "weight": "10", "fast": "true", "slow": "false", "ratio": "1.4", "word": "True", "text": "1",
		}
	})
	add("M5-restart", func(w *world) { w.facts.Documents.Members = map[string]topology.MemberDocument{"n1": restarting} })
	for _, name := range []string{"M6", "M7"} { // only the member's key tells them apart
		add(name, func(w *world) {
			receiverless(w)
			read(w, verdict("n1", topology.Drain, topology.CodeNotStreaming, "no WAL receiver"))
			if name == "M7" {
				w.facts.Documents.Members = map[string]topology.MemberDocument{"n1": {Replication: "in archive recovery"}}
			}
		})
	}
	add("M8", unbalanced)
	synchronous(add)
	add("M12", func(w *world) {
		w.failing(topology.FailStarting, "starting", verdict("n1", topology.Drain, topology.CodeStarting, "starting up"))
	})
	add("M13", func(w *world) {
		w.failing(topology.FailTimeout, "running", verdict("n1", topology.Drain, topology.CodeSilent, "no answer"))
	})
	add("M14", func(w *world) { w.standbyCluster("n1") })
	add("M14-stopped", func(w *world) {
		w.standbyCluster("n1")
		w.failing(topology.FailRefused, "stopped", verdict("n1", topology.Down, topology.CodeRefused, "connection refused"))
	})
	add("M15", func(w *world) { w.standbyCluster("n2") })
}

// unbalanced: n1 is tagged noloadbalance.
func unbalanced(w *world) {
	w.snapshot.Nodes[0].Tags = map[string]string{topology.TagNoLoadBalance: "true"}
	w.snapshot.Pools[1].Nodes[0] = verdict("n1", topology.Drain, topology.CodeNoLoadBalance, "tagged noloadbalance")
}

func synchronous(add func(string, func(*world))) {
	add("M9", func(w *world) { w.commits("sync", "n1") })
	add("M9-async", func(w *world) { w.commits("sync", "n3") })
	add("M9-unseen", func(w *world) { // the key lists it, and it is still catching up
		w.commits("sync", "n1")
		w.facts.Nodes["n2"].Probe.Standbys[0].State = "catchup"
	})
	add("M10", func(w *world) {
		w.commits("sync", "n1")
		unbalanced(w)
	})
	add("M11", func(w *world) { w.commits("quorum", "n1") })
}

func withoutAuthority(primary, replica func(string, func(*world))) {
	failsafe := func(a *topology.Authority) { a.Failsafe = topology.Yes }
	paused := func(a *topology.Authority) { a.Pause = topology.Yes }
	blind := func(w *world) { w.node(func(f *topology.NodeFacts) { f.Probe.Receiver.LatestEnd = 0 }) }
	primary("M16", func(w *world) { w.lost(lately, nil) })
	primary("M16-failsafe", func(w *world) { w.lost(longAgo, failsafe) })
	primary("M17", func(w *world) { w.lost(longAgo, nil) })
	primary("M18", func(w *world) { w.lost(longAgo, paused) })
	replica("M19", func(w *world) { w.lost(longAgo, nil) })
	replica("M20", func(w *world) {
		blind(w)
		w.lost(longAgo, nil)
	})
	replica("M21", func(w *world) {
		blind(w)
		w.lost(longAgo, failsafe)
	})
	replica("M22", func(w *world) {
		w.standbyCluster("n1")
		w.lost(longAgo, paused)
	})
}

// restarting is a member's word that it waits for a restart, and when it has one.
var restarting = topology.MemberDocument{
	PendingRestart: true, RestartReason: json.RawMessage(`{"max_connections":{"old_value":"100","new_value":"50"}}`),
	ScheduledRestart: json.RawMessage(`{"schedule":"2030-01-01T00:00:00+00:00","postmaster_start_time":"2026-11-30 00:26:07.139004+00:00"}`),
}

// membersWorld: n1 leads, n2 is its synchronous standby, n3 lags, n4 starts.
func membersWorld() *world {
	w := primaryWorld()
	const end = replayed + 1<<20
	w.facts.WriteLSN, w.facts.Authority.Optime = end, end
	w.facts.Authority.SyncMode, w.facts.Authority.SyncStandbys = "sync", []string{"n2"}
	w.node(func(f *topology.NodeFacts) {
		f.Probe.Standbys = []topology.Standby{{Name: "n2", State: "streaming", SyncState: "sync"}}
	})
	streams := func(received, done topology.LSN) topology.NodeFacts {
		return topology.NodeFacts{InRecovery: topology.Yes, AnsweredAt: aMomentAgo, Probe: &topology.Probe{
			InRecovery: topology.Yes, Timeline: 5, ReceiveLSN: received, ReplayLSN: done, Receiver: topology.Receiver{Streaming: topology.Yes},
		}}
	}
	w.facts.Nodes["n2"], w.facts.Nodes["n3"] = streams(end, end), streams(replayed+96, replayed)
	w.facts.Nodes["n4"] = topology.NodeFacts{FailingAt: lately, Failure: &topology.Failure{Class: topology.FailStarting}}
	w.facts.Documents.Members = map[string]topology.MemberDocument{"n3": restarting}
	w.facts.Documents.Switchover = &topology.Switchover{At: "2030-01-01T00:00:00+00:00", From: "n1", To: "n2"}
	w.snapshot.Nodes = nil
	for i, tags := range []map[string]string{{"zone": "az-1"}, nil, {topology.TagNoLoadBalance: "true"}, nil} {
		name, host := fmt.Sprintf("n%d", i+1), fmt.Sprintf("10.0.0.%d", i+1)
		w.snapshot.Nodes = append(w.snapshot.Nodes, topology.Node{Name: name, Address: topology.Address{Host: host, Port: 5432}, Tags: tags})
		f := w.facts.Nodes[name]
		f.Member = &topology.Member{Name: name, APIURL: "http://" + host + ":8008/patroni"}
		if name == "n4" {
			f.Member.State, f.Member.Role = "starting", "replica"
		}
		w.facts.Nodes[name] = f
	}
	return w
}
