package consul

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// BenchmarkConsulRequests counts what 1,000 quiet clusters ask Consul for, over
// whole periods of ten seconds: design.md wants at most 20 requests a second; and what
// 10,000 do. That of agent/mesh publishes them as well.
func BenchmarkConsulRequests(b *testing.B) {
	const n = 1000
	for _, n := range []int{n, 10 * n} {
		b.Run(fmt.Sprintf("fake-%d", n), func(b *testing.B) {
			r := newFleetRig(b, n, ClientOptions{})
			defer r.end()
			countRequests(b, r, func() float64 { return float64(r.mark()) })
		})
	}
	b.Run("consul", func(b *testing.B) {
		l := labtest.ForTest(b, lab.NeedConsul)
		server, err := l.Consul(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		putScopes(b, server, n)
		g := labtest.CountConsul(b, server)
		r := fleetOn(b, ClientOptions{Address: g.URL}, n)
		defer r.end()
		countRequests(b, r, g.Requests)
		b.ReportMetric(float64(g.Peak()), "connections")
	})
}

func countRequests(b *testing.B, r *fleetRig, total func() float64) {
	b.Helper()
	r.untilAll(30*time.Second, "all are known", map[string]int{"a": len(r.ships)})
	wait := func() { passed(b.Context(), defaultReadEvery) }
	wait() // the first reads are not those of a quiet fleet
	before, began := total(), time.Now()
	for b.Loop() {
		wait()
	}
	b.ReportMetric((total()-before)/time.Since(began).Seconds(), "requests/s")
	b.ReportMetric(0, "ns/op") // it is the length of a period
	if w := r.words(); w["a"] != len(r.ships) {
		b.Errorf("in the end the watchers told %v", w)
	}
}
