package engine

import (
	"fmt"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// sizedWorld is a healthy Patroni cluster of so many nodes that has settled.
func sizedWorld(t tb, nodes int) *world {
	w := newWorld(t, patroni)
	for i := range nodes {
		name := fmt.Sprintf("n%03d", i)
		if w.servers[name] = standby(5); i == 0 {
			w.servers[name] = primary(5)
			w.moveLeader(name, 5)
		}
		w.servers[name].probe.Address = topology.Address{Host: fmt.Sprintf("198.51.%d.%d", i/250, i%250+1), Port: 5432}
	}
	delete(w.servers, "a")
	delete(w.servers, "b")
	delete(w.servers, "c")
	w.listNodes()
	w.run(45 * sec) // longer than any grace and slow start
	w.wantWriter("n000")
	return w
}

// rounds are observations that change nothing, one a node, folded and decided in
// turn; what is measured is ours alone, so they are made before.
func (w *world) rounds() []topology.Observation {
	var out []topology.Observation
	w.onFold = func(o topology.Observation) { out = append(out, o) }
	w.askAll()
	w.onFold = nil
	return out
}

// turn folds one more answer of the same content and decides.
func (w *world) turn(o *topology.Observation) {
	w.pass(3 * ms)
	o.Seq += 1_000_000
	o.AskedAt, o.At = w.now, w.now
	Observe(w.s, *o)
	w.snap, w.demand, w.wake = Decide(w.p, w.now, w.s, w.m)
}

// BenchmarkDecide is the cost of one answer that changes nothing and of the
// decision after it.
func BenchmarkDecide(b *testing.B) {
	for _, nodes := range []int{3, 30, 300} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			w := sizedWorld(b, nodes)
			answers, before := w.rounds(), w.snap
			b.ReportAllocs()
			b.ResetTimer()
			for i := range b.N {
				w.turn(&answers[i%len(answers)])
			}
			if w.snap != before {
				b.Fatalf("something was decided\n%s", w.show())
			}
		})
	}
}

// TestDecideAllocatesNothing while nothing changes, so that a busy agent makes
// no garbage by deciding.
func TestDecideAllocatesNothing(t *testing.T) {
	w := sizedWorld(t, 30)
	answers, i := w.rounds(), 0
	w.turn(&answers[0])
	n := testing.AllocsPerRun(300, func() {
		w.turn(&answers[i%len(answers)])
		i++
	})
	if n != 0 {
		t.Fatalf("%v allocations for each decision", n)
	}
}

func BenchmarkFacts(b *testing.B) {
	w := newWorld(b, patroni).run(10 * sec)
	b.ReportAllocs()
	var f *topology.Facts
	for b.Loop() {
		f = Facts(w.s, w.now)
	}
	if len(f.Nodes) != 3 {
		b.Fatal("nodes are missing")
	}
}
