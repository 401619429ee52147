package engine

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// failedOver is a cluster whose writer is b on timeline 6 since a moment ago; a
// does not answer.
func failedOver(t *rapid.T) *history {
	h := sprung(t, patroni, none)
	h.fails("a", topology.FailRefused)
	h.run(moment(t, 3*sec))
	h.become("b", primary(6))
	h.moveLeader("b", 6)
	h.become("c", standby(6))
	h.truth("c").Receiver.SenderHost = address("b").Host
	h.run(3 * sec)
	h.want("primary", "a=down b=up/writer c=down")
	return h
}

// TestTrapOldTimelineReturns: the primary of before the failover is back, writable
// on its old timeline, while the authority is away: beside the new one, or when
// the new one does not answer or has been forgotten by a restart.
func TestTrapOldTimelineReturns(t *testing.T) {
	for _, restart := range []bool{false, true} {
		name := "the agent runs on"
		if restart {
			name = "the agent restarts"
		}
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			h := failedOver(t)
			h.never("primary", "a", topology.Up, topology.Drain)
			h.never("replica", "a", topology.Up)
			h.unheard = topology.FailStore
			h.run(moment(t, 3*sec))
			alive := rapid.Bool().Draw(t, "b answers")
			switch {
			case !alive:
				h.fails("b", rapid.SampledFrom(silentClasses).Draw(t, "b fails"))
				h.run(moment(t, 15*sec))
			case !restart:
				h.always("primary", "b", topology.Up)
			}
			if restart {
				h.start(h.saved())
			}
			h.answers("a")
			h.become("a", primary(5))
			for range rapid.IntRange(0, 5).Draw(t, "role ticks") {
				h.roleTick("a")
				h.run(50 * ms)
			}
			h.run(sec + moment(t, time.Minute))
			if alive && (h.p.Authority == none || !restart) {
				h.want("primary", "a=down b=up/writer c=down")
				h.want("replica", "a=down/fenced c=up")
			}
		}))
	}
}

// TestTrapWriterGoneNobodyStreams: the only writer is gone, and with it every
// replica's stream. They are all there is, so they serve, until a new writer has
// been proven for long enough to compare with.
func TestTrapWriterGoneNobodyStreams(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := sprung(t, patroni, none)
		h.readPool().Fallback = rapid.SampledFrom([]topology.Fallback{topology.FallbackNone, topology.FallbackPrimary, topology.FallbackStale}).Draw(t, "fallback")
		h.always("replica", "b", topology.Up)
		h.always("replica", "c", topology.Up)
		for _, n := range rapid.Permutation([]string{"a", "b", "c"}).Draw(t, "order") {
			if h.run(moment(t, 2*sec)); n == "a" {
				h.fails(n, rapid.SampledFrom(silentClasses).Draw(t, "class"))
			} else {
				rc := &h.truth(n).Receiver
				rc.Running, rc.Streaming, rc.LatestEnd, rc.MessageAge = topology.No, topology.No, 0, -1
			}
		}
		if rapid.Bool().Draw(t, "the key goes") {
			h.authority.Leader = ""
		}
		h.run(moment(t, 3*time.Minute))
		h.check = nil
		h.readsGoOn()
		h.become("b", primary(6))
		h.moveLeader("b", 6)
		h.run(3 * sec)
		h.want("primary", "b=up/writer")
		h.want("replica", "b=drain/wrong_role c=up")
		if h.readPool().Fallback == topology.FallbackPrimary {
			h.run(11 * sec)
			h.want("replica", "b=up/fallback c=drain/not_streaming")
		}
	})
}

// TestTrapAddressReused: the writer's address belongs to another node now, which
// is named. What was heard at the address before is no word of the new node, and
// what the old one said is none at its new address.
func TestTrapAddressReused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := sprung(t, patroni, none)
		var onTheWay []topology.Observation // answers that were asked for before
		for _, n := range []string{"a", "b", "c"} {
			p := *h.truth(n)
			p.Node = n
			onTheWay = append(onTheWay, topology.Observation{Cluster: "main", Source: pgSource(n), Seq: 1 << 20, AskedAt: h.now, Probe: &p})
		}
		h.run(moment(t, 2*sec))
		old := h.truth("a").Address
		taker := rapid.SampledFrom([]string{"b", "d"}).Draw(t, "the new node")
		next := rapid.SampledFrom([]*server{primary(5), primary(6), standby(5), foreignServer()}).Draw(t, "its server")
		h.servers["a"].probe.Address = topology.Address{Host: "192.0.2.99", Port: 5432}
		h.fails("a", topology.FailRefused)
		if rapid.Bool().Draw(t, "a is gone") {
			delete(h.servers, "a")
		}
		h.servers[taker] = &server{probe: next.probe}
		h.truth(taker).Address = old
		h.tick = h.now.Mono.Add(sec) // nobody is asked yet
		h.listNodes()
		h.moveLeader(taker, 5)
		h.askAuthority()
		for i, o := range rapid.Permutation(onTheWay).Draw(t, "arrive") {
			o.At, o.Seq = h.now, o.Seq+uint64(i)
			h.receive(o)
			if h.decide(); h.snap.Writer != "" {
				t.Fatalf("%s is up at an address where nobody has answered for it\n%s", h.snap.Writer, h.show())
			}
		}
		h.seq = map[topology.SourceID]uint64{pgSource("a"): 1 << 21, pgSource("b"): 1 << 21, pgSource("c"): 1 << 21, fileSource: 1 << 21, consulSource: 1 << 21}
		h.run(15 * sec)
		if writes := next.probe.InRecovery == topology.No && next.probe.SystemID == ownID; writes && h.snap.Writer != taker {
			t.Fatalf("the writer is %q, want %s\n%s", h.snap.Writer, taker, h.show())
		} else if !writes && h.snap.Writer != "" {
			t.Fatalf("the writer is %q, want none\n%s", h.snap.Writer, h.show())
		}
	})
}

// foreignServer is another cluster's primary.
func foreignServer() *server {
	s := primary(5)
	s.probe.SystemID = 666
	return s
}
