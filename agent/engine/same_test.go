package engine

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// twins plays one history in two worlds that differ in one respect, and holds
// their verdicts together after every step.
func twins(t *rapid.T, events []event, differ func(one, other *world)) {
	begin := drawWorld(t)
	one, other := begin(), begin()
	differ(one, other)
	for _, e := range events {
		one.apply(e)
		other.apply(e)
		if !sameVerdicts(one.snap, other.snap) {
			t.Fatalf("after %v\n%sthe other one\n%s", e, one.show(), other.show())
		}
	}
}

// TestSetClockDecidesNothing: rules compare moments of the monotonic clock. Only
// an operator's word ends by the wall clock.
func TestSetClockDecidesNothing(t *testing.T) {
	hours := []time.Duration{0, 0, time.Hour, -time.Hour, 10000 * time.Hour, -10000 * time.Hour}
	rapid.Check(t, func(t *rapid.T) {
		steps := rapid.SliceOfN(rapid.SampledFrom(hours), 7, 7).Draw(t, "steps")
		twins(t, except(drawEvents(t, 60), "maintenance"), func(_, other *world) {
			decisions := 0
			other.onDecide = func(*topology.Snapshot) {
				other.now.Wall = other.now.Wall.Add(steps[decisions%len(steps)])
				decisions++
			}
		})
	})
}

// TestObservedTwiceCountsOnce: an observation that arrives again, at once or
// later, tells nothing new.
func TestObservedTwiceCountsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		again := rapid.SampledFrom([]time.Duration{ms, 60 * ms, 900 * ms, 2100 * ms}).Draw(t, "again")
		twins(t, except(drawEvents(t, 60), "standstill"), func(one, other *world) {
			one.post, other.post = posted(), posted()
			other.post.again = again
		})
	})
}

// posted is a post on which everything takes a millisecond.
func posted() *post {
	p := newPost()
	for _, src := range []topology.SourceID{consulSource, pgSource("a"), pgSource("b"), pgSource("c")} {
		p.late[src] = ms
	}
	return p
}

// TestOrderOfSourcesDecidesNothing: what several sources say between two
// decisions may come in any order.
func TestOrderOfSourcesDecidesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		twins(t, drawEvents(t, 60), func(one, other *world) {
			one.post, other.post = posted(), posted()
			other.post.backwards = true
		})
	})
}
