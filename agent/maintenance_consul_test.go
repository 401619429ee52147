package agent

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// shared is a rig whose records lie in the fake Consul.
func (r *consulRig) shared(n1, n2 *node) *rig {
	r.t.Helper()
	b := newRig(r.t)
	b.write(base, listen(), b.guarded(", store: consul"), "consul: {address: \""+r.url+"\"}\nclusters:\n", clusterText("main", n1, n2))
	return b
}

// What one agent takes out is out on all within a second, on one that starts
// later, and while Consul is away; then nothing can be changed, and the agent's
// own record still can. A key that was lost ends nothing; an explicit end does.
func TestMaintenanceOfAllAgents(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	c := newConsulRig(t)
	a, b, later := c.shared(n1, n2), c.shared(n1, n2), c.shared(n1, n2)
	a.up()
	b.up()
	a.settled("main", "n1", "n2")
	b.settled("main", "n1", "n2")
	begin := time.Now()
	if got := a.change("POST", "/admin/maintenance/main/n2", `{"reason":"kernel"}`); !strings.HasSuffix(got, `,"scope":"all agents of pgsteer/maintenance"}`) {
		t.Errorf("who obeys is not said: %s", got)
	}
	b.isNow("replica", "n2", "drain/maintenance/kernel")
	t.Logf("the other agent obeys after %s", time.Since(begin))
	a.isNow("replica", "n2", "drain/maintenance/kernel")
	if _, ok := c.consul.Get("pgsteer/maintenance"); !ok {
		t.Fatal("there is no key")
	}
	served := false
	c.consul.Script(func(consultest.Request) consultest.Fault { return consultest.Fault{Delay: 500 * time.Millisecond} }) // evidence is quicker
	later.up()
	later.until("a decision on n2", func() bool {
		got := later.verdict("replica", "n2")
		served = served || strings.HasPrefix(got, "up/")
		return strings.HasPrefix(got, "drain/maintenance/kernel")
	})
	if served {
		t.Error("an agent that started later let sessions onto n2 first")
	}
	c.consul.Script(nil)
	c.consul.Stop()
	b.down()
	b.up()
	b.writer("main", "n1")
	b.isNow("replica", "n2", "drain/maintenance/kernel")
	if code, text := b.call("DELETE", "/admin/maintenance/main/n2", adminToken, ""); code != 503 || !strings.Contains(text, "nothing was changed") {
		t.Errorf("a change while Consul is away: %d %s", code, text)
	}
	b.change("POST", "/admin/maintenance", "")
	b.isNow("primary", "n1", "drain/maintenance")
	if got := a.verdict("primary", "n1"); !strings.HasPrefix(got, "up/") {
		t.Errorf("the record of one agent is obeyed by another: %s", got)
	}
	b.change("DELETE", "/admin/maintenance", "")
	c.consul.Start()
	c.consul.Delete("pgsteer/maintenance")
	a.until("the loss to be noticed", func() bool { return strings.Contains(a.log.String(), "records are gone from the shared store") })
	a.isNow("replica", "n2", "drain/maintenance/kernel")
	later.change("DELETE", "/admin/maintenance/main/n2", "")
	for _, r := range []*rig{a, b, later} {
		r.settled("main", "n1", "n2")
	}
	c.consul.Put("pgsteer/maintenance", `{"version": 1, "records": [{"cluster": "main", "node": 7}]}`)
	a.until("the trouble", func() bool { return a.metric(`pgsteer_sink_ok{sink="maintenance"}`) == "0" })
	a.settled("main", "n1", "n2")
	for _, r := range []*rig{a, b, later} {
		r.down()
	}
}

// The same at a real Consul: how soon another agent obeys, and that Consul's own
// restart changes nothing.
func TestMaintenanceAtARealConsul(t *testing.T) {
	l := labtest.ForTest(t, lab.NeedConsul)
	store, err := l.Consul(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n1, n2 := newNode(t, primary), newNode(t, replica)
	c := &consulRig{rig: newRig(t), url: "http://" + store.Addr()}
	a, b := c.shared(n1, n2), c.shared(n1, n2)
	for _, r := range []*rig{a, b} {
		r.up()
		r.settled("main", "n1", "n2")
	}
	obeyed := func(method, body, want string) {
		t.Helper()
		a.change(method, "/admin/maintenance/main/n2", body)
		begin := time.Now()
		b.until("the word of the other agent", func() bool { return strings.Contains(b.verdict("replica", "n2"), "maintenance") == (want != "") })
		t.Logf("after %s the other agent obeys in %s", method, time.Since(begin))
		if d := time.Since(begin); d > time.Second {
			t.Errorf("%s: the other agent obeys after %s", method, d)
		}
	}
	obeyed("POST", `{"reason":"kernel"}`, "out")
	if err := store.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.until("Consul to be missed", func() bool { return b.metric(`pgsteer_sink_ok{sink="maintenance"}`) == "0" })
	b.isNow("replica", "n2", "drain/maintenance/kernel")
	if err := store.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.until("Consul to be back", func() bool { return b.metric(`pgsteer_sink_ok{sink="maintenance"}`) == "1" })
	a.until("Consul to take changes", func() bool {
		code, _ := a.call("POST", "/admin/maintenance/main/n2", adminToken, `{"reason":"disk"}`)
		return code == http.StatusOK
	})
	b.isNow("replica", "n2", "drain/maintenance/disk")
	obeyed("DELETE", "", "")
	a.down()
	b.down()
}
