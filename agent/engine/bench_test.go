package engine

import (
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// BenchmarkDecide is the cost of one probe's answer and the decision after it,
// in a healthy cluster of three nodes.
func BenchmarkDecide(b *testing.B) {
	w := newWorld(b, patroni).run(10 * sec)
	names := []string{"a", "b", "c"}
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		w.pass(300 * ms)
		w.ask(names[i%3])
		if i%30 == 0 {
			w.askAuthority()
		}
		w.decide()
	}
	if w.snap.Writer != "a" {
		b.Fatal(w.show())
	}
}

func BenchmarkFacts(b *testing.B) {
	w := newWorld(b, patroni).run(10 * sec)
	b.ReportAllocs()
	var f *topology.Facts
	for range b.N {
		f = Facts(w.s, w.now)
	}
	if len(f.Nodes) != 3 {
		b.Fatal("nodes are missing")
	}
}
