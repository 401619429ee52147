package tap

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forever bounds every wait for something that must come.
const forever = 30 * time.Second

var n1 = topology.Address{Host: "10.0.0.1", Port: 5432}

func pg(node string) topology.SourceID {
	return topology.SourceID{Kind: topology.SourcePostgres, Name: node}
}

// probe is an answer of a node.
func probe(node string, kind topology.ProbeKind) topology.Observation {
	return topology.Observation{Source: pg(node), Probe: &topology.Probe{Node: node, Address: n1, Kind: kind, InRecovery: topology.No}}
}

func failure(node string, kind topology.ProbeKind, class topology.FailureClass) topology.Observation {
	return topology.Observation{Source: pg(node), Failure: &topology.Failure{Node: node, Address: n1, Asked: kind, Class: class}}
}

func snapshot(nodes ...string) *topology.Snapshot {
	s := &topology.Snapshot{Cluster: "main"}
	for _, n := range nodes {
		s.Nodes = append(s.Nodes, topology.Node{Name: n})
	}
	return s
}

// take returns the events that wait, as texts.
func take(r *reader) []string {
	var out []string
	for len(r.events) > 0 {
		switch e := <-r.events; {
		case e.observation != nil:
			out = append(out, fmt.Sprint("seq ", e.observation.Seq))
		case e.decided != nil:
			out = append(out, fmt.Sprint("decided ", int64(e.decided.at.Mono)))
		default:
			out = append(out, fmt.Sprint("lost ", e.lost))
		}
	}
	return out
}

// seq folds observations with these numbers.
func (t *Tap) seq(all ...uint64) {
	for _, n := range all {
		o := probe("n1", topology.ProbeRole)
		o.Seq = n
		t.Folded(o)
	}
}

func TestAReaderGetsEverythingInOrder(t *testing.T) {
	var tap Tap
	tap.seq(1, 2)
	tap.Decided(Decided{At: topology.Clock{Mono: 10}, Snapshot: snapshot("n1"), Saved: topology.Saved{Writer: "n1"}})
	r, now := tap.read(10)
	tap.seq(3)
	tap.Decided(Decided{At: topology.Clock{Mono: 11}, Snapshot: snapshot("n1")})
	tap.seq(4)
	if len(now.observations) != 1 || now.observations[0].Seq != 2 || now.decided.At.Mono != 10 || now.decided.Saved.Writer != "n1" {
		t.Errorf("the reader began with %+v", now)
	}
	if d := cmp.Diff([]string{"seq 3", "decided 11", "seq 4"}, take(r)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	tap.leave(r)
	tap.seq(5)
	if got := take(r); got != nil {
		t.Errorf("a reader that has left got %v", got)
	}
}

// A slow reader loses what does not fit, learns how much and where, and goes on.
func TestASlowReaderKeepsNobodyWaiting(t *testing.T) {
	var tap Tap
	slow, _ := tap.read(3)
	quick, _ := tap.read(100)
	tap.seq(1, 2, 3, 4, 5)
	if d := cmp.Diff([]string{"seq 1", "seq 2", "seq 3"}, take(slow)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	tap.seq(6, 7, 8)
	if d := cmp.Diff([]string{"lost 2", "seq 6", "seq 7"}, take(slow)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	tap.seq(9)
	if d := cmp.Diff([]string{"lost 1", "seq 9"}, take(slow)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if got := take(quick); len(got) != 9 {
		t.Errorf("the other reader got %v", got)
	}
}

func TestTheEndOfReaders(t *testing.T) {
	var tap Tap
	first, _ := tap.read(10)
	tap.Cut("other rules")
	tap.seq(1)
	select {
	case <-first.ended:
	default:
		t.Fatal("a reader that was cut goes on")
	}
	if first.why != "other rules" || len(first.events) > 0 {
		t.Errorf("it ended by %q with %v", first.why, take(first))
	}
	second, now := tap.read(10)
	if len(now.observations) != 1 {
		t.Errorf("the next one began with %+v", now)
	}
	tap.Close("over")
	third, now := tap.read(10)
	for name, r := range map[string]*reader{"second": second, "third": third} {
		select {
		case <-r.ended:
		default:
			t.Fatalf("the %s reader goes on", name)
		}
		if r.why != "over" {
			t.Errorf("the %s reader ended by %q", name, r.why)
		}
	}
	if len(now.observations) != 0 {
		t.Errorf("after the end a reader began with %+v", now)
	}
}

func TestManyReadersAtOnce(t *testing.T) {
	var tap Tap
	tap.Decided(Decided{Snapshot: snapshot("n1")})
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r, now := tap.read(10_000) // more than will ever come: nothing is lost
				next := uint64(1)
				if len(now.observations) > 0 {
					next = now.observations[0].Seq + 1
				}
				for len(r.events) > 0 {
					if e := <-r.events; e.observation != nil {
						if e.observation.Seq != next {
							t.Errorf("got %d, want %d", e.observation.Seq, next)
						}
						next++
					}
				}
				tap.leave(r)
			}
		})
	}
	for n := range uint64(5000) {
		tap.seq(n + 1)
		tap.Decided(Decided{Snapshot: snapshot("n1")})
	}
	close(stop)
	all.Wait()
}

// Without a reader a tap makes no garbage.
func TestNobodyReads(t *testing.T) {
	var tap Tap
	s := snapshot("n1")
	tap.seq(1)
	o, d := probe("n1", topology.ProbeRole), Decided{Snapshot: s}
	if n := testing.AllocsPerRun(100, func() {
		tap.Folded(o)
		tap.Decided(d)
	}); n > 0 {
		t.Errorf("%v allocations for each observation", n)
	}
}
