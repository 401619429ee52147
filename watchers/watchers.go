// Package watchers holds what all sources share: the Source type, a back-off
// and a nudge.
//
// Guarantees: the package knows no particular source and no sink, starts no
// goroutine of its own and imports only the values of topology.
package watchers

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// Source sees a part of a cluster and tells what it saw.
type Source interface {
	// Run watches until ctx ends and then returns nil. Any other return is a
	// fault of configuration, which no retry can mend; trouble with a server is
	// reported as an observation with a Failure and tried again.
	//
	// report must not block for long. It is never called after Run has returned,
	// and the observations of one source carry Seq 1, 2, 3 … in order of the calls.
	Run(ctx context.Context, report func(topology.Observation)) error
}

// The bounds of every back-off between a source's attempts.
const (
	backOffFirst = 100 * time.Millisecond
	backOffMost  = 5 * time.Second
)

// BackOff spaces the attempts of one source. It belongs to one goroutine.
type BackOff struct {
	b      *backoff.ExponentialBackOff
	jitter func(time.Duration) time.Duration // draws a share of the interval
}

// NewBackOff returns a back-off whose interval doubles from 100 ms to 5 s.
// jitter draws a duration from 0 to its argument, so that many agents which
// lost the same server do not come back in step; nil draws at random.
func NewBackOff(jitter func(time.Duration) time.Duration) *BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = backOffFirst
	b.MaxInterval = backOffMost
	b.Multiplier = 2
	b.RandomizationFactor = 0
	if jitter == nil {
		jitter = func(d time.Duration) time.Duration { return rand.N(d + 1) }
	}
	return &BackOff{b: b, jitter: jitter}
}

// Next returns how long to wait before the next attempt.
func (b *BackOff) Next() time.Duration { return b.jitter(b.b.NextBackOff()) }

// Reset begins anew at 100 ms; call it after a success.
func (b *BackOff) Reset() { b.b.Reset() }

// Nudge is a one-slot "ask again now". Any number of nudges before the next
// look at C are one. Make it with NewNudge.
type Nudge chan struct{}

// NewNudge returns a nudge without a token.
func NewNudge() Nudge { return make(Nudge, 1) }

// Set asks for another look. It never blocks and may be called by anyone.
func (n Nudge) Set() {
	select {
	case n <- struct{}{}:
	default:
	}
}

// C has a token when a look was asked for.
func (n Nudge) C() <-chan struct{} { return n }
