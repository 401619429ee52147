package healthapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const now = topology.Mono(time.Hour)

func clock() topology.Clock {
	return topology.Clock{Mono: now, Wall: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
}

func verdict(node string, v topology.Verdict, code topology.Code, text string) topology.NodeVerdict {
	return topology.NodeVerdict{Node: node, Verdict: v, Weight: 100, Reasons: []topology.Reason{{Code: code, Text: text}}}
}

// mainCluster has the writer n1, a good replica n2 (lag 4MB), a lagging n3, n4 tagged
// noloadbalance and n5, which nobody listens at.
func mainCluster() (*topology.Snapshot, *topology.Facts) {
	replica := func(lag topology.Size) topology.NodeFacts {
		return topology.NodeFacts{
			Probe:      &topology.Probe{InRecovery: topology.Yes, Timeline: 5, ReceiveLSN: 0x3000060, ReplayLSN: 0x3000000, ServerVersion: 150018, Receiver: topology.Receiver{Streaming: topology.Yes}},
			InRecovery: topology.Yes, AnsweredAt: now - 1, Lag: topology.Lag{Known: topology.Yes, Bytes: lag},
		}
	}
	dead := replica(0)
	dead.FailingAt, dead.Failure = now-1, &topology.Failure{Class: topology.FailRefused, Text: "connection refused"}
	f := &topology.Facts{
		SystemID: 7713754238407433424,
		Nodes: map[string]topology.NodeFacts{
			"n1": {
				Probe:      &topology.Probe{InRecovery: topology.No, Timeline: 5, WriteLSN: 0x4000000, ServerVersion: 150018, StartedAt: time.Date(2026, 11, 30, 0, 26, 7, 139004000, time.UTC)},
				InRecovery: topology.No, AnsweredAt: now - 1,
			},
			"n2": replica(4 << 20), "n3": replica(100 << 20), "n4": replica(0), "n5": dead,
		},
		Authority: &topology.Authority{Leader: "n1", Pause: topology.Yes},
		Sources:   []topology.SourceFacts{{Source: consulMain, OKAt: now - topology.Mono(2*time.Second)}},

		AuthoritySource: consulMain,
	}
	s := &topology.Snapshot{
		Cluster: "main", Complete: true, Writer: "n1",
		Authority: topology.AuthorityStatus{Kind: topology.AuthorityPatroni, State: topology.AuthorityStateCurrent, Leader: "n1"},
		Nodes: []topology.Node{
			{Name: "n1", Tags: map[string]string{"zone": "az-1", "weight": "10", "nosync": "false"}},
			{Name: "n2"},
			{Name: "n3"},
			{Name: "n4", Tags: map[string]string{topology.TagNoLoadBalance: "true"}},
			{Name: "n5"},
		},
		Pools: []topology.PoolVerdicts{
			{Pool: "primary", Mode: topology.ModeWrite, Nodes: []topology.NodeVerdict{
				verdict("n1", topology.Up, topology.CodeWriter, "named and writable"),
				verdict("n2", topology.Down, topology.CodeWrongRole, "in recovery"),
				verdict("n3", topology.Down, topology.CodeWrongRole, "in recovery"),
				verdict("n4", topology.Down, topology.CodeWrongRole, "in recovery"),
				verdict("n5", topology.Down, topology.CodeRefused, "connection refused"),
			}},
			{Pool: "replica", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{
				verdict("n1", topology.Down, topology.CodeWrongRole, "primary"),
				verdict("n2", topology.Up, topology.CodeReplica, "lag 4MB"),
				verdict("n3", topology.Drain, topology.CodeLag, "lag 100MB > 64MB"),
				verdict("n4", topology.Drain, topology.CodeNoLoadBalance, "tagged noloadbalance"),
				verdict("n5", topology.Down, topology.CodeRefused, "connection refused"),
			}},
		},
	}
	return s, f
}

func server(tb testing.TB, s *topology.Snapshot, f *topology.Facts, o Options) *Server {
	tb.Helper()
	o.Views, o.Now = new(latest.Map[string, topology.View]), clock
	if s != nil {
		o.Views.Set(s.Cluster, &topology.View{Snapshot: s, Facts: f, ValidUntil: now + 1})
	}
	srv, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	return srv
}

// ask returns the status of a path; -1 when the connection is closed unanswered.
func ask(h http.Handler, method, target string) (status int, answer *httptest.ResponseRecorder) {
	defer func() {
		switch p := recover(); p {
		case nil:
		case http.ErrAbortHandler:
			status = -1
		default:
			panic(p)
		}
	}()
	answer = httptest.NewRecorder()
	h.ServeHTTP(answer, httptest.NewRequest(method, target, nil))
	return answer.Code, answer
}

func TestPatroniPaths(t *testing.T) {
	s, f := mainCluster()
	h := server(t, s, f, Options{})
	paths := []string{"primary", "leader", "replica", "read-only", "health", "standby-leader"}
	want := map[string][]int{ // in the order of paths
		"n1":     {200, 200, 503, 200, 200, 503},
		"n2":     {503, 503, 200, 200, 200, 503},
		"n3":     {503, 503, 503, 503, 200, 503}, // further behind than the pool allows
		"n4":     {503, 503, 503, 503, 200, 503}, // noloadbalance
		"n5":     {503, 503, 503, 503, 503, 503},
		"nosuch": {503, 503, 503, 503, 503, 503},
	}
	got := make(map[string][]int)
	for node := range want {
		for _, p := range paths {
			status, _ := ask(h, "GET", "/clusters/main/nodes/"+node+"/"+p)
			got[node] = append(got[node], status)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of paths %v: %s", paths, diff)
	}
}

func TestMatching(t *testing.T) {
	s, f := mainCluster()
	h := server(t, s, f, Options{Local: NodeRef{"main", "n1"}})
	for target, want := range map[string]int{
		"/": 200, "/primary": 200, "//primary": 200, "/primary/": 200, "/master": 200, "/read-write": 200,
		"/leader": 200, "/health": 200, "/read-only": 200, "/replica": 503, "/standby_leader": 503,
		"/Primary": 404, "/primary/foo": 404, "/healthz": 404, "/nosuch": 404, "/../primary": 404,
		"/clusters/main/nodes/n2/replica": 200, "/clusters//main/nodes/n2/replica/": 200,
		"/clusters/main/nodes/n1": 200, "/clusters/main/nodes/n1/": 200, "/clusters/main/nodes//n1//": 200, "/clusters/main/nodes/n2/": 503,
		"/clusters/main/nodes": 404, "/clusters/main/nodes/": 404, "/clusters/main/": 404, "/clusters/main/nodes%2Fn1/primary": 404,
		"/clusters/main/nodes/n%31/%70rimary": 200, "/clusters/main/nosuch": 404, "/clusters/main/primary": 404, "/clusters": 404,
		"/clusters/main/cluster": 200, "/clusters/main/cluster/": 200, "/clusters/main/nodes/nosuch/": 503,
		"/clusters/main/pools/replica/nodes/n2/": 200, "/clusters//main/pools//replica/nodes/n2": 200, "/clusters/main/pools/replica/nodes/n2/primary": 404,
		"/clusters/main/pools/replica/nodes/": 404, "/clusters/main/pools/replica/check/n2": 404, "http://n2/clusters/main/pools/replica/check/": 200,
		"/clusters/main/pools/replica/nodes/n2": 200, "/clusters/main/pools/replica": 404,
		"http://elsewhere/primary": 200,
	} {
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			if got, _ := ask(h, method, target); got != want {
				t.Errorf("%s %s = %d, want %d", method, target, got, want)
			}
		}
		refused := 405
		if want == 404 {
			refused = 404
		}
		for _, method := range []string{"POST", "PATCH", "TRACE", "PROPFIND"} {
			if got, _ := ask(h, method, target); got != refused {
				t.Errorf("%s %s = %d, want %d", method, target, got, refused)
			}
		}
	}
	if got, _ := ask(server(t, s, f, Options{}), "GET", "/primary"); got != 404 {
		t.Errorf("/primary without a local node = %d, want 404", got)
	}
}

func TestLagParameter(t *testing.T) {
	s, f := mainCluster()
	h := server(t, s, f, Options{})
	unknown := f.Nodes["n2"]
	unknown.Lag = topology.Lag{}
	for _, tt := range []struct {
		node, query string
		want        int
	}{
		{"n2", "lag=4MB", 200}, // equal is within
		{"n2", "lag=4194303", 503},
		{"n2", "lag=4194304B", 200},
		{"n2", "lag=", 200},
		{"n2", "LAG=1", 200},
		{"n2", "lag=1&lag=1GB", 503}, // the first counts
		{"n2", "lag=-1", 503},
		{"n2", "lag=1M", 400},
		{"n2", "lag=1mb", 400},
		{"n2", "lag=%zz", 400},
		{"n3", "", 503},
		{"n3", "lag=1GB", 200}, // the caller's limit in place of the pool's
		{"n3", "lag=99MB", 503},
		{"n4", "lag=1GB", 503},
		{"n5", "lag=1GB", 503},
	} {
		for _, path := range []string{"replica", "read-only"} {
			if got, _ := ask(h, "GET", "/clusters/main/nodes/"+tt.node+"/"+path+"?"+tt.query); got != tt.want {
				t.Errorf("%s of %s with %q = %d, want %d", path, tt.node, tt.query, got, tt.want)
			}
		}
	}
	if got, _ := ask(h, "GET", "/clusters/main/nodes/n1/read-only?lag=0"); got != 200 {
		t.Errorf("/read-only?lag=0 of the primary = %d, want 200: lag does not concern it", got)
	}
	f.Nodes["n2"] = unknown
	if got, answer := ask(server(t, s, f, Options{}), "GET", "/clusters/main/nodes/n2/replica?lag=1GB"); got != 503 || answer.Header().Get("X-Pgsteer-Reason") != "lag_unknown: the lag is not known" {
		t.Errorf("unknown lag = %d %q, want 503", got, answer.Header().Get("X-Pgsteer-Reason"))
	}
}

func TestLeaderThatIsNotTheWriter(t *testing.T) {
	s, f := mainCluster()
	s.Authority.Leader, s.Writer = "n2", ""
	s.Pools[0].Nodes[0] = verdict("n1", topology.Down, topology.CodeNotNamed, "not named")
	s.Pools[0].Nodes[1] = verdict("n2", topology.Down, topology.CodePromoting, "not writable yet")
	h := server(t, s, f, Options{})
	for target, want := range map[string]int{
		"n1/leader": 503, "n2/leader": 200, "n2/primary": 503, "n1/primary": 503, "n2/standby-leader": 503,
	} {
		if got, _ := ask(h, "GET", "/clusters/main/nodes/"+target); got != want {
			t.Errorf("%s = %d, want %d", target, got, want)
		}
	}
	s.Authority.State = topology.AuthorityStateLost
	if got, _ := ask(server(t, s, f, Options{}), "GET", "/clusters/main/nodes/n2/leader"); got != 503 {
		t.Errorf("/leader by the word of a lost authority = %d, want 503", got)
	}
	f.Authority = &topology.Authority{Leader: "n2", StandbyCluster: true}
	for _, path := range []string{"leader", "standby-leader"} { // read only anyway, so it is held
		if got, _ := ask(server(t, s, f, Options{}), "GET", "/clusters/main/nodes/n2/"+path); got != 200 {
			t.Errorf("/%s of the leader of a standby cluster = %d, want 200", path, got)
		}
	}
}

func TestReplicaWithoutReadPool(t *testing.T) {
	s, f := mainCluster()
	s.Pools = s.Pools[:1]
	h := server(t, s, f, Options{})
	for node, want := range map[string]int{"n1": 503, "n2": 200, "n3": 200, "n4": 503, "n5": 503} {
		if got, _ := ask(h, "GET", "/clusters/main/nodes/"+node+"/replica"); got != want {
			t.Errorf("/replica of %s by facts alone = %d, want %d", node, got, want)
		}
	}
}

func TestHealthNeedsARecentAnswer(t *testing.T) {
	s, f := mainCluster()
	for _, tt := range []struct {
		name string
		node topology.NodeFacts
		want int
	}{
		{"fresh", topology.NodeFacts{AnsweredAt: now}, 200},
		{"old", topology.NodeFacts{AnsweredAt: now.Add(-4 * time.Second)}, 503},
		{"one timeout", topology.NodeFacts{AnsweredAt: now, FailingAt: now, Failure: &topology.Failure{Class: topology.FailTimeout}}, 200},
		{"starting", topology.NodeFacts{AnsweredAt: now, FailingAt: now, Failure: &topology.Failure{Class: topology.FailStarting}}, 503},
	} {
		f.Nodes["n2"] = tt.node
		if got, _ := ask(server(t, s, f, Options{}), "GET", "/clusters/main/nodes/n2/health"); got != tt.want {
			t.Errorf("%s: /health = %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestPoolPaths(t *testing.T) {
	s, f := mainCluster()
	s.Pools[1].Nodes[4].Verdict = topology.Undecided
	plain, notFound := server(t, s, f, Options{}), server(t, s, f, Options{DrainStatus: 404})
	for _, tt := range []struct {
		name, path   string
		plain, on404 int
	}{
		{"up", "replica/nodes/n2", 200, 200},
		{"down", "replica/nodes/n1", 503, 503},
		{"drain", "replica/nodes/n3", 503, 404},
		{"undecided", "replica/nodes/n5", -1, -1},
		{"unknown node", "replica/nodes/nosuch", 503, 503},
		{"unknown pool", "nosuch/nodes/n1", 503, 503},
	} {
		a, _ := ask(plain, "GET", "/clusters/main/pools/"+tt.path)
		b, _ := ask(notFound, "GET", "/clusters/main/pools/"+tt.path)
		if a != tt.plain || b != tt.on404 {
			t.Errorf("%s: %d and %d, want %d and %d", tt.name, a, b, tt.plain, tt.on404)
		}
	}
	if got, _ := ask(plain, "GET", "/clusters/nosuch/pools/replica/nodes/n1"); got != -1 {
		t.Errorf("pool of a cluster without a view = %d, want no answer", got)
	}
	for host, want := range map[string]int{"n2": 200, "n3:80": 200, "n1": 503, "n5": -1} {
		if got, _ := ask(plain, "GET", "http://"+host+"/clusters/main/pools/replica/check"); got != want {
			t.Errorf("check with host %s = %d, want %d", host, got, want)
		}
	}
}

func TestUndecidedRepeatsWhatIsSaved(t *testing.T) {
	saved := func(cluster, pool, node string) topology.Verdict {
		return map[string]topology.Verdict{
			"main primary n1": topology.Up, "main primary n2": topology.Down, "main replica n2": topology.Up,
		}[cluster+" "+pool+" "+node]
	}
	undecided, _ := mainCluster()
	for i := range undecided.Pools {
		for j := range undecided.Pools[i].Nodes {
			undecided.Pools[i].Nodes[j].Verdict = topology.Undecided
		}
	}
	stale, _ := mainCluster()
	for name, s := range map[string]*topology.Snapshot{"no view": nil, "stale": stale, "undecided": undecided} {
		h := server(t, s, &topology.Facts{}, Options{Saved: saved})
		if s == stale {
			s.Pools[0].Nodes[0].Verdict = topology.Down // what it says no longer counts
			h.opts.Views.Set("main", &topology.View{Snapshot: s, ValidUntil: now - 1})
		}
		for target, want := range map[string]int{
			"n1/primary": 200, "n2/primary": 503, "n2/replica": 200, "n2/replica?lag=1MB": 200, "n1/replica": 503,
			"n1/read-only": 200, "n1/health": 200, "n1/leader": 200, "n2/leader": 503, "n3/replica": 503,
		} {
			if s == undecided && target == "n1/leader" {
				continue // the authority is known, so nothing has to be repeated
			}
			if got, _ := ask(h, "GET", "/clusters/main/nodes/"+target); got != want {
				t.Errorf("%s: %s = %d, want %d", name, target, got, want)
			}
		}
	}
	h := server(t, nil, nil, Options{})
	for _, path := range []string{"primary", "replica", "leader", "health", "read-only", "standby-leader"} {
		if got, _ := ask(h, "GET", "/clusters/main/nodes/n1/"+path); got != 503 {
			t.Errorf("%s with nothing saved = %d, want 503", path, got)
		}
	}
}

func TestBody(t *testing.T) {
	s, f := mainCluster()
	h := server(t, s, f, Options{Version: "1.2.3"})
	want := map[string]string{
		"n1/primary": `{"state":"running","role":"primary","postmaster_start_time":"2026-11-30 00:26:07.139004+00:00",
			"server_version":150018,"xlog":{"location":67108864},"timeline":5,"pause":true,"dcs_last_seen":1796039998,
			"tags":{"zone":"az-1","weight":10,"nosync":false},"database_system_identifier":"7713754238407433424",
			"patroni":{"version":"1.2.3","scope":"main","name":"n1"},
			"reason":{"code":"writer","text":"named and writable","severity":"ok"}}`,
		"n2/primary": `{"state":"running","role":"replica","server_version":150018,
			"xlog":{"received_location":50331744,"replayed_location":50331648,"replayed_timestamp":null,"paused":false},
			"timeline":5,"replication_state":"streaming","pause":true,"dcs_last_seen":1796039998,
			"database_system_identifier":"7713754238407433424",
			"patroni":{"version":"1.2.3","scope":"main","name":"n2"},
			"reason":{"code":"wrong_role","text":"in recovery","severity":"info"}}`,
	}
	for path, text := range want {
		_, answer := ask(h, "GET", "/clusters/main/nodes/"+path)
		if diff := cmp.Diff(decode(t, text), decode(t, answer.Body.String())); diff != "" {
			t.Errorf("%s: %s", path, diff)
		}
	}
	_, answer := ask(h, "GET", "/clusters/main/nodes/n1/primary")
	if got := answer.Header().Get("X-Pgsteer-Reason"); got != "writer: named and writable" {
		t.Errorf("X-Pgsteer-Reason %q", got)
	}
	if got := answer.Header().Get("Content-Length"); got != strconv.Itoa(answer.Body.Len()) {
		t.Errorf("Content-Length %s of %d bytes", got, answer.Body.Len())
	}
}

func decode(t *testing.T, text string) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}

func TestNewRefusesAnotherDrainStatus(t *testing.T) {
	if _, err := New(Options{Views: new(latest.Map[string, topology.View]), Now: clock, DrainStatus: 500}); err == nil {
		t.Error("DrainStatus 500 is accepted")
	}
}
