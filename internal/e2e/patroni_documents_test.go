package e2e

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// ahead are the fields of /cluster that tell of what operators have planned. The
// rest of that body is compared by TestPatroniDiff.
var ahead = []string{"name", "pending_restart", "pending_restart_reason", "scheduled_restart"}

// testDocuments: what Patroni keeps for those who ask is told as it tells it itself.
func (p *patroniRig) testDocuments(leader *lab.PatroniNode) {
	replica := p.others(leader)[0]
	begin := p.view("main").Snapshot.Generation
	p.dynamic(`{"failsafe_mode": true, "maximum_lag_on_failover": 2097152, "postgresql": {"parameters": {"max_worker_processes": 9}}}`)
	ctx := p.whole.Context()
	p.planned(leader, "/switchover", `{"leader": "`+leader.Name()+`", "candidate": "`+replica.Name()+`", "scheduled_at": "2030-01-01T00:00:00+00:00"}`)
	p.planned(replica, "/restart", `{"schedule": "2030-01-01T00:00:00+00:00", "role": "replica"}`)
	for path, has := range map[string]string{
		"/history": "[", "/config": "max_worker_processes", "/failsafe": replica.Name(), "/cluster": "scheduled_switchover",
	} {
		var theirs, ours any
		alike := func() bool {
			body, err := leader.REST(p.t.Context(), http.MethodGet, path, "")
			p.do(err)
			if !strings.Contains(body, has) {
				return false
			}
			_, own := p.get(p.health, "/clusters/main"+path)
			theirs, ours = plans(body), plans(own)
			return cmp.Equal(theirs, ours) && (path != "/cluster" || strings.Contains(own, "pending_restart") && strings.Contains(own, "scheduled_restart"))
		}
		took := p.until(path+" to be as Patroni tells it", alike)
		p.t.Logf("%s is alike after %s:%s", path, took, cmp.Diff(theirs, ours))
	}
	if now := p.view("main").Snapshot.Generation; now != begin {
		p.t.Errorf("generation %d became %d by what decides nothing", begin, now)
	}
	for _, n := range []struct {
		node *lab.PatroniNode
		path string
	}{{leader, "/switchover"}, {replica, "/restart"}} {
		_, err := n.node.REST(ctx, http.MethodDelete, n.path, "")
		p.do(err)
	}
	p.dynamic(`{"failsafe_mode": null, "maximum_lag_on_failover": 1048576, "postgresql": {"parameters": {"max_worker_processes": null}}}`)
	p.until("the plans to be gone", func() bool {
		_, own := p.get(p.health, "/clusters/main/cluster")
		return !strings.Contains(own, "scheduled_")
	})
	// Patroni leaves the key behind, and a later step waits for it to be written.
	p.until("the failsafe members to be forgotten", func() bool {
		p.do(p.consul.Delete(ctx, key("failsafe")))
		return !slices.ContainsFunc(p.patroni.Nodes(), func(n *lab.PatroniNode) bool {
			_, err := n.REST(ctx, http.MethodGet, "/failsafe", "")
			return err == nil
		})
	})
}

// planned asks Patroni for something that is to be done in the distant future.
func (p *patroniRig) planned(n *lab.PatroniNode, path, body string) {
	p.t.Helper()
	p.until("Patroni to take the plan", func() bool { // a leader may not know its members yet
		_, err := n.REST(p.t.Context(), http.MethodPost, path, body)
		return err == nil
	})
}

// plans reads a body; of members that of /cluster what is ahead alone.
func plans(body string) any {
	var v any
	if json.Unmarshal([]byte(body), &v) != nil {
		return body
	}
	o, ok := v.(map[string]any)
	members, is := o["members"].([]any)
	if !ok || !is {
		return v
	}
	for _, m := range members {
		for k := range m.(map[string]any) {
			if !slices.Contains(ahead, k) {
				delete(m.(map[string]any), k)
			}
		}
	}
	return map[string]any{"members": members, "scheduled_switchover": o["scheduled_switchover"]}
}
