// Package grpctest tests the server for Envoys with gRPC's own xDS client, which
// refuses what Envoy lets pass: gaps in priorities, an address twice, a locality
// that is missing or has no weight, a policy or a transport socket of Envoy's own.
package grpctest

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	grpcxds "google.golang.org/grpc/xds"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds"
	"github.com/pgsteer/pgsteer/xds/resources"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what must come; nothing waits that long when all is well.
const patience = 20 * time.Second

const up, drain, down = topology.Up, topology.Drain, topology.Down

// rig is a server for Envoys, three nodes with a server in gRPC beside each, and
// a client of theirs.
type rig struct {
	t      *testing.T
	views  *latest.Map[string, topology.View]
	server *xds.Server
	nodes  []topology.Address
	zones  [3]string // of the nodes; the client is in a
	build  []grpc.DialOption
	turn   uint64
}

func newRig(t *testing.T, settings resources.Settings) *rig {
	t.Helper()
	r := &rig{t: t, views: new(latest.Map[string, topology.View])}
	r.server = xds.New(xds.Options{Views: r.views, Settings: xds.Settings{Settings: settings}})
	ctx, cancel := context.WithCancel(context.Background())
	ln, done := listen(t), make(chan error, 1)
	go func() { done <- r.server.Run(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for range 3 {
		r.nodes = append(r.nodes, newBackend(t))
	}
	resolver, err := grpcxds.NewXDSResolverWithConfigForTesting(fmt.Appendf(nil,
		`{"xds_servers": [{"server_uri": %q, "channel_creds": [{"type": "insecure"}], "server_features": ["xds_v3"]}], "node": {"id": "app", "locality": {"zone": "a"}}}`, ln.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	r.build = []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithResolvers(resolver)}
	return r
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// newBackend is a server in gRPC.
func newBackend(t *testing.T) topology.Address {
	t.Helper()
	ln := listen(t)
	g := grpc.NewServer(grpc.WaitForHandlers(true))
	healthpb.RegisterHealthServer(g, health.NewServer())
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Serve(ln) }()
	t.Cleanup(func() { g.Stop(); <-done })
	a, err := topology.ParseAddress(ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// decide publishes verdicts of both pools by node.
func (r *rig) decide(writes, reads [3]topology.Verdict) {
	r.turn++
	snap := &topology.Snapshot{Cluster: "main", Generation: r.turn, Urgent: r.turn, Complete: true}
	for i, zone := range r.zones {
		snap.Nodes = append(snap.Nodes, topology.Node{Name: fmt.Sprintf("n%d", i+1), Address: r.nodes[i], Tags: map[string]string{topology.TagZone: zone}})
	}
	for name, verdicts := range map[string][3]topology.Verdict{"primary": writes, "replica": reads} {
		p := topology.PoolVerdicts{Pool: name, Mode: topology.ModeWrite}
		if name == "replica" {
			p.Mode = topology.ModeRead
		}
		for i, v := range verdicts {
			p.Nodes = append(p.Nodes, topology.NodeVerdict{Node: fmt.Sprintf("n%d", i+1), Address: r.nodes[i], Verdict: v, Weight: 100})
		}
		snap.Pools = append(snap.Pools, p)
	}
	r.views.Set("main", &topology.View{Snapshot: snap, ValidUntil: topology.Mono(time.Hour)})
}

// client of a pool, by the name that the manual has.
func (r *rig) client(pool string) *client {
	r.t.Helper()
	conn, err := grpc.NewClient("xds:///"+resources.APIName("main", pool), r.build...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = conn.Close() })
	return &client{r: r, conn: conn}
}

type client struct {
	r    *rig
	conn *grpc.ClientConn
}

// call makes one call and returns the node that answered.
func (c *client) call() (string, error) {
	ctx, cancel := context.WithTimeout(c.r.t.Context(), patience)
	defer cancel()
	var p peer.Peer
	if _, err := healthpb.NewHealthClient(c.conn).Check(ctx, new(healthpb.HealthCheckRequest), grpc.Peer(&p)); err != nil {
		return "", err
	}
	for i, a := range c.r.nodes {
		if a.String() == p.Addr.String() {
			return fmt.Sprintf("n%d", i+1), nil
		}
	}
	return "", fmt.Errorf("%s is no node", p.Addr)
}

// reaches waits until calls are answered by exactly these nodes, none for no
// answer at all, and returns how long that took.
func (c *client) reaches(want ...string) time.Duration {
	c.r.t.Helper()
	start := time.Now()
	for time.Since(start) < patience {
		took := time.Since(start)
		got := make(map[string]bool)
		for range 20 {
			node, err := c.call()
			if err != nil && status.Code(err) != codes.Unavailable {
				c.r.t.Fatal(err)
			}
			if err == nil {
				got[node] = true
			}
		}
		if slices.Equal(slices.Sorted(maps.Keys(got)), want) {
			return took
		}
	}
	c.r.t.Fatalf("calls never went to %v alone; refused: %v", want, c.r.server.Status())
	return 0
}

// pleased fails if the client refused anything.
func (r *rig) pleased() {
	r.t.Helper()
	s := r.server.Status()
	if want := map[string]uint64{"CDS": 0, "EDS": 0, "LDS": 0}; !maps.Equal(s.Refused, want) {
		r.t.Errorf("gRPC refused %v: %+v", s.Refused, s.Streams)
	}
	if len(s.Streams) == 0 {
		r.t.Error("no client is subscribed")
	}
}

// TestFollowsWriter: a client finds the writer by the pool's name, follows it, and
// has nobody while there is none or while it drains.
func TestFollowsWriter(t *testing.T) {
	r := newRig(t, resources.Settings{})
	r.decide([3]topology.Verdict{up, down, down}, [3]topology.Verdict{down, up, up})
	c := r.client("primary")
	c.reaches("n1")
	r.decide([3]topology.Verdict{down, up, down}, [3]topology.Verdict{up, down, up})
	t.Logf("calls went to the new writer after %s", c.reaches("n2"))
	r.decide([3]topology.Verdict{down, drain, down}, [3]topology.Verdict{up, down, up})
	c.reaches()
	r.decide([3]topology.Verdict{down, up, down}, [3]topology.Verdict{up, down, up})
	c.reaches("n2")
	r.decide([3]topology.Verdict{down, down, down}, [3]topology.Verdict{up, down, up})
	c.reaches()
	r.decide([3]topology.Verdict{down, down, up}, [3]topology.Verdict{up, up, down})
	c.reaches("n3")
	r.pleased()
}

// TestReads: calls of a read pool go to all that are up, and to no other.
func TestReads(t *testing.T) {
	r := newRig(t, resources.Settings{})
	r.decide([3]topology.Verdict{up, down, down}, [3]topology.Verdict{drain, up, up})
	c := r.client("replica")
	c.reaches("n2", "n3")
	r.decide([3]topology.Verdict{up, down, down}, [3]topology.Verdict{drain, drain, up})
	c.reaches("n3")
	r.decide([3]topology.Verdict{up, down, down}, [3]topology.Verdict{up, down, down}) // the fallback
	c.reaches("n1")
	r.pleased()
}

// TestZone: a client's own zone serves alone while a node of it is up.
func TestZone(t *testing.T) {
	r := newRig(t, resources.Settings{})
	r.zones = [3]string{"a", "b", "b"}
	r.decide([3]topology.Verdict{up, down, down}, [3]topology.Verdict{up, up, up})
	c := r.client("replica")
	c.reaches("n1")
	for _, away := range []topology.Verdict{drain, down} {
		r.decide([3]topology.Verdict{up, down, down}, [3]topology.Verdict{away, up, up})
		c.reaches("n2", "n3")
		r.decide([3]topology.Verdict{up, down, down}, [3]topology.Verdict{up, up, up})
		c.reaches("n1")
	}
	r.pleased()
}

// TestOneAddressOnce: gRPC refuses an address that is listed twice.
func TestOneAddressOnce(t *testing.T) {
	r := newRig(t, resources.Settings{})
	r.nodes[2] = r.nodes[1]
	r.decide([3]topology.Verdict{up, down, down}, [3]topology.Verdict{up, up, up})
	r.client("replica").reaches("n1", "n2")
	r.pleased()
}

// TestPleasesInEveryMode: what an operator chooses for Envoy's sessions, its checks
// and its TLS to the nodes among them, changes nothing for gRPC.
func TestPleasesInEveryMode(t *testing.T) {
	for _, mode := range []resources.Sessions{resources.SessionsDrain, resources.SessionsHealthCheck, resources.SessionsKeep} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t, resources.Settings{
				Sessions:  func(string, string) resources.Sessions { return mode },
				Check:     resources.Check{Address: topology.Address{Host: "127.0.0.1", Port: 7432}},
				ServerTLS: resources.ServerTLS{CA: "certificates"},
				Listen: func(string, string) (topology.Address, bool) {
					return topology.Address{Host: "127.0.0.1", Port: 6432}, true
				},
			})
			r.decide([3]topology.Verdict{up, down, down}, [3]topology.Verdict{down, up, up})
			w, reads := r.client("primary"), r.client("replica")
			w.reaches("n1")
			reads.reaches("n2", "n3")
			r.decide([3]topology.Verdict{down, up, down}, [3]topology.Verdict{up, down, up})
			w.reaches("n2")
			reads.reaches("n1", "n3")
			r.pleased()
		})
	}
}

// TestPlainListenerIsNotForIt: the listener of Envoy's sessions is another
// resource, which gRPC does not take for its own.
func TestPlainListenerIsNotForIt(t *testing.T) {
	r := newRig(t, resources.Settings{Listen: func(string, string) (topology.Address, bool) {
		return topology.Address{Host: "127.0.0.1", Port: 6432}, true
	}})
	r.decide([3]topology.Verdict{up, down, down}, [3]topology.Verdict{down, up, up})
	conn, err := grpc.NewClient("xds:///"+resources.Name("main", "primary"), r.build...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if node, err := (&client{r: r, conn: conn}).call(); status.Code(err) != codes.Unavailable {
		t.Errorf("a call was answered by %q (%v)", node, err)
	}
}
