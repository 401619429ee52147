package healthapi

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// body is what the local node n1 of a world answers.
func (w *world) body(t *testing.T, compat Compat, target string) map[string]any {
	t.Helper()
	_, answer := ask(server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}, Compat: compat}), "GET", target)
	return decode(t, answer.Body.String())
}

func TestStamps(t *testing.T) {
	at := time.Date(2026, 11, 30, 0, 26, 7, 0, time.FixedZone("", 3600))
	for want, nanoseconds := range map[string]time.Duration{
		"2026-11-30 00:26:07+01:00":        0,
		"2026-11-30 00:26:07.100000+01:00": 100 * time.Millisecond,
		"2026-11-30 00:26:07.000001+01:00": 1999,
	} {
		if got := stamp(at.Add(nanoseconds)); got != want {
			t.Errorf("%s after: %s, want %s", nanoseconds, got, want)
		}
	}
}

// A primary is no standby, though the key may still list it after a failover.
func TestPrimaryIsNoStandby(t *testing.T) {
	w := primaryWorld()
	w.facts.Authority.SyncMode, w.facts.Authority.SyncStandbys = "sync", []string{"n1"}
	if b := w.body(t, Patroni4, "/patroni"); b["sync_standby"] != nil {
		t.Errorf("the primary's body has sync_standby: %v", b)
	}
	w.facts.Authority.SyncMode = "quorum"
	if b := w.body(t, Patroni4, "/patroni"); b["quorum_standby"] != nil {
		t.Errorf("the primary's body has quorum_standby: %v", b)
	}
}

// Where the server cannot be asked, Patroni's word on its state counts, unless it
// says that it runs.
func TestStateOfAServerThatCannotBeAsked(t *testing.T) {
	for _, tt := range []struct {
		class       topology.FailureClass
		state, want string
	}{
		{topology.FailRefused, "creating replica", "creating replica"},
		{topology.FailRefused, "running", "stopped"},
		{topology.FailReset, "", "stopped"},
		{topology.FailShutdown, "streaming", "stopping"},
		{topology.FailStarting, "in archive recovery", "starting"},
		{topology.FailTimeout, "running", "unknown"},
	} {
		w := replicaWorld()
		w.failing(tt.class, tt.state, verdict("n1", topology.Down, topology.CodeRefused, ""))
		if got := w.body(t, Strict, "/health")["state"]; got != tt.want {
			t.Errorf("%s, Patroni says %q: %v, want %q", tt.class, tt.state, got, tt.want)
		}
	}
}

func TestMembers(t *testing.T) {
	member := func(w *world, i int) map[string]any {
		return w.body(t, Strict, "/cluster")["members"].([]any)[i].(map[string]any)
	}
	w := membersWorld()
	w.facts.Nodes["n3"].Probe.ReceiveLSN = 0 // it restores from an archive
	w.facts.Nodes["n2"].Probe.ReplayLSN += 1 << 20
	got := []any{member(w, 2)["lsn"], member(w, 2)["receive_lsn"], member(w, 1)["replay_lag"]}
	if diff := cmp.Diff([]any{"0/3000000", "unknown", 0.0}, got); diff != "" {
		t.Error(diff)
	}
	w = worlds()["M14"]
	if m := member(w, 0); m["role"] != "standby_leader" || m["lag"] != nil || m["state"] != "streaming" {
		t.Errorf("leader of a standby cluster: %v", m)
	}
	w = worlds()["M11"]
	if m := member(w, 0); m["role"] != "quorum_standby" {
		t.Errorf("standby in the quorum: %v", m)
	}
	w = primaryWorld()
	w.snapshot.Authority, w.facts.Authority = topology.AuthorityStatus{Kind: topology.AuthorityNone, State: topology.AuthorityStateNone}, nil
	if m := member(w, 0); m["role"] != "leader" {
		t.Errorf("writer without an authority: %v", m)
	}
}

// metricLines are the local node's metrics without their labels and comments.
func (w *world) metricLines(t *testing.T, compat Compat) (lines []string) {
	t.Helper()
	_, answer := ask(server(t, w.snapshot, w.facts, Options{Local: NodeRef{"main", "n1"}, Compat: compat}), "GET", "/metrics")
	for line := range strings.Lines(answer.Body.String()) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSpace(strings.Replace(line, `{scope="main",name="n1"}`, "", 1)))
		}
	}
	return lines
}

func TestMetrics(t *testing.T) {
	w := worlds()["M5-behind"]
	if got, _ := ask(server(t, w.snapshot, w.facts, Options{}), "GET", "/clusters/main/nodes/nosuch/metrics"); got != 503 {
		t.Errorf("metrics of a node that nobody knows: %d, want 503", got)
	}
	w.node(func(f *topology.NodeFacts) {
		f.Probe.ReplayedAt, f.Probe.ReplayPaused = time.Unix(1796039990, 5e8), topology.Yes
	})
	want := strings.Split(strings.TrimSpace(`
patroni_postgres_running 1
patroni_postmaster_start_time 1795998367.139004
patroni_primary 0
patroni_xlog_location 0
patroni_standby_leader 0
patroni_replica 1
patroni_sync_standby 0
patroni_quorum_standby 0
patroni_xlog_received_location 50331744
patroni_xlog_replayed_location 50331648
patroni_xlog_replayed_timestamp 1796039990.5
patroni_xlog_paused 1
patroni_postgres_streaming 1
patroni_postgres_in_archive_recovery 0
patroni_postgres_server_version 150018
patroni_cluster_unlocked 0
patroni_postgres_timeline 5
patroni_dcs_last_seen 1796039998
patroni_pending_restart 0
patroni_is_paused 0`), "\n")
	if diff := cmp.Diff(want, w.metricLines(t, Strict)); diff != "" {
		t.Error(diff)
	}
	// What was received is told as it is, also below what an archive has brought since.
	for received, want := range map[topology.LSN]topology.LSN{replayed - 4096: replayed - 4096, 0: replayed} {
		w.node(func(f *topology.NodeFacts) { f.Probe.ReceiveLSN = received })
		if line := fmt.Sprintf("patroni_xlog_received_location %d", want); !slices.Contains(w.metricLines(t, Strict), line) {
			t.Errorf("received %s: there is no %s", received, line)
		}
	}
}

func TestMetricsOfAPrimary(t *testing.T) {
	w := primaryWorld()
	w.node(func(f *topology.NodeFacts) { f.Probe.ReplayLSN = replayed }) // frozen, and meaningless on a primary
	for compat, want := range map[Compat][]string{
		Patroni3: {"patroni_primary 1", "patroni_master 1", "patroni_xlog_location 67108864", "patroni_xlog_replayed_location 0"},
		Patroni4: {"patroni_primary 1", "patroni_xlog_location 67108864", "patroni_xlog_replayed_location 0"},
	} {
		var got []string
		for _, line := range w.metricLines(t, compat) {
			name, _, _ := strings.Cut(line, " ")
			if slices.Contains([]string{"patroni_primary", "patroni_master", "patroni_xlog_location", "patroni_xlog_replayed_location"}, name) {
				got = append(got, line)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", compat, diff)
		}
	}
}
