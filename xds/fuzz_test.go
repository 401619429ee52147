package xds

import (
	"context"
	"io"
	"strconv"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// scripted is a client's side of a stream that says what a text tells it to.
type scripted struct {
	grpc.ServerStream
	ctx    context.Context
	text   []byte
	before func() // something happens between two requests
	sent   atomic.Int64
}

func (s *scripted) Context() context.Context { return s.ctx }

// take reads one byte of the text, 0 at its end.
func (s *scripted) take() (b byte) {
	if len(s.text) > 0 {
		b, s.text = s.text[0], s.text[1:]
	}
	return b
}

func (s *scripted) names() (all []string) {
	known := []string{"*", "", "main/primary", "main/primary@0", "main/replica@1", "@", "/", "nobody", "main/primary@0@0", string(s.text)}
	for range s.take() % 5 {
		all = append(all, known[int(s.take())%len(known)])
	}
	return all
}

func (s *scripted) kind() string {
	all := []string{kindCluster.url(), kindEndpoint.url(), kindListener.url(), "type.googleapis.com/unknown", ""}
	return all[int(s.take())%len(all)]
}

// nonce is an old one, the last, or one that never was.
func (s *scripted) nonce() string {
	return []string{"", strconv.FormatInt(s.sent.Load(), 10), strconv.FormatInt(s.sent.Load()-1, 10), "x"}[s.take()%4]
}

func (s *scripted) node() *corev3.Node {
	if s.take()%2 == 0 {
		return nil
	}
	return &corev3.Node{Id: string(s.text)}
}

type scriptedDelta struct{ *scripted }

func (s scriptedDelta) Send(*discoveryv3.DeltaDiscoveryResponse) error { s.sent.Add(1); return nil }

func (s scriptedDelta) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	s.before()
	if len(s.text) == 0 {
		return nil, io.EOF
	}
	q := &discoveryv3.DeltaDiscoveryRequest{
		TypeUrl: s.kind(), Node: s.node(), ResponseNonce: s.nonce(),
		ResourceNamesSubscribe: s.names(), ResourceNamesUnsubscribe: s.names(),
	}
	if s.take()%4 == 0 {
		q.ErrorDetail = status.New(codes.InvalidArgument, string(s.text)).Proto()
	}
	if s.take()%4 == 0 {
		q.InitialResourceVersions = map[string]string{"main/primary": "0", string(s.text): ""}
	}
	return q, nil
}

type scriptedSotw struct{ *scripted }

func (s scriptedSotw) Send(*discoveryv3.DiscoveryResponse) error { s.sent.Add(1); return nil }

func (s scriptedSotw) Recv() (*discoveryv3.DiscoveryRequest, error) {
	s.before()
	if len(s.text) == 0 {
		return nil, io.EOF
	}
	q := &discoveryv3.DiscoveryRequest{
		TypeUrl: s.kind(), Node: s.node(), ResponseNonce: s.nonce(), ResourceNames: s.names(), VersionInfo: s.nonce(),
	}
	if s.take()%4 == 0 {
		q.ErrorDetail = status.New(codes.InvalidArgument, string(s.text)).Proto()
	}
	return q, nil
}

// FuzzRequests: whatever a client says, in whatever order with changes of what is
// served, its stream ends when it does, and nothing of it stays in the index.
func FuzzRequests(f *testing.F) {
	f.Add([]byte("a start"), true)
	f.Add([]byte{0, 1, 0, 0, 0, 1, 1, 1, 2, 3, 4, 1, 2, 1, 0, 0, 2, 0, 1, 1, 1, 1}, true)
	f.Add([]byte{1, 0, 1, 3, 3, 4, 0, 0, 1, 1, 1, 0, 1, 2, 2, 0, 1, 0, 2, 1, 1, 0, 0, 0}, false)
	f.Fuzz(func(t *testing.T, text []byte, delta bool) {
		s := New(Options{Views: new(latest.Map[string, topology.View])})
		turn := 0
		sets := [3]*encoded{nil, fuzzSet(t, up, down), fuzzSet(t, down, up)}
		s.store.apply("main", sets[1])
		s.store.start()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		c := &scripted{ctx: ctx, text: text, before: func() {
			turn++
			s.store.apply("main", sets[turn%3])
		}}
		// A refusal is a good end, too.
		if delta {
			_ = s.DeltaAggregatedResources(scriptedDelta{c})
		} else {
			_ = s.StreamAggregatedResources(scriptedSotw{c})
		}
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		if s.store.roster.open > 0 {
			t.Error("a stream that ended is still there")
		}
		for _, table := range s.store.tables {
			if len(table.asked)+len(table.names)+len(table.all) > 0 {
				t.Errorf("%s: %v, %v and %d wildcards are left in the index", table.kind, table.asked, table.names, len(table.all))
			}
		}
	})
}

func fuzzSet(t *testing.T, verdicts ...topology.Verdict) *encoded {
	t.Helper()
	return setOf(t, decision("main", 1, verdicts...), resources.Settings{})
}
