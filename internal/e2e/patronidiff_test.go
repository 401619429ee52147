package e2e

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pgsteer/pgsteer/internal/lab"
)

// TestPatroniDiff asks Patroni itself and pgsteer the same in every state that can
// be made to last. What differs must stand in the manual's table. All courses run at
// once in the place of one test, since most of the time is theirs to wait.
func TestPatroniDiff(t *testing.T) {
	t.Parallel()
	all := []course{
		{"3.0.2", "", (*diffRig).roles},
		{lab.Patroni4, lab.Patroni4, (*diffRig).roles},
		{"3.0.2 store", "", (*diffRig).store},
		{lab.Patroni4 + " store", lab.Patroni4, (*diffRig).store},
	}
	found := make([][]result, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() {
			t.Run(c.name, func(t *testing.T) {
				d := newDiffRig(t, c.release)
				defer func() { found[i] = d.results }()
				c.run(d)
			})
		})
	}
	wg.Wait()
	printTable(t, []string{compat}, slices.Concat(found[0], found[2]))
	printTable(t, []string{compat, strict}, slices.Concat(found[1], found[3]))
}

// course is a part of the states, with clusters of its own.
type course struct {
	name, release string // of Patroni, as in lab.PatroniOptions
	run           func(*diffRig)
}

// roles are the states in which Consul and what stands in it are well.
func (d *diffRig) roles() {
	d.begin(lab.PatroniOptions{Scope: "main", Nodes: 3, Idle: 2, Tags: map[string]map[string]any{
		"n2": n2Tags, "n3": {"nofailover": true, "nosync": true},
	}})
	d.agentsUp()
	d.replicas()
	d.synchronous()
	d.replication()
	d.leader()
	d.clients()
}

// store are those in which it is not, or somebody else has a say.
func (d *diffRig) store() {
	d.begin(
		lab.PatroniOptions{Scope: "main", Nodes: 3}, lab.PatroniOptions{Scope: "safe", Nodes: 2}, lab.PatroniOptions{Scope: "calm", Nodes: 2},
	)
	d.agentsUp()
	d.standbyCluster()
	d.failovers()
	d.paused()
	d.keys()
	d.consulAway()
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
		d.running("main")
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
		d.dynamic("main", `{"synchronous_mode": true}`)
		d.until("a synchronous standby", func() bool { return d.syncKey("n2") })
	})
	d.state("one synchronous standby, nosync on the other", three("M1", "M9", "M5"), func() {
		d.tag("main/n1", nil)
		d.tag("main/n2", n2Tags)
	})
	d.state("two synchronous standbys", three("M1", "M9", "M9"), func() {
		d.tag("main/n3", nil)
		d.dynamic("main", `{"synchronous_node_count": 2}`)
		d.inCommits("sync")
	})
	if d.v4 {
		d.state("quorum standbys", three("M1", "M11", "M11"), func() {
			// With the same number Patroni would leave synchronous_standby_names as it is.
			d.dynamic("main", `{"synchronous_mode": "quorum", "synchronous_node_count": 1}`)
			d.inCommits("quorum")
		})
	}
	d.state("cascading replica", three("M1", "M5", "M5"), func() {
		d.dynamic("main", `{"synchronous_mode": null, "synchronous_node_count": null}`)
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

// replication: replay paused, no receiver, no PostgreSQL.
func (d *diffRig) replication() {
	if d.v4 { // Patroni 3.0 does not know the tag
		d.state("nostream", three("M1", "M5", "M6"), func() { d.tag("main/n3", map[string]any{"nostream": true}) })
	}
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
		d.do(d.node("main/n2").Reconfigure(restore))
		d.until("n2 to have its restore_command", func() bool { return d.text("main/n2", "SHOW restore_command") != "" })
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
		d.do(d.node("main/n2").Reconfigure(func(c map[string]any) {
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
