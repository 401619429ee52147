package xds

import (
	"fmt"
	"slices"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/pkg/server/stream/v3"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestGoneClientsLeaveTheIndex: however many names a client asked for, gave up,
// and asked for again, none of it is left when it has gone, and what others asked
// for stays.
func TestGoneClientsLeaveTheIndex(t *testing.T) {
	s := newStore()
	enter := func() *stream {
		st := &stream{store: s, notes: newNotes(new(ledger), topology.NewTicker(time.Now), "delta", "")}
		s.roster.enter(st)
		return st
	}
	say := func(st *stream, subscribe, unsubscribe []string) {
		t.Helper()
		q := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: kindEndpoint.url(), ResourceNamesSubscribe: subscribe, ResourceNamesUnsubscribe: unsubscribe}
		if err := st.OnStreamDeltaRequest(0, q); err != nil {
			t.Fatal(err)
		}
		if _, err := st.CreateDeltaWatch(q, streamv3.NewDeltaSubscription(nil, nil, nil, false), make(chan cachev3.DeltaResponse, 10)); err != nil {
			t.Fatal(err)
		}
	}
	t1, other := &s.tables[kindEndpoint], enter()
	say(other, []string{"stays/primary"}, nil)
	for _, n := range []int{1, smallMap, smallMap + 1, 3 * smallMap} {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("c%d/primary@%d", i, i%2))
		}
		st := enter()
		say(st, names, nil)
		say(st, names[:1], names[n/2:]) // the first is asked for twice
		say(st, names[n/2:], []string{"nobody/asked"})
		same(t, "names", n, st.subs[kindEndpoint].asked)
		st.close()
		same(t, fmt.Sprintf("left of %d", n), []int{1, 1}, []int{len(t1.asked), len(t1.names)})
	}
	same(t, "who stays", true, t1.asks("stays/primary", other.subs[kindEndpoint]))
	other.close()
	same(t, "left at the end", []int{0, 0, 0}, []int{len(t1.asked), len(t1.names), s.roster.open})
}

// TestSeats: a number that is free is given again, and a set has what was put in.
func TestSeats(t *testing.T) {
	var r roster
	var all []*stream
	var set seatSet
	for i := range 130 {
		st := new(stream)
		r.enter(st)
		same(t, "seat", i, st.seat)
		all = append(all, st)
		set.add(st.seat)
	}
	for _, i := range []int{0, 63, 64, 129} {
		r.leave(all[i])
		same(t, "empty", false, set.remove(i))
		same(t, "still in", false, set.has(i))
	}
	same(t, "in the set", 126, len(slices.Collect(set.all)))
	again := new(stream)
	r.enter(again)
	same(t, "the lowest that is free", 0, again.seat)
	same(t, "open", []int{127, 127}, []int{r.open, len(slices.Collect(r.streams))})
}
