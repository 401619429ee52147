package healthapi

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// told are the tests of the differences that are no matter of a status in one of
// the matrix's states, by their ids in the manual.
var told = map[string]func(*testing.T){
	"commands":          testCommands,
	"lag-of-the-moment": testFreshLag,
	"unknown-lag":       testUnknownLag,
	"documents":         testUnreadDocuments,
	"hung":              testHung,
	"liveness":          testLiveness,
	"maintenance":       testMaintenance,
	"silence":           testSilence,
	"undecided":         TestUndecidedRepeatsWhatIsSaved,
	"cluster-away":      testClusterAway,
	"http":              TestKeepAliveAndLengths,
	"headers":           testHeaders,
	"errors":            testErrors,
	"bad-requests":      TestRawRequests,
	"protection":        testProtection,
	"body-restart":      testAbsentKeys,
	"metrics":           testMissingMetrics,
}

func TestToldDifferences(t *testing.T) {
	for id, test := range told {
		t.Run(id, test)
	}
}

// compats are all choices.
var compats = []Compat{Strict, Patroni3, Patroni4}

// local asks the local node n1 of a world; targets without the leading slash.
func (w *world) local(t *testing.T, compat Compat, targets ...string) []int {
	t.Helper()
	h := server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}, Compat: compat})
	var got []int
	for _, target := range targets {
		status, _ := ask(h, "GET", "/"+target)
		got = append(got, status)
	}
	return got
}

// expect compares what a world's local node answers in each choice.
func (w *world) expect(t *testing.T, want map[Compat][]int, targets ...string) {
	t.Helper()
	for compat, statuses := range want {
		if diff := cmp.Diff(statuses, w.local(t, compat, targets...)); diff != "" {
			t.Errorf("%s, %v: %s", compat, targets, diff)
		}
	}
}

// everywhere expects the same in every choice.
func (w *world) everywhere(t *testing.T, want []int, targets ...string) {
	t.Helper()
	w.expect(t, map[Compat][]int{Strict: want, Patroni3: want, Patroni4: want}, targets...)
}

func testCommands(t *testing.T) {
	w := primaryWorld()
	for _, compat := range compats {
		h := server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}, Compat: compat})
		for target, strict := range map[string]int{
			"POST /switchover": 404, "POST /failover": 404, "DELETE /switchover": 404, "POST /restart": 404, "POST /reinitialize": 404,
			"POST /reload": 404, "PATCH /config": 405, "PUT /config": 405, "POST /failsafe": 405,
			"POST /clusters/main/nodes/n1/switchover": 404, "POST /clusters/main/nodes/n1/config": 405,
		} {
			want := 501
			if compat == Strict {
				want = strict
			}
			method, path, _ := strings.Cut(target, " ")
			if got, _ := ask(h, method, path); got != want {
				t.Errorf("%s: %s = %d, want %d", compat, target, got, want)
			}
		}
	}
}

// The position in the store is old, the writer's own word is not.
func testFreshLag(t *testing.T) {
	w := worlds()["M5-behind"]
	w.facts.Authority.Optime = replayed
	w.node(func(f *topology.NodeFacts) { f.Probe.Receiver.LatestEnd = replayed })
	w.everywhere(t, []int{503, 503, 503, 200}, "replica?lag=1MB", "async?lag=1MB", "read-only?lag=1MB", "replica?lag=4MB")
}

func testUnknownLag(t *testing.T) {
	w := replicaWorld()
	w.facts.WriteLSN, w.facts.Authority.Optime = 0, 0
	w.node(func(f *topology.NodeFacts) { f.Lag, f.Probe.Receiver.LatestEnd = topology.Lag{}, 0 })
	w.expect(t, map[Compat][]int{Strict: {503, 503, 200}, Patroni3: {200, 503, 200}, Patroni4: {200, 503, 200}},
		"replica?lag=1GB", "replica?lag=1h", "replica")
}

// While there is no writer its last position counts, so that a failover does not
// empty the pools of readers; a time cannot be told then.
func TestLagWithoutWriter(t *testing.T) {
	w := worlds()["M5-behind"]
	w.snapshot.Writer = ""
	w.node(func(f *topology.NodeFacts) { f.Lag = topology.Lag{} })
	w.everywhere(t, []int{200, 503, 503}, "replica?lag=4MB", "replica?lag=4095kB", "replica?lag=1h")
	w.facts.WriteLSN, w.facts.Authority.Optime = replayed, 0
	w.node(func(f *topology.NodeFacts) { f.Probe.Receiver.LatestEnd = 0 })
	w.everywhere(t, []int{200, 200}, "replica?lag=0", "replica?lag=0s") // nothing is left to replay
}

// The limit is the cluster's own, else Patroni's default.
func TestReadinessLimit(t *testing.T) {
	for _, tt := range []struct {
		limit, lag topology.Size
		want       int
	}{{0, 0, 200}, {0, 1, 503}, {3 << 20, 3 << 20, 200}, {3 << 20, 3<<20 + 1, 503}} {
		w := replicaWorld()
		w.facts.Documents.MaxLag = &tt.limit
		w.node(func(f *topology.NodeFacts) { f.Lag.Bytes = tt.lag })
		w.expect(t, map[Compat][]int{Strict: {tt.want}, Patroni4: {tt.want}, Patroni3: {200}}, "readiness")
	}
	for _, tt := range []struct {
		lag  topology.Size
		want int
	}{{1 << 20, 200}, {1<<20 + 1, 503}} {
		w := replicaWorld()
		w.node(func(f *topology.NodeFacts) { f.Lag.Bytes = tt.lag })
		for _, compat := range []Compat{Strict, Patroni4} {
			if diff := cmp.Diff([]int{tt.want, 200, 503}, w.local(t, compat, "readiness", "readiness?lag=2MB", "readiness?lag=1kB")); diff != "" {
				t.Errorf("%s, lag %d: %s", compat, tt.lag, diff)
			}
		}
	}
}

// mode=write leaves out what is received and waits for its replay.
func TestReadinessOfWhatIsReceived(t *testing.T) {
	w := worlds()["M5-behind"]
	w.node(func(f *topology.NodeFacts) { f.Probe.ReceiveLSN = replayed + 3<<20 + 1<<19 })
	for _, compat := range []Compat{Strict, Patroni4} {
		want := []int{503, 503, 200, 503, 503}
		if diff := cmp.Diff(want, w.local(t, compat, "readiness", "readiness?mode=apply&mode=write", "readiness?mode=write", "readiness?mode=write&lag=1kB", "readiness?mode=write&lag=1h")); diff != "" {
			t.Errorf("%s: %s", compat, diff)
		}
	}
}

func testLiveness(t *testing.T) {
	all := worlds()
	for _, name := range []string{"M1", "M3", "M13", "M16", "M17", "M19"} { // PostgreSQL has nothing to do with it, nor has the store
		all[name].everywhere(t, []int{200}, "liveness")
	}
	w := all["M5"]
	w.facts.Authority.Members = w.facts.Authority.Members[1:]
	w.everywhere(t, []int{503, 200}, "liveness", "health")
	w.facts.Authority.Pause = topology.Yes
	w.everywhere(t, []int{200}, "liveness")
	if got, _ := ask(server(t, nil, nil, Options{}), "GET", "/clusters/main/nodes/n1/liveness"); got != 200 {
		t.Errorf("/liveness while nothing is known = %d, want 200: it must not end what it knows nothing of", got)
	}
}

func testMaintenance(t *testing.T) {
	for _, code := range []topology.Code{topology.CodeMaintenance, topology.CodeAssigned} {
		out := verdict("n1", topology.Drain, code, "kernel update")
		out.Reasons = append(out.Reasons, topology.Reason{Code: topology.CodeWrongRole})
		for _, name := range []string{"M1", "M5", "M9", "M11", "M14"} {
			w := worlds()[name]
			w.verdicts(out, out)
			w.everywhere(t, []int{503, 503, 503, 503, 503, 503, 503, 503, 503},
				"primary", "standby-leader", "replica", "read-only", "read-only-sync", "sync", "async", "quorum", "readiness")
			w.everywhere(t, []int{200, 200, 200, 200, 200}, "health", "liveness", "patroni", "cluster", "metrics")
		}
		w := primaryWorld()
		w.verdicts(out, out)
		w.everywhere(t, []int{200}, "leader")
	}
}

func testSilence(t *testing.T) {
	for _, tt := range []struct {
		age     time.Duration
		health  int
		replica int
	}{{2900 * time.Millisecond, 200, 200}, {3100 * time.Millisecond, 503, 503}} {
		w := replicaWorld()
		w.node(func(f *topology.NodeFacts) { f.AnsweredAt = now.Add(-tt.age) })
		for _, compat := range []Compat{Patroni3, Patroni4} {
			if diff := cmp.Diff([]int{tt.health, tt.replica}, w.local(t, compat, "health", "replica")); diff != "" {
				t.Errorf("%s, silent for %s: %s", compat, tt.age, diff)
			}
		}
		// The pool knows whether others still hear from the node.
		if diff := cmp.Diff([]int{tt.health, 200}, w.local(t, Strict, "health", "replica")); diff != "" {
			t.Errorf("silent for %s: %s", tt.age, diff)
		}
	}
}

func testClusterAway(t *testing.T) {
	worlds()["M19"].everywhere(t, []int{200}, "cluster")
	if got, _ := ask(server(t, nil, nil, Options{}), "GET", "/clusters/main/cluster"); got != 503 {
		t.Errorf("/cluster of a cluster of which nothing is known = %d, want 503", got)
	}
}

func testHeaders(t *testing.T) {
	w := replicaWorld()
	h := server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}, Compat: Patroni4})
	for _, tt := range []struct {
		method, path, reason, retry string
		body                        bool
	}{
		{"HEAD", "/primary", "wrong_role: in recovery", "1", false},
		{"OPTIONS", "/primary", "wrong_role: in recovery", "1", false},
		{"GET", "/readiness", "replica: lag 0B", "", true},
		{"GET", "/liveness", "Patroni keeps the member's key", "", true},
	} {
		_, answer := ask(h, tt.method, tt.path)
		if got := answer.Header().Get("X-Pgsteer-Reason"); got != tt.reason {
			t.Errorf("%s %s: reason %q, want %q", tt.method, tt.path, got, tt.reason)
		}
		if got := answer.Header().Get("Retry-After"); got != tt.retry {
			t.Errorf("%s %s: Retry-After %q, want %q", tt.method, tt.path, got, tt.retry)
		}
		if got := answer.Body.Len() > 0; got != tt.body {
			t.Errorf("%s %s: %d bytes of a body", tt.method, tt.path, answer.Body.Len())
		}
	}
}

func testErrors(t *testing.T) {
	w := replicaWorld()
	w.facts.Documents = nil
	w.node(func(f *topology.NodeFacts) { f.Member = &topology.Member{APIURL: "http://10.0.0.1:8008/patroni"} })
	h := server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}})
	for target, want := range map[string]string{
		"/nosuch":         `{"error":"no such path"}`,
		"/replica?lag=1M": `{"error":"lag: size \"1M\": unit \"M\" is none of B, kB, MB, GB, TB (case matters), and no time either: time \"1M\" needs a unit of ms, s, min, h, d"}`,
		"/history":        `{"error":"Patroni's history has not been read yet","ask":"http://10.0.0.1:8008/history"}`,
	} {
		_, answer := ask(h, "GET", target)
		if diff := cmp.Diff(want+"\n", answer.Body.String()); diff != "" {
			t.Errorf("%s: %s", target, diff)
		}
		if kind := answer.Header().Get("Content-Type"); kind != "application/json" {
			t.Errorf("%s: Content-Type %q", target, kind)
		}
	}
}

func testProtection(t *testing.T) {
	w := primaryWorld()
	r := httptest.NewRequest(http.MethodGet, "/primary", nil)
	r.SetBasicAuth("nobody", "wrong")
	answer := httptest.NewRecorder()
	server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}}).ServeHTTP(answer, r)
	if answer.Code != 200 {
		t.Errorf("with a password nobody asked for: %d, want 200", answer.Code)
	}
}

// The keys that the manual lists as absent are absent.
func testAbsentKeys(t *testing.T) {
	w := primaryWorld()
	h := server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}})
	for _, d := range differences(t) {
		if d.id != "body-restart" {
			continue
		}
		for _, target := range []string{"/patroni", "/cluster"} {
			_, answer := ask(h, "GET", target)
			for _, c := range d.conditions {
				key := c[strings.LastIndexAny(c, ":.")+1:]
				if strings.Contains(answer.Body.String(), `"`+key+`"`) {
					t.Errorf("%s has %s, which the manual lists as absent", target, key)
				}
			}
		}
	}
}

func testMissingMetrics(t *testing.T) {
	w := primaryWorld()
	_, answer := ask(server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}}), "GET", "/metrics")
	for _, name := range []string{"patroni_version", "patroni_failsafe_", "patroni_failover_priority", "patroni_postgres_state"} {
		if strings.Contains(answer.Body.String(), name) {
			t.Errorf("%s is there, which the manual lists as absent", name)
		}
	}
}
