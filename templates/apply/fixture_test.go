package apply

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// script is a Runner that does what a test says and remembers the calls.
type script struct {
	mu     sync.Mutex
	calls  []string
	check  func(path string) (string, error)
	reload func(ctx context.Context) (string, error)
}

func (s *script) Run(ctx context.Context, args []string) (string, error) {
	s.mu.Lock()
	s.calls = append(s.calls, args[0])
	check, reload := s.check, s.reload
	s.mu.Unlock()
	switch {
	case args[0] == "check" && check != nil:
		return check(args[len(args)-1])
	case args[0] == "reload" && reload != nil:
		return reload(ctx)
	}
	return "", nil
}

func (s *script) count(what string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c == what {
			n++
		}
	}
	return n
}

func (s *script) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// bench is one group of one file in a folder of its own, driven with fake time.
type bench struct {
	t     *testing.T
	file  string
	views latest.Map[string, topology.View]
	run   script
	log   strings.Builder
	group Group
	bus   Bus
	bring func(ctx context.Context, before, after []byte) error
	turn  func(ctx context.Context, bouncer string, leads map[string]string) error
	a     *Applier
	stop  func()
	gen   uint64
}

const oneLinePerServer = `{{ range .Clusters }}{{ range (index .Pools 0).Servers }}server {{ .Name }} {{ hostport . }}
{{ end }}{{ end }}end
`

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, file: filepath.Join(t.TempDir(), "haproxy.cfg")}
	b.group = Group{
		Name:     "lb",
		Files:    []File{{Template: render.Template{Name: "t", Text: oneLinePerServer}, Destination: b.file}},
		Clusters: []string{"main"},
		Check:    []string{"check", "-f", "{{.Staged}}"},
		Reload:   []string{"reload"},
	}
	return b
}

// start runs the group; stop is called by the test's end at the latest.
func (b *bench) start() {
	b.t.Helper()
	a, err := New(Options{Groups: []Group{b.group}, Views: &b.views, Now: topology.NewTicker(time.Now), Runner: &b.run, Bus: b.bus, Bring: b.bring, Turn: b.turn, Logger: slog.New(slog.NewTextHandler(&b.log, nil))})
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error)
	go func() { done <- a.Run(ctx) }()
	b.a = a
	b.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
}

// nodes publishes a snapshot of a cluster with the given nodes.
func (b *bench) nodes(cluster string, names ...string) {
	b.gen++
	b.views.Set(cluster, &topology.View{Snapshot: snapshotOf(cluster, b.gen, names...)})
}

func snapshotOf(cluster string, generation uint64, names ...string) *topology.Snapshot {
	s := &topology.Snapshot{Cluster: cluster, Generation: generation, Complete: true}
	for _, n := range names {
		s.Nodes = append(s.Nodes, topology.Node{Name: n, Address: topology.Address{Host: "10.0.0.1", Port: 5432}})
	}
	s.Pools = []topology.PoolVerdicts{{Pool: "primary", Mode: topology.ModeWrite}}
	return s
}

func text(names ...string) string {
	var s strings.Builder
	for _, n := range names {
		fmt.Fprintf(&s, "server %s 10.0.0.1:5432\n", n)
	}
	return s.String() + "end\n"
}

// after lets time pass and all work be done.
func (b *bench) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) status() Status { return b.a.Status()[0] }

func (b *bench) wantState(s State) {
	b.t.Helper()
	if got := b.status(); got.State != s {
		b.t.Errorf("state is %q (%s), want %q", got.State, got.Error, s)
	}
}

func (b *bench) wantFile(want string) {
	b.t.Helper()
	got, err := os.ReadFile(b.file)
	if errors.Is(err, os.ErrNotExist) {
		got = []byte("(none)")
	}
	if string(got) != want {
		b.t.Errorf("%s holds %q, want %q", b.file, got, want)
	}
}

func (b *bench) wantCalls(checks, reloads int) {
	b.t.Helper()
	if c, r := b.run.count("check"), b.run.count("reload"); c != checks || r != reloads {
		b.t.Errorf("%d checks and %d reloads, want %d and %d", c, r, checks, reloads)
	}
}

func (b *bench) write(text string) {
	b.t.Helper()
	if err := os.WriteFile(b.file, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// litter lists what lies beside the file and is not meant to.
func (b *bench) litter() (names []string) {
	entries, err := os.ReadDir(filepath.Dir(b.file))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != filepath.Base(b.file) && !slices.Contains([]string{endGood, endRejected}, "."+afterDot(e.Name())) {
			names = append(names, e.Name())
		}
	}
	return names
}

func afterDot(s string) string { return s[strings.LastIndex(s, ".")+1:] }
