package postgres

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	addr    = topology.Address{Host: "10.0.0.1", Port: 5432}
	primary = topology.Probe{InRecovery: topology.No, ReadOnly: topology.No, Timeline: 1, WriteLSN: 100}
	replica = topology.Probe{InRecovery: topology.Yes, ReadOnly: topology.Yes, Timeline: 1, ReplayLSN: 100}
)

// rig is a prober on a scripted server under a fake clock.
type rig struct {
	*Prober
	t      *testing.T
	server *pgtest.Server
	front  *pgtest.Server                // what listens on frontPort
	moved  atomic.Pointer[pgtest.Server] // who lives at the node's address now; nil: server
	start  time.Time
	log    bytes.Buffer

	mu   sync.Mutex
	seen []topology.Observation
	told int // how many of them after has returned
}

const frontPort = 6432

// dial connects to who lives at an address.
func (r *rig) dial(ctx context.Context, network, address string) (net.Conn, error) {
	to := cmp.Or(r.moved.Load(), r.server)
	if strings.HasSuffix(address, fmt.Sprint(":", frontPort)) {
		to = r.front
	}
	return to.Dial(ctx, network, address)
}

// withRig runs a test on a started prober, and afterwards holds it to its
// manners: no reset, no cancel request, nothing left open.
func withRig(t *testing.T, s pgtest.State, o Options, test func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, server: pgtest.New(s), front: pgtest.New(pgtest.State{}), start: time.Now()}
		defer r.server.Close()
		defer r.front.Close()
		o.Cluster, o.Node, o.Address, o.User = "main", "n1", addr, "probe"
		o.Now, o.Dial, o.Lookup = topology.NewTicker(time.Now), r.dial, r.server.Lookup
		o.Jitter = func(d time.Duration) time.Duration { return d }
		o.Logger = slog.New(slog.NewTextHandler(&r.log, nil))
		p, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		r.Prober = p
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- p.Run(ctx, r.take) }()
		test(r)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
		r.manners()
	})
}

func (r *rig) take(o topology.Observation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, o)
}

// after lets time pass and returns what was observed since the last call.
func (r *rig) after(d time.Duration) []topology.Observation {
	<-time.After(d + time.Microsecond) // what is due at d comes first
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	news := r.seen[r.told:]
	r.told = len(r.seen)
	return news
}

func (r *rig) manners() {
	r.t.Helper()
	synctest.Wait()
	for _, s := range []*pgtest.Server{r.server, r.front} {
		if c := s.Counts(); c.Cancels != 0 || c.Resets != 0 {
			r.t.Errorf("%d cancel requests and %d resets, none is polite", c.Cancels, c.Resets)
		}
	}
	for i, o := range r.seen {
		if o.Seq != uint64(i+1) || o.Cluster != "main" || o.Source != (topology.SourceID{Kind: topology.SourcePostgres, Name: "n1"}) {
			r.t.Errorf("observation %d is %s/%s number %d", i, o.Cluster, o.Source, o.Seq)
		}
		if o.AskedAt.Mono == 0 || o.At.Mono < o.AskedAt.Mono {
			r.t.Errorf("observation %d was asked at %v and answered at %v", i, o.AskedAt.Mono, o.At.Mono)
		}
	}
}

// words writes observations as "full", "role=standby", "login", "login!timeout" and so on.
func words(list []topology.Observation) string {
	var w []string
	for _, o := range list {
		switch {
		case o.Failure != nil && o.Failure.Asked == topology.ProbeFull:
			w = append(w, "!"+string(o.Failure.Class))
		case o.Failure != nil:
			w = append(w, string(o.Failure.Asked)+"!"+string(o.Failure.Class))
		case o.Port != nil:
			w = append(w, "port")
		case o.Probe.Kind == topology.ProbeLogin, o.Probe.Kind == topology.ProbeWrite:
			w = append(w, string(o.Probe.Kind))
		case o.Probe.InRecovery == topology.Yes:
			w = append(w, string(o.Probe.Kind)+"=standby")
		case o.Probe.ReadOnly == topology.Yes:
			w = append(w, string(o.Probe.Kind)+"=readonly")
		default:
			w = append(w, string(o.Probe.Kind)+"=writable")
		}
	}
	return strings.Join(w, " ")
}

// want compares the observations of a stretch of time.
func (r *rig) want(got []topology.Observation, want string) {
	r.t.Helper()
	if w := words(got); w != want {
		r.t.Errorf("observed %q, want %q", w, want)
	}
}

// only returns the observations of one way of asking.
func only(k topology.ProbeKind, list []topology.Observation) []topology.Observation {
	return slices.DeleteFunc(slices.Clone(list), func(o topology.Observation) bool {
		switch {
		case o.Failure != nil:
			return o.Failure.Asked != k
		case o.Port != nil:
			return k != topology.ProbePort
		}
		return o.Probe.Kind != k
	})
}

// attempts counts failures by class.
func attempts(list []topology.Observation, c topology.FailureClass) int {
	n := 0
	for _, o := range list {
		if o.Failure != nil && o.Failure.Class == c {
			n++
		}
	}
	return n
}
