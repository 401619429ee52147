package healthapi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Checks without a pool follow the pool with the default's name, wherever it stands,
// if it is of their mode.
func TestWhichPoolChecksFollow(t *testing.T) {
	pool := func(name string, mode topology.Mode, v topology.Verdict, code topology.Code) topology.PoolVerdicts {
		return topology.PoolVerdicts{Pool: name, Mode: mode, Nodes: []topology.NodeVerdict{verdict("n1", v, code, name)}}
	}
	const write, read = topology.ModeWrite, topology.ModeRead
	for _, tt := range []struct {
		name             string
		pools            []topology.PoolVerdicts
		primary, replica string // whose word counts
	}{
		{"the default's names", []topology.PoolVerdicts{
			pool("analytics", read, topology.Down, topology.CodeLag), pool("bouncer", write, topology.Down, topology.CodePort),
			pool("replica", read, topology.Up, topology.CodeReplica), pool("primary", write, topology.Up, topology.CodeWriter),
		}, "primary", "replica"},
		{"other names: the first", []topology.PoolVerdicts{
			pool("ro", read, topology.Up, topology.CodeReplica), pool("analytics", read, topology.Down, topology.CodeLag),
			pool("rw", write, topology.Up, topology.CodeWriter), pool("bouncer", write, topology.Down, topology.CodePort),
		}, "rw", "ro"},
		{"the names for the other mode", []topology.PoolVerdicts{
			pool("primary", read, topology.Up, topology.CodeReplica), pool("ro", read, topology.Down, topology.CodeLag),
			pool("replica", write, topology.Up, topology.CodeWriter), pool("rw", write, topology.Down, topology.CodePort),
		}, "replica", "primary"},
		{"one that leaves the node out", []topology.PoolVerdicts{
			pool("near", read, topology.Drain, topology.CodeLag), pool("replica", read, topology.Drain, topology.CodeNotSelected),
			pool("rw", write, topology.Up, topology.CodeWriter), pool("primary", write, topology.Drain, topology.CodeNotSelected),
		}, "rw", "near"},
	} {
		w := replicaWorld()
		w.snapshot.Pools = tt.pools
		h := server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}})
		for path, want := range map[string]string{"/primary": tt.primary, "/replica": tt.replica} {
			_, answer := ask(h, "GET", path)
			if _, text, _ := strings.Cut(answer.Header().Get("X-Pgsteer-Reason"), ": "); text != want {
				t.Errorf("%s: %s follows %s, want %s", tt.name, path, text, want)
			}
		}
	}
}

// The long form of a path is answered as the short form, byte by byte, by each
// method; Patroni's own ways of reading a path begin behind the node's name.
func TestLongFormsAreTheShortOnes(t *testing.T) {
	w := primaryWorld()
	for _, compat := range compats {
		h := server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}, Compat: compat})
		for _, short := range []string{
			"/", "//", "/primary", "//primary", "/primary/", "/primary/foo", "/replica", "/sync", "/sync/", "/unhealthy", "/patroni/x", "/%70rimary",
			"/primary;x", "/?lag=1", "/primary?tag_x=y", "/history", "/history/", "/failsafe", "/cluster", "/metrics", "/liveness/x", "/nosuch", "/nodes/n2/primary",
		} {
			for _, method := range []string{"GET", "HEAD", "OPTIONS", "POST", "DELETE", "BREW"} {
				_, want := ask(h, method, short)
				for _, before := range []string{"/clusters/main/nodes/n1", "//clusters//main/nodes//n1", "/%63lusters/main/nodes/n%31"} {
					_, got := ask(h, method, before+short)
					if got.Code != want.Code || got.Body.String() != want.Body.String() {
						t.Errorf("%s: %s %s is %d, %s is %d", compat, method, before+short, got.Code, short, want.Code)
					}
				}
			}
		}
		if diff := cmp.Diff([]int{200, 404, 404, 404}, w.local(t, compat, "clusters/main/nodes/n1", "clusters/main/nodes%2Fn1/primary", "clusters/main/nodes", "clusters/main/nosuch/n1/primary")); diff != "" {
			t.Errorf("%s: %s", compat, diff)
		}
	}
}
