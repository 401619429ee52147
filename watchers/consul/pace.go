package consul

import (
	"context"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/watchers"
)

// repeatEvery is how often a lasting failure is told again.
const repeatEvery = 3 * time.Second

// pace spaces the questions of one goroutine: a token bucket for all of them,
// and a growing, fully jittered pause after failures.
type pace struct {
	bucket *rate.Limiter
	back   *watchers.BackOff
}

func newPace(burst int) *pace {
	return &pace{bucket: rate.NewLimiter(1, burst), back: watchers.NewBackOff(rand.N[time.Duration])}
}

// admit waits for a token; false when ctx ended.
func (p *pace) admit(ctx context.Context) bool { return p.bucket.Wait(ctx) == nil }

// charge takes a token without waiting for it, for a second question that
// belongs to the first; the next admit waits the longer.
func (p *pace) charge() { p.bucket.Reserve() }

// until returns how long it takes until there are n tokens, if none is taken.
func (p *pace) until(n float64) time.Duration {
	return time.Duration(max(0, n-p.bucket.Tokens()) * float64(time.Second))
}

// pause draws how long to wait after a failure.
func (p *pace) pause(t *trouble) time.Duration {
	d := p.back.Next()
	switch t.pace {
	case paceHung:
		return min(d, pauseHung)
	case paceDenied:
		return d * stretchDenied
	case paceConfig:
		return d * stretchConfig
	default:
		return d
	}
}

// rest waits out a pause. It ends early when ctx ends, wake has a token (nil:
// never), or the token file changes. Every repeatEvery it calls again.
func (p *pace) rest(ctx context.Context, r resting) {
	const look = time.Second // how often the token file is looked at
	token := r.token.current()
	timer := time.NewTimer(look)
	defer timer.Stop()
	for told, left := time.Duration(0), r.pause; left > 0; {
		step := min(left, look)
		timer.Reset(step)
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			return
		case <-timer.C:
		}
		left -= step
		if told += step; told >= repeatEvery && left > 0 {
			told = 0
			r.again()
		}
		if r.token.current() != token {
			p.back.Reset()
			return
		}
	}
}

// resting says how to wait after a failure.
type resting struct {
	pause time.Duration
	wake  <-chan struct{}
	token *tokenFile
	again func()
}
