package consul

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// recorded reads the answer to GET /v1/kv/SCOPE/?recurse that was recorded from
// Consul 1.14.11 with a Patroni of that version, or with Citus groups 0 and 1. Of
// the Citus cluster the keys are Patroni 4.1.5's own; the extension was not there.
func recorded(t *testing.T, name string) api.KVPairs {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	var pairs api.KVPairs
	if err := json.Unmarshal(b, &pairs); err != nil {
		t.Fatal(err)
	}
	return pairs
}

// brief leaves of a member what the fixtures differ in.
func brief(ms []topology.Member) string {
	var out []string
	for _, m := range ms {
		text := m.Name + " " + m.Role + " " + m.State + " " + m.Address.String() + " " + m.LSN.String()
		for _, k := range []string{"zone", "noloadbalance", "weight", "clonefrom", "replicatefrom"} {
			if v, ok := m.Tags[k]; ok {
				text += " " + k + "=" + v
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// recording is a recorded answer and what it says of one scope.
type recording struct {
	file, prefix, members string
	want                  topology.Authority
}

func recordings() []recording {
	seconds := topology.Authority{
		SessionAgrees: topology.Yes, Pause: topology.No, Failsafe: topology.No,
		TTL: 20 * time.Second, LoopWait: time.Second, RetryTimeout: 3 * time.Second,
	}
	with := func(change func(*topology.Authority)) topology.Authority {
		a := seconds
		change(&a)
		return a
	}
	three := with(func(a *topology.Authority) {
		a.Leader, a.Timeline, a.SystemID, a.Optime = "n2", 2, 7713882039720958464, 50332344
		a.SyncMode, a.SyncStandbys = "sync", []string{"n1"}
	})
	paused := three
	paused.Pause = topology.Yes
	threeMembers := "n1 replica running 127.0.0.1:28701 0/30002B8 zone=a; n2 primary running 127.0.0.1:28702 0/30002B8 noloadbalance=true weight=10"
	return []recording{
		{"patroni-3.0.2", "service/three/", threeMembers, three},
		{"patroni-3.0.2-paused", "service/three/", threeMembers, paused},
		{
			"patroni-4.1.5", "service/four/",
			"n1 replica running 127.0.0.1:28711 0/30002B8 zone=a; n2 primary running 127.0.0.1:28712 0/3000280 clonefrom=true replicatefrom=n1",
			with(func(a *topology.Authority) {
				a.Leader, a.Timeline, a.SystemID, a.Optime = "n2", 2, 7713882811776370380, 50332344
				a.SyncMode, a.SyncStandbys, a.Failsafe = "quorum", []string{"n1"}, topology.Yes
			}),
		},
		{
			"patroni-4.1.5-standby-cluster", "service/far/",
			"s1 standby_leader running 127.0.0.1:28721 0/5000000; s2 replica running 127.0.0.1:28722 0/5000000",
			with(func(a *topology.Authority) {
				a.Leader, a.Timeline, a.SystemID, a.Optime, a.StandbyCluster = "s1", 2, 7713882811776370380, 83886080, true
			}),
		},
		{
			"citus", "service/demo/0/", "coord1 primary running 127.0.0.1:28731 0/1501C58",
			with(func(a *topology.Authority) {
				a.Leader, a.Timeline, a.SystemID, a.Optime, a.SyncMode = "coord1", 1, 7713882964202540315, 22027352, "quorum"
			}),
		},
		{
			"citus", "service/demo/1/",
			"work1 primary running 127.0.0.1:28732 0/3000058; work2 replica running 127.0.0.1:28733 0/3000058",
			with(func(a *topology.Authority) {
				a.Leader, a.Timeline, a.SystemID, a.Optime = "work1", 1, 7713882977327345089, 50331736
				a.SyncMode, a.SyncStandbys = "quorum", []string{"work2"}
			}),
		},
	}
}

func TestRecordedScopes(t *testing.T) {
	for _, c := range recordings() {
		t.Run(c.file+" "+c.prefix, func(t *testing.T) {
			got, nodes, faults := Picture(c.prefix, recorded(t, c.file))
			if len(faults) > 0 {
				t.Errorf("faults of keys that Patroni wrote: %q", faults)
			}
			if diff := cmp.Diff(c.members, brief(got.Members)); diff != "" {
				t.Errorf("members (-want +got):\n%s", diff)
			}
			if len(nodes) != len(got.Members) {
				t.Errorf("%d nodes of %d members", len(nodes), len(got.Members))
			}
			if got.OptimeIndex == 0 {
				t.Error("the index of the status key is missing")
			}
			got.Members, got.OptimeIndex = nil, 0
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("authority (-want +got):\n%s", diff)
			}
		})
	}
}

// Consul Enterprise tells beside each key where it lies, as in the example of its
// API's documentation; that makes no difference.
func TestEnterpriseScope(t *testing.T) {
	plain, _, _ := Picture("service/four/", recorded(t, "patroni-4.1.5"))
	pairs := recorded(t, "enterprise")
	for _, p := range pairs {
		if p.Namespace != "team" || p.Partition != "az1" {
			t.Errorf("%s lies in namespace %q and partition %q", p.Key, p.Namespace, p.Partition)
		}
	}
	got, _, faults := Picture("service/four/", pairs)
	if diff := cmp.Diff(plain, got); diff != "" || len(faults) > 0 {
		t.Errorf("faults %q; authority (-plain +enterprise):\n%s", faults, diff)
	}
}

// A Citus cluster that is taken for a plain one is told as what it is.
func TestCitusWithoutAGroup(t *testing.T) {
	a, nodes, faults := Picture("service/demo/", recorded(t, "citus"))
	if a.Leader != "" || len(nodes) != 0 {
		t.Errorf("leader %q, nodes %v; want none", a.Leader, nodes)
	}
	if len(faults) != 1 || !strings.Contains(faults[0], "Citus cluster of the groups 0, 1") {
		t.Errorf("faults %q, want one that names the groups", faults)
	}
}

// Every key of Patroni in its older and odder forms, each with what it makes of
// a scope that is otherwise as recorded.
func TestFormsOfKeys(t *testing.T) {
	const prefix = "service/four/"
	for _, c := range []struct {
		name, key, value string
		change           func(*topology.Authority)
	}{
		{"pause as a word", "config", `{"pause":"on"}`, func(a *topology.Authority) { a.Pause = topology.Yes }},
		{"pause as a number", "config", `{"pause":1}`, func(a *topology.Authority) { a.Pause = topology.Yes }},
		{"pause as no word of Patroni's", "config", `{"pause":"t"}`, func(*topology.Authority) {}},
		{"failsafe mode", "config", `{"failsafe_mode":"yes"}`, func(a *topology.Authority) { a.Failsafe = topology.Yes }},
		{"synchronous mode", "config", `{"synchronous_mode":"ON"}`, func(a *topology.Authority) { a.SyncMode = "sync" }},
		{"quorum, spelled otherwise", "config", `{"synchronous_mode":"Quorum"}`, func(a *topology.Authority) { a.SyncMode = "quorum" }},
		{"times as texts", "config", `{"ttl":"30","loop_wait":2.5}`, func(a *topology.Authority) { a.TTL, a.LoopWait = 30*time.Second, 2500*time.Millisecond }},
		{"standby cluster by host", "config", `{"standby_cluster":{"host":"h"},"synchronous_mode":true}`, func(a *topology.Authority) { a.StandbyCluster = true }},
		{"standby cluster by port", "config", `{"standby_cluster":{"port":5432}}`, func(a *topology.Authority) { a.StandbyCluster = true }},
		{"standby cluster by restore_command", "config", `{"standby_cluster":{"host":"","restore_command":"cp %f %p"}}`, func(a *topology.Authority) { a.StandbyCluster = true }},
		{"no standby cluster: other fields alone", "config", `{"standby_cluster":{"create_replica_methods":["basebackup"],"port":0}}`, func(*topology.Authority) {}},
		{"no standby cluster: null", "config", `{"standby_cluster":null}`, func(*topology.Authority) {}},
		{"no standby cluster: a text", "config", `{"standby_cluster":"h"}`, func(*topology.Authority) {}},
		{"a switchover of old", "failover", "n1:n2", func(*topology.Authority) {}},
		{"failsafe members that cannot be read", "failsafe", "{", func(*topology.Authority) {}},
		{"no history yet", "history", "[]", func(*topology.Authority) {}},
		{"a key of nobody's", "notes", "hello", func(*topology.Authority) {}},
		{"a folder of nobody's", "backup/last", "hello", func(*topology.Authority) {}},
		{"another group's key beside members", "0/leader", "x", func(*topology.Authority) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := topology.Authority{
				Leader: "n2", SessionAgrees: topology.Yes, Pause: topology.No, Failsafe: topology.No, Timeline: 2,
				SystemID: 7713882811776370380, Optime: 50332344, SyncStandbys: []string{"n1"},
			}
			pairs := slices.DeleteFunc(recorded(t, "patroni-4.1.5"), func(p *api.KVPair) bool { return p.Key == prefix+c.key || p.Key == prefix+"config" })
			if c.key != "config" {
				pairs = append(pairs, &api.KVPair{Key: prefix + "config", Value: []byte("{}")})
			}
			pairs = append(pairs, &api.KVPair{Key: prefix + c.key, Value: []byte(c.value)})
			c.change(&base)
			got, _, faults := Picture(prefix, pairs)
			got.Members, got.OptimeIndex = nil, 0
			if diff := cmp.Diff(base, got); diff != "" {
				t.Errorf("authority (-want +got):\n%s", diff)
			}
			if len(faults) > 0 {
				t.Errorf("faults %q, want none", faults)
			}
		})
	}
}

func TestFormsOfMembers(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"as connection parameters", `{"conn_kwargs":{"host":"192.0.2.9","port":6432},"role":"replica","state":"running"}`, "m replica running 192.0.2.9:6432 0/0"},
		{"as connection parameters without a port", `{"conn_kwargs":{"host":"db9","port":null}}`, "m   db9:5432 0/0"},
		{"an address beside parameters", `{"conn_url":"postgres://192.0.2.8/","conn_kwargs":{"host":"192.0.2.9"}}`, "m   192.0.2.8:5432 0/0"},
		{"no parameters", `{"conn_kwargs":null}`, "m    0/0"},
		{"as an address of old, with a login", `postgres://replicator:rep-pass@192.0.2.7:5433/postgres?application_name=http://192.0.2.7:8008/patroni`, "m   192.0.2.7:5433 0/0"},
		{"through a proxy, which is not asked", `{"conn_url":"postgres://192.0.2.8/","proxy_url":"postgres://192.0.2.9:6432/"}`, "m   192.0.2.8:5432 0/0"},
		{"with a restart ahead", `{"conn_url":"postgres://192.0.2.8/","pending_restart":true,"pending_restart_reason":{"max_connections":{"old_value":"100","new_value":"50"}},"scheduled_restart":{"schedule":"2030-01-01T00:00:00+00:00"},"checkpoint_after_promote":false}`, "m   192.0.2.8:5432 0/0"},
		{"a failed restart, with why", `{"state":"restart failed (timeout)","role":"master"}`, "m primary restart failed (timeout)  0/0"},
		{"after a custom bootstrap", `{"state":"starting after custom bootstrap"}`, "m  starting after custom bootstrap  0/0"},
		{"replayed and received", `{"replay_lsn":16777216,"receive_lsn":33554432,"replication_state":"in archive recovery"}`, "m    0/1000000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, _, faults := Picture("p/", api.KVPairs{{Key: "p/members/m", Value: []byte(c.value)}})
			if got := brief(a.Members); got != c.want || len(faults) > 0 {
				t.Errorf("%q with faults %q, want %q", got, faults, c.want)
			}
		})
	}
}
