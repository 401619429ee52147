package agent

import (
	"fmt"
	"strings"
	"testing"

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
		`pgsteer_sink_present{sink="mesh main",what="instances_up"}`: "2", `pgsteer_sink_events_total{event="writes",sink="mesh main"}`: "1",
	} {
		if got := r.metric(series); got != want {
			t.Errorf("%s is %q, want %s", series, got, want)
		}
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
