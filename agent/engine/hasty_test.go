package engine

import (
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestProbingFasterIsNoHastier: the time from an event to the verdict is the
// rule's duration, whatever the interval between probes.
func TestProbingFasterIsNoHastier(t *testing.T) {
	tests := []struct {
		name       string
		kind       topology.AuthorityKind
		happen     func(*world)
		pool, node string
		verdict    topology.Verdict
		after      time.Duration
	}{
		{"silent writer drains", patroni, func(w *world) { w.fails("a", topology.FailTimeout) }, "primary", "a", topology.Drain, 1900 * ms},
		{"silent writer ends, none", none, func(w *world) { w.fails("a", topology.FailTimeout) }, "primary", "a", topology.Down, 10 * sec},
		{"silent replica drains", patroni, func(w *world) { w.fails("b", topology.FailTimeout) }, "replica", "b", topology.Drain, 1900 * ms},
		{"silent replica ends", patroni, func(w *world) { w.fails("b", topology.FailTimeout) }, "replica", "b", topology.Down, 10 * sec},
		{"role unknown replica", patroni, func(w *world) { w.fails("b", topology.FailAuth) }, "replica", "b", topology.Drain, 3 * sec},
		{"not streaming", patroni, func(w *world) { w.truth("b").Receiver.Running = topology.No }, "replica", "b", topology.Drain, 10 * sec},
		{"other timeline", patroni, func(w *world) { w.truth("b").Receiver.Timeline = 4 }, "replica", "b", topology.Down, 10 * sec},
		{"leader gap", patroni, func(w *world) { w.authority.Leader = "" }, "primary", "a", topology.Down, 20 * sec},
		{"return", patroni, func(w *world) {
			w.fails("b", topology.FailRefused)
			w.run(3 * sec)
			w.answers("b")
		}, "replica", "b", topology.Up, 2 * sec},
		{"lag", patroni, func(w *world) { w.write(65 * mb); w.behind("b", 65*mb); w.behind("c", 0) }, "replica", "b", topology.Drain, 2 * sec},
		{"return from lag", patroni, func(w *world) {
			w.write(65 * mb)
			w.behind("b", 65*mb)
			w.behind("c", 0)
			w.run(15 * sec)
			w.behind("b", 0)
		}, "replica", "b", topology.Up, 3 * sec},
		{"minimum down", patroni, func(w *world) {
			w.become("a", standby(5))
			w.askAll()
			w.decide()
			w.become("a", primary(5))
		}, "primary", "a", topology.Up, sec},
	}
	for _, tt := range tests {
		for _, interval := range []time.Duration{sec, 500 * ms, 50 * ms} {
			t.Run(tt.name+"/"+interval.String(), func(t *testing.T) {
				w := settled(t, tt.kind)
				w.interval = interval
				w.askAll()
				w.decide()
				w.tick = w.now.Mono.Add(ms)
				tt.happen(w)
				from := w.now.Mono
				for verdict(w.decide(), tt.pool, tt.node) != tt.verdict {
					if w.now.Mono.Sub(from) > tt.after+2*sec {
						t.Fatalf("not %s after %s\n%s", tt.verdict, w.now.Mono.Sub(from), w.show())
					}
					w.run(10 * ms)
				}
				// What must be seen first is seen with the next probe.
				if took := w.now.Mono.Sub(from); took < tt.after-15*ms || took > tt.after+interval+15*ms {
					t.Fatalf("%s after %s, want %s and at most one interval more", tt.verdict, took, tt.after)
				}
			})
		}
	}
}
