package xds

import (
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestStartEmptiesNoPool: after a start a read pool in which nobody is up yet, and of whose
// nodes one is unknown, is nothing to begin with: an Envoy may have that one. Later on it
// is what it is, since an unknown node is a new one then.
func TestStartEmptiesNoPool(t *testing.T) {
	reads := func(generation uint64, n2, n3 topology.Verdict) *topology.Snapshot {
		s := decision("main", generation, up, down, down)
		s.Pools[1].Nodes[0].Verdict, s.Pools[1].Nodes[1].Verdict, s.Pools[1].Nodes[2].Verdict = drain, n2, n3
		return s
	}
	inBubble(t, []string{"main"}, func(b *bubble) {
		b.set(reads(1, drain, und), time.Hour)
		a := b.asker()
		a.ask(kindCluster, map[string]string{"main/old": "1"})
		same(t, "told while nobody is known to be up", "", a.told())
		if got := strings.Join(b.pub.waitingFor(), " "); got != "main" {
			t.Errorf("waiting for %q", got)
		}
		b.set(reads(2, drain, up), time.Hour)
		same(t, "told once somebody is up", "-main/old main/primary main/replica", a.told())
		a.ask(kindEndpoint, nil, "main/replica")
		a.told()
		b.set(reads(3, drain, und), time.Hour)
		same(t, "told when that one is unknown", "main/replica", a.told())
	})
}
