package xds

import (
	"fmt"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/pkg/server/stream/v3"

	"github.com/pgsteer/pgsteer/xds/resources"
)

// assignments are as many as there are clusters; odd moves the first.
func assignments(b *testing.B, odd bool) (all map[string]types.Resource, names []string) {
	b.Helper()
	all = make(map[string]types.Resource)
	for i := range benchClusters {
		v := decision(fmt.Sprintf("c%04d", i), 1, up, down, down)
		if i == 0 && odd {
			v = decision("c0000", 1, down, up, down)
		}
		v.Pools = v.Pools[:1]
		set, err := resources.Build(v, resources.Settings{})
		if err != nil {
			b.Fatal(err)
		}
		name := set.Endpoints[0].GetClusterName()
		all[name], names = set.Endpoints[0].ClusterLoadAssignment, append(names, name)
	}
	return all, names
}

// watcher is one stream at a cache of the library.
type watcher struct {
	cache cachev3.ConfigWatcher
	node  *corev3.Node
	sub   streamv3.Subscription
	out   chan cachev3.DeltaResponse
}

func newWatcher(b *testing.B, c cachev3.ConfigWatcher, names []string) *watcher {
	b.Helper()
	w := &watcher{c, &corev3.Node{Id: "all"}, streamv3.NewDeltaSubscription(names, nil, nil, false), make(chan cachev3.DeltaResponse, 10)}
	w.watch(b)
	w.take(b)
	return w
}

func (w *watcher) watch(b *testing.B) {
	b.Helper()
	req := &discoveryv3.DeltaDiscoveryRequest{Node: w.node, TypeUrl: resourcev3.EndpointType}
	if _, err := w.cache.CreateDeltaWatch(req, w.sub, w.out); err != nil {
		b.Fatal(err)
	}
}

// take takes an answer and acknowledges it.
func (w *watcher) take(b *testing.B) {
	b.Helper()
	m := <-w.out
	w.sub.SetReturnedResources(m.GetNextVersionMap())
	w.watch(b)
}

func applyRival(b *testing.B, c cachev3.ConfigWatcher, names []string, change func(odd bool)) {
	b.Helper()
	watchers := make([]*watcher, benchStreams)
	for i := range watchers {
		watchers[i] = newWatcher(b, c, names)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		change(i%2 == 0)
		b.StopTimer()
		for _, w := range watchers {
			w.take(b)
		}
		b.StartTimer()
	}
}

func applyLinear(b *testing.B) {
	all, names := assignments(b, false)
	odd, _ := assignments(b, true)
	c := cachev3.NewLinearCache(resourcev3.EndpointType, cachev3.WithInitialResources(all))
	applyRival(b, c, names, func(isOdd bool) {
		next := all[names[0]]
		if isOdd {
			next = odd[names[0]]
		}
		if err := c.UpdateResource(names[0], next.(*endpointv3.ClusterLoadAssignment)); err != nil {
			b.Fatal(err)
		}
	})
}

func applySnapshot(b *testing.B) {
	even, names := assignments(b, false)
	odd, _ := assignments(b, true)
	c := cachev3.NewSnapshotCache(true, constantHash{}, nil)
	turn := 0
	set := func(all map[string]types.Resource) {
		turn++
		var list []types.Resource
		for _, name := range names {
			list = append(list, all[name])
		}
		snap, err := cachev3.NewSnapshot(fmt.Sprint(turn), map[resourcev3.Type][]types.Resource{resourcev3.EndpointType: list})
		if err != nil {
			b.Fatal(err)
		}
		if err := c.SetSnapshot(b.Context(), "all", snap); err != nil {
			b.Fatal(err)
		}
	}
	set(even)
	applyRival(b, c, names, func(isOdd bool) {
		if isOdd {
			set(odd)
		} else {
			set(even)
		}
	})
}

type constantHash struct{}

func (constantHash) ID(*corev3.Node) string { return "all" }
