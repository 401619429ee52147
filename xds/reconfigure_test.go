package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// listener is the text of a pool's listener as it is served, "" when it is not.
func (b *bubble) listener(pool string) string {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	r := b.store.tables[kindListener].resources[pool]
	if r == nil {
		return ""
	}
	return string(r.wire.GetResource().GetValue())
}

// held are the listeners that are held back.
func (b *bubble) held() []string {
	listeners, _ := b.pub.hold.names()
	return listeners
}

// reconfigure takes settings that put every listener on a host.
func (b *bubble) reconfigure(host, release string) {
	s := &Server{publisher: b.pub}
	s.Reconfigure(settingsAt(host, release))
	b.pass(0)
}

func settingsAt(host, release string) Settings {
	return Settings{Release: release, Settings: resources.Settings{Listen: func(string, string) (topology.Address, bool) {
		return topology.Address{Host: host, Port: 6000}, host != ""
	}}}
}

// at wants both listeners on hosts.
func (b *bubble) at(when, primary, replica string) {
	b.t.Helper()
	for pool, host := range map[string]string{"main/primary": primary, "main/replica": replica} {
		if got := b.listener(pool); !strings.Contains(got, host) {
			b.t.Errorf("%s the listener %s is not on %s but %q", when, pool, host, got)
		}
	}
}

// TestNewestSettingsCount: of settings that come faster than they are taken.
func TestNewestSettingsCount(t *testing.T) {
	s := New(Options{Views: new(latest.Map[string, topology.View])})
	s.Reconfigure(settingsAt("127.0.0.1", "older"))
	s.Reconfigure(settingsAt("127.0.0.1", "newer"))
	same(t, "taken", "newer", (<-s.publisher.changed).Release)
}

// TestChangedListenerIsHeld: a listener on which sessions may be changes with its
// writer or by release, and never by settings alone.
func TestChangedListenerIsHeld(t *testing.T) {
	inBubble(t, []string{"main"}, func(b *bubble) {
		b.set(calm(1), time.Hour)
		b.at("first", "127.0.0.1", "127.0.0.1")
		b.reconfigure("127.0.0.9", "")
		b.at("after other settings", "127.0.0.1", "127.0.0.1")
		same(t, "held", "main/primary main/replica", strings.Join(b.held(), " "))
		b.set(decision("main", 2, drain, down, down), time.Hour)
		b.at("while the writer drains", "127.0.0.1", "127.0.0.1")
		b.set(decision("main", 3, down, up, down), time.Hour)
		b.at("with another writer", "127.0.0.9", "127.0.0.1")
		same(t, "held", "main/replica", strings.Join(b.held(), " "))
		if w, known := b.pub.settings.Standing("main", "primary"); w != "n2" || !known {
			t.Errorf("the standing writer is %q, %t", w, known)
		}
		b.reconfigure("127.0.0.9", "today")
		b.at("once released", "127.0.0.9", "127.0.0.9")
		same(t, "held", "", strings.Join(b.held(), " "))
		b.reconfigure("", "")
		if got := b.listener("main/primary"); got != "" {
			t.Errorf("a pool without listener has %q", got)
		}
		if got := strings.Count(b.log.String(), "is held back"); got != 2 {
			t.Errorf("%d warnings, want one for each listener:\n%s", got, b.log.String())
		}
	})
}

// TestKeptListenerIsHeldOverAChangeOfWriter: sessions that go on when the writer
// changes must not end by another listener then.
func TestKeptListenerIsHeldOverAChangeOfWriter(t *testing.T) {
	settings := func(host string) Settings {
		s := settingsAt(host, "")
		s.Sessions = func(string, string) resources.Sessions { return resources.SessionsKeep }
		return s
	}
	inBubbleWith(t, []string{"main"}, Options{Settings: settings("127.0.0.1")}, func(b *bubble) {
		b.set(calm(1), time.Hour)
		(&Server{publisher: b.pub}).Reconfigure(settings("127.0.0.9"))
		b.pass(0)
		b.set(decision("main", 3, down, up, down), time.Hour)
		b.at("with another writer", "127.0.0.1", "127.0.0.1")
		same(t, "held", "main/primary main/replica", strings.Join(b.held(), " "))
	})
}

// TestManyAreServedAnewInParts: between them newer decisions are looked at.
func TestManyAreServedAnewInParts(t *testing.T) {
	p, _ := manyPublished(t, 25, Options{})
	p.anew = p.views.Keys()
	for _, left := range []int{15, 5, 0} {
		if d := p.untilDue(); d != 0 {
			t.Errorf("the next part waits for %s", d)
		}
		if p.publishAnew(); len(p.anew) != left {
			t.Errorf("%d are left, want %d", len(p.anew), left)
		}
	}
	if d := p.untilDue(); d == 0 {
		t.Error("nothing is left and it does not rest")
	}
}

// manyPublished is a publisher that does not run, of clusters c0000 and on that are
// published, and a function that publishes another decision of one of them.
func manyPublished(tb testing.TB, clusters int, o Options) (p *publisher, decide func(name string, generation uint64, verdicts ...topology.Verdict)) {
	tb.Helper()
	o.Views, o.Now, o.Logger = new(latest.Map[string, topology.View]), topology.NewTicker(time.Now), slog.New(slog.DiscardHandler)
	o.Clusters, o.Settings.Listen = o.Views.Keys, listenAnywhere
	p = newPublisher(o, newStore())
	decide = func(name string, generation uint64, verdicts ...topology.Verdict) {
		o.Views.Set(name, &topology.View{Snapshot: decision(name, generation, verdicts...), ValidUntil: topology.Mono(time.Hour)})
		p.take(name)
	}
	for i := range clusters {
		decide(fmt.Sprintf("c%04d", i), 1, up, down, down)
	}
	return p, decide
}

// memory is a Memory that may fail.
type memory struct {
	b   []byte
	err error
}

func (m *memory) Load() ([]byte, error) { return m.b, m.err }
func (m *memory) Save(b []byte) error   { m.b = b; return m.err }

// TestUpgradeChangesNoListener: another pgsteer, which makes listeners in another
// way, serves those of before, until the writer changes.
func TestUpgradeChangesNoListener(t *testing.T) {
	var kept memory
	var before string
	inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: settingsAt("127.0.0.1", "")}, func(b *bubble) {
		b.set(calm(1), time.Hour)
		before = b.listener("main/primary")
	})
	if len(kept.b) == 0 {
		t.Fatal("nothing was saved")
	}
	inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: settingsAt("127.0.0.9", "")}, func(b *bubble) {
		snap := decision("main", 1, und, down, down) // the saved writer, not yet asked
		snap.Held = "n1"
		b.set(snap, time.Hour)
		same(t, "the saved writer's listener", before, b.listener("main/primary"))
		b.set(calm(2), time.Hour)
		same(t, "the writer's listener", before, b.listener("main/primary"))
		b.set(decision("main", 3, down, up, down), time.Hour)
		b.at("with another writer", "127.0.0.9", "127.0.0.1")
	})
	inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: settingsAt("127.0.0.8", "")}, func(b *bubble) {
		b.set(decision("main", 1, down, up, down), time.Hour)
		b.at("after the next start", "127.0.0.9", "127.0.0.1")
	})
}

// TestClusterThatIsGoneIsForgotten: what stood of a cluster that left the configuration
// while the agent was away is not what it gets when it returns.
func TestClusterThatIsGoneIsForgotten(t *testing.T) {
	var kept memory
	run := func(clusters, host, want string) {
		all := strings.Fields(clusters)
		inBubbleWith(t, all, Options{Memory: &kept, Settings: settingsAt(host, "")}, func(b *bubble) {
			for _, c := range all {
				b.set(decision(c, 1, up, down, down), time.Hour)
			}
			b.pass(time.Hour)
			same(t, "held of "+clusters, want, strings.Join(b.held(), " "))
		})
	}
	run("beta main", "127.0.0.1", "")
	run("main", "127.0.0.9", "main/primary main/replica")
	if strings.Contains(string(kept.b), "beta/") {
		t.Errorf("what stood of beta is kept:\n%s", kept.b)
	}
	run("beta main", "127.0.0.9", "main/primary main/replica")
}

// TestSilentClusterIsNotForgotten: of one that is configured and not decided all stays.
func TestSilentClusterIsNotForgotten(t *testing.T) {
	var kept memory
	for _, decided := range []string{"beta main", "main", "beta main"} {
		inBubbleWith(t, []string{"beta", "main"}, Options{Memory: &kept, Settings: settingsAt("127.0.0.1", "")}, func(b *bubble) {
			for c := range strings.FieldsSeq(decided) {
				b.set(decision(c, 1, up, down, down), time.Hour)
			}
			b.pass(time.Hour)
		})
		if !strings.Contains(string(kept.b), "beta/") {
			t.Fatalf("with %s decided, beta is forgotten", decided)
		}
	}
}

// TestSaveIsTriedAgain: what stands is saved once the disk takes it, also without news and
// at the end.
func TestSaveIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d disk
		h := newHold(&d, "", slog.New(slog.DiscardHandler))
		ctx, end := context.WithCancel(t.Context())
		defer end()
		done := make(chan struct{})
		go func() { defer close(done); h.run(ctx) }()
		tried := func(when string, after time.Duration, want int64) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			same(t, when, want, d.tried.Swap(0))
		}
		d.full.Store(true)
		h.save()
		tried("at once", 0, 1)
		tried("before the time", writeRetry-time.Nanosecond, 0)
		d.full.Store(false)
		tried("again", time.Nanosecond, 1)
		tried("without news", time.Hour, 0)
		d.full.Store(true)
		h.save()
		tried("at once", 0, 1)
		end()
		<-done
		tried("at the end", 0, 1)
	})
}

// disk is a Memory that counts what it is to save.
type disk struct {
	full  atomic.Bool
	tried atomic.Int64
}

func (d *disk) Load() ([]byte, error) { return nil, nil }

func (d *disk) Save([]byte) error {
	d.tried.Add(1)
	if d.full.Load() {
		return errors.New("the disk is full")
	}
	return nil
}

// TestMovedWriter: sessions to the address that a writer had end, even where nobody saw it
// down in between, and after that its listener is the one of before; over a restart too. It
// changes for nobody else, not even after an upgrade that brings the memory of addresses.
func TestMovedWriter(t *testing.T) {
	at := func(generation uint64, host string, verdicts ...topology.Verdict) *topology.Snapshot {
		s := decision("main", generation, verdicts...)
		s.Nodes[0].Address.Host = host
		for i := range s.Pools {
			s.Pools[i].Nodes[0].Address.Host = host
		}
		return s
	}
	var kept memory
	var before string
	chain := func(b *bubble, want, writer string) {
		t.Helper()
		l := text(t, "main/primary", []byte(b.listener("main/primary")), kindListener)
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		e := b.store.tables[kindEndpoint].current["main/primary"]
		same(t, "listener and endpoints", "main/primary "+want+", main/primary"+writer, l+", "+text(t, e.name, e.wire.GetResource().GetValue(), kindEndpoint))
	}
	inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: settingsAt("127.0.0.1", "")}, func(b *bubble) {
		b.set(decision("main", 1, up, down, down), time.Hour)
		chain(b, "writer/n1", " 10.0.0.1=healthy")
		before = b.listener("main/primary")
		b.set(at(2, "10.0.0.9", up, down, down), time.Hour)
		chain(b, "none", "")
		b.set(at(3, "10.0.0.9", drain, down, down), time.Hour)
		b.set(at(4, "10.0.0.9", up, down, down), time.Hour)
		b.pass(moveGap - time.Millisecond)
		chain(b, "none", "")
		b.pass(time.Millisecond)
		chain(b, "writer/n1", " 10.0.0.9=healthy")
		same(t, "the listener", before, b.listener("main/primary"))
		b.set(decision("main", 5, up, down, down), time.Hour) // and back
		chain(b, "none", "")
		b.set(decision("main", 6, down, up, down), time.Hour)
		chain(b, "writer/n2", " 10.0.0.2=healthy")
		b.pass(moveGap)
		b.set(at(7, "10.0.0.9", up, down, down), time.Hour) // nobody goes on at 10.0.0.1
		chain(b, "writer/n1", " 10.0.0.9=healthy")
		port := at(8, "10.0.0.9", up, down, down)
		port.Pools[0].Nodes[0].Address.Port = 6432 // the pool's own: its server is the same
		b.set(port, time.Hour)
		chain(b, "writer/n1", " 10.0.0.9=healthy")
	})
	inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: settingsAt("127.0.0.1", "")}, func(b *bubble) {
		s := at(1, "10.0.0.8", down, down, down)
		s.Pools[0].Nodes[2].Verdict = und // so that nothing is said before it is up
		b.set(s, time.Hour)
		b.set(at(2, "10.0.0.8", up, down, down), time.Hour)
		chain(b, "none", "")
		b.pass(moveGap)
		chain(b, "writer/n1", " 10.0.0.8=healthy")
	})
	// Of another node nothing is known, and Envoys hear nothing before another cluster is decided.
	inBubbleWith(t, []string{"main", "other"}, Options{Memory: &kept, Settings: settingsAt("127.0.0.1", "")}, func(b *bubble) {
		b.set(at(1, "10.0.0.7", up, down, und), time.Hour)
		b.pass(undecidedMost - time.Millisecond)
		chain(b, "none", "")
		b.pass(moveGap)
		chain(b, "none", "")
		b.pass(time.Millisecond)
		chain(b, "writer/n1", " 10.0.0.7=healthy")
	})
	for _, host := range []string{"127.0.0.1", "127.0.0.9"} { // with the second one the listener is held back
		kept.b = regexp.MustCompile(`"at": "[^"]*",`).ReplaceAll(kept.b, nil) // as an older pgsteer wrote it
		inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: settingsAt(host, "")}, func(b *bubble) {
			b.set(at(1, "10.0.0.9", up, down, down), time.Hour)
			chain(b, "writer/n1", " 10.0.0.9=healthy")
			same(t, "the listener", before, b.listener("main/primary"))
		})
		if !strings.Contains(string(kept.b), `"at": "10.0.0.9:5432"`) {
			t.Errorf("with listeners on %s the address is not kept:\n%s", host, kept.b)
		}
	}
}

// TestMovedWriterOfKeptSessions: where sessions go on when the writer changes, a move ends
// none and closes the pool for nobody.
func TestMovedWriterOfKeptSessions(t *testing.T) {
	s := settingsAt("127.0.0.1", "")
	s.Sessions = func(string, string) resources.Sessions { return resources.SessionsKeep }
	inBubbleWith(t, []string{"main"}, Options{Settings: s}, func(b *bubble) {
		b.set(decision("main", 1, up, down, down), time.Hour)
		moved := decision("main", 2, up, down, down)
		moved.Nodes[0].Address.Host, moved.Pools[0].Nodes[0].Address.Host = "10.0.0.9", "10.0.0.9"
		b.set(moved, time.Hour)
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		e := b.store.tables[kindEndpoint].current["main/primary"]
		same(t, "endpoints", "main/primary 10.0.0.9=healthy", text(t, e.name, e.wire.GetResource().GetValue(), kindEndpoint))
	})
}

// TestUnreadableMemory: without it the agent serves, and says so.
func TestUnreadableMemory(t *testing.T) {
	for name, m := range map[string]*memory{"fails": {err: errors.New("no such disk")}, "is no JSON": {b: []byte("{")}, "has no bytes": {b: []byte(`{"main/primary":{}}`)}} {
		t.Run(name, func(t *testing.T) {
			inBubbleWith(t, []string{"main"}, Options{Memory: m, Settings: settingsAt("127.0.0.9", "")}, func(b *bubble) {
				b.set(calm(1), time.Hour)
				b.at("without memory", "127.0.0.9", "127.0.0.9")
				synctest.Wait()
				if said := strings.Contains(b.log.String(), "not known"); said == (name == "has no bytes") {
					t.Errorf("it logged %q", b.log.String())
				}
			})
		})
	}
}

// TestLeavingNodeStaysListed: Envoy must ask about a node once more before it is
// gone, else its sessions would go on for ever.
func TestLeavingNodeStaysListed(t *testing.T) {
	settings := settingsAt("127.0.0.1", "")
	settings.Sessions = func(string, string) resources.Sessions { return resources.SessionsHealthCheck }
	settings.Check.Address = topology.Address{Host: "127.0.0.1", Port: 7432}
	inBubbleWith(t, []string{"main"}, Options{Settings: settings}, func(b *bubble) {
		b.set(calm(1), time.Hour)
		b.want(" 10.0.0.1=unhealthy 10.0.0.2=healthy 10.0.0.3=healthy")
		left := calm(2)
		left.Nodes = left.Nodes[:2]
		for i := range left.Pools {
			left.Pools[i].Nodes = left.Pools[i].Nodes[:2]
		}
		left.Urgent = 2
		b.set(left, time.Hour)
		gone := " 10.0.0.1=unhealthy 10.0.0.2=healthy 10.0.0.3=unhealthy"
		b.want(gone)
		b.pass(leavingLeast - time.Millisecond)
		b.want(gone)
		b.pass(time.Millisecond)
		b.want(" 10.0.0.1=unhealthy 10.0.0.2=healthy")
		moved := inZones(calm(3), "a", "b", "c")
		moved.Urgent = 3
		b.set(moved, time.Hour)
		moved = inZones(calm(4), "a", "b", "b")
		moved.Urgent = 4
		b.set(moved, time.Hour)
		same(t, "who left with another zone", 0, len(b.pub.leaving))
	})
}

// TestNodeLeavesOverARestart: one that left while pgsteer did not run is listed for a
// while, and so is one that was leaving when it ended.
func TestNodeLeavesOverARestart(t *testing.T) {
	settings := settingsAt("127.0.0.1", "")
	settings.Sessions = func(string, string) resources.Sessions { return resources.SessionsHealthCheck }
	settings.Check.Address = topology.Address{Host: "127.0.0.1", Port: 7432}
	var kept memory
	o := Options{Settings: settings, Memory: &kept}
	inBubbleWith(t, []string{"main"}, o, func(b *bubble) { b.set(calm(1), time.Hour) })
	left := calm(2)
	left.Nodes = left.Nodes[:2]
	for i := range left.Pools {
		left.Pools[i].Nodes = left.Pools[i].Nodes[:2]
	}
	const gone = " 10.0.0.1=unhealthy 10.0.0.2=healthy 10.0.0.3=unhealthy"
	for range 2 {
		inBubbleWith(t, []string{"main"}, o, func(b *bubble) {
			b.set(left, time.Hour)
			b.want(gone)
		})
	}
	inBubbleWith(t, []string{"main"}, o, func(b *bubble) {
		b.set(left, time.Hour)
		b.want(gone)
		b.pass(leavingLeast)
		b.want(" 10.0.0.1=unhealthy 10.0.0.2=healthy")
	})
}

// TestCheckAddressIsHeld: Envoy asks where it has asked, over a restart too, until that
// is released. A pgsteer that did not keep the address changes nothing at once.
func TestCheckAddressIsHeld(t *testing.T) {
	var kept memory
	set := func(port uint16, release string) Settings {
		return Settings{Release: release, Settings: resources.Settings{
			Check:    resources.Check{Address: topology.Address{Host: "127.0.0.1", Port: port}},
			Refuse:   func(string, string) topology.Address { return topology.Address{Host: "127.0.0.1", Port: 7435} },
			Sessions: func(string, string) resources.Sessions { return resources.SessionsHealthCheck },
		}}
	}
	served := func(b *bubble, when string, want uint32) {
		t.Helper()
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		r := b.store.tables[kindEndpoint].current["main/replica"]
		for _, one := range append(slices.Collect(maps.Values(r.zones)), r) {
			var ports []uint32
			for _, l := range unpack(t, one.wire.GetResource().GetValue(), new(endpointv3.ClusterLoadAssignment)).GetEndpoints() {
				for _, e := range l.GetLbEndpoints() {
					ports = append(ports, e.GetEndpoint().GetHealthCheckConfig().GetAddress().GetSocketAddress().GetPortValue())
				}
			}
			same(t, when, []uint32{want, want, want, 0}, ports) // the last one tells why nobody takes a session
		}
		if len(r.zones) != 2 {
			t.Errorf("%d zones", len(r.zones))
		}
	}
	snap := func(generation uint64) *topology.Snapshot {
		return inZones(decision("main", generation, up, down, down), "a", "b", "b")
	}
	inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: set(7432, "")}, func(b *bubble) {
		b.set(snap(1), time.Hour)
		served(b, "at first", 7432)
		(&Server{publisher: b.pub}).Reconfigure(set(7433, ""))
		b.pass(0)
		served(b, "after a reload", 7432)
	})
	inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: set(7433, "")}, func(b *bubble) {
		b.set(snap(1), time.Hour)
		served(b, "after a restart", 7432)
		_, held := b.pub.hold.names()
		same(t, "held", "main/primary main/replica", strings.Join(held, " "))
		if !strings.Contains(b.log.String(), "127.0.0.1:7432") {
			t.Errorf("the log does not say where Envoy asks:\n%s", b.log.String())
		}
		(&Server{publisher: b.pub}).Reconfigure(set(7433, "now"))
		b.pass(0)
		served(b, "once released", 7433)
		_, held = b.pub.hold.names()
		same(t, "held", "", strings.Join(held, " "))
	})
	kept.b = regexp.MustCompile(`,\s*"check_at": "[^"]*"`).ReplaceAll(kept.b, nil) // as an older pgsteer wrote it
	inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: set(7434, "now")}, func(b *bubble) {
		b.set(snap(1), time.Hour)
		served(b, "after an upgrade", 7434)
	})
	if !strings.Contains(string(kept.b), `"check_at": "127.0.0.1:7434"`) {
		t.Errorf("the address is not kept:\n%s", kept.b)
	}
}

// TestCheckedClusterIsHeld: the cluster of a pool with health checks stays as Envoy
// has it, endpoints included, whatever else is set and over a restart, until it is
// released; another authority for its nodes is taken at once.
func TestCheckedClusterIsHeld(t *testing.T) {
	var kept memory
	set := func(connect time.Duration, ca, release string, mode resources.Sessions) Settings {
		return Settings{Release: release, Settings: resources.Settings{
			ConnectTimeout: connect, ServerTLS: resources.ServerTLS{CA: ca},
			Check:    resources.Check{Address: topology.Address{Host: "127.0.0.1", Port: 7432}},
			Sessions: func(string, string) resources.Sessions { return mode },
		}}
	}
	const checked = resources.SessionsHealthCheck
	served := func(b *bubble) (cluster, endpoints string) {
		b.store.mu.Lock()
		defer b.store.mu.Unlock()
		var c clusterv3.Cluster
		if err := b.store.tables[kindCluster].resources["main/replica"].wire.GetResource().UnmarshalTo(&c); err != nil {
			t.Fatal(err)
		}
		endpoints = c.GetEdsClusterConfig().GetServiceName()
		if b.store.tables[kindEndpoint].resources[endpoints] == nil {
			t.Errorf("there are no endpoints %s", endpoints)
		}
		return c.GetConnectTimeout().AsDuration().String() + " " + c.GetTransportSocket().GetName(), endpoints
	}
	take := func(b *bubble, s Settings) {
		(&Server{publisher: b.pub}).Reconfigure(s)
		b.pass(0)
	}
	var first string
	inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: set(time.Second, "", "", checked)}, func(b *bubble) {
		b.set(calm(1), time.Hour)
		_, first = served(b)
	})
	inBubbleWith(t, []string{"main"}, Options{Memory: &kept, Settings: set(2*time.Second, "", "", checked)}, func(b *bubble) {
		b.set(calm(1), time.Hour)
		cluster, endpoints := served(b)
		same(t, "after a restart", "1s  "+first, cluster+" "+endpoints)
		_, held := b.pub.hold.names()
		same(t, "held", "main/primary main/replica", strings.Join(held, " "))
		b.set(decision("main", 2, down, up, down), time.Hour)
		cluster, _ = served(b)
		same(t, "with another writer", "1s ", cluster)
		take(b, set(2*time.Second, "", "now", checked))
		cluster, endpoints = served(b)
		if _, held := b.pub.hold.names(); cluster != "2s " || endpoints == first || len(held) > 0 {
			t.Errorf("once released: %s, %s, held %v", cluster, endpoints, held)
		}
		take(b, set(3*time.Second, "an authority", "now", checked))
		cluster, _ = served(b)
		same(t, "with TLS", "3s envoy.transport_sockets.tls", cluster)
		take(b, set(4*time.Second, "an authority", "now", checked))
		take(b, set(4*time.Second, "an authority", "now", resources.SessionsKeep))
		cluster, _ = served(b)
		same(t, "without checks", "4s envoy.transport_sockets.tls", cluster)
		if _, held := b.pub.hold.names(); len(held) > 0 {
			t.Errorf("held without checks: %v", held)
		}
	})
	if strings.Contains(string(kept.b), ofCluster) {
		t.Errorf("what stands no more is kept:\n%s", kept.b)
	}
}
