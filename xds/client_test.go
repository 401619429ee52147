package xds

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what must come; nothing waits that long when all is well.
const patience = 20 * time.Second

// rig is a server on loopback and the decisions it serves.
type rig struct {
	views  *latest.Map[string, topology.View]
	server *Server
	addr   string
	stop   func()
	conn   *grpc.ClientConn
}

func newRig(tb testing.TB, o Options) *rig {
	tb.Helper()
	return newRigAt(tb, o, "127.0.0.1:0")
}

func newRigAt(tb testing.TB, o Options, addr string) *rig {
	tb.Helper()
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		tb.Fatal(err)
	}
	return newRigOn(tb, o, ln, ln.Addr().String())
}

// newRigOn serves on ln, and connects to target.
func newRigOn(tb testing.TB, o Options, ln net.Listener, target string, dial ...grpc.DialOption) *rig {
	tb.Helper()
	if o.Views == nil {
		o.Views = new(latest.Map[string, topology.View])
	}
	if o.Settings.Listen == nil {
		o.Settings.Listen = listenAnywhere
	}
	r := &rig{views: o.Views, server: New(o), addr: ln.Addr().String()}
	if o.Now == nil { // gRPC takes no less than a second
		r.server.alive.Time, r.server.alive.Timeout = time.Second, time.Second
	}
	if o.MaxAge != 0 {
		r.server.alive.MaxConnectionAgeGrace = o.MaxAge
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.server.Run(ctx, ln) }()
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("the server ended with %v", err)
		}
	}
	var err error
	r.conn, err = grpc.NewClient(target, append(dial, grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		r.stop()
		_ = r.conn.Close()
	})
	return r
}

func listenAnywhere(_, pool string) (topology.Address, bool) {
	return topology.Address{Host: "127.0.0.1", Port: map[string]uint16{"primary": 6432, "replica": 6433}[pool]}, true
}

// set publishes a decision.
func (r *rig) set(snap *topology.Snapshot) {
	r.views.Set(snap.Cluster, &topology.View{Snapshot: snap, ValidUntil: topology.Mono(time.Hour)})
}

// decision makes a snapshot of three nodes: verdicts of the write pool by node,
// and a read pool of those that are down in it. Each differs urgently.
func decision(cluster string, generation uint64, verdicts ...topology.Verdict) *topology.Snapshot {
	snap := &topology.Snapshot{Cluster: cluster, Generation: generation, Urgent: generation, Complete: true}
	w := topology.PoolVerdicts{Pool: "primary", Mode: topology.ModeWrite}
	r := topology.PoolVerdicts{Pool: "replica", Mode: topology.ModeRead}
	for i, v := range verdicts {
		n := topology.Node{Name: fmt.Sprintf("n%d", i+1), Address: topology.Address{Host: fmt.Sprintf("10.0.0.%d", i+1), Port: 5432}}
		snap.Nodes = append(snap.Nodes, n)
		w.Nodes = append(w.Nodes, topology.NodeVerdict{Node: n.Name, Address: n.Address, Verdict: v, Weight: 100})
		reads := topology.Down
		switch v {
		case topology.Down:
			reads = topology.Up
		case topology.Undecided:
			reads = topology.Undecided
		case topology.Up, topology.Drain:
		}
		r.Nodes = append(r.Nodes, topology.NodeVerdict{Node: n.Name, Address: n.Address, Verdict: reads, Weight: 100})
	}
	snap.Pools = []topology.PoolVerdicts{w, r}
	return snap
}

const (
	und, up, drain, down = topology.Undecided, topology.Up, topology.Drain, topology.Down
)

// endpointsOf is the name that the cluster of a pool asks its endpoints by.
func endpointsOf(tb testing.TB, snap *topology.Snapshot, pool string) string {
	tb.Helper()
	set, err := resources.Build(snap, resources.Settings{})
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range set.Endpoints {
		if poolOf(e.GetClusterName()) == resources.Name(snap.Cluster, pool) {
			return e.GetClusterName()
		}
	}
	tb.Fatalf("no pool %s", pool)
	return ""
}

// delta is a client of the delta protocol, without any logic of its own.
type delta struct {
	t      testing.TB
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	in     chan *discoveryv3.DeltaDiscoveryResponse
	zone   string // where it is
	hangUp func()
}

func (r *rig) delta(tb testing.TB) *delta {
	tb.Helper()
	return newDelta(tb, r.conn)
}

func newDelta(tb testing.TB, conn *grpc.ClientConn) *delta {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	d := &delta{t: tb, stream: s, in: make(chan *discoveryv3.DeltaDiscoveryResponse, 100)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(d.in)
		for {
			m, err := s.Recv()
			if err != nil {
				return
			}
			d.in <- m
		}
	}()
	d.hangUp = func() { cancel(); <-done }
	tb.Cleanup(d.hangUp)
	return d
}

func (d *delta) send(q *discoveryv3.DeltaDiscoveryRequest) {
	d.t.Helper()
	q.Node = &corev3.Node{Id: "test", Locality: &corev3.Locality{Zone: d.zone}}
	if err := d.stream.Send(q); err != nil {
		d.t.Fatal(err)
	}
}

func (d *delta) ask(k kind, names ...string) {
	d.t.Helper()
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: k.url(), ResourceNamesSubscribe: names})
}

func (d *delta) ack(m *discoveryv3.DeltaDiscoveryResponse) {
	d.t.Helper()
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce()})
}

func (d *delta) nack(m *discoveryv3.DeltaDiscoveryResponse, text string) {
	d.t.Helper()
	d.send(&discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: m.GetTypeUrl(), ResponseNonce: m.GetNonce(), ErrorDetail: status.New(codes.InvalidArgument, text).Proto(),
	})
}

// next is the next answer, which must be of the kind.
func (d *delta) next(k kind) *discoveryv3.DeltaDiscoveryResponse {
	d.t.Helper()
	m := receive(d.t, d.in)
	if got, _ := kindOf(m.GetTypeUrl()); got != k {
		d.t.Fatalf("an answer of %s came, want %s: %v", got, k, m)
	}
	return m
}

// quiet fails if anything was sent before now: whatever was is in front of the
// answer to a name that nobody knows.
func (d *delta) quiet() {
	d.t.Helper()
	d.ask(kindEndpoint, "nobody/knows")
	m := d.next(kindEndpoint)
	if got := d.names(m); !slices.Equal(got, []string{"nobody/knows"}) {
		d.t.Fatalf("%v was sent, want nothing", got)
	}
	d.ack(m)
}

func (d *delta) names(m *discoveryv3.DeltaDiscoveryResponse) []string {
	var names []string
	for _, r := range m.GetResources() {
		names = append(names, r.GetName())
	}
	return names
}

func receive[M any](tb testing.TB, in <-chan M) M {
	tb.Helper()
	select {
	case m, open := <-in:
		if !open {
			tb.Fatal("the stream ended")
		}
		return m
	case <-time.After(patience):
		tb.Fatal("no answer came")
		panic("unreachable")
	}
}

// text writes what a test cares about: hosts with their health, chains.
func text(tb testing.TB, name string, value []byte, k kind) string {
	tb.Helper()
	switch k {
	case kindCluster:
		m := unpack(tb, value, new(clusterv3.Cluster))
		return m.GetName()
	case kindListener:
		m := unpack(tb, value, new(listenerv3.Listener))
		if m.GetApiListener() != nil {
			return m.GetName() + " api"
		}
		return m.GetName() + " " + m.GetFilterChains()[0].GetName()
	default:
		m := unpack(tb, value, new(endpointv3.ClusterLoadAssignment))
		if name != "" && m.GetClusterName() != name {
			tb.Errorf("%s holds the assignment of %s", name, m.GetClusterName())
		}
		hosts := []string{poolOf(m.GetClusterName())}
		for _, l := range m.GetEndpoints() {
			for _, e := range l.GetLbEndpoints() {
				hosts = append(hosts, e.GetEndpoint().GetAddress().GetSocketAddress().GetAddress()+"="+strings.ToLower(e.GetHealthStatus().String()))
			}
		}
		return strings.Join(hosts, " ")
	}
}

func unpack[M proto.Message](tb testing.TB, value []byte, m M) M {
	tb.Helper()
	if err := proto.Unmarshal(value, m); err != nil {
		tb.Fatal(err)
	}
	return m
}

func (d *delta) texts(m *discoveryv3.DeltaDiscoveryResponse) []string {
	d.t.Helper()
	k, _ := kindOf(m.GetTypeUrl())
	texts := []string{}
	for _, r := range m.GetResources() {
		texts = append(texts, text(d.t, r.GetName(), r.GetResource().GetValue(), k))
	}
	for _, r := range m.GetRemovedResources() {
		texts = append(texts, "-"+r)
	}
	return texts
}

// versions of all that was received, for a later reconnect.
func versions(all ...*discoveryv3.DeltaDiscoveryResponse) map[string]string {
	v := make(map[string]string)
	for _, m := range all {
		for _, r := range m.GetResources() {
			v[r.GetName()] = r.GetVersion()
		}
	}
	return v
}

// onlyClusters is node metadata that names clusters, as our bootstrap has it.
func onlyClusters(tb testing.TB, names ...any) *structpb.Struct {
	tb.Helper()
	s, err := structpb.NewStruct(map[string]any{"pg": map[string]any{"clusters": names}})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// until waits for what the server does on its own.
func until(tb testing.TB, what string, reached func() bool) {
	tb.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); !reached(); {
		select {
		case <-tick.C:
		case <-end:
			tb.Fatalf("waited in vain until %s", what)
		}
	}
}

// served waits until the server holds the listener of main's write pool with
// this chain.
func (r *rig) served(tb testing.TB, chain string) {
	tb.Helper()
	until(tb, chain+" is served", func() bool {
		s := r.server.store
		s.mu.Lock()
		defer s.mu.Unlock()
		l := s.tables[kindListener].resources["main/primary"]
		return l != nil && text(tb, l.name, l.wire.GetResource().GetValue(), kindListener) == "main/primary "+chain
	})
}

// waiting waits until the server's one stream has open requests of all types.
func (r *rig) waiting(tb testing.TB) {
	tb.Helper()
	until(tb, "the requests are read", func() bool {
		s := r.server.store
		s.mu.Lock()
		defer s.mu.Unlock()
		n := kind(0)
		for st := range s.roster.streams {
			for _, u := range st.subs {
				if u != nil && u.waiting != nil {
					n++
				}
			}
		}
		return n == kinds
	})
}
