package simulate

import (
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// file is a scenario as it is written.
type file struct {
	About   text           `yaml:"about"`
	Name    string         `yaml:"name"`
	Cluster config.Cluster `yaml:"cluster"`
	Local   string         `yaml:"local"`
	Zone    string         `yaml:"zone"`
	Probing probing        `yaml:"probing"`
	Start   startFile      `yaml:"start"`
	Saved   *savedFile     `yaml:"saved"`
	World   worldFile      `yaml:"world"`
	Steps   []stepFile     `yaml:"steps"`
	Always  []alwaysFile   `yaml:"always"`
	Changes []flipsFile    `yaml:"changes"`

	scenario Scenario
	sound    bool // the form is right, so that sense can be checked
	nodes    []string
	pools    []string
}

type startFile struct {
	Wall time.Time `yaml:"wall"`
	Mono span      `yaml:"mono"`
}

type worldFile struct {
	KV          config.Value `yaml:"kv"`
	SQL         config.Value `yaml:"sql"`
	Consul      *outcome     `yaml:"consul"`
	Monitor     config.Value `yaml:"monitor"`
	Nodes       config.Value `yaml:"nodes"`
	Maintenance config.Value `yaml:"maintenance"`
}

type stepFile struct {
	At          time.Duration `yaml:"at"`
	Note        text          `yaml:"note"`
	KV          config.Value  `yaml:"kv"`
	SQL         config.Value  `yaml:"sql"`
	Consul      *outcome      `yaml:"consul"`
	Monitor     config.Value  `yaml:"monitor"`
	Nodes       config.Value  `yaml:"nodes"`
	Maintenance config.Value  `yaml:"maintenance"`
	Agent       agentEvent    `yaml:"agent"`
	Wall        span          `yaml:"wall"`
	Observe     config.Value  `yaml:"observe"`
	Expect      config.Value  `yaml:"expect"`
	Quiet       bool          `yaml:"quiet"`
}

type alwaysFile struct {
	From   time.Duration  `yaml:"from"`
	To     *time.Duration `yaml:"to"`
	Expect config.Value   `yaml:"expect"`
}

type flipsFile struct {
	Pool    string `yaml:"pool"`
	Node    string `yaml:"node"`
	AtMost  *int   `yaml:"at_most"`
	AtLeast *int   `yaml:"at_least"`
}

// The clocks at time 0, unless a file says otherwise. The monotonic one is far
// from its zero, which means "never".
var (
	startWall = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	startMono = topology.Mono(1000 * time.Second)
)

// DecodeYAML reads the whole file: first its form, then, where that is right,
// its sense.
func (f *file) DecodeYAML(v config.Value) {
	if !expands(v) {
		return
	}
	name, _ := v.Key("name").Text()
	if name == "" {
		name = "main"
	}
	f.Name, f.Cluster = name, config.DefaultCluster(name)
	f.Start = startFile{Wall: startWall, Mono: span(startMono)}
	type plain file
	f.sound = v.Into((*plain)(f))
	if f.Name == "" {
		f.Name = name
	} else if err := topology.CheckName(f.Name); err != nil {
		v.Key("name").Fault("%v", err)
	}
	s := &f.scenario
	s.About, s.Name, s.cluster, s.local, s.zone = strings.TrimSpace(string(f.About)), f.Name, f.Cluster, f.Local, f.Zone
	s.start = topology.Clock{Mono: topology.Mono(f.Start.Mono), Wall: f.Start.Wall.UTC()}
	s.probing = f.Probing
	if f.Saved != nil {
		s.saved = f.Saved.value(s.Name, s.start)
	}
	f.paces(v.Key("start"))
	f.world(v)
	f.know(v)
	f.steps(v)
	f.bounds(v)
	f.bounded(v.Key("steps"))
}

func (f *file) paces(start config.Value) {
	p := &f.scenario.probing
	pace := 10 * time.Second // of Patroni's keys
	if f.Cluster.Authority == topology.AuthorityMonitor {
		pace = f.Cluster.Monitor.Interval
	}
	for _, d := range []struct {
		set       *time.Duration
		otherwise time.Duration
	}{{&p.Interval, f.Cluster.Postgres.Interval}, {&p.Authority, pace}, {&p.Burst, 10 * time.Millisecond}} {
		if *d.set == 0 {
			*d.set = d.otherwise
		}
	}
	if f.Start.Mono <= 0 {
		start.Key("mono").Fault("the monotonic clock begins above 0, which means never")
	}
}

// world reads the truth at time 0.
func (f *file) world(v config.Value) {
	w := v.Key("world")
	f.scenario.world = f.effects(w, f.World)
	if f.scenario.probing.Off && w.Written() {
		w.Fault("nobody asks anything while probing is off, so there is no world to find")
	}
}

// effects reads what both the world and a step say; at is where it stands.
func (f *file) effects(at config.Value, w worldFile) effects {
	e := effects{consul: w.Consul}
	patroni := f.Cluster.Authority == topology.AuthorityPatroni
	if w.KV.Written() {
		if f.sound && !patroni {
			w.KV.Fault("kv are Patroni's keys; the cluster's authority is %s", f.Cluster.Authority)
		}
		e.kv = keysChange(w.KV)
	}
	if f.sound && !patroni && w.Consul != nil {
		at.Key("consul").Fault("Consul has Patroni's keys; the cluster's authority is %s", f.Cluster.Authority)
	}
	if w.Monitor.Written() {
		if f.sound && f.Cluster.Authority != topology.AuthorityMonitor {
			w.Monitor.Fault("the monitor is pg_auto_failover's; the cluster's authority is %s", f.Cluster.Authority)
		} else {
			e.monitor = monitorChanges(w.Monitor)
		}
	}
	for name, below := range w.SQL.Entries() {
		e.sql = append(e.sql, nodeChange{name, serverChange(below)})
	}
	if w.Nodes.Written() {
		var nodes config.Nodes
		w.Nodes.Into(&nodes)
		e.nodes, e.listed = nodes, true
		if f.sound && len(f.Cluster.Nodes) == 0 && f.Cluster.Inventory == "" {
			w.Nodes.Fault("the cluster has no list of nodes that could change: write cluster.nodes or cluster.inventory")
		}
	}
	for name, below := range w.Maintenance.Entries() {
		m := maintenance{node: name, end: isNull(below)}
		if !m.end {
			below.Into(&m)
		}
		e.maintenance = append(e.maintenance, m)
	}
	return e
}

// steps reads the steps, and what must hold all the time.
func (f *file) steps(v config.Value) {
	last := time.Duration(0)
	for i, below := range v.Key("steps").Elements() {
		if i >= len(f.Steps) {
			return // the form is wrong, and that has been said
		}
		w := f.Steps[i]
		s := step{
			at: w.At, note: strings.TrimSpace(string(w.Note)), agent: w.Agent, wall: time.Duration(w.Wall), quiet: w.Quiet,
			effects: f.effects(below, worldFile{w.KV, w.SQL, w.Consul, w.Monitor, w.Nodes, w.Maintenance}),
		}
		if w.At < last {
			below.Key("at").Fault("the step before is at %s; steps stand in the order of time", last)
		}
		last = w.At
		s.observe = f.observations(w.Observe, w.At)
		s.expect = f.expectations(w.Expect)
		f.scenario.steps = append(f.scenario.steps, s)
	}
	if f.sound && len(f.Steps) == 0 {
		v.Key("steps").Fault("a scenario needs steps: - {at: 5s, expect: …}")
	}
}

// end is when a scenario is over.
func (s *Scenario) end() time.Duration {
	end := time.Duration(0)
	if n := len(s.steps); n > 0 {
		end = s.steps[n-1].at
	}
	for _, a := range s.always {
		end = max(end, a.to)
	}
	return end
}

// bounds reads what must hold over more than a moment.
func (f *file) bounds(v config.Value) {
	end := f.scenario.end()
	for i, below := range v.Key("always").Elements() {
		if i >= len(f.Always) {
			return
		}
		w := f.Always[i]
		if !w.Expect.Written() {
			below.Fault("say what is expected: expect: {writer: a}")
		}
		a := always{from: w.From, to: end, expect: f.expectations(w.Expect)}
		if w.To != nil {
			a.to = *w.To
		}
		if a.to < a.from {
			below.Key("to").Fault("to %s is before from %s", a.to, a.from)
		}
		f.scenario.always = append(f.scenario.always, a)
	}
	for i, below := range v.Key("changes").Elements() {
		if i >= len(f.Changes) {
			return
		}
		w := f.Changes[i]
		line, _ := below.Place()
		f.known(below.Key("pool"), w.Pool, f.pools)
		f.known(below.Key("node"), w.Node, f.nodes)
		if w.AtMost == nil && w.AtLeast == nil {
			below.Fault("say at_most, at_least, or both")
		}
		if w.AtLeast != nil && *w.AtLeast < 1 {
			below.Key("at_least").Fault("every number of changes is at least %d", *w.AtLeast)
		}
		f.scenario.changes = append(f.scenario.changes, flips{w.Pool, w.Node, w.AtMost, w.AtLeast, line})
	}
}

// known reports a name that nobody knows, if the names are known at all.
func (f *file) known(v config.Value, name string, names []string) {
	if f.sound && names != nil && !slices.Contains(names, name) {
		v.Fault("%s", config.UnknownWord(name, names))
	}
}
