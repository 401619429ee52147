package xds

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// The reports of other control planes' users that no other test here repeats; the
// table is in docs/envoy.md.

// TestParkedSubsetIsAnsweredLater: who asks for two names is told of one of them
// after a third was published (kgateway#14688, grpc-go#5131).
func TestParkedSubsetIsAnsweredLater(t *testing.T) {
	r := newRig(t, Options{})
	r.set(decision("a", 1, up, down, down))
	d := r.delta(t)
	d.ask(kindEndpoint, "a/primary@0", "b/primary@0")
	d.ack(d.next(kindEndpoint))
	r.set(decision("c", 1, up, down, down))
	d.quiet()
	r.set(decision("a", 2, down, up, down))
	m := d.next(kindEndpoint)
	same(t, "endpoints", []string{"a/primary 10.0.0.2=healthy"}, d.texts(m))
}

// TestChangedClusterIsAnsweredAtOnce: a changed cluster asks for its endpoints by
// another name and has them in the same round; nothing warms until a timeout
// (envoy#31535, go-control-plane#583).
func TestChangedClusterIsAnsweredAtOnce(t *testing.T) {
	for _, protocol := range []string{"delta", "sotw"} {
		t.Run(protocol, func(t *testing.T) {
			r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
			r.set(snap)
			old := endpointsOf(t, snap, "primary")
			slower := Settings{Settings: resources.Settings{Listen: listenAnywhere, ConnectTimeout: 3 * time.Second}}
			set, err := resources.Build(snap, slower.Settings)
			if err != nil {
				t.Fatal(err)
			}
			name := set.Clusters[0].GetEdsClusterConfig().GetServiceName()
			want := []string{"main/primary 10.0.0.1=healthy"}
			if protocol == "delta" {
				d := r.delta(t)
				d.subscribe(old)
				r.server.Reconfigure(slower)
				d.ack(d.next(kindCluster))
				d.ask(kindEndpoint, name)
				same(t, "endpoints", want, d.texts(d.next(kindEndpoint)))
				return
			}
			c := r.sotw(t)
			all := c.subscribe(old)
			r.server.Reconfigure(slower)
			c.ack(c.next(kindCluster))
			m := all[kindEndpoint]
			c.ack(m, name)
			same(t, "endpoints", want, c.texts(c.next(kindEndpoint)))
		})
	}
}

// TestNothingAfterUnsubscribe: a name that was given up is not sent any more
// (go-control-plane#1498).
func TestNothingAfterUnsubscribe(t *testing.T) {
	r := newRig(t, Options{})
	r.set(decision("main", 1, up, down, down))
	d := r.delta(t)
	d.ask(kindEndpoint, "main/primary@0", "main/replica@0")
	m := d.next(kindEndpoint)
	d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: kindEndpoint.url(), ResponseNonce: m.GetNonce(), ResourceNamesUnsubscribe: []string{"main/primary@0"}})
	d.quiet() // the unsubscription was read
	r.set(decision("main", 2, down, up, down))
	same(t, "endpoints", []string{"main/replica 10.0.0.1=healthy 10.0.0.3=healthy"}, d.texts(d.next(kindEndpoint)))
}

// TestOnlyWhatChangedIsSent: a replica that comes and goes costs no byte of
// clusters or listeners (envoy#46383).
func TestOnlyWhatChangedIsSent(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	d.subscribe(endpointsOf(t, snap, "primary"), endpointsOf(t, snap, "replica"))
	for i := range 20 {
		v := decision("main", uint64(i)+2, up, down, down)
		v.Pools[1].Nodes[2].Verdict = []topology.Verdict{down, up}[i%2]
		r.set(v)
		d.ack(d.next(kindEndpoint))
	}
	for _, ty := range r.server.Status().Streams[0].Types {
		if want := map[string]uint64{"CDS": 1, "EDS": 21, "LDS": 1}[ty.Type]; ty.Sent != want {
			t.Errorf("%d answers of %s, want %d", ty.Sent, ty.Type, want)
		}
	}
}

// TestEachNameInItsOwnRequest: an Envoy at its start asks for thousands of names
// one by one (envoy#11267).
func TestEachNameInItsOwnRequest(t *testing.T) {
	const names = 5000
	r := newRig(t, Options{})
	r.set(decision("main", 1, up, down, down))
	d := r.delta(t)
	start, got := time.Now(), make(map[string]bool)
	var wg sync.WaitGroup
	wg.Go(func() { // as Envoy does: it reads and writes at the same time
		for i := range names {
			d.ask(kindEndpoint, fmt.Sprintf("c%d/primary@0", i))
		}
	})
	for len(got) < names {
		for _, n := range d.names(d.next(kindEndpoint)) {
			got[n] = true
		}
	}
	wg.Wait()
	t.Logf("%d names in %s", names, time.Since(start))
}

// TestSlowReaderLagsAlone: one client that reads nothing delays no other, and has
// the newest state alone once it reads.
func TestSlowReaderLagsAlone(t *testing.T) {
	r := newRig(t, Options{})
	r.set(decision("main", 1, up, down, down))
	slow, quick := r.delta(t), r.delta(t)
	for _, d := range []*delta{slow, quick} {
		d.ask(kindEndpoint, "main/primary@0")
	}
	held := slow.next(kindEndpoint) // and not acknowledged
	quick.ack(quick.next(kindEndpoint))
	verdicts := [][]topology.Verdict{{down, up, down}, {up, down, down}}
	for i := range 200 {
		r.set(decision("main", uint64(i)+2, verdicts[i%2]...))
		quick.ack(quick.next(kindEndpoint))
	}
	if len(slow.in) > 0 {
		t.Errorf("%d answers wait for a client that has not acknowledged the first", len(slow.in))
	}
	r.set(decision("main", 300, down, down, up))
	quick.ack(quick.next(kindEndpoint))
	slow.ack(held)
	same(t, "endpoints", []string{"main/primary 10.0.0.3=healthy"}, slow.texts(slow.next(kindEndpoint)))
	slow.ask(kindEndpoint, "main/primary@0")
}

// TestStreamsAreBounded: one too many is refused with a reason, counted, and let
// in when another has gone.
func TestStreamsAreBounded(t *testing.T) {
	r := newRig(t, Options{MaxStreams: 1})
	r.set(decision("main", 1, up, down, down))
	first := r.delta(t)
	first.ask(kindCluster)
	first.next(kindCluster)
	second := r.delta(t)
	if _, open := <-second.in; open {
		t.Fatal("a stream above the bound is answered")
	}
	if _, err := second.stream.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the second stream ends with %v", err)
	}
	same(t, "rejected", uint64(1), r.server.Status().Rejected)
	_ = first.stream.CloseSend()
	until(t, "the first has gone", func() bool { return len(r.server.Status().Streams) == 0 })
	third := r.delta(t)
	third.ask(kindCluster)
	third.next(kindCluster)
}

// TestStreamsEndByAge: a stream that is well ends, so that its client may go to another
// agent; after half a day if nothing else is said.
func TestStreamsEndByAge(t *testing.T) {
	r := newRig(t, Options{MaxAge: 500 * time.Millisecond})
	r.set(decision("main", 1, up, down, down))
	d := r.delta(t)
	d.ask(kindCluster)
	d.ack(d.next(kindCluster))
	select {
	case _, open := <-d.in:
		if open {
			t.Error("an answer came, want the end")
		}
	case <-time.After(patience):
		t.Error("the stream goes on")
	}
	same(t, "age", 12*time.Hour, New(Options{Views: r.views}).alive.MaxConnectionAge)
}

// TestHalfOpenStreamEnds: a client whose packets vanish is gone after the
// keepalive's time (envoy#21107).
func TestHalfOpenStreamEnds(t *testing.T) {
	r := newRig(t, Options{})
	r.set(decision("main", 1, up, down, down))
	at, freeze := newLink(t, r.addr)
	conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	far := &rig{conn: conn}
	d := far.delta(t)
	d.ask(kindCluster)
	d.next(kindCluster)
	same(t, "streams", 1, len(r.server.Status().Streams))
	freeze()
	until(t, "the stream has gone", func() bool { return len(r.server.Status().Streams) == 0 })
}

// newLink passes connections on to an address until it is frozen; it then keeps
// them open and passes nothing.
func newLink(t *testing.T, to string) (at string, freeze func()) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var frozen atomic.Bool
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	pass := func(dst io.Writer, src io.Reader) {
		b := make([]byte, 4096)
		for {
			n, err := src.Read(b)
			if err != nil {
				return
			}
			if !frozen.Load() {
				_, _ = dst.Write(b[:n])
			}
		}
	}
	wg.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			context.AfterFunc(ctx, func() { _ = near.Close(); _ = far.Close() })
			wg.Go(func() { pass(far, near) })
			wg.Go(func() { pass(near, far) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); cancel(); wg.Wait() })
	return ln.Addr().String(), func() { frozen.Store(true) }
}

// TestConnectsLeaveNothingBehind: after 10,000 streams of both protocols, some of
// which left in the middle of an answer, goroutines, memory and the index are what
// they were (go-control-plane#570, #1298).
func TestConnectsLeaveNothingBehind(t *testing.T) {
	const streams, at = 10_000, 8
	r := newRig(t, Options{})
	r.set(decision("main", 1, up, down, down))
	visit := func(i int) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		client := discoveryv3.NewAggregatedDiscoveryServiceClient(r.conn)
		names := []string{fmt.Sprintf("c%d/primary@0", i%100), "main/primary@0"}
		if i%2 == 0 {
			s, err := client.DeltaAggregatedResources(ctx)
			if err == nil {
				err = s.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: kindEndpoint.url(), ResourceNamesSubscribe: names})
			}
			if err == nil && i%4 == 0 {
				_, err = s.Recv()
			}
			if err != nil {
				t.Error(err)
			}
			return
		}
		s, err := client.StreamAggregatedResources(ctx)
		if err == nil {
			err = s.Send(&discoveryv3.DiscoveryRequest{TypeUrl: kindEndpoint.url(), ResourceNames: names})
		}
		if err == nil && i%4 == 1 {
			_, err = s.Recv()
		}
		if err != nil {
			t.Error(err)
		}
	}
	visit(0)
	settled := func() { until(t, "all have gone", func() bool { return len(r.server.Status().Streams) == 0 }) }
	settled()
	goroutines, heap := runtime.NumGoroutine(), heapNow()
	var wg sync.WaitGroup
	for w := range at {
		wg.Go(func() {
			for i := w; i < streams; i += at {
				visit(i)
			}
		})
	}
	wg.Wait()
	settled()
	until(t, "the goroutines have gone", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
	s := r.server.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, table := range s.tables {
		if len(table.asked)+len(table.names)+len(table.all) > 0 {
			t.Errorf("%s: %d names, %d pools and %d wildcards are left in the index", table.kind, len(table.asked), len(table.names), len(table.all))
		}
	}
	if now := heapNow(); now > heap+8<<20 {
		t.Errorf("the heap went from %d to %d bytes", heap, now)
	}
}

func heapNow() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestOrderOfMixedUpdates: over 1,000 changes of everything, a cluster comes
// before its listener and goes after it, and new endpoints come before the renamed
// listener (go-control-plane#526, #800).
// TestOrderWithAChangedCluster: when a cluster changes together with its writer, its
// endpoints have another name. A client that has not heard of that yet is given the new
// endpoints under the old name before the listener ends the sessions of the old writer;
// they would all come back to that one.
func TestOrderWithAChangedCluster(t *testing.T) {
	r, snap := newRig(t, Options{}), decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	old := endpointsOf(t, snap, "primary")
	d.subscribe(old)
	d.quiet()
	r.waiting(t)
	set, err := resources.Build(decision("main", 2, down, up, down), resources.Settings{Listen: listenAnywhere, ConnectTimeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	next, err := encode(set)
	if err != nil {
		t.Fatal(err)
	}
	r.server.store.apply("main", next)
	at := ""
	for range 6 {
		m := receive(t, d.in)
		texts := d.texts(m)
		if k, _ := kindOf(m.GetTypeUrl()); k == kindEndpoint {
			at = texts[0]
		} else if k == kindListener {
			if at != "main/primary 10.0.0.2=healthy" {
				t.Errorf("the listener %s comes while the client has the endpoints %q", texts, at)
			}
			return
		}
		d.ack(m)
	}
	t.Error("no listener came")
}

func TestOrderOfMixedUpdates(t *testing.T) {
	r := newRig(t, Options{})
	snap := decision("main", 1, up, down, down)
	r.set(snap)
	d := r.delta(t)
	d.subscribe(endpointsOf(t, snap, "primary"))
	clusters, listeners := map[string]bool{"main/primary": true, "main/replica": true}, map[string]bool{}
	writer, chain := "10.0.0.1", ""
	note := func(m *discoveryv3.DeltaDiscoveryResponse) {
		for _, text := range d.texts(m) {
			name, rest, _ := strings.Cut(strings.TrimPrefix(text, "-"), " ")
			switch k, _ := kindOf(m.GetTypeUrl()); {
			case k == kindCluster && text[0] == '-':
				if listeners[name] {
					t.Fatalf("cluster %s went before its listener", name)
				}
				delete(clusters, name)
			case k == kindCluster:
				clusters[name] = true
			case k == kindListener && text[0] == '-':
				delete(listeners, name)
			case k == kindListener:
				if !clusters[name] {
					t.Fatalf("listener %s came before its cluster", name)
				}
				if name == "main/primary" && rest != map[string]string{"10.0.0.1": "writer/n1", "10.0.0.2": "writer/n2"}[writer] {
					t.Fatalf("the listener is %s while the endpoints are %s", rest, writer)
				}
				listeners[name] = true
				if name == "main/primary" {
					chain = rest
				}
			case name == "main/primary":
				writer, _, _ = strings.Cut(rest, "=")
			}
		}
		d.ack(m)
	}
	reach := func(what string, reached func() bool) {
		t.Helper()
		for end := time.Now().Add(patience); !reached(); note(receive(t, d.in)) {
			if time.Now().After(end) {
				t.Fatalf("never %s", what)
			}
		}
	}
	verdicts := [][]topology.Verdict{{down, up, down}, {up, down, down}}
	for i := range 1000 {
		switch i % 4 {
		case 0:
			r.set(decision("beta", uint64(i), up, down, down))
			reach("beta", func() bool { return listeners["beta/primary"] && listeners["beta/replica"] })
		case 2:
			r.views.Delete("beta")
			reach("beta's end", func() bool { return !clusters["beta/primary"] && !clusters["beta/replica"] })
		default:
			r.set(decision("main", uint64(i)+2, verdicts[(i/2)%2]...))
			reach("the other writer", func() bool { return chain == []string{"writer/n2", "writer/n1"}[(i/2)%2] })
		}
	}
}
