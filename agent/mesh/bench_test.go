package mesh

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// BenchmarkConsulRequests counts what an agent asks a real Consul for that watches
// 1,000 quiet clusters and publishes them, over whole minutes, since ten seconds can have more:
// design.md wants at most 20 requests a second, and Consul takes 200 connections.
// BenchmarkConsulRequests of watchers/consul is the same without publishing.
func BenchmarkConsulRequests(b *testing.B) {
	const n = 1000
	server, err := labtest.ForTest(b, lab.NeedConsul).Consul(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	scopes := make(map[string]string)
	for i := range n {
		for key, value := range map[string]string{"leader": "n1", "config": "{}", "members/n1": "{}", "members/n2": "{}"} {
			scopes["service/"+fleetName(i)+"/"+key] = value
		}
	}
	if err := server.PutAll(b.Context(), scopes); err != nil {
		b.Fatal(err)
	}
	g := labtest.CountConsul(b, server)
	client, err := consul.NewClient(consul.ClientOptions{Address: g.URL})
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	p, end := newFleet(b, client, n)
	defer end()
	began := time.Now()
	untilPublished(b, p)
	b.Logf("all are published after %s", time.Since(began).Round(time.Second))
	pass(b.Context(), 15*time.Second) // what the last writes wake is not steady
	before, from := g.Requests(), time.Now()
	was, start := g.Counts(), g.Peak()
	for b.Loop() {
		pass(b.Context(), time.Minute)
	}
	rate := (g.Requests() - before) / time.Since(from).Seconds()
	if b.ReportMetric(rate, "requests/s"); rate > 20 {
		b.Errorf("%.1f requests a second, want at most 20", rate)
	}
	steady := g.Peak()
	if b.ReportMetric(float64(steady), "connections"); steady >= 150 {
		b.Errorf("%d connections, want less than 150", steady)
	}
	// A server learns of an end after the client has another connection already; what
	// counts at a start is Consul's own limit.
	if b.ReportMetric(float64(start), "start-connections"); start >= 200 {
		b.Errorf("%d connections at the start, want less than 200", start)
	}
	b.ReportMetric(0, "ns/op") // it is the length of a period
	for path, count := range g.Counts() {
		if count != was[path] {
			b.Logf("%s: %.2f requests/s", path, float64(count-was[path])/time.Since(from).Seconds())
		}
	}
}

func fleetName(i int) string { return fmt.Sprintf("c%05d", i) }

// newFleet watches and publishes n clusters until end is called.
func newFleet(tb testing.TB, client *consul.Client, n int) (p *Publisher, end func()) {
	tb.Helper()
	now := topology.NewTicker(time.Now)
	var views latest.Map[string, topology.View]
	o := Options{Client: client, Views: &views, Now: now, External: true, Clusters: make(map[string]Settings)}
	var wait sync.WaitGroup
	ctx, stop := context.WithCancel(tb.Context())
	for i := range n {
		name := fleetName(i)
		w, err := consul.New(consul.Options{Cluster: name, Scope: name, Client: client, Now: now})
		if err != nil {
			tb.Fatal(err)
		}
		wait.Go(func() { _ = w.Run(ctx, func(topology.Observation) {}) })
		views.Set(name, quiet(name, now().Mono))
		o.Clusters[name] = Settings{Service: name}
	}
	p, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	wait.Go(func() {
		if err := p.Run(ctx); err != nil {
			tb.Error(err)
		}
	})
	return p, func() { stop(); wait.Wait() }
}

// quiet is a cluster of which n1 leads, for hours; swapped is one whose n2 has just
// taken over from it.
func quiet(cluster string, now topology.Mono) *topology.View { return led(cluster, "n1", "n2", now) }

func swapped(cluster string, now topology.Mono) *topology.View {
	v := led(cluster, "n2", "n1", now)
	v.Snapshot.Generation, v.Snapshot.Urgent = 2, 2
	return v
}

func led(cluster, writer, standby string, now topology.Mono) *topology.View {
	verdict := func(node string, v topology.Verdict, code topology.Code) topology.NodeVerdict {
		return topology.NodeVerdict{
			Node: node, Address: topology.Address{Host: "10.0.0." + node[1:], Port: 5432}, Verdict: v, Weight: 100,
			Reasons: []topology.Reason{{Code: code}},
		}
	}
	write := []topology.NodeVerdict{verdict(writer, topology.Up, topology.CodeWriter), verdict(standby, topology.Down, topology.CodeWrongRole)}
	read := []topology.NodeVerdict{verdict(writer, topology.Down, topology.CodeWrongRole), verdict(standby, topology.Up, topology.CodeReplica)}
	snap := &topology.Snapshot{Cluster: cluster, Generation: 1, Urgent: 1, Complete: true, Writer: writer, Pools: []topology.PoolVerdicts{
		{Pool: "primary", Mode: topology.ModeWrite, Nodes: write}, {Pool: "replica", Mode: topology.ModeRead, Nodes: read},
	}}
	for _, v := range write {
		snap.Nodes = append(snap.Nodes, topology.Node{Name: v.Node, Address: v.Address})
	}
	return &topology.View{Snapshot: snap, Facts: new(topology.Facts), ValidUntil: now.Add(10 * time.Hour)}
}

func untilPublished(tb testing.TB, p *Publisher) {
	tb.Helper()
	for end := time.Now().Add(10 * time.Minute); ; {
		missing, why := 0, error(nil)
		for _, s := range p.Status() {
			if s.Writes == 0 || s.Err != nil {
				missing, why = missing+1, s.Err
			}
		}
		if missing == 0 {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("%d clusters are not published: %v", missing, why)
		}
		pass(tb.Context(), 100*time.Millisecond)
	}
}

// pass lets time pass.
func pass(ctx context.Context, d time.Duration) {
	ctx, stop := context.WithTimeout(ctx, d)
	defer stop()
	<-ctx.Done()
}
