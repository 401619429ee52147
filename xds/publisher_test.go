package xds

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// bubble runs a publisher in a bubble with a clock of its own, without gRPC.
type bubble struct {
	t     *testing.T
	views latest.Map[string, topology.View]
	store *store
	pub   *publisher
	now   topology.Ticker
	log   strings.Builder
}

func inBubble(t *testing.T, clusters []string, f func(*bubble)) {
	t.Helper()
	inBubbleWith(t, clusters, Options{Settings: Settings{Settings: resources.Settings{Listen: listenAnywhere}}}, f)
}

func inBubbleWith(t *testing.T, clusters []string, o Options, f func(*bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, store: newStore(), now: topology.NewTicker(time.Now)}
		o.Views, o.Now, o.Clusters = &b.views, b.now, func() []string { return clusters }
		o.Logger = slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		b.pub = newPublisher(o, b.store)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); b.pub.run(ctx); b.pub.hold.run(ctx) }()
		if b.pub.files != nil {
			go b.pub.files.run(ctx)
		}
		synctest.Wait()
		f(b)
		cancel()
		<-done
	})
}

// set publishes a decision and waits until it has been seen.
func (b *bubble) set(snap *topology.Snapshot, valid time.Duration) {
	b.views.Set(snap.Cluster, &topology.View{Snapshot: snap, ValidUntil: b.now().Mono.Add(valid)})
	synctest.Wait()
}

func (b *bubble) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// reads is what the read pool of main holds.
func (b *bubble) reads() string {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	r := b.store.tables[kindEndpoint].current["main/replica"]
	if r == nil {
		return ""
	}
	return text(b.t, r.name, r.wire.GetResource().GetValue(), kindEndpoint)
}

func (b *bubble) want(reads string) {
	b.t.Helper()
	same(b.t, "the read pool", "main/replica"+reads, b.reads())
}

// calm is a decision whose difference to the first is not urgent.
func calm(generation uint64, verdicts ...topology.Verdict) *topology.Snapshot {
	s := decision("main", generation, up, down, down)
	s.Urgent = 1
	for i, v := range verdicts {
		s.Pools[1].Nodes[i+1].Verdict = v
	}
	return s
}

func TestSettle(t *testing.T) {
	inBubble(t, []string{"main"}, func(b *bubble) {
		b.set(calm(1, up, up), time.Hour)
		b.want(" 10.0.0.2=healthy 10.0.0.3=healthy") // the first is never held up
		b.set(calm(2, drain, up), time.Hour)
		b.pass(settleQuiet - time.Millisecond)
		b.want(" 10.0.0.2=healthy 10.0.0.3=healthy")
		b.pass(time.Millisecond)
		b.want(" 10.0.0.2=draining 10.0.0.3=healthy")
	})
}

// TestSettleIsBounded: changes that keep coming are published all the same.
func TestSettleIsBounded(t *testing.T) {
	inBubble(t, []string{"main"}, func(b *bubble) {
		b.set(calm(1, up, up), time.Hour)
		b.set(calm(2, drain, up), time.Hour)
		for g := range uint64(19) {
			b.pass(100 * time.Millisecond)
			b.set(calm(3+g, drain, up), time.Hour)
			b.want(" 10.0.0.2=healthy 10.0.0.3=healthy")
		}
		b.pass(settleMost - 19*100*time.Millisecond)
		b.want(" 10.0.0.2=draining 10.0.0.3=healthy")
	})
}

// TestUrgentIsNotSettled: and it takes along what was waiting.
func TestUrgentIsNotSettled(t *testing.T) {
	inBubble(t, []string{"main"}, func(b *bubble) {
		b.set(calm(1, up, up), time.Hour)
		b.set(calm(2, drain, up), time.Hour)
		urgent := calm(3, drain, down)
		urgent.Urgent = 3
		b.set(urgent, time.Hour)
		b.want(" 10.0.0.2=draining")
	})
}

// TestInvalidView: what may not be believed changes nothing; when it comes back
// to life without a wake-up it is published.
func TestInvalidView(t *testing.T) {
	inBubble(t, []string{"main"}, func(b *bubble) {
		b.set(calm(1, up, up), time.Hour)
		late := calm(2, down, up)
		late.Urgent = 2
		b.set(late, -time.Millisecond)
		b.pass(time.Minute)
		b.want(" 10.0.0.2=healthy 10.0.0.3=healthy")
		b.views.Refresh("main", &topology.View{Snapshot: late, ValidUntil: b.now().Mono.Add(time.Hour)})
		b.pass(settleQuiet)
		b.want(" 10.0.0.3=healthy")
	})
}

// TestOlderGenerationIsNotServed: a decision that a newer one has overtaken changes nothing,
// however it comes; a cluster that is set up anew after it was gone may count anew.
func TestOlderGenerationIsNotServed(t *testing.T) {
	clusters := []string{"main"}
	inBubble(t, nil, func(b *bubble) {
		b.pub.clusters = func() []string { return clusters }
		b.set(decision("main", 5, up, down, down), time.Hour)
		b.want(" 10.0.0.2=healthy 10.0.0.3=healthy")
		b.set(decision("main", 4, down, up, down), time.Hour)
		b.pass(time.Minute)
		b.reconfigureAnywhere()
		b.want(" 10.0.0.2=healthy 10.0.0.3=healthy")
		if n := strings.Count(b.log.String(), "is older than"); n != 1 {
			t.Errorf("%d warnings, want one:\n%s", n, b.log.String())
		}
		b.views.Refresh("main", &topology.View{Snapshot: decision("main", 6, down, down, up), ValidUntil: b.now().Mono.Add(time.Hour)})
		b.pass(settleQuiet)
		b.want(" 10.0.0.1=healthy 10.0.0.2=healthy")
		clusters = nil
		b.views.Delete("main")
		b.pass(0)
		clusters = []string{"main"}
		b.set(decision("main", 1, down, up, down), time.Hour)
		b.want(" 10.0.0.1=healthy 10.0.0.3=healthy")
	})
}

// reconfigureAnywhere has everything served by new settings that are the old ones.
func (b *bubble) reconfigureAnywhere() {
	(&Server{publisher: b.pub}).Reconfigure(Settings{Settings: resources.Settings{Listen: listenAnywhere}})
	b.pass(0)
}

// TestExpiredViewKeeps: a decision that has been published outlives its view.
func TestExpiredViewKeeps(t *testing.T) {
	inBubble(t, []string{"main"}, func(b *bubble) {
		b.set(calm(1, up, up), time.Second)
		b.pass(time.Hour)
		b.want(" 10.0.0.2=healthy 10.0.0.3=healthy")
	})
}

// TestLostViewOfConfiguredCluster: a cluster whose view vanished stays while it
// is configured.
func TestLostViewOfConfiguredCluster(t *testing.T) {
	inBubble(t, []string{"main"}, func(b *bubble) {
		b.set(calm(1, up, up), time.Hour)
		b.views.Delete("main")
		b.pass(time.Hour)
		b.want(" 10.0.0.2=healthy 10.0.0.3=healthy")
	})
}

// TestStandingWriter: of two nodes that drain, the one that was the writer keeps
// its sessions.
func TestStandingWriter(t *testing.T) {
	inBubble(t, []string{"main"}, func(b *bubble) {
		b.set(decision("main", 1, down, up, down), time.Hour)
		b.set(decision("main", 2, drain, drain, down), time.Hour)
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		l := b.store.tables[kindListener].resources["main/primary"]
		same(t, "listener", "main/primary writer/n2", text(t, l.name, l.wire.GetResource().GetValue(), kindListener))
	})
}

// TestWarnedOnce: what is left out is logged when it begins, not each time.
func TestWarnedOnce(t *testing.T) {
	inBubble(t, []string{"main"}, func(b *bubble) {
		for g := range uint64(5) {
			s := decision("main", 1+g, up, down, down)
			s.Pools[1].Nodes[1].Address.Host = "db2.example.org"
			b.set(s, time.Hour)
		}
		b.want(" 10.0.0.3=healthy")
		if n := strings.Count(b.log.String(), "db2.example.org"); n != 1 {
			t.Errorf("%d warnings, want one:\n%s", n, b.log.String())
		}
	})
}

// TestVersions: versions depend on what is served, not on how it came about.
func TestVersions(t *testing.T) {
	var got [2][kinds]string
	for i, order := range [][]string{{"a", "b", "c"}, {"c", "x", "a", "b"}} {
		s := newStore()
		for _, c := range order {
			set, err := resources.Build(decision(c, uint64(1+i), up, down, down), resources.Settings{Listen: listenAnywhere})
			if err != nil {
				t.Fatal(err)
			}
			e, err := encode(set)
			if err != nil {
				t.Fatal(err)
			}
			s.apply(c, e)
		}
		s.apply("x", nil)
		for k := range kinds {
			got[i][k] = s.tables[k].version()
		}
	}
	same(t, "versions", got[0], got[1])
}
