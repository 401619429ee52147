package watchers

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBackOffDoublesUpToFiveSeconds(t *testing.T) {
	b := NewBackOff(func(d time.Duration) time.Duration { return d })
	var got []time.Duration
	for range 8 {
		got = append(got, b.Next())
	}
	b.Reset()
	got = append(got, b.Next())
	ms := time.Millisecond
	want := []time.Duration{
		100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms,
		100 * ms,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestBackOffDrawsFromZeroToTheInterval(t *testing.T) {
	low, high := 0, 0
	for range 1000 {
		d := NewBackOff(nil).Next()
		if d < 0 || d > backOffFirst {
			t.Fatalf("drew %v, want 0 to %v", d, backOffFirst)
		}
		if d < backOffFirst/2 {
			low++
		} else {
			high++
		}
	}
	if low < 300 || high < 300 {
		t.Errorf("%d draws below and %d above the middle of 1000, want about as many", low, high)
	}
}

func TestManyNudgesAreOne(t *testing.T) {
	n := NewNudge()
	for range 3 {
		n.Set()
	}
	<-n.C()
	select {
	case <-n.C():
		t.Error("a second token")
	default:
	}
	n.Set()
	<-n.C()
}
