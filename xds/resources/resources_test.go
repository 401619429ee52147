package resources

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func load(t *testing.T, name string) (*topology.Snapshot, Settings) {
	t.Helper()
	return read(t, "testdata/"+name+".in.yaml")
}

func build(t *testing.T, snap *topology.Snapshot, s Settings) Set {
	t.Helper()
	set, err := Build(snap, s)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func buildCase(t *testing.T, name string) Set {
	t.Helper()
	snap, settings := load(t, name)
	return build(t, snap, settings)
}

// TestHeldIsWhatWasDecided: a restart that holds the saved writer and has heard
// of nobody yet must not differ by a byte in the write pool.
func TestHeldIsWhatWasDecided(t *testing.T) {
	before := buildCase(t, "decided")
	after := buildCase(t, "held")
	same(t, before, after)
}

// TestHeldKeepsThePoolsPort: the same where the pool has a port of its own, which
// only its verdicts know.
func TestHeldKeepsThePoolsPort(t *testing.T) {
	var sets []Set
	for _, name := range []string{"decided", "held"} {
		snap, settings := load(t, name)
		for i := range snap.Pools[0].Nodes {
			snap.Pools[0].Nodes[i].Address.Port = 6432
		}
		sets = append(sets, build(t, snap, settings))
	}
	same(t, sets[0], sets[1])
	port := sets[1].Endpoints[0].GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetPortValue()
	if port != 6432 {
		t.Errorf("the held writer is served at port %d, want the pool's 6432", port)
	}
}

// same compares what two sets have of the write pool.
func same(t *testing.T, before, after Set) {
	t.Helper()
	for _, pair := range [][2]any{
		{before.Clusters[0], after.Clusters[0]},
		{before.Endpoints[0], after.Endpoints[0]},
		{before.Listeners[0], after.Listeners[0]},
	} {
		if diff := cmp.Diff(pair[0], pair[1], protocmp.Transform()); diff != "" {
			t.Errorf("the held writer is served differently (-decided +held):\n%s", diff)
		}
	}
}

// TestOnlyDecisionsChangeBytes: generations, reasons, times and lags leave no
// trace.
func TestOnlyDecisionsChangeBytes(t *testing.T) {
	snap, settings := load(t, "decided")
	want := build(t, snap, settings)
	snap.Generation, snap.Urgent, snap.Hash, snap.DecidedAt = 99, 98, "other", time.Unix(1, 0)
	snap.Alarms = []topology.Reason{{Code: topology.CodeIsolated}}
	for i := range snap.Pools {
		for j := range snap.Pools[i].Nodes {
			snap.Pools[i].Nodes[j].Reasons = []topology.Reason{{Code: topology.CodeLag, Text: "lag 1MB"}}
		}
	}
	if diff := cmp.Diff(want, build(t, snap, settings), protocmp.Transform()); diff != "" {
		t.Errorf("bytes changed with what is no decision (-before +after):\n%s", diff)
	}
}

// TestChain: what renames the chain of a write pool, and so cuts its sessions.
func TestChain(t *testing.T) {
	type pool = []topology.Verdict // of n1, n2
	const und, up, drain, down = topology.Undecided, topology.Up, topology.Drain, topology.Down
	for _, tc := range []struct {
		name     string
		verdicts pool
		held     string
		standing string // "?" is not known
		want     string // "" is withheld
	}{
		{"up", pool{up, down}, "", "?", "writer/n1"},
		{"another is up", pool{down, up}, "", "n1", "writer/n2"},
		{"up beats the saved one", pool{down, up}, "n1", "?", "writer/n2"},
		{"drains", pool{drain, down}, "", "n1", "writer/n1"},
		{"drains after a start", pool{drain, down}, "", "?", "writer/n1"},
		{"both drain", pool{drain, drain}, "", "n2", "writer/n2"},
		{"both drain after a start", pool{drain, drain}, "n2", "?", "writer/n2"},
		{"only the other drains", pool{down, drain}, "", "n1", "none"},
		{"there was none, one drains", pool{drain, down}, "", "", "none"},
		{"nobody", pool{down, down}, "", "n1", "none"},
		{"nobody after a start", pool{down, down}, "", "?", "none"},
		{"saved and undecided", pool{und, down}, "n1", "?", "writer/n1"},
		{"saved and undecided, another drains", pool{und, drain}, "n1", "?", "writer/n1"},
		{"saved but down, another undecided", pool{down, und}, "n1", "?", "none"},
		{"saved but gone", pool{down, und}, "n9", "?", "none"},
		{"writer down, a new node undecided", pool{down, und}, "", "n1", "none"},
		{"nothing known", pool{und, und}, "", "?", ""},
		{"one drains, one undecided, none saved", pool{drain, und}, "", "?", ""},
		{"none standing, one undecided", pool{down, und}, "", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			snap, settings := load(t, "decided")
			snap.Held, snap.Pools = tc.held, snap.Pools[:1]
			snap.Pools[0].Nodes = snap.Pools[0].Nodes[:2]
			for i, v := range tc.verdicts {
				snap.Pools[0].Nodes[i].Verdict = v
			}
			settings.Standing = func(string, string) (string, bool) { return tc.standing, tc.standing != "?" }
			if got := chain(build(t, snap, settings)); got != tc.want {
				t.Errorf("the chain is %q, want %q", got, tc.want)
			}
		})
	}
}

func chain(set Set) string {
	if len(set.Listeners) == 0 {
		return ""
	}
	return set.Listeners[0].GetFilterChains()[0].GetName()
}

// TestReadersAfterAStart: nodes of which nothing is decided are offered as they were
// before the start where nobody else is up, so that a node that drains, as the primary
// and those that are out for maintenance do from the first moment, empties no pool.
func TestReadersAfterAStart(t *testing.T) {
	const und, up, drain, down = topology.Undecided, topology.Up, topology.Drain, topology.Down
	type pool = []topology.Verdict // of n1, n2, n3
	for _, tc := range []struct {
		name            string
		verdicts, saved pool
		want            string
	}{
		{"all decided", pool{drain, up, up}, pool{up, drain, drain}, "n1 DRAINING, n2 HEALTHY, n3 HEALTHY"},
		{"one is up", pool{drain, up, und}, pool{drain, up, up}, "n1 DRAINING, n2 HEALTHY"},
		{"only those that drain are decided", pool{drain, drain, und}, pool{drain, up, up}, "n1 DRAINING, n2 DRAINING, n3 HEALTHY"},
		{"two stand", pool{drain, und, und}, pool{drain, up, up}, "n1 DRAINING, n2 HEALTHY, n3 HEALTHY"},
		{"one drained before", pool{drain, und, und}, pool{drain, drain, up}, "n1 DRAINING, n2 DRAINING, n3 HEALTHY"},
		{"nobody was up", pool{drain, und, und}, pool{drain, drain, down}, "n1 DRAINING, n2 DRAINING"},
		{"nothing is known", pool{drain, und, und}, pool{und, und, und}, "n1 DRAINING, unsure"},
		{"one was drained, of one nothing is known", pool{drain, und, und}, pool{und, drain, und}, "n1 DRAINING, n2 DRAINING, unsure"},
		{"one was up, of one nothing is known", pool{drain, und, und}, pool{und, up, und}, "n1 DRAINING, n2 HEALTHY"},
		{"nothing is decided", pool{und, und, und}, pool{drain, up, up}, "withheld"},
		{"nobody that could serve is decided", pool{down, und, und}, pool{down, up, up}, "withheld"},
		{"all are down", pool{down, down, down}, pool{drain, up, up}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			snap, settings := load(t, "decided")
			snap.Pools = []topology.PoolVerdicts{{Pool: "replica", Mode: topology.ModeRead}}
			saved := make(map[string]topology.Verdict)
			for i, v := range tc.verdicts {
				name := fmt.Sprintf("n%d", i+1)
				saved[name] = tc.saved[i]
				snap.Pools[0].Nodes = append(snap.Pools[0].Nodes, topology.NodeVerdict{Node: name, Verdict: v, Weight: 50, Address: topology.Address{Host: "10.0.0.1", Port: uint16(i + 1)}})
			}
			settings.Saved = func(cluster, pool, node string) topology.Verdict {
				if cluster != snap.Cluster || pool != "replica" {
					t.Errorf("asked for %s/%s", cluster, pool)
				}
				return saved[node]
			}
			set := build(t, snap, settings)
			var got []string
			for _, a := range set.Endpoints {
				for _, l := range a.GetEndpoints() {
					for _, e := range l.GetLbEndpoints() {
						got = append(got, e.GetEndpoint().GetObservabilityName()+" "+e.GetHealthStatus().String())
					}
				}
			}
			if len(set.Unsure) > 0 {
				got = append(got, "unsure")
			}
			if len(set.Withheld) > 0 {
				got = append(got, "withheld")
			}
			if text := strings.Join(got, ", "); text != tc.want {
				t.Errorf("offered are %s, want %s", text, tc.want)
			}
		})
	}
}

// TestWritePoolHasOneEndpoint: whatever the verdicts, a write pool lists at most
// one node, and every resource passes its own validation.
func TestWritePoolHasOneEndpoint(t *testing.T) {
	base, settings := load(t, "decided")
	rapid.Check(t, func(t *rapid.T) {
		snap := *base
		snap.Held = rapid.SampledFrom([]string{"", "n1", "n2", "n9"}).Draw(t, "held")
		snap.Pools = nil
		for _, p := range base.Pools {
			q := p
			q.Nodes = nil
			for _, v := range p.Nodes {
				v.Verdict = topology.Verdict(rapid.IntRange(0, 3).Draw(t, "verdict"))
				v.Weight = rapid.IntRange(-1, 200).Draw(t, "weight")
				q.Nodes = append(q.Nodes, v)
			}
			snap.Pools = append(snap.Pools, q)
		}
		set, err := Build(&snap, settings)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range set.Endpoints {
			n := 0
			for _, l := range e.GetEndpoints() {
				n += len(l.GetLbEndpoints())
			}
			if poolName := e.GetClusterName(); len(poolName) > 12 && poolName[:12] == "main/primary" && n > 1 {
				t.Fatalf("%s has %d endpoints", poolName, n)
			}
		}
		if len(set.Clusters) != len(set.Endpoints) {
			t.Fatalf("%d clusters, %d assignments", len(set.Clusters), len(set.Endpoints))
		}
	})
}

// TestAnyZone: a pool that takes no account of zones has no priorities.
func TestAnyZone(t *testing.T) {
	snap, settings := load(t, "zones")
	for _, blind := range []bool{false, true} {
		settings.AnyZone = func(_, pool string) bool { return blind && pool == "replica" }
		if zoned := len(build(t, snap, settings).Endpoints[1].Zones) > 0; zoned == blind {
			t.Errorf("prefer_zone: %t, but there are priorities: %t", !blind, zoned)
		}
	}
}

// TestPriorities: whatever the zones and verdicts, clients of a zone get exactly
// the nodes that all others get, each once, at priorities without a gap, those of
// their own zone first; and a write pool never has any priority.
func TestPriorities(t *testing.T) {
	base, settings := load(t, "decided")
	rapid.Check(t, func(t *rapid.T) {
		snap := *base
		at := make(map[string]string)
		for i, n := range base.Nodes {
			at[n.Name] = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "zone")
			n.Tags = map[string]string{topology.TagZone: at[n.Name]}
			snap.Nodes = append(slices.Clone(snap.Nodes[:i]), append([]topology.Node{n}, snap.Nodes[i+1:]...)...)
		}
		snap.Pools = slices.Clone(base.Pools)
		snap.Pools[1].Nodes = slices.Clone(base.Pools[1].Nodes)
		for i := range snap.Pools[1].Nodes {
			snap.Pools[1].Nodes[i].Verdict = topology.Verdict(rapid.IntRange(0, 3).Draw(t, "verdict"))
		}
		settings.Sessions = func(string, string) Sessions {
			return rapid.SampledFrom([]Sessions{SessionsKeep, SessionsHealthCheck}).Draw(t, "sessions")
		}
		settings.Check.Address = topology.Address{Host: "127.0.0.1", Port: 7432}
		set, err := Build(&snap, settings)
		if err != nil {
			t.Fatal(err)
		}
		if len(set.Endpoints) > 0 && len(set.Endpoints[0].Zones) > 0 {
			t.Fatal("a write pool has zones")
		}
		for _, e := range set.Endpoints {
			for zone, a := range e.Zones {
				checkPriorities(t, zone, at, e.ClusterLoadAssignment, a)
				if near := a.GetEndpoints()[0].GetLocality().GetZone(); near != "" {
					t.Fatalf("a host whose zone changes is new to Envoy: it is in locality %s", near)
				}
			}
		}
		for _, api := range set.APIs {
			for zone, a := range api.Endpoints.Zones {
				if near := a.GetEndpoints()[0].GetLocality().GetZone(); near != zone {
					t.Fatalf("in gRPC the nodes of zone %s are in locality %q", zone, near)
				}
			}
		}
	})
}

func checkPriorities(t *rapid.T, zone string, at map[string]string, all, a *endpointv3.ClusterLoadAssignment) {
	if len(a.GetEndpoints()) != 2 {
		t.Fatalf("zone %s has %d priorities", zone, len(a.GetEndpoints()))
	}
	var got []string
	for i, l := range a.GetEndpoints() {
		if int(l.GetPriority()) != i || len(l.GetLbEndpoints()) == 0 || l.GetLoadBalancingWeight().GetValue() == 0 {
			t.Fatalf("zone %s: level %d is %v", zone, i, l)
		}
		for _, e := range l.GetLbEndpoints() {
			name := e.GetEndpoint().GetObservabilityName()
			if near := at[name] == zone; near != (i == 0) {
				t.Fatalf("zone %s: %s of zone %q is at priority %d", zone, name, at[name], i)
			}
			got = append(got, e.String())
		}
	}
	var want []string
	for _, e := range all.GetEndpoints()[0].GetLbEndpoints() {
		want = append(want, e.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("zone %s gets %v, all others %v", zone, got, want)
	}
}

// TestChangedClusterAsksAnew: a changed cluster gets other endpoint names.
func TestChangedClusterAsksAnew(t *testing.T) {
	snap, settings := load(t, "decided")
	before := build(t, snap, settings).Endpoints[0].GetClusterName()
	settings.ConnectTimeout = 3 * time.Second
	if after := build(t, snap, settings).Endpoints[0].GetClusterName(); after == before {
		t.Errorf("the name %s stays although the cluster changed", before)
	}
}

func TestBuildWithoutSnapshot(t *testing.T) {
	if _, err := Build(nil, Settings{}); err == nil {
		t.Error("no error without a snapshot")
	}
}

// TestWithheldUntilNodesAreKnown: before any source of nodes has delivered a pool
// without nodes is unknown, and afterwards it is empty.
func TestWithheldUntilNodesAreKnown(t *testing.T) {
	snap := &topology.Snapshot{Cluster: "main", Pools: []topology.PoolVerdicts{
		{Pool: "primary", Mode: topology.ModeWrite}, {Pool: "replica", Mode: topology.ModeRead},
	}}
	for _, complete := range []bool{false, true} {
		snap.Complete = complete
		set, err := Build(snap, Settings{})
		if err != nil {
			t.Fatal(err)
		}
		if withheld := len(set.Withheld) == 2; withheld == complete || len(set.Clusters) == 0 == complete {
			t.Errorf("complete %t: withheld %v, %d clusters", complete, set.Withheld, len(set.Clusters))
		}
	}
}
