package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

const (
	ms    = time.Millisecond
	sec   = time.Second
	ownID = 7001 // the cluster's system identifier
)

var (
	fileSource   = topology.SourceID{Kind: topology.SourceFile, Name: "config"}
	consulSource = topology.SourceID{Kind: topology.SourceConsul, Name: "main"}
	localSource  = topology.SourceID{Kind: topology.SourceLocal, Name: "agent"}
)

// tb is what the tests here need of testing.T and rapid.T.
type tb interface {
	Helper()
	Fatalf(format string, args ...any)
}

// server is the truth about a node: what a probe of it finds.
type server struct {
	fails topology.FailureClass // "" answers
	probe topology.Probe
}

// world is a cluster with its truth, a fake clock, and an engine that watches.
// Everything is asked each second, as the watchers do; the engine decides after
// every second's answers and whenever it asked to be woken.
type world struct {
	t         tb
	p         topology.Policy
	s         *State
	m         topology.Maintenance
	now       topology.Clock
	tick      topology.Mono
	interval  time.Duration
	wake      topology.Mono
	servers   map[string]*server
	authority topology.Authority
	unheard   topology.FailureClass      // of the authority
	documents func() *topology.Documents // come with its word; nil: none do
	seq       map[topology.SourceID]uint64
	snap      *topology.Snapshot
	demand    topology.Demand
	// post carries observations late, twice or never; nil: each arrives at once.
	post *post
	// onDecide sees every snapshot, onFold every observation.
	onDecide func(*topology.Snapshot)
	onFold   func(topology.Observation)
}

// newWorld has a (primary), b and c (standbys) on timeline 5; with an authority
// that names a. Nothing has been asked yet.
func newWorld(t tb, kind topology.AuthorityKind) *world {
	w := &world{t: t, p: topology.DefaultPolicy(), seq: make(map[topology.SourceID]uint64), interval: sec}
	w.p.Authority = kind
	w.now = topology.Clock{Mono: topology.Mono(1000 * sec), Wall: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	w.servers = map[string]*server{"a": primary(5), "b": standby(5), "c": standby(5)}
	w.authority = topology.Authority{
		Leader: "a", SessionAgrees: topology.Yes, SystemID: ownID, Timeline: 5,
		TTL: 30 * sec, LoopWait: 10 * sec, RetryTimeout: 10 * sec,
	}
	w.tick = w.now.Mono
	w.begin(nil)
	return w
}

// begin starts the engine, with what an earlier one saved.
func (w *world) begin(saved *topology.Saved) {
	w.s = NewState(Options{Cluster: "main", NodeSources: []topology.SourceID{fileSource}, Saved: saved, Start: w.now})
	w.wake, w.snap = w.now.Mono, nil
	w.listNodes()
}

// restart kills the engine and begins anew with what it saved; the questions go
// on in the same rhythm.
func (w *world) restart() {
	saved := w.s.Save(w.now)
	w.pass(10 * ms)
	w.begin(&saved)
}

func (w *world) listNodes() {
	var nodes []topology.Node
	for _, name := range slices.Sorted(maps.Keys(w.servers)) {
		nodes = append(nodes, topology.Node{Name: name, Address: w.servers[name].probe.Address, Tags: map[string]string{}})
		if nodes[len(nodes)-1].Address.IsZero() {
			w.servers[name].probe.Address = address(name)
			nodes[len(nodes)-1].Address = address(name)
		}
	}
	w.fold(fileSource, topology.Observation{Nodes: &topology.NodeList{Nodes: nodes}})
}

// tagged lists the nodes again, one of them with a tag.
func (w *world) tagged(node, tag, value string) {
	nodes := w.s.Nodes()
	for i := range nodes {
		if nodes[i].Name == node {
			nodes[i].Tags = map[string]string{tag: value}
		}
	}
	w.fold(fileSource, topology.Observation{Nodes: &topology.NodeList{Nodes: nodes}})
}

func address(name string) topology.Address {
	return topology.Address{Host: "192.0.2." + fmt.Sprint(10+int(name[0]-'a')), Port: 5432}
}

func primary(tl topology.Timeline) *server {
	return &server{probe: topology.Probe{
		Kind: topology.ProbeFull, InRecovery: topology.No, ReadOnly: topology.No,
		SystemID: ownID, Timeline: tl, WriteLSN: 50_000_000,
		Receiver: topology.Receiver{MessageAge: -1},
	}}
}

func standby(tl topology.Timeline) *server {
	return &server{probe: topology.Probe{
		Kind: topology.ProbeFull, InRecovery: topology.Yes, ReadOnly: topology.Yes,
		SystemID: ownID, Timeline: tl, ReceiveLSN: 50_000_000, ReplayLSN: 50_000_000,
		ReplayPaused: topology.No, Upstream: topology.Yes,
		Receiver: topology.Receiver{
			Running: topology.Yes, Streaming: topology.Yes, Timeline: tl, LatestEnd: 50_000_000,
			SenderHost: "192.0.2.10", SenderPort: 5432, MessageAge: 20 * sec,
		},
	}}
}

// become changes the truth of a node.
func (w *world) become(name string, s *server) {
	if old := w.servers[name]; old != nil && s.probe.Address.IsZero() {
		s.probe.Address = old.probe.Address
	}
	w.servers[name] = s
}

func (w *world) fails(name string, class topology.FailureClass) { w.servers[name].fails = class }
func (w *world) answers(name string)                            { w.servers[name].fails = "" }
func (w *world) truth(name string) *topology.Probe              { return &w.servers[name].probe }

// moveLeader makes the authority name another.
func (w *world) moveLeader(name string, tl topology.Timeline) {
	w.authority.Leader, w.authority.Timeline = name, tl
}

// fold hands one observation to the engine, asked a millisecond ago.
func (w *world) fold(src topology.SourceID, o topology.Observation) {
	w.seq[src]++
	o.Cluster, o.Source, o.Seq = "main", src, w.seq[src]
	if o.At.Mono == 0 {
		o.At, o.AskedAt = w.now, topology.Clock{Mono: w.now.Mono.Add(-ms), Wall: w.now.Wall.Add(-ms)}
	}
	if !w.post.takes(o) {
		w.receive(o)
	}
}

// receive hands an observation over as it is.
func (w *world) receive(o topology.Observation) {
	if w.onFold != nil {
		w.onFold(o)
	}
	Observe(w.s, o)
}

func pgSource(name string) topology.SourceID {
	return topology.SourceID{Kind: topology.SourcePostgres, Name: name}
}

// ask probes one node now.
func (w *world) ask(name string) {
	s := w.servers[name]
	if s.fails != "" {
		w.fail(name, s.fails, topology.ProbeFull)
		return
	}
	p := s.probe
	p.Node = name
	w.fold(pgSource(name), topology.Observation{Probe: &p})
}

func (w *world) fail(name string, class topology.FailureClass, asked topology.ProbeKind) {
	w.fold(pgSource(name), topology.Observation{Failure: &topology.Failure{
		Class: class, Text: string(class), Node: name, Address: w.truth(name).Address, Asked: asked,
	}})
}

func (w *world) login(name string) {
	w.fold(pgSource(name), topology.Observation{Probe: &topology.Probe{
		Node: name, Address: w.truth(name).Address, Kind: topology.ProbeLogin,
	}})
}

// roleTick is the empty query on the open session.
func (w *world) roleTick(name string) {
	t := w.truth(name)
	w.fold(pgSource(name), topology.Observation{Probe: &topology.Probe{
		Node: name, Address: t.Address, Kind: topology.ProbeRole, InRecovery: t.InRecovery, ReadOnly: t.ReadOnly,
	}})
}

func (w *world) askAuthority() {
	if w.p.Authority == topology.AuthorityNone {
		return
	}
	if w.unheard != "" {
		w.fold(consulSource, topology.Observation{Failure: &topology.Failure{Class: w.unheard, Text: "no answer"}})
		return
	}
	a := w.authority
	o := topology.Observation{Authority: &a}
	if w.documents != nil {
		o.Documents = w.documents()
	}
	w.fold(consulSource, o)
}

func (w *world) askAll() {
	w.askAuthority()
	for _, name := range slices.Sorted(maps.Keys(w.servers)) {
		w.ask(name)
	}
}

func (w *world) decide() *topology.Snapshot {
	w.snap, w.demand, w.wake = Decide(w.p, w.now, w.s, w.m)
	if w.onDecide != nil {
		w.onDecide(w.snap)
	}
	return w.snap
}

// pass moves the clock and nothing else.
func (w *world) pass(d time.Duration) {
	w.now.Mono, w.now.Wall = w.now.Mono.Add(d), w.now.Wall.Add(d)
}

// run lets time go by: questions each second, decisions when due.
func (w *world) run(d time.Duration) *world {
	end := w.now.Mono.Add(d)
	for {
		next := min(w.wake, w.tick, w.post.due())
		if next > end {
			break
		}
		w.pass(max(0, next.Sub(w.now.Mono)))
		w.post.deliver(w)
		if w.now.Mono >= w.tick {
			w.askAll()
			w.tick = w.tick.Add(w.interval)
		}
		w.decide()
	}
	w.pass(end.Sub(w.now.Mono))
	return w
}

// idle lets time go by without a question, deciding when due.
func (w *world) idle(d time.Duration) *world {
	w.tick = w.now.Mono.Add(d + 1)
	return w.run(d)
}

// want checks verdicts in a pool: "a=up/writer b=down c=down/wrong_role".
func (w *world) want(pool, list string) {
	w.t.Helper()
	w.decide()
	p, ok := w.snap.Pool(pool)
	if !ok {
		w.t.Fatalf("no pool %q", pool)
	}
	for item := range strings.FieldsSeq(list) {
		name, want, _ := strings.Cut(item, "=")
		v, _ := p.Verdict(name)
		got := v.Verdict.String()
		if strings.Contains(want, "/") {
			got += "/" + string(v.Reason().Code)
		}
		if got != want {
			w.t.Fatalf("%s: %s is %s, want %s\n%s", pool, name, got, want, w.show())
		}
	}
}

func (w *world) wantWriter(name string) {
	w.t.Helper()
	w.decide()
	if w.snap.Writer != name {
		w.t.Fatalf("writer is %q, want %q\n%s", w.snap.Writer, name, w.show())
	}
}

func (w *world) show() string { return show(w.snap, w.now) }

// show prints a snapshot for a failing test.
func show(s *topology.Snapshot, now topology.Clock) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s generation %d, authority %s %q\n", now.Wall.Format("15:04:05.000"), s.Generation, s.Authority.State, s.Authority.Leader)
	for _, p := range s.Pools {
		for _, n := range p.Nodes {
			fmt.Fprintf(&b, "  %-8s %s %-9s", p.Pool, n.Node, n.Verdict)
			for _, r := range n.Reasons {
				fmt.Fprintf(&b, " | %s: %s", r.Code, r.Text)
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func verdict(s *topology.Snapshot, pool, node string) topology.Verdict {
	p, _ := s.Pool(pool)
	v, _ := p.Verdict(node)
	return v.Verdict
}

// settled is a world that has run long enough for every verdict to stand.
func settled(tb testing.TB, kind topology.AuthorityKind) *world {
	tb.Helper()
	w := newWorld(tb, kind).run(3 * sec)
	w.want("primary", "a=up/writer b=down/wrong_role c=down/wrong_role")
	w.want("replica", "a=drain/wrong_role b=up/replica c=up/replica")
	return w
}

const (
	patroni = topology.AuthorityPatroni
	none    = topology.AuthorityNone
)
