package xds

import (
	"context"
	"net"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	deltav3 "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	sotwv3 "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// served is a server that scenarios are played against.
type served interface {
	set(snap *topology.Snapshot)
	drop(cluster string)
	client() *grpc.ClientConn
}

// inMemory is a listener that a synctest bubble can wait for, and how to reach it.
func inMemory() (*bufconn.Listener, string, grpc.DialOption) {
	ln := bufconn.Listen(1 << 20)
	return ln, "passthrough:///memory", grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) })
}

// newOurs is this package's server in memory.
func newOurs(tb testing.TB) served {
	tb.Helper()
	ln, target, dial := inMemory()
	return newRigOn(tb, Options{}, ln, target, dial)
}

func (r *rig) drop(cluster string)      { r.views.Delete(cluster) }
func (r *rig) client() *grpc.ClientConn { return r.conn }

// reference is go-control-plane as its documentation has it: a LinearCache for
// each type behind a MuxCache, fed with the same resources in the order that
// suits them. It is told what changed, since it would send equal bytes again.
type reference struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	tb     testing.TB
	mux    *cachev3.MuxCache
	linear [kinds]*cachev3.LinearCache
	held   map[string][kinds]map[string]types.Resource // by cluster
	conn   *grpc.ClientConn
}

func newReference(tb testing.TB) served {
	tb.Helper()
	r := &reference{tb: tb, held: make(map[string][kinds]map[string]types.Resource)}
	r.mux = &cachev3.MuxCache{
		Classify:      func(q *cachev3.Request) string { return q.GetTypeUrl() },
		ClassifyDelta: func(q *cachev3.DeltaRequest) string { return q.GetTypeUrl() },
		Caches:        make(map[string]cachev3.Cache),
	}
	for k := range kinds {
		r.linear[k] = cachev3.NewLinearCache(k.url())
		r.mux.Caches[k.url()] = r.linear[k]
	}
	ln, target, dial := inMemory()
	g := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, r)
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(ln) }()
	conn, err := grpc.NewClient(target, dial, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		tb.Fatal(err)
	}
	r.conn = conn
	tb.Cleanup(func() { g.Stop(); <-done; _ = conn.Close() })
	return r
}

func (r *reference) client() *grpc.ClientConn { return r.conn }

func (r *reference) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return sotwv3.NewServer(g.Context(), r.mux, nil, sotwv3.WithOrderedADS()).StreamHandler(g, resourcev3.AnyType)
}

func (r *reference) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return deltav3.NewServer(g.Context(), r.mux, nil).DeltaStreamHandler(g, resourcev3.AnyType)
}

func (r *reference) set(snap *topology.Snapshot) {
	set, err := resources.Build(snap, resources.Settings{Listen: listenAnywhere})
	if err != nil {
		r.tb.Fatal(err)
	}
	next := [kinds]map[string]types.Resource{{}, {}, {}}
	for _, c := range set.Clusters {
		next[kindCluster][c.GetName()] = c
	}
	for _, e := range set.Endpoints {
		next[kindEndpoint][e.GetClusterName()] = e.ClusterLoadAssignment
	}
	for _, l := range set.Listeners { // its wildcards would list those for gRPC
		next[kindListener][l.GetName()] = l
	}
	r.change(snap.Cluster, next)
}

func (r *reference) drop(cluster string) {
	r.change(cluster, [kinds]map[string]types.Resource{})
	delete(r.held, cluster)
}

func (r *reference) change(cluster string, next [kinds]map[string]types.Resource) {
	old := r.held[cluster]
	r.held[cluster] = next
	for _, k := range []kind{kindCluster, kindEndpoint, kindListener} {
		put := make(map[string]types.Resource)
		for name, m := range next[k] {
			if was := old[k][name]; was == nil || !proto.Equal(was, m) {
				put[name] = m
			}
		}
		if len(put) > 0 {
			r.update(k, put, nil)
		}
	}
	for _, k := range []kind{kindListener, kindCluster, kindEndpoint} {
		var gone []string
		for name := range old[k] {
			if next[k][name] == nil {
				gone = append(gone, name)
			}
		}
		if len(gone) > 0 {
			r.update(k, nil, gone)
		}
	}
}

func (r *reference) update(k kind, put map[string]types.Resource, gone []string) {
	if err := r.linear[k].UpdateResources(put, gone); err != nil {
		r.tb.Fatal(err)
	}
}
