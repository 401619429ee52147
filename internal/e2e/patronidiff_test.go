package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// TestPatroniDiff asks real Patronis and pgsteer the same in every state that can
// be made to last. What differs must stand in the manual's table.
func TestPatroniDiff(t *testing.T) {
	if os.Getenv("PGSTEER_PATRONI_DIFF") == "" {
		t.Skip("takes minutes on two clusters: PGSTEER_PATRONI_DIFF=1 go test ./internal/e2e -run PatroniDiff")
	}
	for name, release := range map[string]string{"3.0.2": "", lab.Patroni4: lab.Patroni4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDiffRig(t, release)
			defer d.print()
			d.replicas()
			d.synchronous()
			d.replication()
			d.leader()
			d.standbyCluster()
			d.paused()
			d.keys()
			d.consulAway()
		})
	}
}

// three is the main cluster with the same row for both replicas.
func three(n1, n2, n3 string) map[string]string {
	return map[string]string{"main/n1": n1, "main/n2": n2, "main/n3": n3}
}

var n2Tags = map[string]any{"zone": "b", "weight": 10, "ratio": 1.4, "fast": true, "slow": false}

// replicas: one leader, replicas, tags.
func (d *diffRig) replicas() {
	d.state("single leader", map[string]string{"main/n1": "M1"}, func() {})
	d.state("leader and replicas", three("M1", "M5", "M5"), func() {
		d.nodes([]string{"main/n2", "main/n3"}, func(n *lab.PatroniNode) error { return n.Start(d.t.Context()) })
		d.do(d.main.WaitRunning(d.t.Context()))
	})
	d.variants()
	d.state("noloadbalance on leader and replica", three("M1", "M8", "M5"), func() {
		d.tag("main/n1", map[string]any{"noloadbalance": true})
		d.tag("main/n2", map[string]any{"noloadbalance": true})
	})
}

// synchronous: all kinds of synchronous replication.
func (d *diffRig) synchronous() {
	d.state("synchronous standby, noloadbalance", three("M1", "M10", "M5"), func() {
		d.mainConfig(`{"synchronous_mode": true}`)
		d.until("a synchronous standby", func() bool { return d.syncKey("n2") })
	})
	d.state("one synchronous standby, nosync on the other", three("M1", "M9", "M5"), func() {
		d.tag("main/n1", nil)
		d.tag("main/n2", n2Tags)
	})
	d.state("two synchronous standbys", three("M1", "M9", "M9"), func() {
		d.tag("main/n3", nil)
		d.mainConfig(`{"synchronous_node_count": 2}`)
		d.inCommits("sync")
	})
	if d.v4 {
		d.state("quorum standbys", three("M1", "M11", "M11"), func() {
			// With the same number Patroni would leave synchronous_standby_names as it is.
			d.mainConfig(`{"synchronous_mode": "quorum", "synchronous_node_count": 1}`)
			d.inCommits("quorum")
		})
	}
	d.state("cascading replica", three("M1", "M5", "M5"), func() {
		d.mainConfig(`{"synchronous_mode": null, "synchronous_node_count": null}`)
		d.tag("main/n3", map[string]any{"replicatefrom": "n2"})
		d.until("n3 to stream from n2", func() bool { return d.text("main/n2", "SELECT count(*)::text FROM pg_stat_replication") == "1" })
	})
}

// inCommits waits for the standbys' part in commits as the leader itself sees it.
func (d *diffRig) inCommits(part string) {
	d.t.Helper()
	d.until("the standbys to be "+part, func() bool {
		return d.text("main/n1", "SELECT string_agg(sync_state, ' ') FROM pg_stat_replication") == part+" "+part
	})
}

// syncKey reports whether a node is listed in the sync key.
func (d *diffRig) syncKey(node string) bool {
	v, err := d.consul.Get(d.t.Context(), key("sync"))
	var sync struct {
		Standby string `json:"sync_standby"`
	}
	return err == nil && json.Unmarshal([]byte(v), &sync) == nil && strings.Contains(sync.Standby, node)
}

// mainConfig changes the dynamic configuration of the main cluster alone.
func (d *diffRig) mainConfig(body string) {
	d.t.Helper()
	_, err := d.node("main/n1").REST(d.t.Context(), http.MethodPatch, "/config", body)
	d.do(err)
}

// replication: replay paused, no receiver, no PostgreSQL.
func (d *diffRig) replication() {
	d.state("replay stands still", three("M1", "M5~", "M5"), func() {
		d.tag("main/n3", nil)
		d.do(d.node("main/n2").Postgres().FreezeReplay())
		d.exec("main/n1", "CREATE TABLE burst AS SELECT generate_series(1, 50000) i", "CHECKPOINT")
	})
	d.lagVariants()
	restore := func(c map[string]any) {
		c["postgresql"].(map[string]any)["recovery_conf"] = map[string]any{"restore_command": d.node("main/n2").RestoreCommand()}
	}
	d.state("no receiver, with and without restore_command", three("M1", "M7", "M6"), func() {
		d.do(d.node("main/n2").Postgres().ThawReplay())
		d.do(d.node("main/n2").Reconfigure(d.t.Context(), restore))
		d.cut()
	})
	d.state("replicas start", three("M1", "M12", "M12"), func() {
		n2, n3 := d.node("main/n2"), d.node("main/n3")
		d.do(errors.Join(n2.Hold(lab.GateRestore), n3.Hold(lab.GateStart), n2.Postgres().Kill(), n3.Postgres().Kill()))
		d.until("n2 to wait for its archive", func() bool { return n2.Postgres().PID() != 0 })
	})
	d.step("replicas return", func() {
		d.do(errors.Join(d.node("main/n2").Release(lab.GateRestore), d.node("main/n3").Release(lab.GateStart)))
		d.exec("main/n1", "ALTER ROLE "+lab.Replicator+" LOGIN")
		d.do(d.node("main/n2").Reconfigure(d.t.Context(), func(c map[string]any) {
			delete(c["postgresql"].(map[string]any), "recovery_conf")
		}))
		d.shown(three("M1", "M5", "M5"))
	})
}

// cut ends replication and keeps it away.
func (d *diffRig) cut() {
	d.t.Helper()
	const off = "SELECT rolcanlogin::text FROM pg_roles WHERE rolname = '" + lab.Replicator + "'"
	d.exec("main/n1", "ALTER ROLE "+lab.Replicator+" NOLOGIN")
	d.until("the standbys to know", func() bool { return d.text("main/n2", off) == "false" && d.text("main/n3", off) == "false" })
	for _, ref := range []string{"main/n1", "main/n2"} {
		d.exec(ref, "SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
	}
	d.until("no standby to stream", func() bool {
		return d.text("main/n2", "SELECT count(*)::text FROM pg_stat_wal_receiver")+d.text("main/n3", "SELECT count(*)::text FROM pg_stat_wal_receiver") == "00"
	})
}

// leader: the leader's PostgreSQL is away, hangs, or is not promoted yet.
func (d *diffRig) leader() {
	n1, n2 := d.node("main/n1"), d.node("main/n2")
	d.state("leader crashed", three("M3", "M6", "M6"), func() {
		d.do(errors.Join(n1.Hold(lab.GateStart), n1.Postgres().Kill()))
		d.until("it to be gone", func() bool { return n1.Postgres().PID() == 0 })
	})
	d.step("leader returns", func() {
		d.do(n1.Release(lab.GateStart))
		d.shown(three("M1", "M5", "M5"))
	})
	d.hung()
	d.state("promotion", map[string]string{"main/n2": "M4", "main/n3": "M6~"}, func() {
		d.do(n2.Hold(lab.GatePromote))
		_, err := n1.REST(d.t.Context(), http.MethodPost, "/switchover", `{"leader": "n1", "candidate": "n2"}`)
		d.t.Log("switchover:", err) // Patroni waits for the promotion only so long
	})
	d.step("promoted", func() {
		d.do(n2.Release(lab.GatePromote))
		d.shown(three("M5", "M1", "M5"))
	})
	d.switchover("main/n2", "main/n1")
}

// hung: the leader's PostgreSQL stands still, and so does its Patroni.
func (d *diffRig) hung() {
	d.step("leader hangs", func() {
		pg := d.node("main/n1").Postgres()
		d.do(pg.Freeze())
		var all []question
		for _, p := range []string{"/primary", "/leader", "/replica", "/read-only", "/health"} {
			all = append(all, question{ref: local, row: "hung", known: worded["hung"]}.get(p))
		}
		d.compare("leader hangs", all)
		d.do(pg.Thaw())
		d.shown(three("M1", "M5", "M5"))
	})
}

// standbyCluster: another cluster that follows the main one.
func (d *diffRig) standbyCluster() {
	d.state("standby cluster", map[string]string{"far/n1": "M14", "far/n2": "M15"}, func() {
		var err error
		release := ""
		if d.v4 {
			release = lab.Patroni4
		}
		d.far, err = d.lab.Patroni(d.t.Context(), lab.PatroniOptions{
			Scope: "far", Nodes: 2, Consul: d.consul, Release: release, StandbyOf: d.main,
		})
		d.do(err)
	})
	d.state("standby leader crashed", map[string]string{"far/n1": "M14-stopped", "far/n2": "M6~"}, func() {
		d.do(errors.Join(d.node("far/n1").Hold(lab.GateStart), d.node("far/n1").Postgres().Kill()))
	})
	d.step("standby leader returns", func() {
		d.do(d.node("far/n1").Release(lab.GateStart))
		d.shown(map[string]string{"far/n1": "M14", "far/n2": "M15"})
	})
}

// all is every node, with the main cluster's leader and its replicas alike.
func everywhere(leader, replicas, standbyLeader string) map[string]string {
	m := three(leader, replicas, replicas)
	m["far/n1"], m["far/n2"] = standbyLeader, replicas
	return m
}

// paused: Patroni changes nothing, so that states last which it would mend.
func (d *diffRig) paused() {
	n2, n3 := d.node("main/n2"), d.node("main/n3")
	d.state("pause", everywhere("M1", "M5", "M14"), func() { d.dynamic(`{"pause": true}`) })
	d.state("pause: Patroni stopped, PostgreSQL runs", three("M1", "M5", "M23"), func() { d.do(n3.Stop(d.t.Context())) })
	d.state("pause: both gone; replica crashed", three("M1", "M12", "M23"), func() {
		d.do(errors.Join(n3.Postgres().Stop(d.t.Context(), lab.Fast), n2.Hold(lab.GateStart), n2.Postgres().Kill()))
	})
	d.step("resume", func() {
		d.dynamic(`{"pause": null}`)
		d.do(errors.Join(n2.Release(lab.GateStart), n3.Start(d.t.Context())))
		d.shown(everywhere("M1", "M5", "M14"))
	})
}

// keys: what is in Consul is not what Patroni would write.
func (d *diffRig) keys() {
	d.state("pause: another holds the lock", three("M2", "M6~", "M6~"), func() {
		d.dynamic(`{"pause": true}`)
		var s struct{ ID string }
		d.consulDo(http.MethodPut, "session/create", `{"TTL": "60s", "LockDelay": "0s", "Behavior": "delete"}`, &s)
		d.do(d.consul.Delete(d.t.Context(), key("leader")))
		d.consulDo(http.MethodPut, "kv/"+key("leader")+"?acquire="+s.ID, "ghost", nil)
	})
	d.step("the lock is free again", func() {
		d.do(d.consul.Delete(d.t.Context(), key("leader")))
		d.dynamic(`{"pause": null}`)
		d.shown(three("M1", "M5", "M5"))
	})
	d.state("no status key", three("M1", "M5", "M5"), func() { d.do(d.consul.Delete(d.t.Context(), key("status"))) })
}

// consulAway: nobody reaches Consul.
func (d *diffRig) consulAway() {
	d.away("Consul away", everywhere("M20", "M20", "M22-expired"), `{"failsafe_mode": null}`)
	d.away("Consul away, failsafe mode", everywhere("M16-failsafe", "M21", "M22-expired"), `{"failsafe_mode": true}`)
	d.away("Consul away, pause", everywhere("M18", "M19", "M22"), `{"failsafe_mode": null, "pause": true}`)
}

// away kills Consul, compares, and has everything return.
func (d *diffRig) away(name string, want map[string]string, config string) {
	d.state(name, want, func() {
		d.dynamic(config)
		d.until("all to know it", func() bool { return d.configured(config) })
		d.do(d.consul.Kill())
		d.gone = true
	})
	d.step(name+": it returns", func() {
		d.do(d.consul.Start(d.t.Context()))
		d.gone = false
		d.do(d.main.WaitRunning(d.t.Context()))
		d.do(d.far.WaitRunning(d.t.Context()))
	})
}

// configured reports whether everybody has seen a change, and acted on it: the
// leader of the main cluster writes down who it can ask without Consul.
func (d *diffRig) configured(config string) bool {
	var want map[string]any
	d.do(json.Unmarshal([]byte(config), &want))
	for _, c := range []*lab.Patroni{d.main, d.far} {
		for _, n := range c.Nodes() {
			got := tell(n.RESTAddr(), plain(http.MethodGet, "/config"), time.Second).json()
			for k, v := range want {
				if got == nil || got[k] != v {
					return false
				}
			}
		}
	}
	d.touch()
	for _, r := range d.agents {
		for _, cluster := range []string{"main", "far"} {
			a := r.view(cluster).Facts.Authority
			if a == nil || (a.Pause == topology.Yes) != (want["pause"] == true) || (a.Failsafe == topology.Yes) != (want["failsafe_mode"] == true) {
				return false
			}
		}
	}
	v, err := d.consul.Get(d.t.Context(), key("failsafe"))
	return want["failsafe_mode"] == nil || err == nil && strings.Contains(v, "n3")
}
