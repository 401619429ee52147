package healthapi

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// A hung PostgreSQL is a no in every choice, whatever the lock and the pause say;
// one that answers by any word, or was heard a moment ago, is not hung.
func testHung(t *testing.T) {
	checks := []string{"primary", "leader", "read-only", "readiness", "replica", "health", "standby-leader"}
	no := []int{503, 503, 503, 503, 503, 503, 503}
	silent := verdict("n1", topology.Drain, topology.CodeSilent, "no answer")
	for _, name := range []string{"M1", "M16", "M18", "M14", "M22", "M5"} {
		w := worlds()[name]
		w.failing(topology.FailTimeout, "running", silent)
		w.expect(t, map[Compat][]int{Patroni3: no, Patroni4: no}, checks...)
		w.everywhere(t, []int{200, 200}, "liveness", "patroni")
	}
	w := worlds()["M1"]
	w.failing(topology.FailTimeout, "running", silent)
	w.expect(t, map[Compat][]int{Strict: no}, checks...)
	locked := []int{200, 200, 200, 200}
	for what, change := range map[string]func(*topology.NodeFacts){
		"its query is cancelled": func(f *topology.NodeFacts) { f.Failure = &topology.Failure{Class: topology.FailProtocol} },
		"no slot is free":        func(f *topology.NodeFacts) { f.Failure = &topology.Failure{Class: topology.FailSlots} },
		"it is down":             func(f *topology.NodeFacts) { f.Failure = &topology.Failure{Class: topology.FailRefused} },
		"it answered lately":     func(f *topology.NodeFacts) { f.AnsweredAt = now.Add(-3 * time.Second) },
		"it fails no more":       func(f *topology.NodeFacts) { f.FailingAt = 0 },
	} {
		w := worlds()["M1"]
		w.failing(topology.FailTimeout, "running", silent)
		w.node(change)
		for _, compat := range []Compat{Patroni3, Patroni4} {
			if diff := cmp.Diff(locked, w.local(t, compat, checks[:4]...)); diff != "" {
				t.Errorf("%s, %s: %s", compat, what, diff)
			}
		}
	}
	w.verdicts(verdict("n1", topology.Up, topology.CodeLinkCut, "others hear from it"), silent)
	w.everywhere(t, []int{200}, "primary") // the link is cut, and ours alone
}
