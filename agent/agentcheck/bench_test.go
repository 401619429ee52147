package agentcheck

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// BenchmarkAgentCheck asks over loopback, one connection an answer, from so many
// clients at once, and the same of a bare server that accepts, writes and closes.
// "of-bare" is the ratio of the two rates in the same run, since machines differ.
func BenchmarkAgentCheck(b *testing.B) {
	for _, clients := range []int{1, 50, 500} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			w := newWorld(cluster("main"))
			ours, err := ListenConfig().Listen(b.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			ctx := b.Context()
			go func() { _ = w.server(b, Options{}).Serve(ctx, ours) }()
			bare := listen(b)
			go serveBare(bare)

			round := max(400/clients, 4) // the two take turns, so that a busy moment hits both
			var tookOurs, tookBare time.Duration
			answers := 0
			for b.Loop() {
				tookOurs += askMany(b, ours.Addr().String(), clients, round)
				tookBare += askMany(b, bare.Addr().String(), clients, round)
				answers += clients * round
			}
			b.ReportMetric(float64(answers)/tookOurs.Seconds(), "answers/s")
			b.ReportMetric(float64(answers)/tookBare.Seconds(), "bare/s")
			b.ReportMetric(tookBare.Seconds()/tookOurs.Seconds(), "of-bare")
		})
	}
}

func listen(b *testing.B) net.Listener {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	return ln
}

func serveBare(ln net.Listener) {
	answer := []byte("up 100%\n")
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		go func() {
			_, _ = c.Write(answer)
			c.Close()
		}()
	}
}

// askMany asks n times from each of several clients at once.
func askMany(b *testing.B, addr string, clients, n int) time.Duration {
	b.Helper()
	start := time.Now()
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range n {
				askOnce(b, addr)
			}
		})
	}
	all.Wait()
	return time.Since(start)
}

func askOnce(b *testing.B, addr string) {
	b.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		b.Error(err)
		return
	}
	defer c.Close()
	var buf [128]byte
	_, _ = io.WriteString(c, "main primary n1\n")
	if k, _ := c.Read(buf[:]); string(buf[:k]) != "up 100%\n" {
		b.Errorf("answer %q", buf[:k])
	}
	_ = c.(*net.TCPConn).SetLinger(0) // leaves no TIME_WAIT behind, as HAProxy does
}

// BenchmarkLookup is an answer without its connection, among 1,000 clusters.
func BenchmarkLookup(b *testing.B) {
	var views latest.Map[string, topology.View]
	for i := range 1000 {
		s := cluster(fmt.Sprintf("c%d", i))
		views.Set(s.Cluster, &topology.View{Snapshot: s, ValidUntil: 1 << 62})
	}
	s, err := New(Options{Views: &views, Now: topology.NewTicker(time.Now)})
	if err != nil {
		b.Fatal(err)
	}
	for _, request := range []string{"c500 replica n3", "c500 replica n3 10.0.0.3:5432"} {
		b.Run(strings.ReplaceAll(request, " ", "/"), func(b *testing.B) {
			request := []byte(request)
			s.Answer(request)
			b.ReportAllocs()
			for b.Loop() {
				s.Answer(request)
			}
		})
	}
}
