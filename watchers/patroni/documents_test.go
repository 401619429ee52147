package patroni

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/patronitest"
)

// The documents are the values of the keys, as the leader tells them: whole, or
// not at all; the last ones stay.
func TestDocuments(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		const failsafe = `{"a":"http://a.test:8008/patroni"}`
		c.Change(func(s *store) { s.Failsafe = failsafe })
		r.wait(time.Minute)
		d := r.last().Documents
		if d == nil {
			t.Fatal("there are none")
		}
		got := []string{string(d.Config), string(d.History), string(d.Failsafe)}
		want := []string{`{"ttl":30,"loop_wait":10,"retry_timeout":10}`, `[[4,49000000,"no recovery target specified"]]`, failsafe}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if d.MaxLag != nil || d.Switchover != nil || d.Members["b"].Replication != "streaming" {
			t.Errorf("limit %v, switchover %v, members %v", d.MaxLag, d.Switchover, d.Members)
		}
		c.Change(func(s *store) { s.Config, s.History, s.Failsafe = `{"maximum_lag_on_failover":5}`, "", "" })
		r.wait(time.Minute)
		if d := r.last().Documents; d.MaxLag == nil || *d.MaxLag != 5 || string(d.History) != "[]" || d.Failsafe != nil {
			t.Errorf("after a change: limit %v, history %s, failsafe %s", d.MaxLag, d.History, d.Failsafe)
		}
		c.Change(func(s *store) { s.Config = "" })
		r.wait(time.Minute)
		if d := r.last().Documents; d.Config != nil || string(d.History) != "[]" {
			t.Errorf("without the key: configuration %s, history %s", d.Config, d.History)
		}
		c.Change(func(s *store) { s.Config = `{"ttl":7}` })
		c.Script(func(q patronitest.Request) patronitest.Fault {
			if q.Path == "/history" {
				return patronitest.Fault{Status: http.StatusServiceUnavailable, Body: "a proxy's word"}
			}
			return patronitest.Fault{}
		})
		r.wait(time.Minute)
		if d := r.last().Documents; d.Config != nil || string(d.History) != "[]" {
			t.Errorf("half an answer is taken: configuration %s, history %s", d.Config, d.History)
		}
	})
}

// Before Patroni 3.0 there is no failsafe mode; its path is then an unknown check.
func TestDocumentsOfOldPatroni(t *testing.T) {
	run(t, func(t *testing.T, c *cluster, r *rig) {
		c.Script(func(q patronitest.Request) patronitest.Fault {
			if q.Path == "/failsafe" {
				return patronitest.Fault{Status: http.StatusServiceUnavailable, Body: "{}"}
			}
			return patronitest.Fault{}
		})
		r.wait(time.Minute)
		if d := r.last().Documents; d == nil || d.Config == nil || d.Failsafe != nil {
			t.Errorf("documents %+v", d)
		}
	})
}

func TestWhatListsSayBeside(t *testing.T) {
	const body = `{"scope":"alpha","scheduled_switchover":{"at":"2030-01-01T00:00:00+00:00","from":"a","to":"b"},"members":[
		{"name":"a","role":"leader","state":"running","host":"192.0.2.1","port":5432,"pending_restart":true,
		 "pending_restart_reason":{"max_connections":{"old_value":"100","new_value":"50"}},"scheduled_restart":{"schedule":"2030-01-01T00:00:00+00:00"}},
		{"name":"b","role":"replica","state":"in archive recovery","host":"192.0.2.2","port":5432,"receive_lsn":"0/2000000","replay_lsn":"0/1000000","lsn":"0/2000000"},
		{"name":"c","role":"replica","state":"running","host":"192.0.2.3","port":5432,"receive_lsn":"unknown","replay_lsn":"unknown"}]}`
	v, tr := parseView(reply{status: 200, body: []byte(body)}, "alpha")
	if tr != nil {
		t.Fatal(tr)
	}
	want := map[string]topology.MemberDocument{
		"a": {
			PendingRestart: true, RestartReason: json.RawMessage(`{"max_connections":{"old_value":"100","new_value":"50"}}`),
			ScheduledRestart: json.RawMessage(`{"schedule":"2030-01-01T00:00:00+00:00"}`),
		},
		"b": {Replication: "in archive recovery", ReceiveLSN: 0x2000000, ReplayLSN: 0x1000000},
		"c": {},
	}
	if diff := cmp.Diff(want, v.papers); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(&topology.Switchover{At: "2030-01-01T00:00:00+00:00", From: "a", To: "b"}, v.switchover); diff != "" {
		t.Error(diff)
	}
}
