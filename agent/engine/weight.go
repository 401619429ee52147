package engine

import (
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// weightEvery bounds how often lag changes a weight, so that balancers are not
// told something new with every probe.
const weightEvery = 5 * time.Second

// saturatedWeight is what is left to a replica without a free slot, in percent.
const saturatedWeight = 50

// weight is the share of new sessions of a replica that is up, in percent: its
// own weight, by lag, by the time since it returned, by free slots.
func (r *round) weight(s seat, out []effect) int {
	w := s.pool.FixedWeight(s.n.Name)
	if s.pool.WeightByLag {
		w = percent(w, r.lagWeight(s))
	}
	switch out[0].code {
	case topology.CodeSaturated:
		return percent(w, saturatedWeight)
	case topology.CodeRamping:
		return percent(w, r.rampWeight(s))
	default:
		return w
	}
}

// percent is a part of a weight, never nothing.
func percent(w, of int) int { return max(1, w*of/100) }

// lagWeight falls from 100 at half of max_lag to 10 at max_lag, in steps of ten.
func (r *round) lagWeight(s seat) int {
	bytes, _ := s.lateness()
	half := s.pool.MaxLag / 2
	target := 100
	if half > 0 && bytes > half {
		target = max(10, 100-int(9*(bytes-half)/half)*10)
	}
	t := s.t
	if target != t.weight && (t.weightAt == 0 || r.since(t.weightAt, weightEvery)) {
		t.weight, t.weightAt = target, r.now.Mono
	}
	return t.weight
}

// ramping: it returned, or its server was restarted, within slow_start. Its
// caches are cold, so it begins with a part of its weight.
func (r *round) ramping(s seat) bool {
	from := max(s.t.roseAt, s.n.restartedAt)
	return from != 0 && r.p.SlowStart > 0 && !r.since(from, r.p.SlowStart)
}

// rampWeight is 25 % in the first half of slow_start and 50 % in the second.
func (r *round) rampWeight(s seat) int {
	if r.since(max(s.t.roseAt, s.n.restartedAt), r.p.SlowStart/2) {
		return 50
	}
	return 25
}
