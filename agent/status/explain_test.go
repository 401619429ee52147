package status

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestEveryKeyHasAValue: the list of codes names keys, and each can be read.
func TestEveryKeyHasAValue(t *testing.T) {
	used := make(map[string]bool)
	p := topology.DefaultPolicy()
	for _, c := range topology.Codes {
		for _, key := range c.Keys {
			used[key] = true
			if value := limits[key]; value == nil || value(p, p.Pools[1]) == "" {
				t.Errorf("%s: nobody reads the key %s", c.Code, key)
			}
		}
	}
	for _, key := range sortedKeys(limits) {
		if !used[key] {
			t.Errorf("no code names the key %s", key)
		}
	}
}

// TestEveryErrorHasAdvice: an error means that somebody must act, and so does an
// alarm; both say how.
func TestEveryErrorHasAdvice(t *testing.T) {
	for _, c := range topology.Codes {
		if _, ok := advice[c.Code]; c.Severity == topology.SeverityError && !ok {
			t.Errorf("%s has no advice", c.Code)
		}
	}
	for code := range advice {
		if code.Info().Code == "" {
			t.Errorf("advice about %s, which is no code", code)
		}
	}
}

func TestSaid(t *testing.T) {
	for _, c := range []struct {
		code topology.Code
		text string
		want string
	}{
		{topology.CodeRoleUnknown, "role unknown: auth", "role_unknown: auth"},
		{topology.CodeRoleUnknown, "no word on its role: auth", "role_unknown: no word on its role: auth"},
		{topology.CodeLag, "lag 25MB > 16MB", "lag: 25MB > 16MB"},
		{topology.CodeLag, "lag is low again", "lag: lag is low again"},
		{topology.CodePort, "port 6432: refused", "port: 6432: refused"},
		{topology.CodeStarting, "starting up or shutting down", "starting: starting up or shutting down"},
		{topology.CodeReplica, "replica", "replica"},
		{topology.CodeReplica, "replicas are many", "replica: replicas are many"},
		{topology.CodeStandbyCluster, "standby cluster", "standby_cluster"},
		{topology.CodeAuthorityLost, "authority lost; held by SQL evidence", "authority_lost: held by SQL evidence"},
		{topology.CodeMaintenance, "", "maintenance"},
	} {
		if got := said(topology.Reason{Code: c.code, Text: c.text}); got != c.want {
			t.Errorf("%s with %q is said as %q, want %q", c.code, c.text, got, c.want)
		}
	}
}

func TestLagLimits(t *testing.T) {
	for _, c := range []struct {
		name        string
		pool        topology.Pool
		leave, back string
	}{
		{"bytes", topology.Pool{MaxLag: 64 << 20, MaxLagHard: 1 << 30}, "64MB", "32MB"},
		{"time", topology.Pool{MaxLagTime: 30 * time.Second}, "30s", "15s"},
		{"both", topology.Pool{MaxLag: 64 << 20, MaxLagTime: 15 * time.Second}, "64MB or 15s", "32MB and 7.5s"},
		{"hard alone", topology.Pool{MaxLagHard: 1 << 30}, "1GB", "512MB"},
		{"none", topology.Pool{}, "", ""},
	} {
		if got := lagLimits(c.pool, 1); got != c.leave {
			t.Errorf("%s: it leaves above %q, want %q", c.name, got, c.leave)
		}
		if got := lagLimits(c.pool, 2); got != c.back {
			t.Errorf("%s: it returns below %q, want %q", c.name, got, c.back)
		}
	}
}

// TestUntil: what would change a verdict, in numbers where there are some.
func TestUntil(t *testing.T) {
	p := topology.DefaultPolicy()
	for _, c := range []struct {
		code topology.Code
		mode topology.Mode
		held topology.Verdict
		want string
	}{
		{topology.CodeMinDown, topology.ModeWrite, topology.Down, "min_down is over; 400ms left"},
		{topology.CodeNoLeader, topology.ModeWrite, topology.Drain, "the leader key is back, or leader_gap is over; 19s left, or at once when another node is named"},
		{topology.CodeRefused, topology.ModeRead, topology.Down, "the node answers; now refused for 4s; then it returns after 2s of good answers"},
		{topology.CodeRefused, topology.ModeWrite, topology.Down, "the node answers; now refused for 4s"},
		{topology.CodeSilent, topology.ModeRead, topology.Drain, "the node answers; after kill_after its sessions end; 9.4s left"},
		{topology.CodeSilent, topology.ModeRead, topology.Down, "the node answers; after kill_after its sessions end"},
		{topology.CodeSilent, topology.ModeWrite, topology.Drain, "the node answers; after kill_after its sessions end; those of a node that the authority names end when another is named"},
		{topology.CodeStarting, topology.ModeRead, topology.Drain, "the server answers a question; then it returns after 2s of good answers"},
		{topology.CodeRamping, topology.ModeRead, topology.Up, "slow_start is over, then it has its whole weight; 29s left"},
		{topology.CodeReturning, topology.ModeRead, topology.Drain, "it has been good for return_after (after lag: lag_return_after); good for 600ms of 2s, after lag of 3s"},
		{topology.CodeMaintenance, topology.ModeRead, topology.Drain, "the maintenance ends"},
		{topology.CodeAuthorityLost, topology.ModeWrite, topology.Up, "the authority answers; 59s left, then the writer's sessions end"},
	} {
		w := why{
			cluster: ClusterReport{Snapshot: &topology.Snapshot{Authority: topology.AuthorityStatus{Kind: topology.AuthorityPatroni}}},
			node:    NodeReport{Failing: 4, Failure: &topology.Failure{Class: topology.FailRefused}},
			policy:  p, pool: p.Pools[1], now: wall,
			verdict: PoolVerdict{Mode: c.mode, NodeVerdict: topology.NodeVerdict{Verdict: c.held}},
			reason:  topology.Reason{Code: c.code, Since: wall.Add(-600 * time.Millisecond)},
		}
		w.policy.LeaderGap, w.policy.HoldMax = 20*time.Second, time.Minute
		if got := w.until(); got != c.want {
			t.Errorf("%s in a %s pool: %q, want %q", c.code, c.mode, got, c.want)
		}
	}
}

// TestSentence: what the manual says of a code must be true of this verdict.
func TestSentence(t *testing.T) {
	age := 4.0
	down := &topology.Failure{Class: topology.FailTimeout}
	for _, c := range []struct {
		name string
		code topology.Code
		held topology.Verdict
		node NodeReport
		want string
	}{
		{"a start", topology.CodeNoEvidence, topology.Undecided, NodeReport{}, "Nothing is known of the node yet. Every sink keeps silent, so balancers stay as they are."},
		{"down since the start", topology.CodeNoEvidence, topology.Undecided, NodeReport{Failure: down}, "The node is asked and has never answered. Every sink keeps silent, so balancers stay as they are."},
		{"down since the start, a writer stands", topology.CodeNoEvidence, topology.Down, NodeReport{Failure: down}, "The node is asked and has never answered. The cluster is decided without it, so it is out."},
		{"it answered before", topology.CodeNoEvidence, topology.Down, NodeReport{Answered: &age}, "The node has not proven all that is asked of it lately. The cluster is decided without it, so it is out."},
		{"no authority", topology.CodeAuthorityUnknown, topology.Down, NodeReport{Answered: &age}, "The authority has not been heard since the agent started. The cluster is decided without it, so it is out."},
		{"another code", topology.CodeSilent, topology.Down, NodeReport{}, topology.CodeSilent.Info().Manual},
	} {
		w := why{node: c.node, verdict: PoolVerdict{NodeVerdict: topology.NodeVerdict{Verdict: c.held}}, reason: topology.Reason{Code: c.code}}
		if got := w.sentence(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// TestExplainNeedsAPool: a pool that was removed a moment ago has no limits, and
// wrong ones are not invented.
func TestExplainNeedsAPool(t *testing.T) {
	w := worlds["drain"]()
	w.policy.Pools = w.policy.Pools[:1]
	e := explain(t, w, "main/n2")
	if len(e.Limits["replica"]) != 0 || strings.Contains(e.Text, "max_lag none") {
		t.Errorf("limits of a pool that is gone: %v\n%s", e.Limits, e.Text)
	}
}

// TestExplainJSON: the same answer for programs.
func TestExplainJSON(t *testing.T) {
	e := explain(t, worlds["drain"](), "main/n2")
	if d := cmp.Diff([]Limit{{"max_lag", "64MB"}, {"max_lag_time", "none"}, {"lag_grace", "2s"}, {"lag_return_after", "3s"}, {"min_dwell", "10s"}}, e.Limits["replica"]); d != "" {
		t.Error(d)
	}
	if want := "its lag is within half of the limits for lag_return_after; it returns after 3s below 32MB; now 200MB, 31s"; e.Next["replica"] != want {
		t.Errorf("what would change it: %q, want %q", e.Next["replica"], want)
	}
}

func explain(t *testing.T, w *world, node string) (e Explanation) {
	t.Helper()
	code, body := get(w.server(), "/api/v1/explain/"+node)
	if err := json.Unmarshal([]byte(body), &e); code != http.StatusOK || err != nil {
		t.Fatalf("%d: %s", code, body)
	}
	return e
}

// TestASilenceOfNewLoginsEndsNoSessions: no time is left where none runs.
func TestASilenceOfNewLoginsEndsNoSessions(t *testing.T) {
	w := newWorld(view("main", func(s *topology.Snapshot, _ *topology.Facts) {
		set(s, "replica", "n2", topology.Drain, topology.CodeSilent, "new logins get no answer")
	}))
	if e := explain(t, w, "main/n2"); strings.Contains(e.Next["replica"], "left") {
		t.Errorf("what would change it: %s", e.Next["replica"])
	}
}

// TestWeightByLag: a weight that no reason explains is explained.
func TestWeightByLag(t *testing.T) {
	w := newWorld(view("main", func(s *topology.Snapshot, _ *topology.Facts) { weigh(s, "n2", 40) }))
	w.policy.Pools[1].Weights = map[string]int{"n2": 80}
	if e := explain(t, w, "main/n2"); !strings.Contains(e.Text, "\n  weight  40% of 80%, by its lag (weight_by_lag)\n") {
		t.Errorf("the weight is not explained:\n%s", e.Text)
	}
	w.policy.Pools[1].Weights["n2"] = 40
	if e := explain(t, w, "main/n2"); !strings.Contains(e.Text, "\n  weight  40%\n") {
		t.Errorf("its own weight needs no explanation:\n%s", e.Text)
	}
}

func TestANodeAlone(t *testing.T) {
	w := newWorld(view("main", nil), view("two", func(s *topology.Snapshot, _ *topology.Facts) {
		s.Nodes[0].Name, s.Nodes[1].Name = "m1", "m2"
	}))
	if e := explain(t, w, "n2"); !strings.HasPrefix(e.Text, "main/n2 at 10.0.0.2:5432\n") {
		t.Errorf("n2 is %s", e.Text)
	}
	if e := explain(t, w, "two/n3"); !strings.HasPrefix(e.Text, "two/n3 at ") {
		t.Errorf("two/n3 is %s", e.Text)
	}
	code, body := get(w.server(), "/api/v1/explain/n3")
	if want := "2 clusters have a node n3; say which: main/n3 two/n3"; code != http.StatusConflict || !strings.Contains(body, want) {
		t.Errorf("n3 is answered %d: %s, want %q", code, body, want)
	}
}

func TestWhatIsNotThereIsAnsweredByWhatIs(t *testing.T) {
	w := worlds["refused"]()
	for _, c := range []struct{ path, want string }{
		{"/api/v1/explain/main/n9", "there is no node main/n9; known are: main/n1 main/n2 main/n3 none/n1 none/n2 none/n3"},
		{"/api/v1/explain/nope/n1", "there is no node nope/n1; known are: main/n1"},
		{"/api/v1/explain/n9", "there is no node n9; known are: main/n1"},
		{"/api/v1/explain/", "there is no path /api/v1/explain/; known are: /livez /readyz /metrics"},
		{"/", "there is no path /; known are: /livez"},
		{"/status", "there is no path /status; known are: /livez"},
	} {
		code, body := get(w.server(), c.path)
		if code != http.StatusNotFound || !strings.Contains(body, c.want) {
			t.Errorf("%s answers %d: %s, want %q", c.path, code, body, c.want)
		}
	}
	w = newWorld()
	w.clusters = []string{"later"}
	if _, body := get(w.server(), "/api/v1/explain/later/n1"); !strings.Contains(body, "none yet, of the clusters later") {
		t.Errorf("before the first decision: %s", body)
	}
	rec := httptest.NewRecorder()
	w.server().ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/livez", nil))
	if rec.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST is answered %d", rec.Code)
	}
}

// TestNearNames: of many names only those are listed that may have been meant.
func TestNearNames(t *testing.T) {
	views := append(make([]*topology.View, 0, 41), view("a", nil))
	for i := range 40 {
		views = append(views, view(fmt.Sprintf("shop-%02d", i), func(s *topology.Snapshot, _ *topology.Facts) {
			if i == 33 {
				s.Nodes[1].Name = "backup"
			}
		}))
	}
	s := newWorld(views...).server()
	for _, c := range []struct {
		asked string
		want  []string // first of the near ones
	}{
		{"shop-7/n1", []string{"shop-07/n1", "shop-17/n1", "shop-27/n1", "shop-37/n1"}},
		{"shop-12/m3", []string{"shop-12/n3"}},
		{"n4", []string{"a/n1"}}, // every node is as near
		{"bakup", []string{"shop-33/backup"}},
		{strings.Repeat("x", 5000), nil},
	} {
		_, body := get(s, "/api/v1/explain/"+c.asked)
		var e struct{ Error string }
		if err := json.Unmarshal([]byte(body), &e); err != nil {
			t.Fatal(err)
		}
		if len(e.Error) > 300 {
			t.Errorf("the answer has %d bytes", len(e.Error))
		}
		_, list, ok := strings.Cut(e.Error, "near are: ")
		names, _, _ := strings.Cut(list, ", of 123")
		got := strings.Fields(names)
		if !ok || len(got) != fewNodes/2 || !slices.Equal(got[:len(c.want)], c.want) {
			t.Errorf("%.20s: %.300s, want first %v", c.asked, e.Error, c.want)
		}
	}
}
