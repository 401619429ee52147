package consul

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

func TestRecordedDocuments(t *testing.T) {
	limit := topology.Size(1 << 20)
	streams := func(at topology.LSN) topology.MemberDocument {
		return topology.MemberDocument{Replication: "streaming", ReceiveLSN: at, ReplayLSN: at}
	}
	for _, c := range []struct {
		file, prefix string
		want         topology.Documents
	}{
		{"patroni-3.0.2", "service/three/", topology.Documents{
			Config:  json.RawMessage(`{"ttl":20,"loop_wait":1,"retry_timeout":3,"maximum_lag_on_failover":1048576,"postgresql":{"use_pg_rewind":true},"synchronous_mode":true}`),
			History: json.RawMessage(`[[1,50332024,"no recovery target specified","2026-11-30T08:42:10.978439+00:00","n2"]]`), MaxLag: &limit,
			Members: map[string]topology.MemberDocument{"n1": {}, "n2": {}},
		}},
		{"patroni-4.1.5", "service/four/", topology.Documents{
			Config:   json.RawMessage(`{"ttl":20,"loop_wait":1,"retry_timeout":3,"maximum_lag_on_failover":1048576,"postgresql":{"use_pg_rewind":true},"synchronous_mode":"quorum","failsafe_mode":true}`),
			History:  json.RawMessage(`[[1,50332024,"no recovery target specified","2026-11-30T08:45:15.342433+00:00","n2"]]`),
			Failsafe: json.RawMessage(`{"n1":"http://127.0.0.1:28811/patroni","n2":"http://127.0.0.1:28812/patroni"}`), MaxLag: &limit,
			Switchover: &topology.Switchover{At: "2030-01-01T00:00:00+00:00", From: "n2", To: "n1"},
			Members:    map[string]topology.MemberDocument{"n1": streams(50332344), "n2": {}},
		}},
		{"patroni-4.1.5-standby-cluster", "service/far/", topology.Documents{
			Config: json.RawMessage(`{"ttl":20,"loop_wait":1,"retry_timeout":3,"maximum_lag_on_failover":1048576,"postgresql":{"use_pg_rewind":true},"standby_cluster":{"host":"127.0.0.1","port":28712,"create_replica_methods":["basebackup"]}}`), MaxLag: &limit,
			Members: map[string]topology.MemberDocument{"s1": streams(83886080), "s2": streams(83886080)},
		}},
	} {
		if diff := cmp.Diff(c.want, Documents(c.prefix, recorded(t, c.file))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.file, diff)
		}
	}
}

// A document that Patroni itself cannot read is absent; one member's takes none of
// the others away.
func TestFormsOfDocuments(t *testing.T) {
	limit := func(n topology.Size) *topology.Size { return &n }
	member := func(d topology.MemberDocument) topology.Documents {
		return topology.Documents{Members: map[string]topology.MemberDocument{"m": d}}
	}
	for _, c := range []struct {
		name, key, value string
		want             topology.Documents
	}{
		{"configuration that is no object", "config", `[1]`, topology.Documents{}},
		{"configuration that is null", "config", `null`, topology.Documents{}},
		{"configuration that is cut off", "config", `{"ttl":20`, topology.Documents{}},
		{"empty configuration", "config", `{}`, topology.Documents{Config: json.RawMessage(`{}`)}},
		{"limit as a text", "config", `{"maximum_lag_on_failover":"4096"}`, topology.Documents{Config: json.RawMessage(`{"maximum_lag_on_failover":"4096"}`), MaxLag: limit(4096)}},
		{"limit that is none", "config", `{"maximum_lag_on_failover":"1MB"}`, topology.Documents{Config: json.RawMessage(`{"maximum_lag_on_failover":"1MB"}`)}},
		{"no lag at all", "config", `{"maximum_lag_on_failover":0}`, topology.Documents{Config: json.RawMessage(`{"maximum_lag_on_failover":0}`), MaxLag: limit(0)}},
		{"history that is no list", "history", `{"1":2}`, topology.Documents{}},
		{"history that is null", "history", `null`, topology.Documents{}},
		{"no history yet", "history", `[]`, topology.Documents{History: json.RawMessage(`[]`)}},
		{"failsafe members that are a list", "failsafe", `["n1"]`, topology.Documents{}},
		{"failsafe members that are null", "failsafe", `null`, topology.Documents{}},
		{"a switchover of old", "failover", `n1:n2`, topology.Documents{}},
		{"a switchover now", "failover", `{"leader":"n1","member":"n2"}`, topology.Documents{}},
		{"a switchover that is over", "failover", `{}`, topology.Documents{}},
		{"a switchover to anybody", "failover", `{"leader":"n1","scheduled_at":"2030-01-01T00:00:00+00:00"}`, topology.Documents{Switchover: &topology.Switchover{At: "2030-01-01T00:00:00+00:00", From: "n1"}}},
		{"a member of old", "members/m", `postgres://192.0.2.7/postgres?application_name=http://192.0.2.7:8008/patroni`, topology.Documents{}},
		{"a member that cannot be read", "members/m", `{`, topology.Documents{}},
		{"a member that waits for a restart", "members/m", `{"pending_restart":true,"pending_restart_reason":{"max_connections":{"old_value":"100","new_value":"50"}},"scheduled_restart":{"schedule":"2030-01-01T00:00:00+00:00"}}`, member(topology.MemberDocument{
			PendingRestart: true, RestartReason: json.RawMessage(`{"max_connections":{"old_value":"100","new_value":"50"}}`),
			ScheduledRestart: json.RawMessage(`{"schedule":"2030-01-01T00:00:00+00:00"}`),
		})},
		{"a member whose fields are odd", "members/m", `{"pending_restart":"no","pending_restart_reason":[],"scheduled_restart":null,"replication_state":7,"receive_lsn":-1,"replay_lsn":"16777216"}`, member(topology.MemberDocument{ReplayLSN: 16777216})},
		{"a member from an archive", "members/m", `{"replication_state":"in archive recovery"}`, member(topology.MemberDocument{Replication: "in archive recovery"})},
	} {
		if diff := cmp.Diff(c.want, Documents("p/", keys("p/", c.key, c.value))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// Documents come with every picture, each picture with its own: what was told
// before does not change.
func TestDocumentsComeWithThePicture(t *testing.T) {
	run(t, func(t *testing.T, a *consultest.Agent, r *rig) {
		first := r.all()[0].o.Documents
		a.Put(alpha+"config", `{"ttl":20}`, alpha+"history", `[[1,2,"x"]]`, alpha+"failover", `{"scheduled_at":"2030-01-01T00:00:00+00:00"}`)
		r.wait(12 * time.Second)
		obs := r.all()
		last := obs[len(obs)-1].o.Documents
		if string(last.Config) != `{"ttl":20}` || string(last.History) != `[[1,2,"x"]]` || last.Switchover == nil {
			t.Errorf("after a change: %+v", last)
		}
		if string(first.Config) != `{"ttl":30,"loop_wait":10,"retry_timeout":10}` || first.History != nil || first.Switchover != nil {
			t.Errorf("what was told before is now %+v", first)
		}
	})
}
