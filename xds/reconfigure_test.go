package xds

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// listener is the text of a pool's listener as it is served, "" when it is not.
func (b *bubble) listener(pool string) string {
	b.store.mu.Lock()
	defer b.store.mu.Unlock()
	r := b.store.tables[kindListener].current[pool]
	if r == nil {
		return ""
	}
	return string(r.wire.GetResource().GetValue())
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
		same(t, "held", "main/primary main/replica", strings.Join(b.pub.hold.names(), " "))
		b.set(decision("main", 2, drain, down, down), time.Hour)
		b.at("while the writer drains", "127.0.0.1", "127.0.0.1")
		b.set(decision("main", 3, down, up, down), time.Hour)
		b.at("with another writer", "127.0.0.9", "127.0.0.1")
		same(t, "held", "main/replica", strings.Join(b.pub.hold.names(), " "))
		if w, known := b.pub.settings.Standing("main", "primary"); w != "n2" || !known {
			t.Errorf("the standing writer is %q, %t", w, known)
		}
		b.reconfigure("127.0.0.9", "today")
		b.at("once released", "127.0.0.9", "127.0.0.9")
		same(t, "held", "", strings.Join(b.pub.hold.names(), " "))
		b.reconfigure("", "")
		if got := b.listener("main/primary"); got != "" {
			t.Errorf("a pool without listener has %q", got)
		}
		if got := strings.Count(b.log.String(), "is held back"); got != 2 {
			t.Errorf("%d warnings, want one for each listener:\n%s", got, b.log.String())
		}
	})
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
	})
}
