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
	knockEvery = 20 * time.Millisecond
	// A balancer that has no server hangs up at once, which a busy machine shows late:
	// a client is let in when it has been looked at this often and was not sent away.
	knockLooks   = 5
	knockPatient = 100 * time.Millisecond
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
	for range knockLooks {
		if err := c.SetReadDeadline(time.Now().Add(knockPatient)); err != nil {
			return
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.letIn = append(k.letIn, at)
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
// at most. It is counted from the moment at which all its processes stand still; a busy
// machine takes a while until then, in which some of them go on answering, and that is
// told beside it. Another node is promoted three seconds after. One iteration is one freeze.
func BenchmarkFrozen(b *testing.B) {
	labtest.Need(b, lab.NeedPostgres, lab.NeedHAProxy)
	var k *knocker
	var played *stage
	sum, err := Run(b.Context(), Options{Calm: 500 * time.Millisecond, Events: slices.Repeat([]string{EventFreeze}, b.N), held: 1, beside: func(_ context.Context, s *stage) error {
		k, played = newKnocker(s.write), s
		return nil
	}})
	if k != nil {
		k.stop()
		k.done.Wait()
	}
	if err != nil {
		b.Fatal(err)
	}
	var took, freezing []float64
	for i, e := range sum.Events { // whoever comes after the promotion may meet the new writer
		took = append(took, ms(k.last(e.still, played.writers[i].until).Sub(e.still)))
		freezing = append(freezing, ms(e.still.Sub(e.down)))
	}
	slices.Sort(took)
	slices.Sort(freezing)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(took)), "events")
	b.ReportMetric(quantile(took, 0.5), "let-in-until-p50-ms")
	b.ReportMetric(quantile(took, 1), "let-in-until-max-ms")
	b.ReportMetric(quantile(freezing, 1), "freezing-max-ms")
	reportWrong(b, sum)
}
