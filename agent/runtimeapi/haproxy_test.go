package runtimeapi

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// rig is a real HAProxy before two servers that tell their names. Its frontends
// are UNIX sockets, so that nothing can take its ports. Its agent checks reach a
// port that never says a word: what happens is the pusher's doing alone.
type rig struct {
	haproxy *lab.HAProxy
	pg      string // the frontend of the writer
	reads   string // the frontend of the replicas
	views   latest.Map[string, topology.View]
	pusher  *Pusher
	ports   map[string]int // of n1 and n2
}

const rigConfig = `
global
 stats socket @ADMIN_SOCKET@ mode 600 level admin
 max-spread-checks 10ms
defaults
 mode tcp
 timeout connect 2s
 timeout client 1m
 timeout server 1m
 default-server check inter 2s weight 100 agent-check agent-addr 127.0.0.1 agent-port %[2]d agent-inter 10m
frontend pg
 bind unix@%[1]s
 tcp-request connection reject if { nbsrv(be_main_primary) gt 1 }
 tcp-request connection reject if { nbsrv(guard_main_primary) gt 0 }
 default_backend be_main_primary
backend be_main_primary
 default-server on-marked-down shutdown-sessions
 balance first
 server n1 127.0.0.1:%[3]d agent-send "main primary n1\n"
 server n2 127.0.0.1:%[4]d agent-send "main primary n2\n"
backend guard_main_primary
 server g 127.0.0.1:9 agent-send "main primary !guard\n" agent-check agent-addr 127.0.0.1 agent-port %[2]d agent-inter 10m no-check
frontend reads
 bind unix@%[6]s
 default_backend be_main_replica
backend be_main_replica
 balance leastconn
 server n1 127.0.0.1:%[3]d agent-send "main replica n1\n"
 server n2 127.0.0.1:%[4]d agent-send "main replica n2\n" agent-port %[5]d agent-inter 20ms
`

func newRig(tb testing.TB) *rig {
	tb.Helper()
	l := labtest.ForTest(tb, lab.NeedHAProxy)
	r := &rig{pg: l.SocketPath("pg.sock"), reads: l.SocketPath("reads.sock")}
	r.ports = map[string]int{"n1": greet(tb, "n1"), "n2": greet(tb, "n2")}
	text := fmt.Sprintf(rigConfig[1:], r.pg, greet(tb, ""), r.ports["n1"], r.ports["n2"], greet(tb, "up 100%\n"), r.reads)
	h, err := l.HAProxy(tb.Context(), lab.HAProxyOptions{Config: text})
	if err != nil {
		tb.Fatal(err)
	}
	r.haproxy = h
	p, err := New(Options{
		Sockets: []string{h.AdminSocket()}, Masters: []string{h.MasterSocket()}, Views: &r.views,
		Patience: 300 * time.Millisecond, Now: topology.NewTicker(time.Now), Logger: slog.New(slog.NewTextHandler(tb.Output(), nil)),
	})
	if err != nil {
		tb.Fatal(err)
	}
	r.pusher = p
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- p.Run(ctx) }()
	tb.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// greet listens on a free port and says name to everybody, or closes at once
// when it has none. It returns the port.
func greet(tb testing.TB, name string) int {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if name != "" {
					_, _ = io.WriteString(c, name)
					_, _ = io.Copy(io.Discard, c)
				}
			}()
		}
	}()
	return ln.Addr().(*net.TCPAddr).Port
}

func eventually(tb testing.TB, within time.Duration, try func() error) {
	tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	end := time.Now().Add(within)
	for {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			tb.Fatalf("not within %s: %v", within, err)
		}
		<-tick.C
	}
}

// connect opens a session with the writer and returns the name of the server
// behind it, "" when HAProxy refuses.
func (r *rig) connect(tb testing.TB) (net.Conn, string) {
	tb.Helper()
	return session(tb, r.pg)
}

func session(tb testing.TB, frontend string) (net.Conn, string) {
	tb.Helper()
	c, err := net.Dial("unix", frontend)
	if err != nil {
		return nil, ""
	}
	tb.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	var b [8]byte
	n, _ := c.Read(b[:])
	return c, string(b[:n])
}

func (r *rig) servedBy(tb testing.TB, name string) func() error {
	tb.Helper()
	return func() error {
		c, got := r.connect(tb)
		if c != nil {
			c.Close()
		}
		if got != name {
			return fmt.Errorf("served by %q, want %q", got, name)
		}
		return nil
	}
}

// name makes n1 or n2 the writer, or nobody.
func (r *rig) name(generation uint64, writer string) { r.nameOf(generation, writer, 2) }

// nameOf makes one of some nodes the writer.
func (r *rig) nameOf(generation uint64, writer string, nodes int) {
	p := pool("primary", topology.ModeWrite, slices.Repeat([]topology.Verdict{down}, nodes)...)
	for i := range p.Nodes {
		if port, known := r.ports[p.Nodes[i].Node]; known {
			p.Nodes[i].Address = topology.Address{Host: "127.0.0.1", Port: uint16(port)}
		}
		if p.Nodes[i].Node == writer {
			p.Nodes[i].Verdict = up
		}
	}
	show(&r.views, snapshot(generation, generation, p))
}

func TestHAProxyFollowsTheWriter(t *testing.T) {
	r := newRig(t)
	if _, got := r.connect(t); got != "" {
		t.Fatalf("before the first word a session went to %q", got)
	}
	r.name(1, "n1")
	eventually(t, time.Second, r.servedBy(t, "n1"))
	session, _ := r.connect(t)

	changed := time.Now()
	r.name(2, "n2")
	if _, err := io.Copy(io.Discard, session); err != nil {
		t.Fatalf("session to the lost writer: %v", err)
	}
	if took := time.Since(changed); took > time.Second {
		t.Errorf("the session to the lost writer ended after %s, want less than 1 s", took)
	}
	eventually(t, time.Second, r.servedBy(t, "n2"))

	r.name(3, "")
	eventually(t, time.Second, r.servedBy(t, ""))
	r.name(4, "n2")
	eventually(t, time.Second, r.servedBy(t, "n2"))
	if st := r.pusher.Status()[0]; st.Err != nil || st.Process == "" {
		t.Errorf("status %+v", st)
	}
}

// A weight is pushed as the agent check would say it, in percent of the initial
// one. It lasts as long as nobody says anything else: HAProxy's next good agent
// check (here n2's, which says 100 % all the time) replaces it.
func TestHAProxyTakesWeights(t *testing.T) {
	r := newRig(t)
	weights := func(want string) func() error {
		return func() error {
			if got := r.weights(t); got != want {
				return fmt.Errorf("weights %s, want %s", got, want)
			}
			return nil
		}
	}
	for generation, step := range []struct {
		verdict topology.Verdict
		weight  int
		want    string
	}{
		{up, 25, "n1=25 n2=100"}, {up, 50, "n1=50 n2=100"}, {drain, 100, "n1=0 n2=100"}, {up, 1, "n1=1 n2=100"}, {up, 100, "n1=100 n2=100"},
	} {
		p := replicas(step.verdict, step.verdict)
		for i := range p.Nodes {
			p.Nodes[i].Weight = step.weight
		}
		show(&r.views, snapshot(uint64(generation+1), 1, p)) // only the first is urgent
		eventually(t, 5*time.Second, weights(step.want))
	}
}

// weights are those of the replica pool's servers.
func (r *rig) weights(tb testing.TB) string {
	tb.Helper()
	b, err := r.haproxy.Command(tb.Context(), "show servers state be_main_replica")
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(b) {
		if w := strings.Fields(line); len(w) > 7 && w[1] == "be_main_replica" {
			out = append(out, w[3]+"="+w[7])
		}
	}
	return strings.Join(out, " ")
}

func TestHAProxyRestartIsToldEverything(t *testing.T) {
	r := newRig(t)
	r.name(1, "n2")
	eventually(t, time.Second, r.servedBy(t, "n2"))
	before := r.pusher.Status()[0].Process
	if err := r.haproxy.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 8*time.Second, r.servedBy(t, "n2"))
	eventually(t, 8*time.Second, func() error {
		if st := r.pusher.Status()[0]; st.Process == before || st.Err != nil {
			return fmt.Errorf("status %+v", st)
		}
		return nil
	})
}

func TestHAProxyAnswersAreUnderstood(t *testing.T) {
	r := newRig(t)
	p := pool("primary", topology.ModeWrite, up, down, down) // n3 is not in the file
	show(&r.views, snapshot(1, 1, p))
	eventually(t, 2*time.Second, func() error {
		if st := r.pusher.Status()[0]; st.Err == nil {
			return fmt.Errorf("status %+v", st)
		}
		return nil
	})
	eventually(t, time.Second, r.servedBy(t, "n1"))
}

// Sockets of the wrong kind, and of too low a level, are told apart: reference
// haproxy #2992, #481.
func TestHAProxySocketsOfTheWrongKind(t *testing.T) {
	r := newRig(t)
	low := r.pg + ".low"
	if err := r.haproxy.WriteConfig(strings.Replace(r.file(t), "global\n", "global\n stats socket "+low+" level operator\n", 1)); err != nil {
		t.Fatal(err)
	}
	r.reload(t, 0)
	p, err := New(Options{
		Sockets: []string{r.haproxy.MasterSocket(), low}, Masters: []string{r.haproxy.AdminSocket()},
		Views: &r.views, Now: topology.NewTicker(time.Now),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.name(1, "n1")
	s, m := p.sockets, p.masters[0]
	for i, want := range []string{"not HAProxy's admin socket", `"level operator"`} {
		s[i].push(t.Context())
		if st := s[i].report(); st.Err == nil || !strings.Contains(st.Err.Error(), want) {
			t.Errorf("%s: %v, want %s", st.Socket, st.Err, want)
		}
	}
	if err := m.look(t.Context()); err == nil || !strings.Contains(err.Error(), "is it the master's socket") {
		t.Errorf("a worker's socket as a master's: %v", err)
	}
}

// BenchmarkOldWorker measures from a published decision to the end of a session
// that a reload has left in an old worker.
func BenchmarkOldWorker(b *testing.B) {
	r := newRig(b)
	var took []time.Duration
	for generation := uint64(1); b.Loop(); generation += 2 {
		r.name(generation, "n1")
		eventually(b, 5*time.Second, r.servedBy(b, "n1"))
		c, _ := r.connect(b)
		r.reload(b, 1)
		start := time.Now()
		r.name(generation+1, "n2")
		if _, err := io.Copy(io.Discard, c); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(start))
		eventually(b, 5*time.Second, func() error {
			if n := r.pusher.Masters()[0].Old; n > 0 {
				return fmt.Errorf("%d old workers", n)
			}
			return nil
		})
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
}

// BenchmarkPush measures from a published decision to the first session that the
// new writer takes through a real HAProxy.
func BenchmarkPush(b *testing.B) {
	r := newRig(b)
	r.name(1, "n1")
	eventually(b, time.Second, r.servedBy(b, "n1"))
	writers := []string{"n1", "n2"}
	var took []time.Duration
	for generation := uint64(2); b.Loop(); generation++ {
		start := time.Now()
		writer := writers[generation%2]
		r.name(generation, writer)
		for r.servedBy(b, writer)() != nil {
			if time.Since(start) > 5*time.Second {
				b.Fatal("the new writer takes no session")
			}
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}
