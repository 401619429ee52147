package mesh

import (
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// Two publishers under random trouble, of whom each sees what it sees: there is never
// more than one primary, nothing is deregistered, and when the trouble is over what
// stands is what the one who publishes has decided.
func TestRandomTrouble(t *testing.T) {
	scenes := []string{
		n1Leads, n2Leads, nobody,
		"n1 drain/silent drain/silent no\nn2 down/wrong_role up/replica yes",
		"n1 down/silent undecided/no_evidence unknown\nn2 up/writer down/wrong_role no",
		"n1 undecided/authority_unknown down/wrong_role no\nn2 undecided/authority_unknown up/replica yes",
	}
	for seed := range uint64(30) {
		world(t, func(r *rig) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			agents := []*agent{r.start("a", nil), r.start("b", nil)}
			for _, a := range agents {
				a.see(n1Leads)
			}
			r.within(2*time.Second, first)
			look := func(d time.Duration) {
				for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					synctest.Wait()
					all := r.consul.Published("main")
					if strings.Count(r.is(), "primary") > 1 || len(all) < 2 {
						t.Fatalf("seed %d: %s", seed, r.is())
					}
				}
			}
			for range 60 {
				a := agents[rnd.IntN(2)]
				switch rnd.IntN(8) {
				case 0:
					a.cut.Store(!a.cut.Load())
				case 1:
					if lock, _ := r.consul.Get("pgsteer/mesh/main"); lock.Session != "" {
						r.consul.EndSession(lock.Session)
					}
				case 2:
					r.consul.Stop()
				case 3:
					r.consul.Start()
				case 4:
					r.consul.SetService("pgsteer-main", "pgsteer:main:n2", func(s *consultest.Service) { s.ServiceMeta = nil })
				default:
					a.see(scenes[rnd.IntN(len(scenes))])
				}
				look(time.Duration(rnd.IntN(3000)) * time.Millisecond)
			}
			r.consul.Start()
			for _, a := range agents {
				a.cut.Store(false)
			}
			look(time.Minute) // a session may have to be found dead, and repairs wait
			agents[0].see(n2Leads)
			agents[1].see(n2Leads)
			r.within(time.Minute, second)
		})
	}
}
