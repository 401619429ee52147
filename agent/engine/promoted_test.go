package engine

import (
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestPromotedReadersStay: a replica that leaves recovery tells so on the role
// tick, and its timeline a moment later. Its readers' sessions are not cut in
// between, and end only when that word shows it to be no successor.
func TestPromotedReadersStay(t *testing.T) {
	for _, kind := range []topology.AuthorityKind{none, patroni} {
		t.Run(string(kind), func(t *testing.T) {
			w := settled(t, kind)
			if kind == patroni {
				w.moveLeader("b", 5)
				w.askAuthority()
			}
			w.become("b", primary(6))
			w.roleTick("b")
			w.want("replica", "b=drain/wrong_role")
			w.ask("b")
			w.wantWriter("b")
			w.want("replica", "b=drain/wrong_role")
		})
		t.Run(string(kind)+", a stray", func(t *testing.T) {
			w := settled(t, kind)
			w.become("b", primary(4))
			w.roleTick("b")
			w.want("replica", "b=drain/wrong_role")
			w.ask("b")
			w.want("primary", "b=down")
			w.want("replica", "b=down/fenced")
		})
	}
}
