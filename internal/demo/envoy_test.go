package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/xds"
)

// envoy is an Envoy beside the stage's HAProxy, steered by the same agent.
type envoy struct {
	stage       *stage
	fresh, held *lab.Load
}

// start starts Envoy on the printed bootstrap, and its clients.
func (e *envoy) start(ctx context.Context, s *stage) error {
	e.stage = s
	at, err := topology.ParseAddress(s.agent.Addr("xds").String())
	if err != nil {
		return err
	}
	if _, err := s.lab.Envoy(ctx, lab.EnvoyOptions{Bootstrap: xds.Bootstrap(xds.BootstrapOptions{Servers: []topology.Address{at}})}); err != nil {
		return err
	}
	write := strings.Replace(s.write, "127.0.0.1", "127.0.0.2", 1)
	e.held, e.fresh = s.lab.Load(write, lab.LoadOptions{Sessions: 8}), s.lab.Load(write, lab.LoadOptions{NewSession: true})
	return e.fresh.Wait(ctx, "the first write through Envoy", func(x lab.Sample) bool { return x.Op == lab.Write && x.Err == nil })
}

// BenchmarkEnvoyGap is the gap of design.md section 9 through Envoy: from the new
// primary's first writable moment to the first good write, of clients with a
// session for each write and of held sessions. One iteration is one event.
func BenchmarkEnvoyGap(b *testing.B) {
	for _, event := range []string{EventSwitchover, EventCrash} {
		b.Run(event, func(b *testing.B) {
			labtest.Need(b, lab.NeedPostgres, lab.NeedHAProxy, lab.NeedEnvoy)
			e := new(envoy)
			sum, err := Run(b.Context(), Options{Calm: 500 * time.Millisecond, Events: slices.Repeat([]string{event}, b.N), beside: e.start})
			if err != nil {
				b.Fatal(err)
			}
			e.report(b, sum)
		})
	}
}

func (e *envoy) report(b *testing.B, sum *Summary) {
	b.Helper()
	fresh, held := e.fresh.Stop(), e.held.Stop()
	var gaps, back []float64
	for _, x := range sum.Events {
		gaps = append(gaps, ms(firstWrite(fresh, x.writable, -1).Sub(x.writable)))
		var last float64
		for session := range sessions(held) {
			last = max(last, ms(firstWrite(held, x.writable, session).Sub(x.writable)))
		}
		back = append(back, last)
	}
	wrong := 0
	for _, x := range slices.Concat(fresh, held) {
		if x.Port != 0 && x.Err == nil && !e.stage.right(x) {
			wrong++
		}
	}
	slices.Sort(gaps)
	slices.Sort(back)
	b.ReportMetric(0, "ns/op")
	for name, v := range map[string][]float64{"gap": gaps, "held": back} {
		for _, q := range []float64{0.5, 0.99} {
			b.ReportMetric(quantile(v, q), fmt.Sprintf("%s-p%.0f-ms", name, 100*q))
		}
	}
	b.ReportMetric(float64(wrong), "wrong-writes")
	b.ReportMetric(quantile(gapsOf(sum), 0.5), "haproxy-gap-p50-ms") // of the same events
}
