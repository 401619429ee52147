package healthapi

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// patroniAddress starts a Patroni 4 that leads a cluster of one and returns the
// address of its REST API, "" when it is not installed.
func patroniAddress(b *testing.B) string {
	b.Helper()
	for _, need := range []string{lab.NeedPostgres, lab.NeedConsul, lab.NeedPatroni4} {
		if err := lab.Available(need); err != nil && os.Getenv("CI") != "true" {
			b.Logf("without Patroni: %v", err)
			return ""
		}
	}
	l := labtest.ForTest(b, lab.NeedPostgres, lab.NeedConsul, lab.NeedPatroni4)
	consul, err := l.Consul(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	p, err := l.Patroni(b.Context(), lab.PatroniOptions{Nodes: 1, Consul: consul, Release: lab.Patroni4, DCS: map[string]any{"loop_wait": 10, "ttl": 30}})
	if err != nil {
		b.Fatal(err)
	}
	return p.Node("n1").RESTAddr()
}

// patroniCheckers ask Patroni: as many as ask the others, and five, for which its
// threads and its queue suffice. Nil without a Patroni.
type patroniCheckers struct {
	crowd, five *checker
	turns       int
	times       [2][]float64 // how much longer a check took than ours
}

// newPatroniCheckers asks Patroni what a request asks, at another target if there is
// one.
func newPatroniCheckers(b *testing.B, address, request, target string) *patroniCheckers {
	b.Helper()
	if address == "" {
		return nil
	}
	if target != "" {
		parts := strings.SplitN(request, " ", 3)
		request = parts[0] + " " + target + " " + parts[2]
	}
	p := &patroniCheckers{crowd: newChecker(b, address, request), five: newChecker(b, address, request)}
	p.crowd.length, p.five.length, p.five.clients = 0, 0, 5
	return p
}

// turn has Patroni asked once. What overflows its queue is asked again after a
// second, so that the crowd, which needs long for a turn, has few of them.
func (p *patroniCheckers) turn(b *testing.B, ours time.Duration) {
	if p == nil {
		return
	}
	const checks = 64
	for i, c := range []*checker{p.crowd, p.five} {
		if c == p.five || p.turns%16 == 0 {
			p.times[i] = append(p.times[i], float64(c.run(b, checks)/checks)/float64(ours))
		}
	}
	p.turns++
}

func (p *patroniCheckers) report(b *testing.B) {
	if p == nil {
		return
	}
	b.ReportMetric(p.crowd.rate(), "patroni/s")
	b.ReportMetric(p.crowd.p99(), "patroni-p99-µs")
	b.ReportMetric(median(p.times[0]), "x_patroni")
	b.ReportMetric(p.five.rate(), "patroni5/s")
	b.ReportMetric(p.five.p99(), "patroni5-p99-µs")
	b.ReportMetric(median(p.times[1]), "x_patroni5")
}
