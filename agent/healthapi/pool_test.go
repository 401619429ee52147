package healthapi

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// A pool path speaks of its own pool alone, however many there are, whatever its
// role, choice of nodes and port.
func TestPathsOfManyPools(t *testing.T) {
	s, f := mainCluster()
	add := func(name string, mode topology.Mode, port uint16, nodes ...topology.NodeVerdict) {
		for i := range nodes {
			nodes[i].Address = topology.Address{Host: fmt.Sprintf("10.0.0.%d", i+1), Port: port}
		}
		s.Pools = append(s.Pools, topology.PoolVerdicts{Pool: name, Mode: mode, Nodes: nodes})
	}
	weighing := func(weight int, v topology.NodeVerdict) topology.NodeVerdict {
		v.Weight = weight
		return v
	}
	other := func(node string) topology.NodeVerdict {
		return verdict(node, topology.Drain, topology.CodeNotSelected, "not selected")
	}
	add("rw-bouncer", topology.ModeWrite, 6432,
		verdict("n1", topology.Down, topology.CodePort, "port 6432: refused"), verdict("n2", topology.Down, topology.CodeWrongRole, "in recovery"))
	add("ro.bouncer", topology.ModeRead, 6432,
		verdict("n1", topology.Undecided, topology.CodePort, "port 6432 not checked yet"), weighing(25, verdict("n2", topology.Up, topology.CodeRamping, "25 %")))
	add("sync", topology.ModeRead, 5432, weighing(30, verdict("n1", topology.Up, topology.CodeFallback, "no replica is eligible")), other("n2"))
	add("stale", topology.ModeRead, 5432, verdict("n1", topology.Down, topology.CodeWrongRole, "primary"),
		weighing(50, verdict("n2", topology.Up, topology.CodeFallbackStale, "lag 70MB")))
	add("check", topology.ModeRead, 5432, other("n1"), verdict("n2", topology.Up, topology.CodeReplica, "lag 0B"))

	h := server(t, s, f, Options{DrainStatus: 404})
	want := map[string][]string{ // n1 and n2: status of the path, of Envoy's check, weight and code
		"primary":    {"200 200 100 writer", "503 503 100 wrong_role"},
		"replica":    {"503 503 100 wrong_role", "200 200 100 replica"},
		"rw-bouncer": {"503 503 100 port", "503 503 100 wrong_role"},
		"ro.bouncer": {"-1 -1", "200 200 25 ramping"},
		"sync":       {"200 200 30 fallback", "404 200 100 not_selected"},
		"stale":      {"503 503 100 wrong_role", "200 200 50 fallback_stale"},
		"check":      {"404 200 100 not_selected", "200 200 100 replica"},
	}
	got := make(map[string][]string)
	for _, p := range s.Pools {
		for _, node := range []string{"n1", "n2"} {
			status, answer := ask(h, "GET", "/clusters/main/pools/"+p.Pool+"/nodes/"+node)
			check, _ := ask(h, "GET", "http://"+node+"/clusters/main/pools/"+p.Pool+"/check")
			line := fmt.Sprint(status, " ", check)
			if status > 0 {
				body := decode(t, answer.Body.String())
				line += fmt.Sprint(" ", body["weight"], " ", body["reason"].(map[string]any)["code"])
			}
			got[p.Pool] = append(got[p.Pool], line)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
