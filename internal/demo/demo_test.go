package demo

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// TestDemo runs the whole demo, as a user would, only with shorter pauses.
func TestDemo(t *testing.T) {
	labtest.Need(t, lab.NeedPostgres, lab.NeedHAProxy)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	sum, err := Run(ctx, Options{Out: t.Output(), Calm: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	sum.Print(t.Output())
	if sum.WrongNode != 0 || sum.Sessions == 0 {
		t.Errorf("%d of %d sessions were on a wrong node, want 0 of many", sum.WrongNode, sum.Sessions)
	}
	if sum.Reloads != 0 {
		t.Errorf("HAProxy was reloaded %d times, want never", sum.Reloads)
	}
	if len(sum.Events) != len(Events) {
		t.Fatalf("%d events were measured, want %d", len(sum.Events), len(Events))
	}
	for _, e := range sum.Events {
		if e.RoutingGap <= 0 || e.RoutingGap > 10_000 {
			t.Errorf("%s: routing gap %.0f ms; writes did not come back as they should", e.Name, e.RoutingGap)
		}
	}
}

// TestRight: the judgement of a session must be able to find it wrong.
func TestRight(t *testing.T) {
	a, b := time.Now(), time.Now().Add(time.Second)
	s := &stage{writers: []reign{{from: a, until: b}, {from: b.Add(time.Second)}}}
	for i := range s.writers {
		s.writers[i].port = 1 + i
	}
	at := func(port int, from time.Time) lab.Sample {
		return lab.Sample{Port: port, At: from, Duration: time.Millisecond}
	}
	for _, test := range []struct {
		name string
		x    lab.Sample
		want bool
	}{
		{"on the writer", at(1, a.Add(100*time.Millisecond)), true},
		{"on the old writer after its time", at(1, b.Add(100*time.Millisecond)), false},
		{"on the new writer before it is one", at(2, b.Add(100*time.Millisecond)), false},
		{"on the new writer", at(2, b.Add(1100*time.Millisecond)), true},
		{"on a node that never was", at(3, a.Add(100*time.Millisecond)), false},
	} {
		if got := s.right(test.x); got != test.want {
			t.Errorf("%s: right = %t, want %t", test.name, got, test.want)
		}
	}
}

// BenchmarkSwitchover is the planned switchover of design.md section 9: from
// the new primary being writable to the first good write through HAProxy. One
// iteration is one switchover.
func BenchmarkSwitchover(b *testing.B) {
	labtest.Need(b, lab.NeedPostgres, lab.NeedHAProxy)
	events := slices.Repeat([]string{EventSwitchover}, b.N)
	sum, err := Run(b.Context(), Options{Calm: 500 * time.Millisecond, Events: events})
	if err != nil {
		b.Fatal(err)
	}
	report(b, sum)
}

// BenchmarkCrash is the same for a primary that is killed.
func BenchmarkCrash(b *testing.B) {
	labtest.Need(b, lab.NeedPostgres, lab.NeedHAProxy)
	sum, err := Run(b.Context(), Options{Calm: 500 * time.Millisecond, Events: slices.Repeat([]string{EventCrash}, b.N)})
	if err != nil {
		b.Fatal(err)
	}
	report(b, sum)
}

func report(b *testing.B, sum *Summary) {
	b.Helper()
	gaps := gapsOf(sum)
	var held []float64
	for _, e := range sum.Events {
		held = append(held, e.HeldGap)
	}
	slices.Sort(held)
	b.ReportMetric(0, "ns/op") // the time of the whole stage says nothing
	b.ReportMetric(float64(len(sum.Events)), "events")
	b.ReportMetric(quantile(gaps, 0.5), "gap-p50-ms")
	b.ReportMetric(quantile(gaps, 0.99), "gap-p99-ms")
	b.ReportMetric(quantile(held, 0.5), "held-p50-ms")
	b.ReportMetric(quantile(held, 0.99), "held-p99-ms")
	b.ReportMetric(float64(sum.Reloads), "reloads")
	reportWrong(b, sum)
}

// reportWrong fails a benchmark in which a session of the write port was on another
// node than the writer: no gap makes up for that.
func reportWrong(b *testing.B, sum *Summary) {
	b.Helper()
	b.ReportMetric(float64(sum.WrongNode), "wrong-sessions")
	if sum.WrongNode > 0 {
		b.Errorf("%d of %d sessions were on another node than the writer", sum.WrongNode, sum.Sessions)
	}
}
