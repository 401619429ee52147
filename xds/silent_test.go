package xds

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	streamv3 "github.com/envoyproxy/go-control-plane/pkg/server/stream/v3"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// asker is a delta client without gRPC.
type asker struct {
	b  *bubble
	st *stream
	in chan cachev3.DeltaResponse
}

func (b *bubble) asker() *asker {
	st := &stream{store: b.store, notes: newNotes(new(ledger), b.now, "delta", "")}
	b.store.mu.Lock()
	b.store.roster.enter(st)
	b.store.mu.Unlock()
	return &asker{b, st, make(chan cachev3.DeltaResponse, 10)}
}

// ask asks for all of a kind, or for names, with what it has by name and version.
func (a *asker) ask(k kind, has map[string]string, names ...string) {
	a.b.t.Helper()
	a.st.names = deltaNames{subscribe: names}
	sub := streamv3.NewDeltaSubscription(names, nil, has, len(names) == 0)
	if _, err := a.st.CreateDeltaWatch(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: k.url()}, sub, a.in); err != nil {
		a.b.t.Fatal(err)
	}
}

// told is what the client was told since the last call, sorted; what is gone has a minus. The
// answers are acknowledged.
func (a *asker) told() string {
	a.b.t.Helper()
	a.b.pass(0)
	var all []string
	for {
		var resp cachev3.DeltaResponse
		select {
		case resp = <-a.in:
		default:
			slices.Sort(all)
			return strings.Join(all, " ")
		}
		m, err := resp.GetDeltaDiscoveryResponse()
		if err != nil {
			a.b.t.Fatal(err)
		}
		for _, r := range m.GetResources() {
			all = append(all, r.GetName())
		}
		for _, name := range m.GetRemovedResources() {
			all = append(all, "-"+name)
		}
		k, _ := kindOf(m.GetTypeUrl())
		a.ask(k, nil)
		a.b.pass(0)
	}
}

// TestSilentClusterKeepsNobodyWaiting: of a cluster that stays undecided after a start a
// client keeps what it has, and is told once it is decided; the others are served.
func TestSilentClusterKeepsNobodyWaiting(t *testing.T) {
	clusters := []string{"bad", "main"}
	inBubble(t, clusters, func(b *bubble) {
		b.set(decision("main", 1, up, down, down), time.Hour)
		a, fresh := b.asker(), b.asker()
		has := map[string]string{"bad/primary": "1", "bad/old": "1", "main/old": "1"}
		a.ask(kindCluster, has)
		a.ask(kindEndpoint, nil, "bad/primary@x")
		known := maps.Clone(has)
		known["bad/replica"] = versionOf(t, kindListener, "bad/replica") // it need not be sent
		a.ask(kindListener, known)
		fresh.ask(kindListener, nil)
		b.pass(undecidedMost - time.Millisecond)
		same(t, "told before the time is over", "", a.told()+fresh.told())
		b.pass(time.Millisecond)
		const mains = "-main/old -main/old main/primary main/primary main/replica main/replica"
		same(t, "told of others", mains, a.told())
		same(t, "told a new client", "main/primary main/replica", fresh.told())
		if got := strings.Join(b.pub.waitingFor(), " "); got != "bad" {
			t.Errorf("waiting for %q", got)
		}
		b.set(decision("main", 2, down, up, down), time.Hour)
		same(t, "told of a new writer", "main/primary", a.told())
		b.set(decision("bad", 1, up, down, down), time.Hour)
		same(t, "told of the late one", "-bad/old -bad/old bad/primary bad/primary bad/primary@x bad/replica", a.told())
		b.set(decision("bad", 2, down, up, down), time.Hour)
		same(t, "told of its next writer", "bad/primary bad/primary@x", a.told())
		if !strings.Contains(b.log.String(), "nothing is known of some clusters") {
			t.Errorf("the log says:\n%s", b.log.String())
		}
	})
}

// versionOf is that of a resource of the first decision of a cluster.
func versionOf(t *testing.T, k kind, name string) string {
	t.Helper()
	return setOf(t, decision(clusterOf(name), 1, up, down, down), resources.Settings{})[k][name].version
}

// TestNewClusterIsNotForgotten: a cluster that a reload brings may have been served by
// another agent already. While it is undecided here, an Envoy that comes from there keeps
// it; when it leaves the configuration again, the Envoy is told.
func TestNewClusterIsNotForgotten(t *testing.T) {
	clusters := []string{"main"}
	inBubbleWith(t, nil, Options{Settings: settingsAt("127.0.0.1", "")}, func(b *bubble) {
		b.pub.clusters = func() []string { return clusters }
		b.set(decision("main", 1, up, down, down), time.Hour)
		clusters = []string{"main", "beta"}
		b.set(decision("beta", 1, undecided, undecided, undecided), time.Hour)
		b.reconfigure("127.0.0.1", "")
		a := b.asker()
		a.ask(kindListener, map[string]string{"beta/primary": "1", "main/old": "1"})
		same(t, "told at first", "-main/old main/primary main/replica", a.told())
		clusters = clusters[:1]
		b.views.Delete("beta")
		b.pass(settleMost)
		same(t, "told when it has gone", "-beta/primary", a.told())
	})
}

// TestStateOfTheWorldIsNotForgotten: an answer without a cluster removes it, so a client
// that has something from before waits for all that it may have.
func TestStateOfTheWorldIsNotForgotten(t *testing.T) {
	inBubble(t, []string{"bad", "main"}, func(b *bubble) {
		b.set(decision("main", 1, up, down, down), time.Hour)
		b.pass(undecidedMost)
		answered := func(version string, only ...string) bool {
			in := make(chan cachev3.Response, 10)
			st := b.asker().st
			for _, c := range only {
				st.only = map[string]struct{}{c: {}}
			}
			q := &discoveryv3.DiscoveryRequest{TypeUrl: kindListener.url(), VersionInfo: version}
			if _, err := st.CreateWatch(q, streamv3.NewSotwSubscription(nil, true), in); err != nil {
				t.Fatal(err)
			}
			return len(in) > 0
		}
		for _, c := range []struct {
			what    string
			version string
			only    []string
			want    bool
		}{
			{"a new client", "", nil, true},
			{"one from before", "7", nil, false},
			{"one from before that has this cluster alone", "7", []string{"main"}, true},
			{"one from before that has the silent one", "7", []string{"bad"}, false},
		} {
			if got := answered(c.version, c.only...); got != c.want {
				t.Errorf("%s is answered: %t", c.what, got)
			}
		}
	})
}

var undecided = topology.Undecided
