package engine

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// chooser makes choices of bytes; when they are used up, each is the first one.
type chooser struct {
	rest []byte
}

func (c *chooser) below(n int) int {
	if len(c.rest) == 0 {
		return 0
	}
	b := c.rest[0]
	c.rest = c.rest[1:]
	return int(b) % n
}

func choose[T any](c *chooser, of ...T) T { return of[c.below(len(of))] }

func (c *chooser) tri() topology.Tri { return choose(c, topology.Unknown, topology.No, topology.Yes) }

func (c *chooser) name() string {
	return choose(c, "a", "b", "c", "d", "", "no, such \n node")
}

func (c *chooser) address() topology.Address {
	return choose(c, address("a"), address("b"), address("c"), address("d"), topology.Address{}, topology.Address{Host: "", Port: 5432})
}

func (c *chooser) length() time.Duration {
	return choose(c, ms, 0, -1, 60*ms, sec, 3*sec, 11*sec, -time.Hour, time.Hour, 1<<62)
}

func (c *chooser) lsn() topology.LSN {
	return choose(c, topology.LSN(0), 1, 50_000_000, 1<<40, 1<<64-1)
}

func (c *chooser) timeline() topology.Timeline {
	return choose(c, topology.Timeline(5), 0, 4, 6, 7, 1<<32-1)
}

func (c *chooser) probe() *topology.Probe {
	return &topology.Probe{
		Node: c.name(), Address: c.address(),
		Kind:       choose(c, topology.ProbeFull, topology.ProbeRole, topology.ProbeLogin, topology.ProbeWrite, topology.ProbePort, "?"),
		InRecovery: c.tri(), ReadOnly: c.tri(), SystemID: choose(c, uint64(ownID), 0, 666), Timeline: c.timeline(),
		WriteLSN: c.lsn(), ReceiveLSN: c.lsn(), ReplayLSN: c.lsn(), ReplayPaused: c.tri(), ApplyDelay: c.length(), Upstream: c.tri(),
		Receiver: topology.Receiver{
			Running: c.tri(), Streaming: c.tri(), Timeline: c.timeline(), LatestEnd: c.lsn(),
			SenderHost: c.address().Host, SenderPort: c.address().Port, MessageAge: c.length(),
		},
		StartedAt: time.Unix(int64(c.below(3)), 0), SyncWaiters: c.below(3) - 1,
		Standbys: []topology.Standby{{Name: c.name(), State: "streaming", SyncState: choose(c, "sync", "quorum", "?")}},
	}
}

func (c *chooser) nodes() *topology.NodeList {
	l := &topology.NodeList{ConfirmedEmpty: c.below(2) == 1}
	for range c.below(5) {
		l.Nodes = append(l.Nodes, topology.Node{
			Name: c.name(), Address: c.address(),
			Tags: choose(c, nil, map[string]string{topology.TagNoFailover: "true"}, map[string]string{topology.TagZone: "x", topology.TagReplicateFrom: "b"}),
		})
	}
	return l
}

func (c *chooser) authority() *topology.Authority {
	return &topology.Authority{
		Leader: c.name(), SessionAgrees: c.tri(), Pause: c.tri(), Failsafe: c.tri(), StandbyCluster: c.below(4) == 1,
		TTL: c.length(), LoopWait: c.length(), RetryTimeout: c.length(), SystemID: choose(c, uint64(ownID), 0, 666),
		Timeline: c.timeline(), Optime: c.lsn(), OptimeIndex: uint64(c.below(3)), SyncMode: choose(c, "", "sync", "quorum"),
		SyncStandbys: []string{c.name()}, Members: []topology.Member{{Name: c.name(), Address: c.address()}},
	}
}

// observation is any at all, also one that no source would make.
func (c *chooser) observation(w *world) topology.Observation {
	o := topology.Observation{
		Cluster: "main",
		Source:  choose(c, pgSource("a"), pgSource("b"), pgSource("c"), consulSource, fileSource, localSource, topology.SourceID{}),
		At:      topology.Clock{Mono: w.now.Mono.Add(c.length()), Wall: w.now.Wall},
	}
	o.AskedAt = topology.Clock{Mono: o.At.Mono.Add(-c.length()), Wall: o.At.Wall}
	w.seq[o.Source] += uint64(c.below(3))
	o.Seq = w.seq[o.Source]
	switch c.below(7) {
	case 0:
		o.Probe = c.probe()
	case 1:
		o.Failure = &topology.Failure{
			Class: choose(c, append(allClasses, "?")...), Node: c.name(), Address: c.address(),
			Asked: choose(c, topology.ProbeFull, topology.ProbeRole, topology.ProbeLogin, topology.ProbeWrite, topology.ProbePort), Port: 6432,
		}
	case 2:
		o.Nodes = c.nodes()
	case 3:
		o.Authority, o.Nodes = c.authority(), c.nodes()
	case 4:
		o.Local = &topology.Local{Isolated: c.tri()}
	case 5:
		o.Port = &topology.PortOpen{Node: c.name(), Address: c.address(), Port: 6432}
	default: // nothing was looked at
	}
	return o
}

// FuzzObserve: whatever comes in, in whatever order, nothing panics, and at most
// one node is up in a write pool.
func FuzzObserve(f *testing.F) {
	for seed := range 8 {
		text := make([]byte, 1000)
		for i := range text {
			text[i] = byte((i + seed) * (i + 7*seed + 3) >> 2)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c := &chooser{text}
		w := newWorld(t, choose(c, patroni, none))
		w.p.AuthorityLost = choose(c, topology.LostHold, topology.LostSQLOnly)
		w.p.WriteStall = choose(c, topology.StallAlarm, topology.StallDrain)
		w.p.Pools = append(w.p.Pools, c.pool("more", topology.ModeWrite), c.pool("reads", topology.ModeRead))
		w.onDecide = func(s *topology.Snapshot) {
			for _, p := range s.Pools {
				if why := badWriter(s, p); why != "" {
					t.Fatalf("%s\n%s", why, show(s, w.now))
				}
			}
			checkTexts(t, s)
		}
		for len(c.rest) > 0 {
			switch c.below(8) {
			case 0:
				w.pass(max(0, c.length()%time.Minute))
				w.decide()
			case 1:
				w.askAll()
			case 2:
				w.restart()
			default:
				Observe(w.s, c.observation(w))
			}
		}
		w.decide()
		Facts(w.s, w.now)
	})
}

func (c *chooser) pool(name string, mode topology.Mode) topology.Pool {
	p := topology.DefaultPool(name, mode)
	p.Port = choose(c, uint16(0), 6432)
	p.Role = choose(c, topology.RoleAny, topology.RoleSync, topology.RoleAsync, topology.RoleQuorum, topology.RoleStandbyLeader, topology.RoleDelayed)
	p.Zone = choose(c, "", "x")
	p.MinReplicas = c.below(4)
	p.Fallback = choose(c, topology.FallbackNone, topology.FallbackPrimary, topology.FallbackStale)
	p.MaxLagTime = choose(c, 0, sec)
	p.Sessions = choose(c, nil, map[topology.Code]topology.Verdict{topology.CodeLag: topology.Down, topology.CodeMaintenance: topology.Down})
	return p
}

// FuzzSaved: whatever the state folder holds, nothing panics, and nobody is up by
// memory alone.
func FuzzSaved(f *testing.F) {
	for _, kind := range []topology.AuthorityKind{patroni, none} {
		w := newWorld(f, kind)
		w.run(3 * sec)
		text, err := json.Marshal(w.s.Save(w.now))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, text := range []string{
		`{}`, `{"writer":"a"}`,
		`{"writer":"a","nodes":[{"name":"a","address":""},{"name":"a","address":"192.0.2.10:5432"}],"timeline":4294967295,"system_id":"666"}`,
		`{"writer":"z","nodes":[{"name":"z","address":"192.0.2.10:5432","tags":null}],"verdicts":{"replica":{"z":"up"},"":null},"lost":{"z":"9999-01-01T00:00:00Z","a":"0001-01-01T00:00:00Z"}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var saved topology.Saved
		if json.Unmarshal(text, &saved) != nil {
			return
		}
		for _, kind := range []topology.AuthorityKind{patroni, none} {
			w := newWorld(t, kind)
			w.begin(&saved)
			w.onDecide = func(s *topology.Snapshot) {
				for _, p := range s.Pools {
					if len(p.Up()) > 0 {
						t.Fatalf("somebody is up by memory alone\n%s", show(s, w.now))
					}
				}
			}
			w.decide()
			w.idle(20 * sec)
			w.onDecide = func(s *topology.Snapshot) {
				if why := badWriter(s, s.Pools[0]); why != "" {
					t.Fatalf("%s\n%s", why, show(s, w.now))
				}
			}
			w.tick = w.now.Mono
			w.run(5 * sec)
			again := w.s.Save(w.now)
			if back, err := json.Marshal(again); err != nil || len(back) == 0 {
				t.Fatal(fmt.Errorf("what was saved cannot be saved again: %w", err))
			}
		}
	})
}
