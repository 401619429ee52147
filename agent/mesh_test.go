package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/mesh"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// published is what stands of service main, by node.
func (r *consulRig) published() string {
	var out []string
	for _, node := range []string{"n1", "n2"} {
		if in, ok := r.consul.Published("main")["pgsteer:main:"+node]; ok {
			out = append(out, strings.Join(append(append([]string{node}, in.ServiceTags...), in.Check.Status), " "))
		}
	}
	return strings.Join(out, ", ")
}

func (r *consulRig) stands(want string) {
	r.t.Helper()
	r.until(want+" in Consul", func() bool { return r.published() == want })
}

// mesh is a rig whose agent publishes cluster main.
func (r *consulRig) mesh(b *rig, mesh, cluster string, n1, n2 *node) {
	r.t.Helper()
	b.write(base, listen(), "consul: {address: \""+r.url+"\"}\n", mesh, "clusters:\n", clusterText("main", n1, n2, cluster))
}

// What is decided is published, by one of two agents; a maintenance is; a reload
// takes other settings, and one that ends it leaves what stands.
func TestPublishing(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r, other := newConsulRig(t), newRig(t)
	r.mesh(r.rig, "mesh: {mode: external, tags: [blue]}\n", "", n1, n2)
	r.mesh(other, "mesh: {mode: external, tags: [blue]}\n", "", n1, n2)
	r.up()
	r.settled("main", "n1", "n2")
	r.stands("n1 primary blue passing, n2 replica async blue passing")
	r.until("status to say so", func() bool {
		return strings.Contains(r.statusText(), "2 of 2 instances take sessions, last written at ")
	})
	other.up()
	other.until("who publishes", func() bool { return strings.Contains(other.statusText(), "- mesh main: published by another agent, ") })
	for series, want := range map[string]string{
		`pgsteer_sink_ok{sink="mesh main"}`: "1", `pgsteer_sink_present{sink="mesh main",what="publisher"}`: "1",
		`pgsteer_sink_present{sink="mesh main",what="instances_up"}`: "2",
	} {
		if got := r.metric(series); got != want {
			t.Errorf("%s is %q, want %s", series, got, want)
		}
	}
	// A slow machine may decide about one node before the other.
	if got := r.metric(`pgsteer_sink_events_total{event="writes",sink="mesh main"}`); got != "1" && got != "2" {
		t.Errorf("it wrote %q times, want once or twice", got)
	}
	if got := other.metric(`pgsteer_sink_present{sink="mesh main",what="publisher"}`); got != "0" {
		t.Errorf("the other agent says %q of whether it publishes", got)
	}
	r.consul.RequireToken("secret")
	r.until("the trouble", func() bool { return r.metric(`pgsteer_sink_ok{sink="mesh main"}`) == "0" })
	if text := r.statusText(); !strings.Contains(text, "! mesh main: ") || !strings.Contains(text, "status 403") {
		t.Errorf("status says:\n%s", text)
	}
	r.consul.RequireToken("")
	r.until("the end of the trouble", func() bool { return r.metric(`pgsteer_sink_ok{sink="mesh main"}`) == "1" })
	other.down()

	r.mesh(r.rig, "mesh: {mode: external, compat_tags: true}\n", "    mesh: {tags: [green]}\n", n1, n2)
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	const last = "n1 primary master green passing, n2 replica async green passing"
	r.stands(last)
	r.mesh(r.rig, "", "", n1, n2)
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	lock, ok := r.consul.Get("pgsteer/mesh/main")
	if !ok || lock.Session != "" || r.published() != last {
		t.Errorf("the lock is %+v and there stands %q, want a free lock and %q", lock, r.published(), last)
	}
}

// A host's agent speaks for the node of local, or of the cluster's own setting.
func TestPublishingLocally(t *testing.T) {
	for _, where := range []string{"local: main/n2\nmesh: {mode: local, when_dead: stay, sidecar: true}\n", "mesh: {mode: local, when_dead: stay, sidecar: true}\n"} {
		n1, n2 := newNode(t, primary), newNode(t, replica)
		r := newConsulRig(t)
		cluster := ""
		if !strings.HasPrefix(where, "local") {
			cluster = "    mesh: {node: n2, service: pg}\n"
		}
		r.mesh(r.rig, where, cluster, n1, n2)
		r.up()
		service := map[bool]string{true: "main", false: "pg"}[cluster == ""]
		r.until("the node on this host", func() bool {
			all := r.consul.Published(service)
			return len(all) == 1 && all["pgsteer:main:n2"].Node == consultest.AgentNode && len(r.consul.Published(service+"-sidecar-proxy")) == 1
		})
		if got := fmt.Sprint(r.consul.Published(service)["pgsteer:main:n2"].Check.TTL); got != "8760h0m0s" {
			t.Errorf("the TTL is %s", got)
		}
		r.until("status to say so", func() bool {
			return strings.Contains(r.statusText(), "- mesh main: the node on this host is published; 1 of 1 instances take sessions")
		})
		r.down()
	}
}

// An agent that is told to be on the host of another node takes the instance of the
// former one back, which it would keep passing for ever with when_dead: stay.
func TestPublishingMovedLocally(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r := newConsulRig(t)
	here := func(node string) {
		r.mesh(r.rig, "local: main/"+node+"\nmesh: {mode: local, when_dead: stay}\n", "", n1, n2)
	}
	status := func() string {
		all := r.consul.Published("main")
		return "n1 " + all["pgsteer:main:n1"].Check.Status + ", n2 " + all["pgsteer:main:n2"].Check.Status
	}
	here("n2")
	r.up()
	r.until("n2 to be published", func() bool { return status() == "n1 , n2 passing" })
	here("n1")
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.until("n1 to be published, and n2 no more", func() bool { return status() == "n1 passing, n2 critical" })
}

// A publisher whose session may be over says since when, and what comes next.
func TestMeshStatusUnrenewed(t *testing.T) {
	since := time.Date(2026, 3, 1, 15, 4, 5, 0, time.UTC)
	s := meshStatus(mesh.Status{Cluster: "main", Publisher: "db1", Unrenewed: since, Ends: since.Add(20 * time.Second), Err: errors.New("403")}, true)
	const want = "published by this agent, db1, as far as it knows: its session has not been renewed since 15:04:05; Consul ends it by 15:04:25, and another agent publishes from then on"
	if s.Detail != want || s.Error != "403" || s.State != status.SinkFailing || s.Gauges["publisher"] != 0 {
		t.Errorf("the sink is %+v", s)
	}
}

// With a file for maintenance and one publisher for all, the agent warns once.
func TestMeshWarnsOfFile(t *testing.T) {
	const word = "With more agents than one set maintenance.store: consul"
	for text, want := range map[string]int{
		"mesh: {mode: external}\n": 1, "mesh: {mode: external}\nmaintenance: {store: consul}\n": 0, "mesh: {mode: local}\nlocal: main/n2\n": 0,
	} {
		n1, n2 := newNode(t, primary), newNode(t, replica)
		r := newConsulRig(t)
		r.mesh(r.rig, text, "", n1, n2)
		r.up()
		r.until("the start", func() bool { return r.published() != "" })
		r.down()
		if got := strings.Count(r.log.String(), word); got != want {
			t.Errorf("%q: %d warnings, want %d", text, got, want)
		}
	}
}

// The maintenance of one agent says nothing of the nodes to those who ask Consul:
// another agent publishes.
func TestPublishingLeftByMaintenance(t *testing.T) {
	n1, n2 := newNode(t, primary), newNode(t, replica)
	r, other := newConsulRig(t), newRig(t)
	for _, b := range []*rig{r.rig, other} {
		b.write(base, listen(), b.guarded(", store: consul"), "consul: {address: \""+r.url+"\"}\nmesh: {mode: external}\nclusters:\n", clusterText("main", n1, n2))
	}
	const whole = "n1 primary passing, n2 replica async passing"
	r.up()
	r.stands(whole)
	other.up()
	other.settled("main", "n1", "n2")
	r.change("POST", "/admin/maintenance", `{"reason":"this host"}`)
	other.until("the other agent to publish", func() bool {
		if is := r.published(); is != whole {
			t.Fatalf("%s, because of one agent's maintenance", is)
		}
		return other.metric(`pgsteer_sink_present{sink="mesh main",what="publisher"}`) == "1"
	})
	r.until("the status to say so", func() bool { return strings.Contains(r.statusText(), "mesh main: published by another agent, ") })
	other.change("POST", "/admin/maintenance/main/n2", `{"reason":"für alle"}`)
	r.stands("n1 primary replica passing, n2 replica async critical")
	r.change("DELETE", "/admin/maintenance", "")
	other.down()
	r.until("the first agent to publish again", func() bool { return r.metric(`pgsteer_sink_present{sink="mesh main",what="publisher"}`) == "1" })
	r.stands("n1 primary replica passing, n2 replica async critical")
	if out := r.consul.Published("main")["pgsteer:main:n2"].Check.Output; out != "maintenance: für alle" {
		t.Errorf("the check says %q", out)
	}
}

// The node on this host is renamed by a reload: its old name goes from Consul, although
// its check would stand for ever.
func TestPublishingRenamed(t *testing.T) {
	n1, n2 := newNode(t, replica), newNode(t, primary)
	r := newConsulRig(t)
	name := func(own string) {
		t.Helper()
		r.write(base, listen(), "consul: {address: \""+r.url+"\"}\nlocal: main/"+own+"\nmesh: {mode: local, when_dead: stay}\n",
			fmt.Sprintf("clusters:\n  main: {nodes: {n1: %s, %s: %s}}\n", n1.addr, own, n2.addr))
	}
	name("n2")
	r.up()
	r.stands("n2 primary passing")
	name("db2")
	if err := r.reload(); err != nil {
		t.Fatal(err)
	}
	r.stands("n2 critical")
	r.until("the new name", func() bool {
		in := r.consul.Published("main")["pgsteer:main:db2"]
		return fmt.Sprintln(in.ServiceTags, in.Check.Status) == "[primary] passing\n"
	})
}
