package e2e

import (
	"slices"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// BenchmarkHeldSwitchover measures what clients of PgBouncer see of a planned
// switchover by Patroni that pgsteer wraps: how long the operations took that were under way while
// the writer changed (20 sessions that last, a write every 10 ms each, and two that
// come anew for each write), how long PgBouncer was paused, and how many failed. Each
// iteration is one switchover; -benchtime=10x makes ten. What Patroni needs for it, and
// that is most of the wait, is in the figures.
func BenchmarkHeldSwitchover(b *testing.B) {
	r := newBouncerRig(b, bouncerOptions{patroni: true})
	var all []time.Duration
	var held, writer float64
	failed, turn := 0, 0
	for b.Loop() {
		turn++
		to := []string{"n1", "n2", "n3"}[turn%3]
		r.until(to+" to serve reads", func() bool { v, _ := r.verdict("main", "replica", to); return v == topology.Up })
		loads := r.clients()
		begin := time.Now()
		s := r.switchOver(b.Context(), `{"to":"`+to+`"}`)
		end := time.Now()
		if s.result.Error != "" {
			b.Fatalf("%s\n%+v", s.text(), s.result)
		}
		held, writer = held+s.result.HeldFor, writer+s.result.WriterFor
		for _, l := range loads {
			r.do(l.Wait(b.Context(), "a write after it", func(x lab.Sample) bool { return x.Op == lab.Write && x.Err == nil }))
			for _, x := range l.Stop() {
				if x.Err != nil {
					failed++
				}
				if x.End().After(begin) && x.At.Before(end) && x.Op == lab.Write {
					all = append(all, x.Duration)
				}
			}
		}
	}
	slices.Sort(all)
	b.ReportMetric(0, "ns/op") // the switchover itself, which is Patroni's
	b.ReportMetric(all[len(all)*99/100].Seconds()*1000, "wait-p99-ms")
	b.ReportMetric(all[len(all)-1].Seconds()*1000, "wait-max-ms")
	b.ReportMetric(held/float64(turn)*1000, "paused-mean-ms")
	b.ReportMetric(writer/float64(turn)*1000, "new-writer-mean-ms")
	b.ReportMetric(float64(failed), "failed")
}
