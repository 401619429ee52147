package xds

import (
	"fmt"
	"slices"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func same(tb testing.TB, what string, want, got any) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Fatalf("%s (-want +got):\n%s", what, diff)
	}
}

// subscribe does what Envoy does at its start, and acknowledges all of it.
func (d *delta) subscribe(names ...string) (all [kinds]*discoveryv3.DeltaDiscoveryResponse) {
	d.t.Helper()
	d.ask(kindCluster)
	all[kindCluster] = d.next(kindCluster)
	d.ack(all[kindCluster])
	d.ask(kindEndpoint, names...)
	all[kindEndpoint] = d.next(kindEndpoint)
	d.ack(all[kindEndpoint])
	d.ask(kindListener)
	all[kindListener] = d.next(kindListener)
	d.ack(all[kindListener])
	return all
}

func TestDeltaFirstAnswers(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	all := d.subscribe(endpointsOf(t, snap, "primary"), endpointsOf(t, snap, "replica"))
	same(t, "clusters", []string{"main/primary", "main/replica"}, d.texts(all[kindCluster]))
	same(t, "endpoints", []string{"main/primary 10.0.0.1=healthy", "main/replica 10.0.0.2=healthy 10.0.0.3=healthy"}, d.texts(all[kindEndpoint]))
	same(t, "listeners", []string{"main/primary writer/n1", "main/replica read"}, d.texts(all[kindListener]))
	d.quiet()
}

// TestDeltaWriterChange: endpoints first, then the renamed chain, nothing else.
func TestDeltaWriterChange(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	d.subscribe(endpointsOf(t, snap, "primary"))
	for _, step := range []struct {
		verdicts  [2]topology.Verdict
		endpoints string
		listener  string // "" is none
	}{
		{[2]topology.Verdict{drain, down}, "main/primary 10.0.0.1=draining", ""},
		{[2]topology.Verdict{down, down}, "main/primary", "main/primary none"},
		{[2]topology.Verdict{down, up}, "main/primary 10.0.0.2=healthy", "main/primary writer/n2"},
		{[2]topology.Verdict{up, down}, "main/primary 10.0.0.1=healthy", "main/primary writer/n1"},
	} {
		snap = decision("main", snap.Generation+1, step.verdicts[0], step.verdicts[1], down)
		r.set(snap)
		e := d.next(kindEndpoint)
		d.ack(e)
		same(t, "endpoints", []string{step.endpoints}, d.texts(e))
		if step.listener != "" {
			l := d.next(kindListener)
			d.ack(l)
			same(t, "listener", []string{step.listener}, d.texts(l))
		}
		d.quiet()
	}
}

// TestDeltaListenerWaitsForEndpoints: while an older answer with endpoints is not
// acknowledged, the renamed listener waits; it must never pass the new endpoints.
func TestDeltaListenerWaitsForEndpoints(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	d.subscribe(endpointsOf(t, snap, "primary"))
	r.set(decision("main", 2, drain, down, down))
	late := d.next(kindEndpoint) // not acknowledged yet
	r.set(decision("main", 3, down, up, down))
	r.served(t, "writer/n2")
	d.ask(kindCluster, "nobody/knows") // the answer comes after whatever the change sent
	m := d.next(kindCluster)
	same(t, "an unknown cluster", []string{"-nobody/knows"}, d.texts(m))
	d.ack(m)
	d.ack(late)
	same(t, "endpoints", []string{"main/primary 10.0.0.2=healthy"}, d.texts(d.next(kindEndpoint)))
	same(t, "listener", []string{"main/primary writer/n2"}, d.texts(d.next(kindListener)))
}

// TestDeltaReconnect: a new server with the same decision resends nothing, and
// says only what differs otherwise.
func TestDeltaReconnect(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	name := endpointsOf(t, snap, "primary")
	all := d.subscribe(name)
	r.stop()

	held := decision("main", 1, und, und, down) // the new process has the saved writer only
	held.Held = "n1"
	r = newRig(t, Options{})
	r.set(held)
	d = r.delta(t)
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: kindCluster.url(), InitialResourceVersions: versions(all[kindCluster])})
	m := d.next(kindCluster)
	same(t, "clusters", []string{}, d.texts(m))
	d.ack(m)
	d.send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: kindEndpoint.url(), InitialResourceVersions: versions(all[kindEndpoint]), ResourceNamesSubscribe: []string{name},
	})
	known := versions(all[kindListener])
	known["other/primary"] = "gone"
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: kindListener.url(), InitialResourceVersions: known})
	m = d.next(kindListener)
	same(t, "listeners", []string{"-other/primary"}, d.texts(m))
	d.ack(m)
	d.quiet()
}

// TestDeltaOldName: a client that asks by the name of an older version of a
// cluster gets the pool's endpoints, now and later.
func TestDeltaOldName(t *testing.T) {
	r := newRig(t, Options{})
	r.set(decision("main", 1, up, down, down))
	d := r.delta(t)
	d.ask(kindEndpoint, "main/primary@000000000000")
	m := d.next(kindEndpoint)
	same(t, "endpoints", []string{"main/primary 10.0.0.1=healthy"}, d.texts(m))
	d.ack(m)
	r.set(decision("main", 2, down, up, down))
	m = d.next(kindEndpoint)
	same(t, "endpoints", []string{"main/primary 10.0.0.2=healthy"}, d.texts(m))
}

// TestDeltaNack: a refusal is counted with its text and never answered with the
// same bytes; the next change is sent.
func TestDeltaNack(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	d.ask(kindListener)
	d.nack(d.next(kindListener), "port in use")
	d.quiet()
	s := r.server.Status()
	same(t, "refusals", map[string]uint64{"CDS": 0, "EDS": 0, "LDS": 1}, s.Refused)
	same(t, "nodes", map[string]int{"test": 1}, s.Nodes())
	last := s.Streams[0].Types[len(s.Streams[0].Types)-1]
	if last.Type != "LDS" || last.Refusal != "port in use" || last.RefusedAt.IsZero() || last.Acked != 0 {
		t.Errorf("the stream's record of LDS is %+v", last)
	}
	r.set(decision("main", 2, down, up, down))
	same(t, "listener", []string{"main/primary writer/n2"}, d.texts(d.next(kindListener)))
}

// TestDeltaRefusedListenerIsOfferedAgain: with the next news of listeners, and with none
// once it was accepted. Until then it is said of a write pool that nobody is cut.
func TestDeltaRefusedListenerIsOfferedAgain(t *testing.T) {
	r := newRig(t, Options{})
	r.set(decision("main", 1, up, down, down))
	d := r.delta(t)
	d.ask(kindListener)
	d.nack(d.next(kindListener), "Error adding/updating listener(s) main/replica: taken\nmain/primary: taken\nmain/primary: twice\nnobody/knows: it\n")
	d.quiet()
	same(t, "uncut", []string{"main/primary"}, r.server.Status().Streams[0].Uncut)
	r.set(decision("beta", 1, up, down, down))
	m := d.next(kindListener)
	same(t, "news", []string{"beta/primary writer/n1", "beta/replica read", "main/primary writer/n1", "main/replica read"}, d.texts(m))
	d.nack(m, "Error adding/updating listener(s) main/replica: taken\n")
	d.quiet()
	same(t, "uncut", 0, len(r.server.Status().Streams[0].Uncut))
	r.set(decision("beta", 2, down, up, down))
	m = d.next(kindListener)
	same(t, "news", []string{"beta/primary writer/n2", "main/replica read"}, d.texts(m))
	d.ack(m)
	r.set(decision("beta", 3, up, down, down))
	same(t, "news", []string{"beta/primary writer/n1"}, d.texts(d.next(kindListener)))
}

// TestDeltaWithheld: nothing is answered until every cluster is known, not even
// what is; then everything is, in order.
func TestDeltaWithheld(t *testing.T) {
	r := newRig(t, Options{Clusters: func() []string { return []string{"beta", "main"} }})
	snap := decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	d.ask(kindListener)
	d.ask(kindEndpoint, endpointsOf(t, snap, "primary"))
	d.ask(kindCluster)
	r.set(decision("beta", 1, und, und, und))
	r.waiting(t)
	until(t, "main to be published", func() bool { return slices.Equal(r.server.Status().Waiting, []string{"beta"}) })
	if s := r.server.Status(); len(d.in) > 0 || s.Answering {
		t.Fatalf("an answer came although nothing is known of beta: %+v", s)
	}
	r.set(decision("beta", 2, up, down, down))
	m := d.next(kindCluster)
	same(t, "clusters", []string{"beta/primary", "beta/replica", "main/primary", "main/replica"}, d.texts(m))
	same(t, "endpoints", []string{"main/primary 10.0.0.1=healthy"}, d.texts(d.next(kindEndpoint)))
	same(t, "listeners", 4, len(d.texts(d.next(kindListener))))
}

// TestDeltaUndecidedAgain: a cluster that was served and of which nothing is
// known any more stays as it is.
func TestDeltaUndecidedAgain(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	d.subscribe(endpointsOf(t, snap, "primary"), endpointsOf(t, snap, "replica"))
	r.set(decision("main", 2, und, und, und))
	r.set(decision("beta", 1, up, down, down)) // shows that the former was read
	d.ack(d.next(kindCluster))
	m := d.next(kindListener)
	same(t, "listeners", []string{"beta/primary writer/n1", "beta/replica read"}, d.texts(m))
	d.ack(m)
	d.quiet()
}

// TestDeltaRemovedCluster: listeners go first, then clusters; endpoints are
// emptied, never removed.
func TestDeltaRemovedCluster(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	d.subscribe(endpointsOf(t, snap, "primary"))
	d.quiet() // everything is acknowledged
	r.views.Delete("main")
	same(t, "listeners", []string{"-main/primary", "-main/replica"}, d.texts(d.next(kindListener)))
	same(t, "clusters", []string{"-main/primary", "-main/replica"}, d.texts(d.next(kindCluster)))
	same(t, "endpoints", []string{"main/primary"}, d.texts(d.next(kindEndpoint)))
}

// TestDeltaNarrow: a client that names clusters in its metadata gets no others, and so
// does one whose own cluster is called after one of ours; another name says nothing.
func TestDeltaNarrow(t *testing.T) {
	r := newRig(t, Options{})
	for i := range 20 {
		r.set(decision(fmt.Sprintf("c%02d", i), 1, up, down, down))
	}
	until(t, "all are served", func() bool {
		r.server.store.mu.Lock()
		defer r.server.store.mu.Unlock()
		return r.server.store.open && len(r.server.store.current) == 20
	})
	for _, c := range []struct {
		node *corev3.Node
		want int
	}{
		{&corev3.Node{Id: "narrow", Metadata: onlyClusters(t, "c07")}, 2},
		{&corev3.Node{Id: "called", Cluster: "c07"}, 2},
		{&corev3.Node{Id: "both", Cluster: "c09", Metadata: onlyClusters(t, "c07")}, 2},
		{&corev3.Node{Id: "other", Cluster: "edge"}, 40},
	} {
		d := r.delta(t)
		if err := d.stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: c.node, TypeUrl: kindCluster.url()}); err != nil {
			t.Fatal(err)
		}
		m := d.next(kindCluster)
		d.ack(m)
		same(t, c.node.GetId(), c.want, len(m.GetResources()))
		if c.want == 2 {
			same(t, c.node.GetId(), []string{"c07/primary", "c07/replica"}, d.texts(m))
			r.set(decision("c08", r.views.Get("c08").Snapshot.Generation+1, down, up, down))
			d.quiet()
		}
	}
}

// TestDeltaUnknownType: a type that is not served is parked and the stream lives.
func TestDeltaUnknownType(t *testing.T) {
	r := newRig(t, Options{})
	r.set(decision("main", 1, up, down, down))
	d := r.delta(t)
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"})
	d.quiet()
}

// TestDeltaEmptyTypes: a type without resources is answered, so that Envoy's
// start need not wait.
func TestDeltaEmptyTypes(t *testing.T) {
	r := newRig(t, Options{})
	empty := decision("main", 1)
	empty.Pools = nil
	r.set(empty)
	d := r.delta(t)
	d.ask(kindCluster)
	same(t, "clusters", []string{}, d.texts(d.next(kindCluster)))
	d.ask(kindListener)
	same(t, "listeners", []string{}, d.texts(d.next(kindListener)))
}
