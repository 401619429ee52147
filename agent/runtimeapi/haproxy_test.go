package runtimeapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// rig is a real HAProxy before two servers that tell their names. It listens on
// UNIX sockets, so that nothing can take its ports. Its agent checks reach a port
// that never says a word: what happens is the pusher's doing alone.
type rig struct {
	dir    string
	binary string
	config string
	views  latest.Map[string, topology.View]
	pusher *Pusher
	kill   func()
}

const rigConfig = `
global
 stats socket %[1]s/admin.sock mode 600 level admin
 max-spread-checks 10ms
defaults
 mode tcp
 timeout connect 2s
 timeout client 1m
 timeout server 1m
 default-server check inter 2s weight 100 agent-check agent-addr 127.0.0.1 agent-port %[2]d agent-inter 10m on-marked-down shutdown-sessions
frontend pg
 bind unix@%[1]s/pg.sock
 tcp-request connection reject if { nbsrv(be_main_primary) gt 1 }
 tcp-request connection reject if { nbsrv(guard_main_primary) gt 0 }
 default_backend be_main_primary
backend be_main_primary
 balance first
 server n1 127.0.0.1:%[3]d agent-send "main primary n1\n"
 server n2 127.0.0.1:%[4]d agent-send "main primary n2\n"
backend guard_main_primary
 server g 127.0.0.1:9 agent-send "main primary !guard\n" agent-check agent-addr 127.0.0.1 agent-port %[2]d agent-inter 10m no-check
backend be_main_replica
 balance leastconn
 server n1 127.0.0.1:%[3]d agent-send "main replica n1\n"
 server n2 127.0.0.1:%[4]d agent-send "main replica n2\n" agent-port %[5]d agent-inter 20ms
`

func newRig(tb testing.TB) *rig {
	tb.Helper()
	r := &rig{dir: tb.TempDir(), binary: findHAProxy(tb)}
	if len(r.dir) > 80 { // a UNIX socket's path has 107 bytes at most
		dir, err := os.MkdirTemp("", "pgsteer")
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { os.RemoveAll(dir) })
		r.dir = dir
	}
	r.config = filepath.Join(r.dir, "haproxy.cfg")
	text := fmt.Sprintf(rigConfig[1:], r.dir, greet(tb, ""), greet(tb, "n1"), greet(tb, "n2"), greet(tb, "up 100%\n"))
	if err := os.WriteFile(r.config, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	r.start(tb)
	p, err := New(Options{Sockets: []string{r.dir + "/admin.sock"}, Views: &r.views, Now: topology.NewTicker(time.Now)})
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

// findHAProxy skips the test without HAProxy, except where CI promises it.
func findHAProxy(tb testing.TB) string {
	tb.Helper()
	labtest.Need(tb, lab.NeedHAProxy)
	path, err := lab.HAProxyProgram()
	if err != nil {
		tb.Fatal(err)
	}
	return path
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

func (r *rig) start(tb testing.TB) {
	tb.Helper()
	var log bytes.Buffer
	cmd := exec.Command(r.binary, "-db", "-f", r.config)
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(gone)
	}()
	r.kill = func() {
		_ = cmd.Process.Kill()
		<-gone
	}
	tb.Cleanup(r.kill)
	eventually(tb, 10*time.Second, func() error {
		c, err := net.Dial("unix", r.dir+"/admin.sock")
		if err == nil {
			c.Close()
		}
		return err
	})
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

// connect opens a session and returns the name of the server behind it, "" when
// HAProxy refuses.
func (r *rig) connect(tb testing.TB) (net.Conn, string) {
	tb.Helper()
	c, err := net.Dial("unix", r.dir+"/pg.sock")
	if err != nil {
		return nil, ""
	}
	tb.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
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
func (r *rig) name(generation uint64, writer string) {
	p := pool("primary", topology.ModeWrite, down, down)
	for i := range p.Nodes {
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
	c, err := net.Dial("unix", r.dir+"/admin.sock")
	if err != nil {
		tb.Fatal(err)
	}
	defer c.Close()
	_, _ = io.WriteString(c, "show servers state be_main_replica\n")
	b, _ := io.ReadAll(c)
	var out []string
	for line := range strings.Lines(string(b)) {
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
	r.kill()
	r.start(t)
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
