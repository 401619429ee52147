package xds

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/healthapi"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// findEnvoy returns the Envoy that scripts/setup installs, or one in PATH.
func findEnvoy(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	found, err := filepath.Glob(filepath.Join(cache, "pgsteer/lab/envoy-1.40.0/lib/python3*/site-packages/envoy/_bin/envoy"))
	if err == nil && len(found) > 0 {
		return found[0]
	}
	path, err := exec.LookPath("envoy")
	switch {
	case err == nil:
		return path
	case os.Getenv("CI") == "true":
		t.Fatal("Envoy is not installed; run scripts/setup test")
	default:
		t.Skip("Envoy is not installed; run scripts/setup test")
	}
	return ""
}

// startEnvoy runs Envoy with the bootstrap and the arguments that we print.
func startEnvoy(t *testing.T, o BootstrapOptions) {
	t.Helper()
	binary, dir := findEnvoy(t), t.TempDir()
	file := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(file, []byte(Bootstrap(o)), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "-c", file, "--disable-hot-restart", "--concurrency", "2",
		"--drain-time-s", "0", "--drain-strategy", "immediate", "-l", "warning")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("Envoy wrote:\n%s", b[max(0, len(b)-4000):])
		}
	})
}

// backend stands for a PostgreSQL: it says its name and then echoes.
type backend struct {
	name string
	ln   net.Listener
}

func newBackend(t *testing.T, name string) *backend {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return newBackendAt(t, name, ln)
}

func newBackendAt(t *testing.T, name string, ln net.Listener) *backend {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer context.AfterFunc(ctx, func() { _ = c.Close() })()
				defer func() { _ = c.Close() }()
				_, _ = fmt.Fprintln(c, name)
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { _ = ln.Close(); cancel(); wg.Wait() })
	return &backend{name, ln}
}

func (b *backend) address() topology.Address {
	a, _ := topology.ParseAddress(b.ln.Addr().String())
	return a
}

// session is a client's session through Envoy.
type session struct {
	conn net.Conn
	in   *bufio.Reader
	node string // whom it reached
}

// open returns a session, or an error while Envoy lets nobody through.
func open(addr string) (*session, error) {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return nil, err
	}
	s := &session{conn: c, in: bufio.NewReader(c)}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	line, err := s.in.ReadString('\n')
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	s.node = strings.TrimSpace(line)
	return s, nil
}

// works asks for an echo.
func (s *session) works() error {
	_ = s.conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintln(s.conn, "still there?"); err != nil {
		return err
	}
	_, err := s.in.ReadString('\n')
	return err
}

// ended waits for the session's end.
func (s *session) ended() error {
	_ = s.conn.SetDeadline(time.Now().Add(patience))
	if _, err := s.in.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the session to %s goes on", s.node)
	}
	return nil
}

// cluster is two backends behind Envoy behind a server.
type cluster struct {
	t        *testing.T
	rig      *rig
	settings Settings
	a, b     *backend
	front    string // where Envoy listens for the write pool
	gen      uint64
	silence  func() // ends the answers to health checks
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	return newClusterWith(t, resources.SessionsDrain)
}

// newClusterWith serves its write pool by a mode of sessions.
func newClusterWith(t *testing.T, mode resources.Sessions) *cluster {
	t.Helper()
	findEnvoy(t)
	return newClusterOf(t, mode, resources.ServerTLS{}, newBackend(t, "n1"), newBackend(t, "n2"))
}

func newClusterOf(t *testing.T, mode resources.Sessions, secure resources.ServerTLS, a, b *backend) *cluster {
	t.Helper()
	c := &cluster{t: t, a: a, b: b}
	c.settings.ServerTLS = secure
	c.front = freePorts(t, 1)[0]
	front := mustParse(t, c.front)
	c.settings.Listen = func(_, pool string) (topology.Address, bool) { return front, pool == "primary" }
	c.settings.Sessions = func(string, string) resources.Sessions { return mode }
	views := new(latest.Map[string, topology.View])
	if mode == resources.SessionsHealthCheck {
		c.check(views)
	}
	c.rig = newRig(t, Options{Settings: c.settings, Views: views})
	return c
}

// freePorts are addresses at which nobody listens, for Envoy to take in a moment.
func freePorts(t *testing.T, n int) []string {
	t.Helper()
	all := make([]string, n)
	for i := range all {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = ln.Close() }()
		all[i] = ln.Addr().String()
	}
	return all
}

// decide publishes verdicts on the two backends.
func (c *cluster) decide(held string, a, b topology.Verdict) {
	c.decideWith(a, b, func(snap *topology.Snapshot) { snap.Held = held })
}

func (c *cluster) decideWith(a, b topology.Verdict, and func(*topology.Snapshot)) {
	c.gen++
	snap := decision("main", c.gen, a, b)
	and(snap)
	for i, addr := range []topology.Address{c.a.address(), c.b.address()} {
		snap.Nodes[i].Address = addr
		for p := range snap.Pools {
			snap.Pools[p].Nodes[i].Address = addr
		}
	}
	c.rig.set(snap)
}

// check answers Envoy's questions about the nodes.
func (c *cluster) check(views *latest.Map[string, topology.View]) {
	c.t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	srv, err := healthapi.New(healthapi.Options{Views: views, Now: topology.NewTicker(time.Now), DrainStatus: http.StatusServiceUnavailable})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(ctx, ln) }()
	c.silence = func() { cancel(); <-done }
	c.t.Cleanup(c.silence)
	c.settings.Check.Address = mustParse(c.t, ln.Addr().String())
}

// reach opens a session once Envoy lets it through, to the node.
func (c *cluster) reach(node string) *session {
	c.t.Helper()
	var s *session
	until(c.t, "a session reaches "+node, func() bool {
		var err error
		if s, err = open(c.front); err != nil {
			return false
		}
		if s.node != node {
			_ = s.conn.Close()
			return false
		}
		return true
	})
	c.t.Cleanup(func() { _ = s.conn.Close() })
	return s
}

func (c *cluster) reachAll(node string, n int) []*session {
	c.t.Helper()
	all := make([]*session, n)
	for i := range all {
		all[i] = c.reach(node)
	}
	return all
}

// cut waits until all sessions have ended, and returns how long that took.
func (c *cluster) cut(all []*session, since time.Time) time.Duration {
	c.t.Helper()
	for _, s := range all {
		if err := s.ended(); err != nil {
			c.t.Fatal(err)
		}
	}
	return time.Since(since)
}

// TestEnvoyWriterChange: sessions to the old writer end and new ones reach the
// new writer; a writer that only drains keeps its sessions, and lets in no more.
func TestEnvoyWriterChange(t *testing.T) {
	c := newCluster(t)
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	names := []string{"n1", "n2"}
	var took []time.Duration
	for round := range 6 {
		old, next := names[round%2], names[(round+1)%2]
		verdicts := [2]topology.Verdict{drain, down}
		if old == "n2" {
			verdicts = [2]topology.Verdict{down, drain}
		}
		held := c.reachAll(old, 30)
		c.decide("", verdicts[0], verdicts[1])
		until(t, "no session is let in", func() bool {
			s, err := open(c.front)
			if err == nil {
				_ = s.conn.Close()
			}
			return err != nil
		})
		for _, s := range held {
			if err := s.works(); err != nil {
				t.Fatalf("a session of the draining writer %s was cut: %v", old, err)
			}
		}
		since := time.Now()
		c.decide("", map[bool]topology.Verdict{true: up, false: down}[next == "n1"], map[bool]topology.Verdict{true: up, false: down}[next == "n2"])
		took = append(took, c.cut(held, since))
		if s := c.reach(next); s.works() != nil {
			t.Fatalf("a session to the new writer %s does not work", next)
		}
	}
	t.Logf("30 sessions ended after %v", took)
	if best, worst := slices.Min(took), slices.Max(took); best > 100*time.Millisecond || worst > 2*time.Second {
		t.Errorf("sessions ended after %v at best and %v at worst; want 100ms at best (2s on a busy machine)", best, worst)
	}
}

// TestEnvoyNoWriter: the loss of the writer cuts too, without a successor.
func TestEnvoyNoWriter(t *testing.T) {
	c := newCluster(t)
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	held := c.reachAll("n1", 10)
	since := time.Now()
	c.decide("", down, down)
	if took := c.cut(held, since); took > 2*time.Second {
		t.Errorf("10 sessions ended after %v; want 100ms (2s on a busy machine)", took)
	}
	c.decide("", down, up)
	c.reach("n2")
}

// TestEnvoyServerRestart: pgsteer goes away, comes back and knows its saved
// writer first, nothing at all, and then the decision: no session is cut, and
// the next change of writer cuts.
func TestEnvoyServerRestart(t *testing.T) {
	c := newCluster(t)
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	held := c.reachAll("n1", 30)
	works := func(when string) {
		t.Helper()
		for _, s := range held {
			if err := s.works(); err != nil {
				t.Fatalf("a session was cut %s: %v", when, err)
			}
		}
		if err := c.reach("n1").works(); err != nil {
			t.Fatalf("a new session does not work %s: %v", when, err)
		}
	}
	c.rig.stop()
	works("while pgsteer was away")
	c.rig = newRigAt(t, Options{Settings: c.settings, Clusters: func() []string { return []string{"main"} }}, c.rig.addr)
	until(t, "Envoy is back", func() bool { s := c.rig.server.Status().Streams; return len(s) == 1 && len(s[0].Types) == int(kinds) })
	works("while nothing was known")
	c.decide("n1", und, down)
	until(t, "Envoy is answered", func() bool { return c.rig.server.Status().Answering })
	works("while the saved writer was held")
	c.decide("", up, down)
	c.rig.served(t, "writer/n1")
	works("by the same decision")
	for _, ty := range c.rig.server.Status().Streams[0].Types {
		if ty.Resources > 0 || ty.Refused > 0 {
			t.Errorf("%d resources of %s were sent again, %d refused (%s); want none", ty.Resources, ty.Type, ty.Refused, ty.Refusal)
		}
	}
	c.decide("", down, up)
	c.cut(held, time.Now())
	c.reach("n2")
}

func mustParse(t *testing.T, addr string) topology.Address {
	t.Helper()
	a, err := topology.ParseAddress(addr)
	if err != nil {
		t.Fatal(err)
	}
	return a
}
