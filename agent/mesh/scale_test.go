package mesh

import (
	"testing"
	"testing/synctest"
	"time"
)

// What stands is read twice a second for all clusters together, however many there
// are, and nothing is asked beside that but for the session and the locks.
func TestRequestsOfMany(t *testing.T) {
	for _, n := range []int{100, 400} {
		world(t, func(r *rig) {
			a := r.start("a", func(o *Options) {
				o.Clusters = make(map[string]Settings)
				for i := range n {
					o.Clusters[fleetName(i)] = Settings{Service: fleetName(i)}
				}
			})
			for i := range n {
				a.views.Set(fleetName(i), quiet(fleetName(i), r.now().Mono))
			}
			r.until(5*time.Minute, "all are published", func() bool {
				for _, s := range a.p.Status() {
					if s.Writes == 0 || s.Err != nil {
						return false
					}
				}
				return true
			})
			round := time.Duration(n) * readGap
			time.Sleep(round)
			synctest.Wait()
			before := len(r.consul.Requests())
			const window = 10 * time.Second
			most := 0
			for last, end := before, r.now().Mono.Add(round); r.now().Mono < end; {
				time.Sleep(window)
				synctest.Wait()
				count := len(r.consul.Requests())
				most, last = max(most, count-last), count
			}
			if perSecond := float64(most) / window.Seconds(); perSecond > 6 {
				t.Errorf("%d clusters: up to %.1f requests a second in %s, want them spread", n, perSecond, window)
			}
			rate := float64(len(r.consul.Requests())-before) / round.Seconds()
			if t.Logf("%d clusters: %.2f requests a second", n, rate); rate > 2.5 || rate < 1.9 {
				t.Errorf("%d clusters cost %.2f requests a second, want about two", n, rate)
			}
		})
	}
}
