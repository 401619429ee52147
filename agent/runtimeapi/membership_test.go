package runtimeapi

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/agentcheck"
	"github.com/pgsteer/pgsteer/agent/haproxycfg"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
	"github.com/pgsteer/pgsteer/internal/logtest"
	"github.com/pgsteer/pgsteer/templates/apply"
	"github.com/pgsteer/pgsteer/templates/builtin"
	"github.com/pgsteer/pgsteer/templates/render"
)

// fleet is a cluster whose nodes come, go and move, rendered by the built-in
// template for a real HAProxy.
type fleet struct {
	fleetOptions
	tb      testing.TB
	views   latest.Map[string, topology.View]
	haproxy *lab.HAProxy
	pusher  *Pusher
	applier *apply.Applier
	listen  string
	nodes   map[string]uint16 // ports
	writer  string
	gen     uint64
	log     logtest.Log // of the pusher
	written logtest.Log // of the applier
}

// fleetOptions is how a fleet differs from the plain one.
type fleetOptions struct {
	runtime bool
	ready   bool   // pushes and answers have HAProxy's administrative words in them
	silent  bool   // nothing is pushed
	agent   bool   // agent checks are answered; else nothing but the pusher speaks
	broken  string // while this file exists, every check of a file fails
}

func newFleet(tb testing.TB, o fleetOptions) *fleet {
	tb.Helper()
	l := labtest.ForTest(tb, lab.NeedHAProxy)
	bin, err := lab.HAProxyProgram()
	if err != nil {
		tb.Fatal(err)
	}
	if o.broken == "" {
		o.broken = filepath.Join(tb.TempDir(), "broken")
	}
	f := &fleet{fleetOptions: o, tb: tb, nodes: map[string]uint16{"n1": uint16(greet(tb, "n1"))}, writer: "n1"}
	if f.listen, err = l.FreeAddr(); err != nil {
		tb.Fatal(err)
	}
	text, _ := builtin.Text("haproxy.cfg")
	admin := l.SocketPath("admin.sock")
	group := apply.Group{
		Name: "haproxy", Clusters: []string{"main"}, Runtime: o.runtime, ReloadInterval: 500 * time.Millisecond,
		Files: []apply.File{{Template: render.Template{Name: "haproxy", Text: text}, Destination: filepath.Join(tb.TempDir(), "haproxy.cfg"), HAProxy: true}},
		Check: []string{"/bin/sh", "-c", `test ! -e "$2" && exec "$0" -c -f "$1"`, bin, "{{.Staged}}", f.broken}, MasterSocket: l.SocketPath("haproxy-master.sock"),
		Settings: render.Settings{
			Agent:   netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), f.agentPort()),
			Listen:  map[render.PoolID][]netip.AddrPort{{Cluster: "main", Pool: "primary"}: {netip.MustParseAddrPort(f.listen)}},
			Options: render.Options{StatsSocket: admin, AgentInterval: 50 * time.Millisecond},
		},
	}
	f.show()
	view := render.ViewOf([]*topology.Snapshot{f.views.Get("main").Snapshot}, group.Settings)
	first, err := apply.Once(group, view)
	if err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(first[0].Destination, first[0].Bytes, 0o600); err != nil {
		tb.Fatal(err)
	}
	if f.haproxy, err = l.HAProxy(tb.Context(), lab.HAProxyOptions{ConfigFile: first[0].Destination, AdminSocket: admin}); err != nil {
		tb.Fatal(err)
	}
	f.run(group)
	return f
}

// run starts what pushes and what renders.
func (f *fleet) run(group apply.Group) {
	f.tb.Helper()
	now := topology.NewTicker(time.Now)
	var err error
	f.pusher, err = New(Options{Sockets: []string{f.haproxy.AdminSocket()}, Masters: []string{f.haproxy.MasterSocket()}, Views: &f.views, Now: now, Ready: f.ready, Logger: slog.New(slog.NewTextHandler(&f.log, nil))})
	if err != nil {
		f.tb.Fatal(err)
	}
	f.applier, err = apply.New(apply.Options{Groups: []apply.Group{group}, Views: &f.views, Now: now, Bring: f.pusher.Bring, SettleMin: 10 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&f.written, nil))})
	if err != nil {
		f.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() {
		if f.silent {
			done <- nil
			return
		}
		done <- f.pusher.Run(ctx)
	}()
	go func() { done <- f.applier.Run(ctx) }()
	f.tb.Cleanup(func() {
		cancel()
		<-done
		<-done
	})
}

// agentPort answers agent checks, or never says a word.
func (f *fleet) agentPort() uint16 {
	f.tb.Helper()
	if !f.agent {
		return uint16(greet(f.tb, ""))
	}
	s, err := agentcheck.New(agentcheck.Options{Views: &f.views, Now: topology.NewTicker(time.Now), AdminWords: agentcheck.AdminWords(f.ready)})
	if err != nil {
		f.tb.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, ln) }()
	f.tb.Cleanup(func() { cancel(); <-done })
	return uint16(ln.Addr().(*net.TCPAddr).Port)
}

// show publishes the nodes; one takes writes, all take reads.
func (f *fleet) show() {
	f.gen++
	s := &topology.Snapshot{Cluster: "main", Generation: f.gen, Urgent: f.gen, Complete: true, Pools: []topology.PoolVerdicts{
		{Pool: "primary", Mode: topology.ModeWrite}, {Pool: "replica", Mode: topology.ModeRead},
	}}
	for _, name := range slices.Sorted(maps.Keys(f.nodes)) {
		at := topology.Address{Host: "127.0.0.1", Port: f.nodes[name]}
		s.Nodes = append(s.Nodes, topology.Node{Name: name, Address: at})
		for i := range s.Pools {
			v := topology.NodeVerdict{Node: name, Address: at, Verdict: up, Weight: 100}
			if i == 0 && name != f.writer {
				v.Verdict = down
			}
			s.Pools[i].Nodes = append(s.Pools[i].Nodes, v)
		}
	}
	show(&f.views, s)
}

// change makes the i-th of many changes: nodes come, move, and go again.
func (f *fleet) change(i int, ports []uint16) {
	name := fmt.Sprintf("n%d", 2+i%7)
	switch port, there := f.nodes[name]; {
	case !there:
		f.nodes[name] = ports[i%len(ports)]
	case i%3 == 0:
		f.nodes[name] = ports[(slices.Index(ports, port)+1)%len(ports)]
	default:
		delete(f.nodes, name)
	}
	f.show()
}

// applied waits until what is published runs.
func (f *fleet) applied() apply.Status {
	f.tb.Helper()
	var st apply.Status
	eventually(f.tb, 20*time.Second, func() error {
		st = f.applier.Status()[0]
		if st.State != apply.StateApplied || st.Applied["main"] != f.gen || st.Running != st.Desired {
			return fmt.Errorf("generation %d, status %+v", f.gen, st)
		}
		return nil
	})
	return st
}

// wantServers fails unless HAProxy has the published nodes, and no others.
func (f *fleet) wantServers() {
	f.tb.Helper()
	state, err := f.haproxy.Command(f.tb.Context(), "show servers state")
	if err != nil {
		f.tb.Fatal(err)
	}
	has, err := parseState(state)
	if err != nil {
		f.tb.Fatal(err)
	}
	want, got := map[string]uint16{}, map[string]uint16{}
	for ref, s := range has {
		if ref.Backend != "guard_main_primary" && !s.retired() {
			got[ref.String()] = s.address.Port()
		}
	}
	for name, port := range f.nodes {
		for _, backend := range []string{"be_main_primary", "be_main_replica"} {
			want[haproxycfg.Ref{Backend: backend, Server: name}.String()] = port
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		f.tb.Error("servers:", diff)
	}
}

// servedBy returns who serves writes, "" when nobody does.
func (f *fleet) servedBy() string {
	c, err := net.Dial("tcp", f.listen)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	var b [8]byte
	n, _ := c.Read(b[:])
	return string(b[:n])
}

func (f *fleet) session() net.Conn {
	f.tb.Helper()
	var c net.Conn
	eventually(f.tb, 5*time.Second, func() (err error) {
		if c, err = net.Dial("tcp", f.listen); err != nil {
			return err
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		b := make([]byte, 2)
		if _, err = c.Read(b); err == nil && string(b) != "n1" {
			err = fmt.Errorf("served by %q", b)
		}
		return err
	})
	f.tb.Cleanup(func() { c.Close() })
	return c
}

// Fifty changes of membership: with runtime not one reload, without it no more
// than the rate allows; no process stays, and no session of who stayed ends.
func TestHAProxyFiftyMembershipChanges(t *testing.T) {
	for _, runtime := range []bool{true, false} {
		t.Run(fmt.Sprintf("runtime=%t", runtime), func(t *testing.T) {
			f := newFleet(t, fleetOptions{runtime: runtime})
			var ports []uint16
			for range 8 {
				ports = append(ports, uint16(greet(t, "other")))
			}
			session := f.session()
			f.applied()
			began := time.Now()
			for i := range 50 {
				f.change(i, ports)
				if runtime {
					f.applied()
				} else {
					<-time.After(40 * time.Millisecond)
				}
			}
			st := f.applied()
			took := time.Since(began)
			most := uint64(0)
			if !runtime {
				most = uint64(took/(500*time.Millisecond)) + 1
			}
			if st.Reloads > most || st.ReloadsFailed > 0 || runtime && st.Runtime != 50 {
				t.Errorf("in %s %d reloads, want at most %d; status %+v", took, st.Reloads, most, st)
			}
			t.Logf("50 changes in %s: %d reloads, %d made in the running process", took.Round(time.Millisecond), st.Reloads, st.Runtime)
			f.wantServers()
			wantAlive(t, session, 50*time.Millisecond)
			session.Close()
			eventually(t, 10*time.Second, func() error {
				old, err := f.haproxy.OldWorkers(t.Context())
				if err == nil && len(old) > 0 {
					err = fmt.Errorf("old workers %v", old)
				}
				return err
			})
			if err := f.haproxy.Reload(t.Context()); err != nil {
				t.Fatal(err)
			}
			f.wantServers() // the file says the same
		})
	}
}
