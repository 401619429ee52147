package healthapi

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// A limit in the request stands in for the pool's own limits of lag, and for
// nothing else that keeps a node out.
func TestLimitOverridesLagAlone(t *testing.T) {
	lag := verdict("n1", topology.Drain, topology.CodeLag, "lag 100MB > 64MB")
	both := lag
	both.Reasons = append([]topology.Reason{{Code: topology.CodeReturning}}, lag.Reasons...)
	for _, tt := range []struct {
		name string
		is   topology.NodeVerdict
		want []int // without a limit, with a wide one
	}{
		{"lag", lag, []int{503, 200}},
		{"returning", both, []int{503, 503}},
		{"paused", verdict("n1", topology.Drain, topology.CodePaused, "replay paused"), []int{503, 503}},
		{"damped", verdict("n1", topology.Drain, topology.CodeDamped, "held"), []int{503, 503}},
		{"serves in spite of its lag", verdict("n1", topology.Up, topology.CodeLagOverride, "lag 100MB"), []int{200, 200}},
	} {
		w := replicaWorld()
		w.snapshot.Pools[1].Nodes[0] = tt.is
		if diff := cmp.Diff(tt.want, w.local(t, Strict, "replica", "replica?lag=1GB")); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// Checks without a pool go by the first one that selects the node.
func TestPoolsThatDoNotSelect(t *testing.T) {
	w := primaryWorld()
	other := func(v topology.Verdict) topology.NodeVerdict {
		return verdict("n1", v, topology.CodeNotSelected, "its tags do not fit")
	}
	pool := func(mode topology.Mode, v topology.NodeVerdict) topology.PoolVerdicts {
		return topology.PoolVerdicts{Pool: string(mode) + "-narrow", Mode: mode, Nodes: []topology.NodeVerdict{v}}
	}
	w.snapshot.Pools = append([]topology.PoolVerdicts{pool(topology.ModeWrite, other(topology.Drain))}, w.snapshot.Pools...)
	if got := w.local(t, Strict, "primary")[0]; got != 200 {
		t.Errorf("/primary = %d, want 200 by the second pool", got)
	}
	w.snapshot.Pools = w.snapshot.Pools[:1]
	h := server(t, w.snapshot, w.facts, Options{})
	if got, answer := ask(h, "GET", "/clusters/main/nodes/n1/primary"); got != 503 || !strings.HasPrefix(answer.Header().Get("X-Pgsteer-Reason"), "not_selected") {
		t.Errorf("/primary that no pool selects = %d, %q", got, answer.Header().Get("X-Pgsteer-Reason"))
	}
}

// A node that others still hear from stays in its pool, though it is silent here.
func TestCutLink(t *testing.T) {
	w := replicaWorld()
	w.node(func(f *topology.NodeFacts) {
		f.AnsweredAt, f.FailingAt, f.Failure = lately, lately+1, &topology.Failure{Class: topology.FailTimeout}
	})
	w.snapshot.Pools[1].Nodes[0] = verdict("n1", topology.Up, topology.CodeLinkCut, "others hear from it")
	if diff := cmp.Diff([]int{200, 503}, w.local(t, Strict, "replica", "health")); diff != "" {
		t.Error(diff)
	}
}

func TestPartInCommits(t *testing.T) {
	targets := []string{"sync", "async", "quorum", "read-only-sync", "read-only-quorum"}
	old := worlds()["M11"]
	if diff := cmp.Diff([]int{503, 200, 503, 503, 200}, old.local(t, Patroni3, targets...)); diff != "" {
		t.Errorf("Patroni 3 knows no quorum: %s", diff)
	}
	for name, tt := range map[string]struct {
		change func(*world)
		want   []int
	}{
		"the writer's view is too old to count": {func(w *world) {
			f := w.facts.Nodes["n2"]
			f.AnsweredAt, f.Probe.Standbys = lately, nil
			w.facts.Nodes["n2"] = f
		}, []int{200, 503, 503, 200, 503}},
		"without an authority the writer's view alone": {func(w *world) {
			w.snapshot.Authority, w.facts.Authority = topology.AuthorityStatus{Kind: topology.AuthorityNone, State: topology.AuthorityStateNone}, nil
		}, []int{200, 503, 503, 200, 503}},
		"neither speaks": {func(w *world) {
			w.snapshot.Writer, w.facts.Authority.SyncMode = "", ""
		}, []int{503, 200, 503, 503, 503}},
		"the authority was never heard": {func(w *world) {
			w.snapshot.Authority.State, w.facts.Authority = topology.AuthorityStateUnknown, nil
		}, []int{503, 503, 503, 503, 503}},
		"the authority is away, the writer sees it": {func(w *world) { w.lost(longAgo, nil) }, []int{200, 503, 503, 200, 503}},
	} {
		w := worlds()["M9"]
		tt.change(w)
		if diff := cmp.Diff(tt.want, w.local(t, Strict, targets...)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A lag that is not known is too much while there is a writer to compare with,
// whatever older positions say.
func TestLagThatCannotBeTold(t *testing.T) {
	w := replicaWorld()
	w.node(func(f *topology.NodeFacts) { f.Lag = topology.Lag{Known: topology.Unknown, Estimated: true} })
	w.expect(t, map[Compat][]int{Strict: {503}, Patroni4: {200}}, "replica?lag=1GB")
}

func TestTimeLimits(t *testing.T) {
	for query, want := range map[string]int{ // it is 20 s and 4 MB behind
		"lag=20s": 200, "lag=19.9s": 503, "lag=1min": 200, "lag=1h": 200, "lag=1d": 200, "lag=19999ms": 503, "lag= 30 s ": 200,
		"lag_time=20s": 200, "lag_time=19s": 503, "lag=4MB&lag_time=20s": 200, "lag=3MB&lag_time=20s": 503, "lag=4MB&lag_time=19s": 503,
		"lag=30s&lag_time=10s": 503, "lag=10s&lag_time=30s": 503,
		"lag=10m": 400, "lag=10S": 400, "lag=-1s": 400, "lag=s": 400, "lag=1e30h": 400, "lag_time=10": 400, "lag_time=4MB": 400, "lag=4MB&lag_time=x": 400,
	} {
		w := worlds()["M5-behind"]
		if got := w.local(t, Strict, "replica?"+strings.ReplaceAll(query, " ", "%20"))[0]; got != want {
			t.Errorf("%s = %d, want %d", query, got, want)
		}
	}
}

// Without a ttl in the cluster's configuration Patroni's default counts.
func TestLockWithoutTTL(t *testing.T) {
	for ago, want := range map[time.Duration]int{29 * time.Second: 200, 31 * time.Second: 503} {
		w := worlds()["M17"]
		w.facts.Authority.TTL = 0
		w.lost(now.Add(-ago), nil)
		w.node(func(f *topology.NodeFacts) { f.AnsweredAt = lately }) // so that the lock alone speaks for it
		w.verdicts(verdict("n1", topology.Drain, topology.CodeSilent, "no answer"), verdict("n1", topology.Drain, topology.CodeSilent, "no answer"))
		if got := w.local(t, Patroni4, "primary")[0]; got != want {
			t.Errorf("%s after the authority's last word: %d, want %d", ago, got, want)
		}
	}
}

// What rests on the saved verdict may change with it, so it is asked each time.
func TestSavedVerdictsAreAskedEachTime(t *testing.T) {
	w := replicaWorld()
	w.snapshot.Pools[1].Nodes[0].Verdict = topology.Undecided
	w.facts.Nodes["n1"] = topology.NodeFacts{}
	saved := topology.Up
	h := server(t, w.snapshot, w.facts, Options{Saved: func(string, string, string) topology.Verdict { return saved }})
	for _, want := range []int{200, 503} {
		for _, path := range []string{"replica", "readiness", "health"} {
			if got, _ := ask(h, "GET", "/clusters/main/nodes/n1/"+path); got != want {
				t.Errorf("/%s with %s saved = %d, want %d", path, saved, got, want)
			}
		}
		saved = topology.Down
	}
}

// Paused without its store, Patroni goes by the role it remembers alone.
func TestPausedWithoutStore(t *testing.T) {
	w := worlds()["M18"]
	w.failing(topology.FailProtocol, "running", verdict("n1", topology.Drain, topology.CodeRoleUnknown, "canceling statement due to statement timeout"))
	w.expect(t, map[Compat][]int{Strict: {503, 503}, Patroni3: {200, 200}, Patroni4: {200, 200}}, "primary", "leader")
}
