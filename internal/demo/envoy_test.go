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

// oldSessions is how many idle sessions every change of the writer has to end.
const oldSessions = 8

// envoy is an Envoy beside the stage's HAProxy, steered by the same agent.
type envoy struct {
	stage       *stage
	fresh, held *lab.Load
	idle        *idlers
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
	e.idle = newIdlers(write, oldSessions)
	return e.fresh.Wait(ctx, "the first write through Envoy", func(x lab.Sample) bool { return x.Op == lab.Write && x.Err == nil })
}

// BenchmarkEnvoyGap is the gap of design.md section 9 through Envoy: from the new
// primary's first writable moment to the first good write, of clients with a
// session for each write and of held sessions, and to the end of the last idle session
// that was on the old primary: 0 when they had all ended before. See iterations for
// how many events there are. A write on a wrong node, and a session to the old primary
// that does not end before the next event, fail it.
func BenchmarkEnvoyGap(b *testing.B) {
	for _, event := range Events {
		b.Run(event, func(b *testing.B) {
			labtest.Need(b, lab.NeedPostgres, lab.NeedHAProxy, lab.NeedEnvoy)
			e := new(envoy)
			// HAProxy's clients would come back at the same moment, and a small machine
			// start twice as many backends.
			sum, err := Run(b.Context(), Options{Calm: 500 * time.Millisecond, Events: iterations(b, event), beside: e.start, held: 1})
			if e.idle != nil {
				e.idle.end()
			}
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
	var gaps, back, old []float64
	for i, x := range sum.Events {
		gaps = append(gaps, ms(firstWrite(fresh, x.writable, -1).Sub(x.writable)))
		var last float64
		for session := range sessions(held) {
			last = max(last, ms(firstWrite(held, x.writable, session).Sub(x.writable)))
		}
		back = append(back, last)
		over, ended := e.idle.last(e.stage.cluster.Node(x.From).Port(), x.down)
		if next := i + 1; ended < oldSessions || next < len(sum.Events) && over.After(sum.Events[next].down) {
			b.Errorf("event %d: of %d sessions to the old primary %d ended, the last at %s", i, oldSessions, ended, over)
		}
		old = append(old, max(0, ms(over.Sub(x.writable))))
	}
	b.ReportMetric(0, "ns/op")
	for name, v := range map[string][]float64{"gap": gaps, "held": back, "old-session-end": old} {
		slices.Sort(v)
		for _, q := range []float64{0.5, 0.99} {
			b.ReportMetric(quantile(v, q), fmt.Sprintf("%s-p%.0f-ms", name, 100*q))
		}
	}
	b.ReportMetric(float64(len(sum.Events)), "events")
	b.ReportMetric(quantile(gapsOf(sum), 0.5), "haproxy-gap-p50-ms") // of the same events
	e.judge(b, slices.Concat(fresh, held))
}

// judge counts what was done on another node than the writer.
func (e *envoy) judge(b *testing.B, samples []lab.Sample) {
	b.Helper()
	wrong := 0
	for _, x := range samples {
		if x.Port != 0 && x.Err == nil && !e.stage.right(x) {
			wrong++
		}
	}
	b.ReportMetric(float64(wrong), "wrong-writes")
	if wrong > 0 {
		b.Errorf("%d sessions and writes were on another node than the writer", wrong)
	}
}
