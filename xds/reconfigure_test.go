package xds

import (
	"strings"
	"testing"
	"time"

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

func TestOtherSettingsAreServedWithoutADecision(t *testing.T) {
	inBubble(t, []string{"main"}, func(b *bubble) {
		b.set(calm(1), time.Hour)
		before := b.listener("main/primary")
		if before == "" {
			t.Fatal("there is no listener")
		}
		settings := resources.Settings{Listen: func(string, string) (topology.Address, bool) {
			return topology.Address{Host: "127.0.0.9", Port: 6000}, true
		}}
		s := &Server{publisher: b.pub}
		s.Reconfigure(resources.Settings{}) // two in a row: the newest counts
		s.Reconfigure(settings)
		b.pass(0)
		if got := b.listener("main/primary"); !strings.Contains(got, "127.0.0.9") {
			t.Errorf("the listener is still %q", got)
		}
		// The new settings hold for later decisions, too, and the standing writer
		// is known to them.
		b.set(decision("main", 2, down, up, down), time.Hour)
		if got := b.listener("main/primary"); !strings.Contains(got, "127.0.0.9") {
			t.Errorf("after a decision the listener is %q", got)
		}
		if w, known := b.pub.settings.Standing("main", "primary"); w != "n2" || !known {
			t.Errorf("the standing writer is %q, %t", w, known)
		}
		s.Reconfigure(resources.Settings{})
		b.pass(0)
		if got := b.listener("main/primary"); got != "" {
			t.Errorf("a pool without listener has %q", got)
		}
	})
}
