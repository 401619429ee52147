package demo

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// knocker asks a balancer's port all the time whether it lets clients in: it sends
// nothing, so that a server has nothing to say, and a balancer without one hangs up.
type knocker struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu    sync.Mutex
	letIn []time.Time // when those began that were not sent away
}

const (
	knockEvery   = 20 * time.Millisecond
	knockPatient = 100 * time.Millisecond // a balancer that has no server hangs up sooner
)

func newKnocker(addr string) *knocker {
	ctx, stop := context.WithCancel(context.Background())
	k := &knocker{stop: stop}
	k.done.Go(func() {
		for tick := time.NewTicker(knockEvery); ctx.Err() == nil; {
			k.done.Go(func() { k.knock(ctx, addr) })
			select {
			case <-ctx.Done():
				tick.Stop()
			case <-tick.C:
			}
		}
	})
	return k
}

func (k *knocker) knock(ctx context.Context, addr string) {
	at := time.Now()
	c, err := (&net.Dialer{Timeout: knockPatient}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	if err := c.SetReadDeadline(at.Add(knockPatient)); err != nil {
		return
	}
	if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.letIn = append(k.letIn, at)
	}
}

// last is when the last client between two moments was let in; the first of them when
// none was.
func (k *knocker) last(from, until time.Time) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	last := from
	for _, at := range k.letIn {
		if at.After(last) && at.Before(until) {
			last = at
		}
	}
	return last
}

// BenchmarkFrozen is how long a writer that freezes, without a word to anybody, still
// gets new sessions through HAProxy, with the defaults: design.md section 9 wants 2 s
// at most. Another node is promoted a second later. One iteration is one freeze.
func BenchmarkFrozen(b *testing.B) {
	labtest.Need(b, lab.NeedPostgres, lab.NeedHAProxy)
	var k *knocker
	sum, err := Run(b.Context(), Options{Calm: 500 * time.Millisecond, Events: slices.Repeat([]string{EventFreeze}, b.N), held: 1, beside: func(_ context.Context, s *stage) error {
		k = newKnocker(s.write)
		return nil
	}})
	if k != nil {
		k.stop()
		k.done.Wait()
	}
	if err != nil {
		b.Fatal(err)
	}
	var took []float64
	for _, e := range sum.Events {
		took = append(took, ms(k.last(e.down, e.writable).Sub(e.down)))
	}
	slices.Sort(took)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(took)), "events")
	b.ReportMetric(quantile(took, 0.5), "let-in-until-p50-ms")
	b.ReportMetric(quantile(took, 1), "let-in-until-max-ms")
	b.ReportMetric(float64(sum.WrongNode), "wrong-sessions")
}
