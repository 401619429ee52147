package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/logtest"
	"github.com/pgsteer/pgsteer/watchers/pgtest"
)

func TestMain(m *testing.M) {
	if clusters := os.Getenv(fleetEnv); clusters != "" {
		if err := serveFleet(clusters); err != nil {
			fmt.Fprintln(os.Stderr, "serve the fleet's nodes:", err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait for something that must come.
const patience = 30 * time.Second

// rig is an agent in this process on a configuration file of the test.
type rig struct {
	t     *testing.T
	dir   string
	path  string // of the configuration
	watch bool   // the agent follows the file
	log   logtest.Log

	agent *Agent
	stop  context.CancelFunc
	ended chan error
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{t: t, dir: dir, path: filepath.Join(dir, "pgsteer.yaml")}
	t.Cleanup(r.down)
	return r
}

// listen is a listen section in which each part takes any free port, but for
// those that a test names as "part: address".
func listen(overrides ...string) string {
	at := map[string]string{"agent_check": "127.0.0.1:0", "health": "127.0.0.1:0", "status": "127.0.0.1:0", "xds": "127.0.0.1:0"}
	for _, o := range overrides {
		part, address, _ := strings.Cut(o, ": ")
		at[part] = address
	}
	return fmt.Sprintf("listen: {agent_check: %q, health: %q, status: %q, xds: %q}\n", at["agent_check"], at["health"], at["status"], at["xds"])
}

// base is what most configurations begin with.
const base = "state_dir: state\npostgres: {user: probe, sslmode: disable, login_every: 1h}\n"

func (r *rig) write(parts ...string) {
	r.t.Helper()
	if err := os.WriteFile(r.path+".new", []byte(strings.Join(parts, "")), 0o600); err != nil {
		r.t.Fatal(err)
	}
	if err := os.Rename(r.path+".new", r.path); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) file(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

func (r *rig) new() (*Agent, error) {
	o := Options{
		Load:    func() (*config.Config, error) { return config.Load(r.path) },
		Logger:  slog.New(slog.NewTextHandler(io.MultiWriter(&r.log, r.t.Output()), nil)),
		Version: "test",
	}
	if r.watch {
		o.File = r.path
	}
	return New(o)
}

// up starts the agent.
func (r *rig) up() {
	r.t.Helper()
	a, err := r.new()
	if err != nil {
		r.t.Fatal(err)
	}
	r.run(a)
}

func (r *rig) run(a *Agent) {
	ctx, stop := context.WithCancel(context.Background())
	r.agent, r.stop, r.ended = a, stop, make(chan error, 1)
	go func() { r.ended <- a.Run(ctx) }()
}

// down stops the agent as SIGTERM does, and expects no error and no delay.
func (r *rig) down() {
	if r.stop == nil {
		return
	}
	begin := time.Now()
	r.stop()
	if err := <-r.ended; err != nil {
		r.t.Errorf("the agent ended with: %v", err)
	}
	if d := time.Since(begin); d > 4*time.Second {
		r.t.Errorf("the agent took %s to stop", d)
	}
	r.stop = nil
}

func (r *rig) reload() error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	return r.agent.Reload(ctx)
}

// until waits for a condition.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			r.t.Fatalf("waited %s for %s; the agent says:\n%s", patience, what, r.statusText())
		}
	}
}

func (r *rig) view(cluster string) *topology.View { return r.agent.Views().Get(cluster) }

func (r *rig) generation(cluster string) uint64 { return r.view(cluster).Snapshot.Generation }

// writer waits until a node is the writer of a cluster.
func (r *rig) writer(cluster, node string) {
	r.t.Helper()
	r.until(node+" to be the writer of "+cluster, func() bool {
		v := r.view(cluster)
		return v != nil && v.Snapshot.Writer == node
	})
}

// settled waits for a writer and a replica that is up.
func (r *rig) settled(cluster, writer, replica string) {
	r.t.Helper()
	r.writer(cluster, writer)
	r.until(replica+" to serve reads", func() bool {
		p, _ := r.view(cluster).Snapshot.Pool("replica")
		v, _ := p.Verdict(replica)
		return v.Verdict == topology.Up
	})
}

func (r *rig) addr(part string) string {
	if a := r.agent.Addr(part); a != nil {
		return a.String()
	}
	return ""
}

// get asks over HTTP; code 0 means that there was no answer.
func (r *rig) get(part, path string) (code int, body string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.addr(part)+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// statusText is what `pgsteer status` prints.
func (r *rig) statusText() string {
	_, body := r.get(partStatus, "/api/v1/status")
	var rep status.Report
	if err := json.Unmarshal([]byte(body), &rep); err != nil {
		return err.Error() + ": " + body
	}
	var b strings.Builder
	status.WriteStatus(&b, rep)
	return b.String()
}

// metric is the value of a series as the page has it, "" when it is not there.
func (r *rig) metric(series string) string {
	_, body := r.get(partStatus, "/metrics")
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// ask sends an agent check; "" is silence.
func (r *rig) ask(request string) string {
	r.t.Helper()
	c, err := net.DialTimeout("tcp", r.addr(partAgentCheck), 5*time.Second)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c, request+"\n")
	b, _ := io.ReadAll(c)
	return strings.TrimSpace(string(b))
}

// node is a scripted PostgreSQL on a port of its own.
type node struct {
	*pgtest.Server
	addr string
}

var (
	primary = topology.Probe{InRecovery: topology.No, ReadOnly: topology.No, SystemID: 7, Timeline: 1, WriteLSN: 0x3000060}
	replica = topology.Probe{
		InRecovery: topology.Yes, ReadOnly: topology.Yes, SystemID: 7, Timeline: 1, ReceiveLSN: 0x3000060, ReplayLSN: 0x3000060,
		ReplayPaused: topology.No, Upstream: topology.Yes,
		Receiver: topology.Receiver{Running: topology.Yes, Streaming: topology.Yes, Timeline: 1, LatestEnd: 0x3000060},
	}
)

func newNode(t *testing.T, p topology.Probe) *node {
	t.Helper()
	s := pgtest.New(pgtest.State{Probe: p})
	addr, stop, err := s.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return &node{Server: s, addr: addr}
}

// clusterText is a cluster's text in the file, on two nodes.
func clusterText(name string, n1, n2 *node, more ...string) string {
	return fmt.Sprintf("  %s:\n    nodes: {n1: %s, n2: %s}\n", name, n1.addr, n2.addr) + strings.Join(more, "")
}

// freePort returns an address that nobody listens on now. It lies below the
// ports that outgoing connections get: a client that dials it while nobody
// listens could be given the very port, and keep it.
func freePort(t *testing.T) string {
	t.Helper()
	for range 1000 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000)))
		if err == nil {
			_ = l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port was found")
	return ""
}

type pgState = pgtest.State

func contextFor(t *testing.T) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithCancel(context.WithoutCancel(t.Context()))
}
