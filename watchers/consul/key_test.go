package consul

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consultest"
)

// keyRig watches one key of a fake.
type keyRig struct {
	agent *consultest.Agent
	key   *Key
	mu    sync.Mutex
	got   []string
}

func newKeyRig(t *testing.T) *keyRig {
	t.Helper()
	r := &keyRig{agent: consultest.New()}
	c, err := NewClient(ClientOptions{Transport: r.agent})
	if err != nil {
		t.Fatal(err)
	}
	r.key = NewKey(KeyOptions{Client: c, Key: "pgsteer/maintenance", Now: topology.NewTicker(time.Now), Deliver: func(res Result[string]) {
		r.mu.Lock()
		defer r.mu.Unlock()
		word := res.Value
		if res.Failure != nil {
			word = "!" + string(res.Failure.Class)
		}
		r.got = append(r.got, word)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.key.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *keyRig) words() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func valueOf(a *consultest.Agent) string {
	p, _ := a.Get("pgsteer/maintenance")
	return string(p.Value)
}

// A key is told when it is missing, within a second after each change, when it is
// lost, and not while Consul is away.
func TestKeyIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRig(t)
		time.Sleep(5 * time.Second)
		for _, text := range []string{"one", "two"} {
			r.agent.Put("pgsteer/maintenance", text)
			time.Sleep(time.Second)
			if w := r.words(); w[len(w)-1] != text {
				t.Fatalf("a second after %q was written the words are %q", text, w)
			}
			time.Sleep(5 * time.Second)
		}
		for range 10 { // also when changes come one upon the other
			r.agent.Put("pgsteer/maintenance", time.Now().String())
			time.Sleep(300 * time.Millisecond)
			if w := r.words(); w[len(w)-1] != valueOf(r.agent) {
				t.Fatalf("300 ms after a change among many the last word is %q", w[len(w)-1])
			}
		}
		r.agent.Put("pgsteer/maintenance", "two")
		time.Sleep(5 * time.Second)
		r.agent.Stop()
		time.Sleep(2 * time.Second)
		r.agent.Start()
		time.Sleep(10 * time.Second)
		r.agent.Delete("pgsteer/maintenance")
		time.Sleep(3 * time.Second)
		if w := strings.Join(r.words(), " "); !strings.HasPrefix(w, " one two ") || !strings.Contains(w, " two !") || !strings.HasSuffix(w, " two ") {
			t.Errorf("the words are %q", w)
		}
	})
}

// A change is made on the newest value only, and is no change when Consul says no.
func TestKeyIsChangedByCheckAndSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newKeyRig(t)
		add := func(more string, meanwhile func()) error {
			return r.key.Change(t.Context(), func(old []byte) ([]byte, error) {
				if meanwhile != nil {
					meanwhile()
				}
				return append(slices.Clone(old), more...), nil
			})
		}
		if err := add("a", nil); err != nil {
			t.Fatal(err)
		}
		once := sync.OnceFunc(func() { r.agent.Put("pgsteer/maintenance", "ax") })
		if err := add("b", once); err != nil {
			t.Fatal(err)
		}
		if p, _ := r.agent.Get("pgsteer/maintenance"); string(p.Value) != "axb" {
			t.Errorf("the value is %q: a change beside it was lost", p.Value)
		}
		n := 0
		if err := add("c", func() { n++; r.agent.Put("pgsteer/maintenance", strings.Repeat("y", n)) }); err == nil || n != changeTries {
			t.Errorf("%d tries against somebody who always comes first: %v", n, err)
		}
		refused := errors.New("no")
		if err := r.key.Change(t.Context(), func([]byte) ([]byte, error) { return nil, refused }); !errors.Is(err, refused) {
			t.Errorf("a refused edit gives %v", err)
		}
		index := r.agent.Index()
		if err := r.key.Change(t.Context(), func([]byte) ([]byte, error) { return nil, nil }); err != nil || r.agent.Index() != index {
			t.Errorf("no edit gives %v, index %d after %d", err, r.agent.Index(), index)
		}
		r.agent.Stop()
		if err := add("d", nil); err == nil {
			t.Error("a change while Consul is away is taken")
		}
	})
}
