package runtimeapi

import (
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// reload reloads HAProxy and waits until n old workers are seen.
func (r *rig) reload(tb testing.TB, old int) {
	tb.Helper()
	if err := r.haproxy.Reload(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	eventually(tb, 5*time.Second, func() error {
		if st := r.pusher.Masters()[0]; st.Old != old || st.Err != nil {
			return fmt.Errorf("masters %+v, want %d old workers", st, old)
		}
		return nil
	})
}

// wantAlive fails when a session ends within a time.
func wantAlive(tb testing.TB, c net.Conn, within time.Duration) {
	tb.Helper()
	_ = c.SetReadDeadline(time.Now().Add(within))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		tb.Errorf("a session that was to stay ended: %v", err)
	}
}

// wantEnd fails when a session does not end within a second.
func wantEnd(tb testing.TB, c net.Conn, what string) {
	tb.Helper()
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		tb.Errorf("%s lives on for a second", what)
	}
}

// The sessions that reloads left in old workers end with the writer's role, as
// those in the present worker do; what drains, and what nobody judges, stays.
func TestHAProxyOldWorkersLoseTheWriterToo(t *testing.T) {
	r := newRig(t)
	decide := func(generation uint64, primary, replica [2]topology.Verdict) {
		show(&r.views, snapshot(generation, generation,
			pool("primary", topology.ModeWrite, primary[:]...), pool("replica", topology.ModeRead, replica[:]...)))
	}
	decide(1, [2]topology.Verdict{up, down}, [2]topology.Verdict{down, up})
	eventually(t, time.Second, r.servedBy(t, "n1"))
	first, _ := r.connect(t)
	report, name := session(t, r.reads)
	if name != "n2" {
		t.Fatalf("reads go to %q, want n2", name)
	}
	r.reload(t, 1)
	eventually(t, 2*time.Second, r.servedBy(t, "n1"))
	second, _ := r.connect(t)
	r.reload(t, 2)
	eventually(t, 2*time.Second, r.servedBy(t, "n1"))
	third, _ := r.connect(t)

	decide(2, [2]topology.Verdict{up, down}, [2]topology.Verdict{drain, drain}) // lag, or maintenance
	eventually(t, 2*time.Second, func() error {
		if st := r.pusher.Masters()[0]; st.Sessions.Draining != 1 {
			return fmt.Errorf("masters %+v, want 1 session that drains", st)
		}
		return nil
	})
	wantAlive(t, first, 300*time.Millisecond)
	wantAlive(t, report, 10*time.Millisecond)

	decide(3, [2]topology.Verdict{down, up}, [2]topology.Verdict{up, drain})
	wantEnd(t, first, "the session of two reloads before")
	wantEnd(t, second, "the session of one reload before")
	wantEnd(t, third, "the session of the present worker")
	wantAlive(t, report, 300*time.Millisecond)
	if st := r.pusher.Masters()[0]; st.Ended != 2 {
		t.Errorf("masters %+v, want 2 sessions ended", st)
	}
}

// A node that left the list ends its sessions wherever they are; a pool that left
// the configuration keeps them.
func TestHAProxyOldWorkersAndWhatLeft(t *testing.T) {
	r := newRig(t)
	primary, reads := pool("primary", topology.ModeWrite, up, down), pool("replica", topology.ModeRead, down, up)
	show(&r.views, snapshot(1, 1, primary, reads))
	eventually(t, time.Second, r.servedBy(t, "n1"))
	report, _ := session(t, r.reads)
	r.reload(t, 1)

	show(&r.views, snapshot(2, 2, primary)) // the pool is not ours any more
	wantAlive(t, report, 600*time.Millisecond)
	show(&r.views, snapshot(3, 3, primary, reads))
	wantAlive(t, report, 600*time.Millisecond)
	reads.Nodes = reads.Nodes[:1]
	show(&r.views, snapshot(4, 4, primary, reads)) // n2 left the cluster
	wantEnd(t, report, "the session of a node that left")
}

// A node that nobody has judged yet, beside one that serves, takes no session when
// HAProxy comes to know it by a reload.
func TestHAProxyHoldsOutWhatNobodyKnows(t *testing.T) {
	r := newRig(t)
	show(&r.views, snapshot(1, 1, replicas(undecided, up)))
	weights := func(want string) func() error {
		return func() error {
			if got := r.weights(t); got != want {
				return fmt.Errorf("weights %s, want %s", got, want)
			}
			return nil
		}
	}
	eventually(t, time.Second, weights("n1=100 n2=100")) // this HAProxy may know n1 from an earlier pgsteer
	r.reload(t, 0)
	eventually(t, time.Second, weights("n1=0 n2=100"))
	for range 10 {
		if _, name := session(t, r.reads); name != "n2" {
			t.Fatalf("reads go to %q, want n2", name)
		}
	}
	show(&r.views, snapshot(2, 2, replicas(up, up)))
	eventually(t, time.Second, weights("n1=100 n2=100"))
}

// A node that moved, and for which HAProxy was reloaded, leaves its sessions at the
// old address to an old worker; they end.
func TestHAProxyOldWorkersAndMoves(t *testing.T) {
	r := newRig(t)
	port := regexp.MustCompile(`n1 127.0.0.1:(\d+)`)
	moveTo := func(generation uint64, to string, verdict topology.Verdict) {
		number, err := strconv.ParseUint(to, 10, 16)
		if err != nil {
			t.Fatal(err)
		}
		p := pool("primary", topology.ModeWrite, verdict, down)
		p.Nodes[0].Address = topology.Address{Host: "127.0.0.1", Port: uint16(number)}
		show(&r.views, snapshot(generation, generation, p))
	}
	moveTo(1, port.FindStringSubmatch(r.file(t))[1], up)
	eventually(t, time.Second, r.servedBy(t, "n1"))
	before := first(r.connect(t))
	to := strconv.Itoa(greet(t, "moved"))
	if err := r.haproxy.WriteConfig(port.ReplaceAllString(r.file(t), "n1 127.0.0.1:"+to)); err != nil {
		t.Fatal(err)
	}
	r.reload(t, 1)
	wantAlive(t, before, 300*time.Millisecond)      // nobody said yet that the node has moved
	eventually(t, 2*time.Second, r.servedBy(t, "")) // nor is its verdict one on the new address
	moveTo(2, to, undecided)
	wantAlive(t, before, 600*time.Millisecond) // nor whether it is there
	moveTo(3, to, up)
	wantEnd(t, before, "a session with the old address")
	eventually(t, 2*time.Second, r.servedBy(t, "moved"))
	after := first(r.connect(t))
	r.reload(t, 1)
	wantAlive(t, after, 500*time.Millisecond)
}
