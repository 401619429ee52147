package engine

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// papers are documents that differ from those before them.
func papers(n int) *topology.Documents {
	limit := topology.Size(n)
	return &topology.Documents{
		Config: json.RawMessage(fmt.Sprintf(`{"ttl":%d,"pause":true}`, n)), MaxLag: &limit,
		Switchover: &topology.Switchover{At: "now", To: "b"},
		Members:    map[string]topology.MemberDocument{"a": {PendingRestart: n%2 == 0, Replication: "streaming"}},
	}
}

// TestDocumentsDecideNothing: what an authority keeps for those who ask changes no
// verdict in any history.
func TestDocumentsDecideNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := 0
		twins(t, drawEvents(t, 60), func(_, other *world) {
			other.documents = func() *topology.Documents { n++; return papers(n) }
		})
	})
}

// TestDocumentsAreFacts: they lie beside the decision, which is not made anew for
// them, and stay while the authority is away.
func TestDocumentsAreFacts(t *testing.T) {
	w := settled(t, topology.AuthorityPatroni)
	w.run(time.Minute)
	before, hint, burst := w.snap, w.s.hintAt, len(w.demand.Burst)
	if Facts(w.s, w.now).Documents != nil {
		t.Error("there are documents that nobody delivered")
	}
	want := papers(1)
	w.documents = func() *topology.Documents { return want }
	w.askAuthority()
	if w.decide() != before || w.s.hintAt != hint || len(w.demand.Burst) != burst || w.demand.Confirm {
		t.Errorf("documents make a decision: %s, demand %+v", w.show(), w.demand)
	}
	f := Facts(w.s, w.now)
	if f.Documents != want || f.AuthoritySource != consulSource {
		t.Errorf("facts have %+v of %s", f.Documents, f.AuthoritySource)
	}
	w.unheard = topology.FailTimeout
	w.run(time.Minute)
	if Facts(w.s, w.now).Documents != want {
		t.Error("they are gone with the authority")
	}
}
