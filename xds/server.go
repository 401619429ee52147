package xds

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/config"
	deltav3 "github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"
	sotwv3 "github.com/envoyproxy/go-control-plane/pkg/server/sotw/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// A control connection that died without a word is found within 40 s on our
// side. Clients may ask as often as every 5 s whether we live; the library's
// own limit of five minutes would hang up on the bootstrap that we print.
const (
	keepaliveTime    = 30 * time.Second
	keepaliveTimeout = 10 * time.Second
	keepaliveMinimum = 5 * time.Second
)

// defaultMaxStreams is far above what one agent is meant for, and low enough
// that a client in a loop cannot take all memory.
const defaultMaxStreams = 5000

// A stream ends after this time, or for lack of an answer this much later.
const (
	defaultMaxAge = 12 * time.Hour
	ageGrace      = 2 * time.Minute
)

// Options says what to serve.
type Options struct {
	// Views is where decisions come from. Required.
	Views *latest.Map[string, topology.View]
	// Clusters names every configured cluster. Until each is decided or held, for 10 s
	// at most, nothing is answered; one that is not then is left out of answers and is
	// not removed by them. It is called after every Reconfigure, and when a cluster
	// is published first or removed. Nil: those in Views, of which there must be one.
	Clusters func() []string
	// Settings of what is served.
	Settings Settings
	// Memory keeps which listeners stand over a restart. Nil: nothing does.
	Memory Memory
	// Now reads the clocks. Nil: the system's.
	Now topology.Ticker
	// Logger; nil discards.
	Logger *slog.Logger
	// MaxStreams bounds the open streams; more are refused. Zero: 5,000.
	MaxStreams int
	// MaxAge ends a stream gracefully, give or take a tenth, so that Envoys spread
	// anew over several agents; they come back at once and are sent nothing that they
	// have. Zero: 12 h.
	MaxAge time.Duration
	// TLS serves encrypted, with what the configuration demands of clients. Nil:
	// in the clear, for Envoys on the same host.
	TLS *tls.Config
	// Files is a folder into which everything is written too, for Envoys that read
	// files instead of subscribing. Empty: none.
	Files string
	// AnyNode lets a client with a certificate claim any node id. Otherwise the id
	// must be a name in it, and a stream that claims another one ends.
	AnyNode bool
}

// Settings may change while the server runs, see Reconfigure.
type Settings struct {
	// Settings of the resources. Standing and Leaving are the server's own to set.
	resources.Settings
	// Release is the operator's word that listeners may change: with every other
	// text those that differ from what stands are served, and end their sessions.
	Release string
}

// Server serves Envoys. Make one with New.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	o         Options
	log       *slog.Logger
	store     *store
	ledger    ledger
	publisher *publisher
	alive     keepalive.ServerParameters
}

// New prepares a server; it serves once Run is called.
func New(o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = topology.NewTicker(time.Now)
	}
	if o.MaxAge == 0 {
		o.MaxAge = defaultMaxAge
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = defaultMaxStreams
	}
	if o.Clusters == nil {
		o.Clusters = o.Views.Keys
	}
	s := &Server{o: o, log: o.Logger, store: newStore()}
	s.publisher = newPublisher(o, s.store)
	s.alive = keepalive.ServerParameters{
		Time: keepaliveTime, Timeout: keepaliveTimeout,
		MaxConnectionAge: o.MaxAge, MaxConnectionAgeGrace: ageGrace, // gRPC adds the jitter
	}
	return s
}

// Reconfigure takes other settings and serves by them at once, to the streams
// that stand. It may be called at any time, by one goroutine.
func (s *Server) Reconfigure(settings Settings) {
	select {
	case <-s.publisher.changed: // an older one that was not taken yet
	default:
	}
	s.publisher.changed <- settings
}

// Run serves on ln until ctx ends, and closes ln. Envoys keep their
// configuration and all sessions when it returns. It returns nil at the end of
// ctx, else why the listener failed. It may be called once.
func (s *Server) Run(ctx context.Context, ln net.Listener) error {
	g := grpc.NewServer(s.grpcOptions()...)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(g, s)
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before the wait: a listener that failed ends the rest too
	saving, saved := context.WithCancel(context.WithoutCancel(ctx))
	wg.Go(func() {
		defer saved() // after its last word, which is saved too
		s.publisher.run(ctx)
	})
	wg.Go(func() { s.publisher.hold.run(saving) })
	if s.publisher.files != nil {
		wg.Go(func() { s.publisher.files.run(saving) })
	}
	wg.Go(func() {
		<-ctx.Done()
		g.Stop()
	})
	err := g.Serve(ln)
	if ctx.Err() != nil || errors.Is(err, grpc.ErrServerStopped) {
		return nil
	}
	return fmt.Errorf("serving Envoys on %s: %w; Envoys keep what they have", ln.Addr(), err)
}

func (s *Server) grpcOptions() []grpc.ServerOption {
	all := []grpc.ServerOption{
		grpc.KeepaliveParams(s.alive),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinimum, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
	}
	if s.o.TLS != nil {
		all = append(all, grpc.Creds(credentials.NewTLS(s.o.TLS)))
	}
	return all
}

// DeltaAggregatedResources serves one delta stream.
func (s *Server) DeltaAggregatedResources(g discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	st, err := s.accept(g.Context(), "delta")
	if err != nil {
		return err
	}
	defer st.close()
	return deltav3.NewServer(g.Context(), st, st, endpointsByName()).DeltaStreamHandler(g, resourcev3.AnyType)
}

// StreamAggregatedResources serves one state-of-the-world stream.
func (s *Server) StreamAggregatedResources(g discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	st, err := s.accept(g.Context(), "sotw")
	if err != nil {
		return err
	}
	defer st.close()
	return sotwv3.NewServer(g.Context(), st, st, sotwv3.WithOrderedADS(), endpointsByName()).StreamHandler(g, resourcev3.AnyType)
}

// endpointsByName makes a request for endpoints without names mean none, not all: that is
// what a client sends whose last cluster went away.
func endpointsByName() config.XDSOption {
	return config.DeactivateLegacyWildcardForTypes([]string{resourcev3.EndpointType})
}

// accept registers a stream, unless there are too many.
func (s *Server) accept(ctx context.Context, protocol string) (*stream, error) {
	from := ""
	st := &stream{store: s.store, log: s.log}
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr.String()
		if !s.o.AnyNode {
			st.certified = certified(p)
		}
	}
	st.notes = newNotes(&s.ledger, s.o.Now, protocol, from)
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if s.store.roster.open >= s.o.MaxStreams {
		s.ledger.rejected.Add(1)
		return nil, status.Errorf(codes.ResourceExhausted,
			"this agent serves %d streams and takes no more; try another agent", s.o.MaxStreams)
	}
	s.store.roster.enter(st)
	return st, nil
}
