package demo

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// rival is a HAProxy that finds the writer by HTTP checks alone, as people have
// it without pgsteer, beside the one that pgsteer steers.
type rival struct {
	name   string
	checks string // of default-server
	load   *lab.Load
}

// rivals are Patroni's own haproxy.cfg, and the same with the shortest times that
// are in use (reference: its examples, and field reports of tuned ones).
func rivals() []*rival {
	return []*rival{
		{name: "patroni", checks: "inter 3s fall 3 rise 2"},
		{name: "tuned", checks: "inter 500ms fall 1 rise 1"},
	}
}

// start starts the rival and its clients. Its checks ask pgsteer's health paths,
// which answer as Patroni's do and no slower, so that both see the same servers at
// the same moments and differ only in how they ask.
func (r *rival) start(ctx context.Context, s *stage) error {
	listen, err := s.lab.FreeAddr()
	if err != nil {
		return err
	}
	health := s.agent.Addr("healthapi").(*net.TCPAddr)
	var servers strings.Builder
	for _, n := range s.cluster.Nodes() {
		fmt.Fprintf(&servers, "    server %s %s maxconn 100 check addr %s port %d\n", n.Name(), n.Addr(), health.IP, health.Port)
	}
	_, err = s.lab.HAProxy(ctx, lab.HAProxyOptions{Config: fmt.Sprintf(`global
    maxconn 100
    stats socket @ADMIN_SOCKET@ mode 600 level admin
defaults
    mode tcp
    retries 2
    timeout client 30m
    timeout connect 4s
    timeout server 30m
    timeout check 5s
listen primary
    bind %s
    option httpchk
    http-check send meth OPTIONS uri-lf "/clusters/main/nodes/%%[srv_name]/primary"
    http-check expect status 200
    default-server %s on-marked-down shutdown-sessions
%s`, listen, r.checks, servers.String())})
	if err != nil {
		return fmt.Errorf("rival %s: %w", r.name, err)
	}
	r.load = s.lab.Load(listen, lab.LoadOptions{NewSession: true})
	return r.load.Wait(ctx, "the first write through "+r.name, func(x lab.Sample) bool { return x.Op == lab.Write && x.Err == nil })
}

// outage is what a client of a rival saw of one event, in milliseconds: the time
// to its first good write after the new primary was writable, and to its last bad one.
func (r *rival) outage(e Event, until time.Time) (first, last float64) {
	samples := r.load.Samples()
	first = ms(firstWrite(samples, e.writable, -1).Sub(e.writable))
	for _, x := range samples {
		if x.Err != nil && x.End().After(e.writable) && x.At.Before(until) {
			last = ms(x.End().Sub(e.writable))
		}
	}
	return first, last
}

// BenchmarkRoutingGap is the gap of design.md section 9 beside that of HAProxy
// with Patroni's own template, and a tuned one, in the same run over the same
// events. See iterations for how many there are.
func BenchmarkRoutingGap(b *testing.B) {
	for _, event := range []string{EventSwitchover, EventCrash} {
		b.Run(event, func(b *testing.B) { besideRivals(b, event) })
	}
}

// iterations are the events of a benchmark of gaps: three switchovers or one of
// anything else in each iteration. -benchtime=10x is the full run, of 30 switchovers
// and 10 of each other event; `make bench BENCH=Gap` asks for that.
func iterations(b *testing.B, event string) []string {
	n := b.N
	if event == EventSwitchover {
		n *= 3
	}
	return slices.Repeat([]string{event}, n)
}

func besideRivals(b *testing.B, event string) {
	labtest.Need(b, lab.NeedPostgres, lab.NeedHAProxy)
	all := rivals()
	// A rival needs up to 3 x 3 s for what went and 2 x 3 s for what came.
	sum, err := Run(b.Context(), Options{Calm: 11 * time.Second, Events: iterations(b, event), beside: func(ctx context.Context, s *stage) error {
		for _, r := range all {
			if err := r.start(ctx, s); err != nil {
				return err
			}
		}
		return nil
	}})
	if err != nil {
		b.Fatal(err)
	}
	report(b, sum)
	ours := quantile(gapsOf(sum), 0.5)
	for _, r := range all {
		var first, last []float64
		for i, e := range sum.Events {
			until := e.writable.Add(time.Minute)
			if i+1 < len(sum.Events) {
				until = sum.Events[i+1].down
			}
			f, l := r.outage(e, until)
			first, last = append(first, f), append(last, l)
		}
		slices.Sort(first)
		slices.Sort(last)
		b.ReportMetric(quantile(first, 0.5), r.name+"-gap-p50-ms")
		b.ReportMetric(quantile(first, 0.99), r.name+"-gap-p99-ms")
		b.ReportMetric(quantile(last, 0.5), r.name+"-errors-until-p50-ms")
		b.ReportMetric(quantile(first, 0.5)/ours, r.name+"-times-ours")
	}
}

func gapsOf(sum *Summary) (gaps []float64) {
	for _, e := range sum.Events {
		gaps = append(gaps, e.RoutingGap)
	}
	slices.Sort(gaps)
	return gaps
}

// quantile is that of sorted values.
func quantile(v []float64, q float64) float64 { return v[min(int(q*float64(len(v))), len(v)-1)] }
