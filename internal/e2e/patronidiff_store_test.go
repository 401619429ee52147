package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// standbyCluster: another cluster that follows the main one. A second one is for
// consulAway.
func (d *diffRig) standbyCluster() {
	d.state("standby cluster", map[string]string{"far/n1": "M14", "far/n2": "M15"}, func() {
		main := d.clusters["main"]
		d.begin(
			lab.PatroniOptions{Scope: "far", Nodes: 2, StandbyOf: main}, lab.PatroniOptions{Scope: "idle", Nodes: 1, StandbyOf: main},
		)
		d.local(local)
	})
	d.state("standby leader crashed", map[string]string{"far/n1": "M14-stopped", "far/n2": "M6~"}, func() {
		d.do(errors.Join(d.node("far/n1").Hold(lab.GateStart), d.node("far/n1").Postgres().Kill()))
	})
	d.step("standby leader returns", func() {
		d.do(d.node("far/n1").Release(lab.GateStart))
		d.shown(map[string]string{"far/n1": "M14", "far/n2": "M15"})
	})
}

// with adds nodes to others.
func with(some map[string]string, more map[string]string) map[string]string {
	maps.Copy(some, more)
	return some
}

// paused: Patroni changes nothing, so that states last which it would mend.
func (d *diffRig) paused() {
	n2, n3 := d.node("main/n2"), d.node("main/n3")
	d.state("pause", with(three("M1", "M5", "M5"), map[string]string{"idle/n1": "M14"}), func() {
		d.dynamic("main", `{"pause": true}`)
		d.dynamic("idle", `{"pause": true}`)
	})
	d.state("pause: no Patroni; its key cannot be read", three("M1", "M5", "M23"), func() {
		d.do(n3.Stop(d.t.Context()))
		d.do(d.consul.Delete(d.t.Context(), key("members/n3"))) // with the session that would take it away
		d.consulDo(http.MethodPut, "kv/"+key("members/n3"), `{"conn_url": `, nil)
	})
	d.state("pause: no Patroni, no PostgreSQL; crashed", three("M1", "M12", "M23"), func() {
		d.do(errors.Join(n3.Postgres().Stop(d.t.Context(), lab.Fast), n2.Hold(lab.GateStart), n2.Postgres().Kill()))
	})
	d.step("resume", func() {
		d.dynamic("main", `{"pause": null}`)
		d.do(errors.Join(n2.Release(lab.GateStart), n3.Start(d.t.Context())))
		d.shown(three("M1", "M5", "M5"))
	})
}

// keys: what is in Consul is not what Patroni would write.
func (d *diffRig) keys() {
	d.state("pause: another holds the lock", three("M2", "M6~", "M6~"), func() {
		d.dynamic("main", `{"pause": true}`)
		var s struct{ ID string }
		d.consulDo(http.MethodPut, "session/create", `{"TTL": "60s", "LockDelay": "0s", "Behavior": "delete"}`, &s)
		d.do(d.consul.Delete(d.t.Context(), key("leader")))
		d.consulDo(http.MethodPut, "kv/"+key("leader")+"?acquire="+s.ID, "ghost", nil)
	})
	d.step("the lock is free again", func() {
		d.do(d.consul.Delete(d.t.Context(), key("leader")))
		d.dynamic("main", `{"pause": null}`)
		d.shown(three("M1", "M5", "M5"))
	})
	d.state("no status key, a member without sense", three("M1", "M5", "M5"), func() {
		d.do(d.consul.Delete(d.t.Context(), key("status")))
		d.consulDo(http.MethodPut, "kv/"+key("members/n9"), "{", nil)
	})
	d.state("legacy position of the leader", three("M1", "M5", "M5"), func() {
		d.do(d.consul.Delete(d.t.Context(), key("members/n9")))
		at := d.text("main/n1", "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint::text")
		d.consulDo(http.MethodPut, "kv/"+key("optime/leader"), at, nil)
	})
	d.step("no legacy position any more", func() { d.do(d.consul.Delete(d.t.Context(), key("optime/leader"))) })
}

// consulAway: nobody reaches Consul, and each cluster has told its nodes otherwise
// what to do then.
func (d *diffRig) consulAway() {
	d.state("Consul away", with(three("M20", "M20", "M20"), map[string]string{
		"far/n1": "M22-expired", "far/n2": "M20", "idle/n1": "M22",
		"safe/n1": "M16-failsafe", "safe/n2": "M21-sync", "calm/n1": "M18", "calm/n2": "M19",
	}), func() {
		told := map[string]string{"safe": `{"failsafe_mode": true, "synchronous_mode": true}`, "calm": `{"pause": true}`, "idle": `{"pause": true}`}
		for scope, config := range told {
			d.dynamic(scope, config)
		}
		for scope, config := range told {
			d.until(scope+" to know "+config, func() bool { return d.configured(scope, config) })
		}
		d.until("the agents to know that safe/n2 is synchronous", func() bool {
			d.touch()
			q := question{ref: "safe/n2", method: http.MethodGet, target: "/sync"}
			return q.put(d.agents[strict].health, q.longPath()).status == http.StatusOK && q.put(d.agents[compat].health, q.longPath()).status == http.StatusOK
		})
		d.do(d.consul.Kill())
		d.gone = true
	})
	d.step("Consul returns", func() {
		d.do(d.consul.Start(d.t.Context()))
		d.gone = false
		d.running("main", "far", "safe", "calm", "idle")
		d.shown(map[string]string{"safe/n1": "M1", "calm/n1": "M1", "far/n1": "M14", "idle/n1": "M14"})
	})
	d.state("pause: leader crashed", map[string]string{"calm/n1": "M12", "calm/n2": "M6~"}, func() {
		n1 := d.node("calm/n1")
		d.do(errors.Join(n1.Hold(lab.GateStart), n1.Postgres().Kill()))
	})
}

// configured reports whether all nodes of a cluster have seen a change, and acted on
// it: in failsafe mode the leader writes down who it can ask without Consul.
func (d *diffRig) configured(scope, config string) bool {
	var want map[string]any
	d.do(json.Unmarshal([]byte(config), &want))
	for _, n := range d.clusters[scope].Nodes() {
		got := tell(n.RESTAddr(), plain(http.MethodGet, "/config"), time.Second).json()
		for k, v := range want {
			if got == nil || got[k] != v {
				return false
			}
		}
	}
	d.touch()
	for _, r := range d.agents {
		v := r.view(scope)
		if v == nil || v.Facts.Authority == nil {
			return false
		}
		a := v.Facts.Authority
		if (a.Pause == topology.Yes) != (want["pause"] == true) || (a.Failsafe == topology.Yes) != (want["failsafe_mode"] == true) {
			return false
		}
	}
	v, err := d.consul.Get(d.t.Context(), fmt.Sprintf("service/%s/failsafe", scope))
	return want["failsafe_mode"] == nil || err == nil && strings.Contains(v, "n2")
}
