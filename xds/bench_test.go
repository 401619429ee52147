package xds

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/pkg/server/stream/v3"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/xds/resources"
)

const benchStreams = 1000

// BenchmarkEndpointChange moves one cluster's writer under 1,000 delta streams
// over real gRPC, client and server in this process, and reports how long a
// stream took to have the new endpoints, and what a stream costs in memory, the
// client's part included. The time must depend neither on the number of clusters
// nor on how many of them a stream has asked for.
func BenchmarkEndpointChange(b *testing.B) {
	for _, c := range []struct{ clusters, asked int }{{100, 10}, {5000, 10}, {5000, 5000}} {
		b.Run(fmt.Sprintf("streams=%d/clusters=%d/asked=%d", benchStreams, c.clusters, c.asked), func(b *testing.B) { endpointChange(b, c.clusters, c.asked) })
	}
}

func endpointChange(b *testing.B, clusters, asked int) {
	r := newRig(b, Options{Now: topology.NewTicker(time.Now)})
	for i := range clusters {
		r.set(decision(fmt.Sprintf("c%04d", i), 1, up, down, down))
	}
	until(b, "all is stored", func() bool {
		r.server.store.mu.Lock()
		defer r.server.store.mu.Unlock()
		return len(r.server.store.current) == clusters
	})
	var names []string // the changed cluster's among them
	for i := range asked {
		names = append(names, endpointsOf(b, decision(fmt.Sprintf("c%04d", i), 1, up, down, down), "primary"))
	}
	before := heapNow()
	streams := make([]*delta, benchStreams)
	for i := range streams {
		streams[i] = r.delta(b)
		streams[i].ask(kindEndpoint, names...)
		streams[i].ack(streams[i].next(kindEndpoint))
	}
	each := float64(heapNow()-before) / benchStreams / 1024
	var took, last []time.Duration // of every stream, and of the last at each change
	used := labtest.CPU(b)
	for i := 0; b.Loop(); i++ {
		verdicts := []topology.Verdict{down, up, down}
		if i%2 == 1 {
			verdicts = []topology.Verdict{up, down, down}
		}
		each := change(r, streams, decision("c0000", uint64(i)+2, verdicts...))
		took, last = append(took, each...), append(last, slices.Max(each))
	}
	used = labtest.CPU(b) - used
	slices.Sort(took)
	slices.Sort(last)
	b.ReportMetric(ms(used)/float64(len(last)), "cpu-ms/op") // steadier than the rest on a busy machine
	b.ReportMetric(ms(last[len(last)/2]), "last-p50-ms")
	b.ReportMetric(each, "KiB/stream") // of client and server together
	b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
	b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
	b.ReportMetric(ms(took[len(took)-1]), "max-ms")
}

// change publishes a decision and returns when each stream had it.
func change(r *rig, streams []*delta, snap *topology.Snapshot) []time.Duration {
	took := make([]time.Duration, len(streams))
	start := time.Now()
	r.set(snap)
	var wg sync.WaitGroup
	for i, d := range streams {
		wg.Go(func() {
			m := d.next(kindEndpoint)
			took[i] = time.Since(start)
			d.ack(m)
		})
	}
	wg.Wait()
	return took
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkApply is the time for which a change holds the store, with 1,000
// streams that have all subscribed to every one of 5,000 names, beside that of the
// library's caches, which a change holds up likewise.
func BenchmarkApply(b *testing.B) {
	b.Run("cache=pgsteer", applyOurs)
	b.Run("cache=linear", applyLinear)
	b.Run("cache=snapshot", applySnapshot)
}

const benchClusters = 5000

func applyOurs(b *testing.B) {
	s := newStore()
	var names []string
	for i := range benchClusters {
		cluster := fmt.Sprintf("c%04d", i)
		set := benchSet(b, cluster, up, down)
		for name := range set[kindEndpoint] {
			if !named(name) {
				names = append(names, name)
			}
		}
		s.apply(cluster, set)
	}
	sets := [2]*encoded{benchSet(b, "c0000", up, down), benchSet(b, "c0000", down, up)}
	s.start()
	outs := make([]chan cachev3.DeltaResponse, benchStreams)
	acks := make([]func(), benchStreams)
	for i := range outs {
		outs[i], acks[i] = benchStream(b, s, names)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s.apply("c0000", sets[(i+1)%2])
		b.StopTimer()
		for j := range outs {
			<-outs[j]
			acks[j]()
		}
		b.StartTimer()
	}
}

// benchSet is one cluster with a write pool alone.
func benchSet(b *testing.B, cluster string, verdicts ...topology.Verdict) *encoded {
	b.Helper()
	snap := decision(cluster, 1, verdicts...)
	snap.Pools = snap.Pools[:1]
	set, err := resources.Build(snap, resources.Settings{})
	if err != nil {
		b.Fatal(err)
	}
	e, err := encode(set)
	if err != nil {
		b.Fatal(err)
	}
	return e
}

func benchStream(b *testing.B, s *store, names []string) (chan cachev3.DeltaResponse, func()) {
	b.Helper()
	st := &stream{store: s, notes: newNotes(new(ledger), topology.NewTicker(time.Now), "delta", "")}
	s.roster.enter(st)
	out := make(chan cachev3.DeltaResponse, 10)
	sub := streamv3.NewDeltaSubscription(names, nil, nil, false)
	watch := func(subscribe []string) {
		req := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: kindEndpoint.url(), ResourceNamesSubscribe: subscribe}
		if err := st.OnStreamDeltaRequest(0, req); err != nil {
			b.Fatal(err)
		}
		if _, err := st.CreateDeltaWatch(req, sub, out); err != nil {
			b.Fatal(err)
		}
	}
	watch(names)
	<-out
	watch(nil)
	return out, func() { watch(nil) }
}

// BenchmarkPublish is what it takes from a decision to the store with what the agent
// has: listeners are held, and kept over restarts. It must not depend on the number of
// clusters.
func BenchmarkPublish(b *testing.B) {
	for _, clusters := range []int{100, 5000} {
		b.Run(fmt.Sprintf("clusters=%d", clusters), func(b *testing.B) {
			p, decide := manyPublished(b, clusters, Options{Memory: new(memory)})
			ctx, stop := context.WithCancel(b.Context())
			saved := make(chan struct{})
			go func() { defer close(saved); p.hold.run(ctx) }()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				verdicts := []topology.Verdict{down, up, down}
				if i%2 == 1 {
					verdicts = []topology.Verdict{up, down, down}
				}
				decide("c0000", uint64(i)+2, verdicts...)
			}
			stop()
			<-saved
		})
	}
}

// BenchmarkFiles is a change until its files are in place, synced, with real disks: of the
// endpoints of one pool, which must not depend on the number of clusters, and of a writer,
// for which Envoy wants the file of all listeners.
func BenchmarkFiles(b *testing.B) {
	for _, clusters := range []int{100, 1000} {
		for _, c := range []struct {
			change string
			next   []topology.Verdict
		}{{"endpoints", []topology.Verdict{drain, down, down}}, {"writer", []topology.Verdict{down, up, down}}} {
			b.Run(fmt.Sprintf("change=%s/clusters=%d", c.change, clusters), func(b *testing.B) {
				f := newFiles(b.TempDir(), slog.New(slog.DiscardHandler))
				sets := make(map[string]*encoded)
				for i := range clusters {
					name := fmt.Sprintf("c%04d", i)
					sets[name] = setOf(b, decision(name, 1, up, down, down), resources.Settings{})
				}
				changing := [2]*encoded{setOf(b, decision("c0000", 1, c.next...), resources.Settings{}), sets["c0000"]}
				f.put(sets, nil)
				write(b, f)
				used := labtest.CPU(b)
				b.ReportAllocs()
				n := 0
				for ; b.Loop(); n++ {
					f.put(map[string]*encoded{"c0000": changing[n%2]}, nil)
					write(b, f)
				}
				b.ReportMetric(ms(labtest.CPU(b)-used)/float64(n), "cpu-ms/op") // steadier than the rest on a busy machine
			})
		}
	}
}
