// Package demo runs pgsteer's main job on real servers and measures it: three
// PostgreSQL nodes, HAProxy with the rendered configuration, the agent, clients
// that write and read through HAProxy, and three events: a switchover, a crash,
// and a primary that freezes and wakes writable after its successor was promoted.
//
// Guarantees: everything runs on loopback and in one temporary folder that is
// gone afterwards; it ends by itself; what it reports was measured by the
// clients, not told by pgsteer.
package demo

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent"
	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
)

// Options of a run.
type Options struct {
	// Out gets the live view; nil: none.
	Out io.Writer
	// Logger gets the lab's and the agent's log; nil: none.
	Logger *slog.Logger
	// Keep leaves the folder in place.
	Keep bool
	// Events to run, in order; nil: all of Events.
	Events []string
	// Calm is the time between two events; zero: 4 s.
	Calm time.Duration

	beside func(context.Context, *stage) error // starts what a benchmark compares with
	held   int                                 // sessions that are held through HAProxy; zero: 8
}

// Events are the events of a full run, in order.
var Events = []string{EventSwitchover, EventCrash, EventFreeze}

// The events.
const (
	EventSwitchover = "switchover" // the primary is stopped cleanly and another one promoted
	EventCrash      = "crash"      // kill -9 of the primary and all its processes
	EventFreeze     = "freeze"     // the primary is frozen, another one promoted, then the old one wakes writable
)

// stage is everything that runs.
type stage struct {
	o       Options
	start   time.Time
	lab     *lab.Lab
	cluster *lab.Cluster
	haproxy *lab.HAProxy
	agent   *agent.Agent
	stop    context.CancelFunc
	ended   chan error
	program string // HAProxy's path
	write   string // HAProxy's addresses
	read    string

	writers []reign
	loads   []*lab.Load
}

// reign is the time in which a node was the writer.
type reign struct {
	node *lab.Node
	port int
	// from: seen writable; a session on it before is wrong. until: from when on
	// it must get no new session; zero: still the writer.
	from, until time.Time
}

// Run brings everything up, runs the events and returns what was measured.
func Run(ctx context.Context, o Options) (*Summary, error) {
	if o.Out == nil {
		o.Out = io.Discard
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Calm == 0 {
		o.Calm = 4 * time.Second
	}
	if o.Events == nil {
		o.Events = Events
	}
	if o.held == 0 {
		o.held = 8
	}
	program, err := lab.HAProxyProgram()
	if err != nil {
		return nil, err
	}
	for _, name := range o.Events {
		if !slices.Contains(Events, name) {
			return nil, fmt.Errorf("there is no event %s; there are %s", name, strings.Join(Events, ", "))
		}
	}
	s := &stage{o: o, start: time.Now(), program: program}
	l, err := lab.New(lab.Options{Logger: o.Logger, Keep: o.Keep})
	if err != nil {
		return nil, err
	}
	s.lab = l
	defer func() { _ = l.Close() }()
	if err := s.up(ctx); err != nil {
		return nil, err
	}
	defer s.down()
	if o.beside != nil {
		if err := o.beside(ctx, s); err != nil {
			return nil, err
		}
	}
	return s.play(ctx)
}

// up starts the servers and the agent and waits until writes arrive.
func (s *stage) up(ctx context.Context) error {
	s.say("starting three PostgreSQL nodes")
	var err error
	if s.cluster, err = s.lab.Cluster(ctx, lab.ClusterOptions{Name: "main", FollowAfter: 200 * time.Millisecond}); err != nil {
		return err
	}
	s.say("starting pgsteer; it renders HAProxy's configuration")
	if err := s.startAgent(ctx); err != nil {
		return err
	}
	s.say("starting HAProxy")
	s.haproxy, err = s.lab.HAProxy(ctx, lab.HAProxyOptions{
		ConfigFile: s.file("haproxy.cfg"), AdminSocket: s.lab.SocketPath("admin.sock"),
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.file("reload"), []byte(strings.Join(s.haproxy.ReloadCommand(), "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the reload command: %w", err)
	}
	first := s.cluster.Primary()
	s.writers = []reign{{node: first, port: first.Port(), from: time.Now()}}
	s.loads = []*lab.Load{
		s.lab.Load(s.write, lab.LoadOptions{Sessions: s.o.held}),              // pooled applications
		s.lab.Load(s.write, lab.LoadOptions{NewSession: true}),                // a new session for every write
		s.lab.Load(s.read, lab.LoadOptions{ReadOnly: true, NewSession: true}), // readers
	}
	return s.loads[1].Wait(ctx, "the first write through HAProxy", func(x lab.Sample) bool { return x.Op == lab.Write && x.Err == nil })
}

func (s *stage) file(name string) string { return filepath.Join(s.lab.Dir(), name) }

// startAgent runs pgsteer in this process, configured by a file as a user would.
func (s *stage) startAgent(ctx context.Context) error {
	text, err := s.config()
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.file("pgsteer.yaml"), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write the agent's configuration: %w", err)
	}
	if err := os.WriteFile(s.file("password"), []byte(s.cluster.Password(s.cluster.ProbeUser())+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the probe role's password: %w", err)
	}
	s.agent, err = agent.New(agent.Options{
		Load:   func() (*config.Config, error) { return config.Load(s.file("pgsteer.yaml")) },
		Logger: s.o.Logger.With("server", "pgsteer"), Version: "demo",
	})
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	s.stop, s.ended = stop, make(chan error, 1)
	go func() { s.ended <- s.agent.Run(run) }()
	return s.until(ctx, "pgsteer's first writer and HAProxy's configuration", func() bool {
		_, err := os.Stat(s.file("haproxy.cfg"))
		return err == nil && s.writer() != ""
	})
}

// config is a configuration as a user would write it. HAProxy is not there yet
// when its file is written first, so the reload command lets that pass.
func (s *stage) config() (string, error) {
	var ports []string
	for range 6 {
		a, err := s.lab.FreeAddr()
		if err != nil {
			return "", err
		}
		ports = append(ports, a)
	}
	s.write, s.read = ports[4], ports[5]
	var nodes strings.Builder
	for _, n := range s.cluster.Nodes() {
		fmt.Fprintf(&nodes, "      %s: %s\n", n.Name(), n.Addr())
	}
	return fmt.Sprintf(`state_dir: %[1]s
listen: {agent_check: "%[2]s", health: "%[3]s", status: "%[4]s", xds: "%[5]s"}
postgres: {user: %[6]s, password_file: password, sslmode: disable}
haproxy: {sockets: [%[7]s]}
envoy: {listen_host: 127.0.0.2} # the ports are HAProxy's on 127.0.0.1
clusters:
  main:
    authority: none
    nodes:
%[8]s    pools:
      primary: {mode: write, listen: "%[9]s"}
      replica: {mode: read, listen: "%[10]s", fallback: primary}
templates:
  - name: haproxy
    files: [{builtin: haproxy, destination: haproxy.cfg}]
    check: ["%[12]s", -c, -q, -f, "{{.Staged}}"]
    reload: [sh, -c, "test ! -f %[11]s || xargs -d '\\n' -a %[11]s env"]
`, s.file("state"), ports[0], ports[1], ports[2], ports[3], s.cluster.ProbeUser(),
		s.lab.SocketPath("admin.sock"), nodes.String(), s.write, s.read, s.file("reload"), s.program), nil
}

func (s *stage) down() {
	for _, l := range s.loads {
		l.Stop()
	}
	if s.stop != nil {
		s.stop()
		<-s.ended
	}
}

// writer is the writer by pgsteer's present decision.
func (s *stage) writer() string {
	if v := s.view(); v != nil {
		return v.Snapshot.Writer
	}
	return ""
}

func (s *stage) view() *topology.View { return s.agent.Views().Get("main") }

// until waits for a condition of the agent, at most 30 s.
func (s *stage) until(ctx context.Context, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case err := <-s.ended:
			s.ended <- err
			return fmt.Errorf("waiting for %s: the agent ended: %w", what, err)
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, ctx.Err())
		}
	}
	return nil
}

// say prints a line of the live view.
func (s *stage) say(format string, args ...any) {
	fmt.Fprintf(s.o.Out, "%6.1fs  %s\n", time.Since(s.start).Seconds(), fmt.Sprintf(format, args...))
}
