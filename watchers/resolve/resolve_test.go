package resolve

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// inner is a source that says what a test hands it.
type inner chan topology.Observation

func (in inner) Run(ctx context.Context, report func(topology.Observation)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case o := <-in:
			report(o)
		}
	}
}

// rig is a wrapped source in fake time, with a resolver that a test fills.
type rig struct {
	t     *testing.T
	inner inner
	s     *Source

	mu    sync.Mutex
	zone  map[string]string // addresses with blanks between; "" has none, absent names are unknown
	err   error             // what every question fails with
	delay time.Duration
	asked int
	told  []topology.Observation
}

func in(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	knowing(t, nil, f)
}

// knowing is in, with what an earlier source found out.
func knowing(t *testing.T, nodes []topology.Node, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, inner: make(inner), zone: map[string]string{}}
		r.s = Wrap(r.inner, Options{Lookup: r.lookup, Now: topology.NewTicker(time.Now)})
		r.s.Know(nodes)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- r.s.Run(ctx, func(o topology.Observation) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.told = append(r.told, o)
			})
		}()
		f(t, r)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

func (r *rig) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	r.asked++
	text, known := r.zone[host]
	err, delay := r.err, r.delay
	r.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var all []netip.Addr
	for f := range strings.FieldsSeq(text) {
		all = append(all, netip.MustParseAddr(f))
	}
	return all, nil
}

func (r *rig) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// nodes has the source say addresses, "name=host:port" each.
func (r *rig) nodes(list ...string) { r.inner <- observation(r.t, list...) }

func observation(t *testing.T, list ...string) topology.Observation {
	t.Helper()
	o := topology.Observation{Cluster: "main", Source: topology.SourceID{Kind: topology.SourceFile, Name: "f"}, Nodes: &topology.NodeList{}}
	for _, l := range list {
		name, at, _ := strings.Cut(l, "=")
		a, err := topology.ParseAddress(at)
		if err != nil {
			t.Fatal(err)
		}
		o.Nodes.Nodes = append(o.Nodes.Nodes, topology.Node{Name: name, Address: a})
	}
	return o
}

// after lets time pass.
func (r *rig) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// want compares what was told since the last call, a line each.
func (r *rig) want(lines ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var got []string
	for _, o := range r.told {
		var line string
		switch {
		case o.Failure != nil:
			line = string(o.Failure.Class)
		case o.Nodes == nil:
			line = "other"
		default:
			var words []string
			for _, n := range o.Nodes.Nodes {
				word := n.Name + "=" + n.Address.String()
				if n.HostName != "" {
					word += "(" + n.HostName + ")"
				}
				words = append(words, word)
			}
			line = strings.Join(words, " ")
		}
		got = append(got, line)
	}
	if d := cmp.Diff(lines, got); d != "" {
		r.t.Errorf("told (-want +got):\n%s", d)
	}
	r.told = nil
}

func TestLiteralAddressesPass(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.nodes("n1=10.0.0.1:5432", "n6=[fd00::6]:5432")
		r.inner <- topology.Observation{Authority: &topology.Authority{}}
		r.after(time.Minute)
		r.want("n1=10.0.0.1:5432 n6=[fd00::6]:5432", "other")
		if r.asked != 0 {
			t.Errorf("%d questions about literal addresses", r.asked)
		}
	})
}

func TestNamesBecomeAddresses(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.zone = map[string]string{"db1": "10.0.0.9 10.0.0.1 fd00::1", "db2": "fd00::2"}
		r.nodes("n1=db1:5432", "n2=db2:5433")
		r.after(time.Second)
		r.want("n1=10.0.0.1:5432(db1) n2=[fd00::2]:5433(db2)")
		r.set(func() { r.zone["db1"] = "10.0.0.1 10.0.0.0" }) // the present one is still there
		r.after(time.Minute)
		r.want()
		r.set(func() { r.zone["db1"] = "10.0.0.7 ::ffff:10.0.0.8" })
		r.after(30 * time.Second)
		r.want("n1=10.0.0.7:5432(db1) n2=[fd00::2]:5433(db2)")
	})
}

// A resolver that is away, or knows nothing any more, moves nobody.
func TestLastAddressStays(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.zone["db1"] = "10.0.0.1"
		r.nodes("n1=db1:5432")
		r.after(time.Second)
		r.set(func() { r.err = errors.New("SERVFAIL") })
		r.after(time.Hour)
		r.set(func() { r.err = nil; delete(r.zone, "db1") })
		r.after(time.Hour)
		r.set(func() { r.zone["db1"] = "0.0.0.0 ff02::1" })
		r.after(time.Hour)
		r.nodes("n1=db1:5432")
		r.after(time.Second)
		r.want("n1=10.0.0.1:5432(db1)", "n1=10.0.0.1:5432(db1)")
	})
}

// A start without DNS is no cluster without nodes.
func TestFirstListWaits(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.err = errors.New("SERVFAIL")
		r.zone["db1"] = "10.0.0.1"
		r.nodes("n1=db1:5432", "n2=10.0.0.2:5432")
		r.after(2500 * time.Millisecond)
		r.want("name", "name", "name")
		r.set(func() { r.err = nil })
		r.after(time.Second)
		r.want("n1=10.0.0.1:5432(db1) n2=10.0.0.2:5432")
	})
}

func TestPatienceEnds(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.err = errors.New("SERVFAIL")
		r.nodes("n1=db1:5432", "n2=10.0.0.2:5432")
		r.after(29 * time.Second)
		r.set(func() { r.told = nil })
		r.after(2 * time.Second)
		r.want("n1=db1:5432 n2=10.0.0.2:5432")
		r.set(func() { r.err = nil; r.zone["db1"] = "10.0.0.1" })
		r.after(10 * time.Second)
		r.want("n1=10.0.0.1:5432(db1) n2=10.0.0.2:5432")
	})
}

// A name that does not exist is an answer: the others do not wait for it.
func TestUnknownNameHoldsNobody(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.nodes("n1=tpyo:5432", "n2=10.0.0.2:5432")
		r.after(time.Second)
		r.want("n1=tpyo:5432 n2=10.0.0.2:5432")
	})
}

// A slow resolver never delays what else a source says.
func TestSlowResolverDelaysNobody(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.zone = map[string]string{"db1": "10.0.0.1", "db2": "10.0.0.2"}
		r.nodes("n1=db1:5432")
		r.after(time.Second)
		r.want("n1=10.0.0.1:5432(db1)")
		r.set(func() { r.delay = 1900 * time.Millisecond })
		r.nodes("n1=db1:5432", "n2=db2:5432")
		r.inner <- topology.Observation{Authority: &topology.Authority{}}
		synctest.Wait()
		r.want("n1=10.0.0.1:5432(db1) n2=db2:5432", "other")
		r.after(3 * time.Second)
		r.want("n1=10.0.0.1:5432(db1) n2=10.0.0.2:5432(db2)")
	})
}

// A node that does not answer may have moved: its name is asked for at once, but
// not faster than once a second.
func TestNudge(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.zone["db1"] = "10.0.0.1"
		r.nodes("n1=db1:5432")
		r.after(2 * time.Second)
		r.set(func() { r.zone["db1"] = "10.0.0.5"; r.asked = 0 })
		for range 40 {
			r.s.Nudge()
			r.after(50 * time.Millisecond)
		}
		r.want("n1=10.0.0.1:5432(db1)", "n1=10.0.0.5:5432(db1)")
		if r.asked < 2 || r.asked > 3 {
			t.Errorf("%d questions in two seconds of nudges", r.asked)
		}
	})
}

// While the source fails its nodes are not told again, which would look like news
// of it; its next word brings the new address.
func TestFailingSourceIsNotContradicted(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.zone["db1"] = "10.0.0.1"
		r.nodes("n1=db1:5432")
		r.after(time.Second)
		r.inner <- topology.Observation{Failure: &topology.Failure{Class: topology.FailStore}}
		r.set(func() { r.zone["db1"] = "10.0.0.5" })
		r.after(time.Minute)
		r.want("n1=10.0.0.1:5432(db1)", "store")
		r.nodes("n1=db1:5432")
		r.after(time.Second)
		r.want("n1=10.0.0.5:5432(db1)")
	})
}

// A first list that waited is no news of a source that fails by now.
func TestFirstListDoesNotEndAFailure(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.err = errors.New("SERVFAIL")
		r.zone["db1"] = "10.0.0.1"
		r.nodes("n1=db1:5432")
		r.after(500 * time.Millisecond)
		r.inner <- topology.Observation{Failure: &topology.Failure{Class: topology.FailStore}}
		r.after(time.Second)
		r.want("name", "store")
		r.set(func() { r.err = nil })
		r.after(time.Second)
		r.want("n1=10.0.0.1:5432(db1)", "store")
	})
}

// Numbers go up by one, whoever speaks.
func TestNumbers(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.zone["db1"] = "10.0.0.1"
		r.nodes("n1=db1:5432")
		r.after(time.Second)
		r.set(func() { r.zone["db1"] = "10.0.0.2" })
		r.after(time.Minute)
		r.nodes("n1=db1:5432")
		r.after(time.Second)
		for i, o := range r.told {
			if o.Seq != uint64(i+1) || o.Cluster != "main" || o.Source.Name != "f" || o.At.Mono == 0 {
				t.Errorf("observation %d: number %d of %s %v at %v", i, o.Seq, o.Cluster, o.Source, o.At)
			}
		}
		if len(r.told) != 3 {
			t.Errorf("%d observations, want 3", len(r.told))
		}
	})
}

// A start while the resolver knows nothing, or says that there is no such name,
// goes on with the addresses of before.
func TestStartWithWhatIsKnown(t *testing.T) {
	before := []topology.Node{{Name: "n1", HostName: "db1", Address: topology.Address{Host: "10.0.0.1", Port: 5432}}}
	for name, err := range map[string]error{"no such name": nil, "no answer": errors.New("SERVFAIL")} {
		t.Run(name, func(t *testing.T) {
			knowing(t, before, func(t *testing.T, r *rig) {
				r.err = err
				r.nodes("n1=db1:5432")
				r.after(time.Hour)
				r.want("n1=10.0.0.1:5432(db1)")
				r.set(func() { r.err = nil; r.zone["db1"] = "10.0.0.2" })
				r.after(time.Minute)
				r.want("n1=10.0.0.2:5432(db1)")
			})
		})
	}
}

// What an earlier source knew is asked for at once.
func TestWhatIsKnownIsAskedForAtOnce(t *testing.T) {
	before := []topology.Node{{Name: "n1", HostName: "db1", Address: topology.Address{Host: "10.0.0.1", Port: 5432}}}
	knowing(t, before, func(t *testing.T, r *rig) {
		r.zone["db1"] = "10.0.0.2"
		r.nodes("n1=db1:5432")
		r.after(time.Millisecond)
		r.want("n1=10.0.0.1:5432(db1)", "n1=10.0.0.2:5432(db1)")
	})
}

// A node that gets a name instead of its address, or another name, stays where it
// is until somebody knows the name.
func TestNewNameOfANode(t *testing.T) {
	in(t, func(t *testing.T, r *rig) {
		r.nodes("n1=10.0.0.1:5432")
		r.set(func() { r.err = errors.New("SERVFAIL") })
		r.nodes("n1=db1:5433")
		r.after(time.Minute)
		r.want("n1=10.0.0.1:5432", "n1=10.0.0.1:5432")
		r.set(func() { r.err = nil; r.zone["db1"] = "10.0.0.2" })
		r.after(time.Minute)
		r.want("n1=10.0.0.2:5433(db1)")
	})
}
