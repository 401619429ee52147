package xds

import (
	"context"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/pkg/server/stream/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// sotw is a client of the state-of-the-world protocol.
type sotw struct {
	t      testing.TB
	stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	in     chan *discoveryv3.DiscoveryResponse
	hangUp func()
}

func (r *rig) sotw(tb testing.TB) *sotw {
	tb.Helper()
	return newSotw(tb, r.conn)
}

func newSotw(tb testing.TB, conn *grpc.ClientConn) *sotw {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).StreamAggregatedResources(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	c := &sotw{t: tb, stream: s, in: make(chan *discoveryv3.DiscoveryResponse, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(c.in)
		for {
			m, err := s.Recv()
			if err != nil {
				return
			}
			c.in <- m
		}
	}()
	c.hangUp = func() { cancel(); <-done }
	tb.Cleanup(c.hangUp)
	return c
}

func (c *sotw) send(q *discoveryv3.DiscoveryRequest) {
	c.t.Helper()
	q.Node = &corev3.Node{Id: "test"}
	if err := c.stream.Send(q); err != nil {
		c.t.Fatal(err)
	}
}

func (c *sotw) ask(k kind, names ...string) {
	c.t.Helper()
	c.send(&discoveryv3.DiscoveryRequest{TypeUrl: k.url(), ResourceNames: names})
}

func (c *sotw) ack(m *discoveryv3.DiscoveryResponse, names ...string) {
	c.t.Helper()
	c.send(&discoveryv3.DiscoveryRequest{
		TypeUrl: m.GetTypeUrl(), VersionInfo: m.GetVersionInfo(), ResponseNonce: m.GetNonce(), ResourceNames: names,
	})
}

func (c *sotw) next(k kind) *discoveryv3.DiscoveryResponse {
	c.t.Helper()
	m := receive(c.t, c.in)
	if got, _ := kindOf(m.GetTypeUrl()); got != k {
		c.t.Fatalf("an answer of %s came, want %s", got, k)
	}
	if m.GetVersionInfo() == "" {
		c.t.Fatalf("an answer of %s has no version", k)
	}
	return m
}

func (c *sotw) texts(m *discoveryv3.DiscoveryResponse) []string {
	c.t.Helper()
	k, _ := kindOf(m.GetTypeUrl())
	texts := []string{}
	for _, r := range m.GetResources() {
		texts = append(texts, text(c.t, "", r.GetValue(), k))
	}
	return texts
}

func (c *sotw) subscribe(names ...string) (all [kinds]*discoveryv3.DiscoveryResponse) {
	c.t.Helper()
	c.ask(kindCluster)
	all[kindCluster] = c.next(kindCluster)
	c.ack(all[kindCluster])
	c.ask(kindEndpoint, names...)
	all[kindEndpoint] = c.next(kindEndpoint)
	c.ack(all[kindEndpoint], names...)
	c.ask(kindListener)
	all[kindListener] = c.next(kindListener)
	c.ack(all[kindListener])
	return all
}

func TestSotwFirstAnswersAndWriterChange(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	c := r.sotw(t)
	name := endpointsOf(t, snap, "primary")
	all := c.subscribe(name)
	same(t, "clusters", []string{"main/primary", "main/replica"}, c.texts(all[kindCluster]))
	same(t, "endpoints", []string{"main/primary 10.0.0.1=healthy"}, c.texts(all[kindEndpoint]))
	same(t, "listeners", []string{"main/primary writer/n1", "main/replica read"}, c.texts(all[kindListener]))
	r.set(decision("main", 2, down, up, down))
	same(t, "endpoints", []string{"main/primary 10.0.0.2=healthy"}, c.texts(c.next(kindEndpoint)))
	same(t, "listeners", []string{"main/primary writer/n2", "main/replica read"}, c.texts(c.next(kindListener)))
}

// TestSotwListenerWaitsForEndpoints: as in delta.
func TestSotwListenerWaitsForEndpoints(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	c := r.sotw(t)
	name := endpointsOf(t, snap, "primary")
	all := c.subscribe(name)
	r.set(decision("main", 2, drain, down, down))
	late := c.next(kindEndpoint)
	r.set(decision("main", 3, down, up, down))
	r.served(t, "writer/n2")
	c.ask(kindCluster) // stale nonce: ignored, as the protocol has it
	c.send(&discoveryv3.DiscoveryRequest{
		TypeUrl: kindCluster.url(), VersionInfo: all[kindCluster].GetVersionInfo(),
		ResponseNonce: all[kindCluster].GetNonce(), ResourceNames: []string{"*", "main/primary"},
	})
	c.ack(c.next(kindCluster), "*", "main/primary")
	c.ack(late, name)
	same(t, "endpoints", []string{"main/primary 10.0.0.2=healthy"}, c.texts(c.next(kindEndpoint)))
	same(t, "listeners", []string{"main/primary writer/n2", "main/replica read"}, c.texts(c.next(kindListener)))
}

// TestSotwNack: also the refusal of a first answer, which carries no version, is
// not answered with the same bytes.
func TestSotwNack(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	c := r.sotw(t)
	c.ask(kindListener)
	m := c.next(kindListener)
	c.send(&discoveryv3.DiscoveryRequest{
		TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce(), ErrorDetail: status.New(codes.InvalidArgument, "port in use").Proto(),
	})
	c.ask(kindEndpoint, "nobody/knows")
	same(t, "endpoints", []string{"nobody/knows"}, c.texts(c.next(kindEndpoint)))
	same(t, "refusals", uint64(1), r.server.Status().Refused["LDS"])
	r.set(decision("main", 2, down, up, down))
	same(t, "listeners", []string{"main/primary writer/n2", "main/replica read"}, c.texts(c.next(kindListener)))
}

// TestSotwReconnect: after a restart lists that are the same are not sent again;
// endpoints are, since a version does not say which of them the client has.
func TestSotwReconnect(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	name := endpointsOf(t, snap, "primary")
	all := r.sotw(t).subscribe(name)
	r.stop()
	r = newRig(t, Options{})
	r.set(snap)
	c := r.sotw(t)
	for _, k := range []kind{kindCluster, kindListener} {
		c.send(&discoveryv3.DiscoveryRequest{TypeUrl: k.url(), VersionInfo: all[k].GetVersionInfo()})
	}
	c.send(&discoveryv3.DiscoveryRequest{
		TypeUrl: kindEndpoint.url(), VersionInfo: all[kindEndpoint].GetVersionInfo(), ResourceNames: []string{name},
	})
	m := c.next(kindEndpoint)
	same(t, "endpoints", []string{"main/primary 10.0.0.1=healthy"}, c.texts(m))
	same(t, "version", all[kindEndpoint].GetVersionInfo(), m.GetVersionInfo())
	c.ack(m, name)
	r.set(decision("main", 2, down, up, down))
	c.next(kindEndpoint)
	same(t, "listeners", []string{"main/primary writer/n2", "main/replica read"}, c.texts(c.next(kindListener)))
}

// TestSotwNames: unknown names get an empty assignment, empty types an answer,
// unknown types none but the stream lives, and a name asked for later is sent.
func TestSotwNames(t *testing.T) {
	r := newRig(t, Options{})
	empty := decision("main", 1)
	empty.Pools = nil
	r.set(empty)
	c := r.sotw(t)
	c.send(&discoveryv3.DiscoveryRequest{TypeUrl: "type.googleapis.com/envoy.service.runtime.v3.Runtime"})
	c.ask(kindCluster)
	same(t, "clusters", []string{}, c.texts(c.next(kindCluster)))
	c.ask(kindListener)
	same(t, "listeners", []string{}, c.texts(c.next(kindListener)))
	c.ask(kindEndpoint, "a/b@1")
	m := c.next(kindEndpoint)
	same(t, "endpoints", []string{"a/b"}, c.texts(m))
	c.ack(m, "a/b@1", "main/primary@0")
	m = c.next(kindEndpoint)
	same(t, "endpoints", []string{"main/primary"}, c.texts(m))
	c.ack(m, "a/b@1", "main/primary@0")
	r.set(decision("main", 2, up, down, down))
	same(t, "endpoints", []string{"main/primary 10.0.0.1=healthy"}, c.texts(c.next(kindEndpoint)))
}

// TestSotwOvertaken: the library drops a queued answer when another request of
// its type overtakes it; what it held is sent again, and the listener still
// waits for it.
func TestSotwOvertaken(t *testing.T) {
	s := newStore()
	apply := func(v ...topology.Verdict) {
		set, err := resources.Build(decision("main", 1, v...), resources.Settings{Listen: listenAnywhere})
		if err != nil {
			t.Fatal(err)
		}
		e, err := encode(set)
		if err != nil {
			t.Fatal(err)
		}
		s.apply("main", e)
	}
	apply(up, down, down)
	s.start()
	st := &stream{store: s, notes: newNotes(new(ledger), topology.NewTicker(time.Now), "sotw", "")}
	s.roster.enter(st)
	out := make(chan cachev3.Response, 10)
	next := func() cachev3.Response { t.Helper(); return receive(t, out) }
	watch := func(k kind, names ...string) {
		t.Helper()
		sub := streamv3.NewSotwSubscription(names, k.whole())
		if _, err := st.CreateWatch(&discoveryv3.DiscoveryRequest{TypeUrl: k.url()}, sub, out); err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range []kind{kindEndpoint, kindListener} {
		watch(k, map[kind][]string{kindEndpoint: {"main/primary@0"}}[k]...)
		next()
		st.sent(k.url())
		watch(k, map[kind][]string{kindEndpoint: {"main/primary@0"}}[k]...)
	}
	apply(down, up, down)
	next() // dropped: a request for one more name overtakes it
	watch(kindEndpoint, "main/primary@0", "main/replica@0")
	m, err := next().GetDiscoveryResponse()
	if err != nil || len(m.GetResources()) != 2 || len(out) > 0 {
		t.Fatalf("%d resources were sent again and %d answers besides (%v), want both names alone", len(m.GetResources()), len(out), err)
	}
	st.sent(kindEndpoint.url())
	if url := next().GetRequest().GetTypeUrl(); url != kindListener.url() {
		t.Errorf("%s followed, want the listener", url)
	}
}
