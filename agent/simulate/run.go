package simulate

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/engine"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// viewLife is how long the agent lets a decision be believed.
const viewLife = 5 * time.Second

// restless bounds the decisions of one moment: rules that ask for another one
// at once, again and again, would never let the clock move.
const restless = 1000

// run plays one scenario.
type run struct {
	stop   <-chan struct{} // closed: end before the next moment
	s      *Scenario
	policy topology.Policy
	world  world
	now    topology.Clock
	folded func(topology.Observation)

	state    *engine.State
	before   *topology.Saved // what the agent began with, nil for nothing
	wake     topology.Mono   // when to decide next at the latest
	resume   topology.Mono   // until then the process stands still
	snap     *topology.Snapshot
	demand   topology.Demand
	decided  topology.Clock // of the last decision
	views    latest.Map[string, topology.View]
	seq      map[topology.SourceID]uint64
	outcasts map[string]topology.MaintenanceRecord

	probers map[string]*prober
	probed  []string // their names, sorted
	store   *store   // nil: there is no authority
	listing bool     // the file source has something to tell

	sinks  *sinks
	told   *topology.Snapshot // the newest decision that is in the table
	shown  map[string]shown
	flips  map[string]int
	broken map[*check]bool
	held   map[*check]bool
	result *Result
}

// Run plays the scenario. An error means that it could not be played; an
// expectation that fails is none, it stands in the result.
func (s *Scenario) Run() (*Result, error) { return s.RunContext(context.Background()) }

// run plays the scenario and shows every observation as it is folded.
func (s *Scenario) run(folded func(topology.Observation)) (*Result, error) {
	return s.play(context.Background(), folded)
}

func (s *Scenario) play(ctx context.Context, folded func(topology.Observation)) (*Result, error) {
	cfg := config.Config{Zone: s.zone, Clusters: config.Clusters{s.cluster}}
	r := &run{
		stop: ctx.Done(), s: s, policy: cfg.Policy(s.Name), now: s.start, folded: folded,
		seq: make(map[topology.SourceID]uint64), outcasts: make(map[string]topology.MaintenanceRecord),
		shown: make(map[string]shown), flips: make(map[string]int), broken: make(map[*check]bool), held: make(map[*check]bool),
		result: &Result{File: s.File, About: s.About, Cluster: s.Name, Events: []Event{}, Failures: []Failure{}},
	}
	r.world = world{startWall: s.start.Wall, servers: make(map[string]*server), lineages: make(map[uint64]lineage), addresses: s.addresses, locate: r.addressOf, listed: s.cluster.Nodes}
	if s.cluster.Authority == topology.AuthorityPatroni {
		r.world.keys = &keys{
			prefix: s.cluster.Patroni.KeyPrefix(), values: make(map[string]any), index: 100,
			wrote: make(map[string]uint64), told: make(map[string]string),
		}
	}
	if s.cluster.Authority == topology.AuthorityMonitor {
		r.world.monitor = &monitor{rows: make(map[string]*monitorRow), ids: make(map[string]int64)}
	}
	if err := r.play(); err != nil {
		return nil, fmt.Errorf("play %s at %s: %w", s.File, r.at(), err)
	}
	return r.result, nil
}

// at is the scenario's time now.
func (r *run) at() time.Duration { return r.now.Mono.Sub(r.s.start.Mono) }

func (r *run) play() error {
	r.change(r.s.world)
	if err := r.begin(r.s.saved); err != nil {
		return err
	}
	for _, st := range r.s.steps {
		if err := r.step(st); err != nil {
			return err
		}
	}
	if err := r.until(r.s.start.Mono.Add(r.s.end() + 1)); err != nil {
		return err
	}
	r.finish()
	return nil
}

// begin starts the agent, with what an earlier one saved.
func (r *run) begin(saved *topology.Saved) error {
	r.before, r.snap, r.demand = saved, nil, topology.Demand{}
	clear(r.seq)
	r.state = engine.NewState(engine.Options{Cluster: r.s.Name, NodeSources: r.nodeSources(), Saved: saved, Start: r.now})
	r.views.Delete(r.s.Name)
	r.wake, r.resume = r.now.Mono, 0
	r.probers, r.probed = make(map[string]*prober), nil
	r.store, r.listing = nil, false
	if !r.s.probing.Off {
		r.listing = r.lists()
		if o := r.origin(); o != nil {
			r.store = &store{run: r, origin: *o, next: r.now.Mono}
		}
	}
	sinks, err := newSinks(r)
	if err != nil {
		return err
	}
	r.sinks = sinks
	return nil
}

// nodeSources are the sources that must deliver before the cluster is complete.
func (r *run) nodeSources() []topology.SourceID {
	var all []topology.SourceID
	if o := r.origin(); o != nil {
		all = append(all, o.id)
	}
	if r.lists() {
		all = append(all, r.fileSource())
	}
	return all
}

// step plays up to a moment, changes what changes there, lets the watchers find
// it, and looks whether it is as expected.
func (r *run) step(st step) error {
	at := r.s.start.Mono.Add(st.at)
	if err := r.until(at); err != nil {
		return err
	}
	r.move(at)
	if st.note != "" {
		r.note("%s", st.note)
	}
	r.now.Wall = r.now.Wall.Add(st.wall)
	changed := r.change(st.effects)
	if err := r.happen(st.agent); err != nil {
		return err
	}
	r.notice(changed, st.quiet)
	r.report(st.observe)
	if err := r.settle(); err != nil {
		return err
	}
	for i := range st.expect {
		r.expect(&st.expect[i])
	}
	return nil
}

// until plays everything that is due before a moment.
func (r *run) until(end topology.Mono) error {
	for {
		due := r.due()
		if due >= end {
			return nil
		}
		r.move(due)
		if err := r.settle(); err != nil {
			return err
		}
	}
}

// move lets time pass.
func (r *run) move(to topology.Mono) {
	d := max(0, to.Sub(r.now.Mono))
	r.now.Mono, r.now.Wall = r.now.Mono.Add(d), r.now.Wall.Add(d)
	r.world.now = r.at()
}

// due is when something happens next by itself. A process that stands still
// does nothing before it goes on.
func (r *run) due() topology.Mono {
	next := r.wake
	if r.store != nil {
		next = min(next, r.store.due())
	}
	for _, p := range r.probers {
		next = min(next, p.due())
	}
	return max(next, r.resume)
}

// settle lets the watchers ask what is due now and decides, until nothing is
// due any more.
func (r *run) settle() error {
	if r.now.Mono < r.resume {
		return nil
	}
	for range restless {
		if r.stopped() {
			return ErrStopped
		}
		asked := r.ask()
		if !asked && r.now.Mono < r.wake {
			r.tell()
			return nil
		}
		if err := r.decide(); err != nil {
			return err
		}
	}
	return fmt.Errorf("no rest after %d decisions at one moment; this is a fault of pgsteer", restless)
}

// ask puts the questions that are due and reports whether there was one.
func (r *run) ask() bool {
	asked := false
	if r.listing {
		r.listing, asked = false, true
		r.fold(r.list())
	}
	if r.store != nil && r.store.due() <= r.now.Mono {
		asked = true
		r.store.ask()
	}
	for _, name := range r.probed {
		if p := r.probers[name]; p.due() <= r.now.Mono {
			asked = true
			p.ask()
		}
	}
	return asked
}

// fold hands an observation to the rules. What is not said is of now.
func (r *run) fold(o topology.Observation) {
	if o.Cluster == "" {
		o.Cluster = r.s.Name
	}
	if o.At == (topology.Clock{}) {
		o.At = r.now
	}
	if o.AskedAt == (topology.Clock{}) {
		o.AskedAt = o.At
	}
	if o.Seq == 0 {
		o.Seq = r.seq[o.Source] + 1
	}
	r.seq[o.Source] = o.Seq
	r.folded(o)
	engine.Observe(r.state, o)
}

func (r *run) decide() error {
	var m topology.Maintenance
	for _, name := range slices.Sorted(maps.Keys(r.outcasts)) {
		m.Records = append(m.Records, r.outcasts[name])
	}
	snap, demand, wake := engine.Decide(r.policy, r.now, r.state, m)
	before := r.snap
	r.snap, r.demand, r.wake, r.decided = snap, demand, wake, r.now
	r.views.Set(r.s.Name, &topology.View{
		Snapshot: snap, Facts: engine.Facts(r.state, r.now), ValidUntil: r.now.Mono.Add(viewLife),
	})
	if snap != before {
		r.count(before, snap)
		if err := r.sinks.take(snap); err != nil {
			return err
		}
	}
	r.follow()
	r.always()
	return nil
}

// follow gives every node a prober at its present address, and the paces that
// the decision asks for.
func (r *run) follow() {
	if r.s.probing.Off {
		return
	}
	r.probed = r.probed[:0]
	for _, n := range r.state.Nodes() {
		if n.Address.IsZero() {
			continue
		}
		r.probed = append(r.probed, n.Name) // they come by name
		p := r.probers[n.Name]
		if p == nil || p.address != n.Address {
			p = newProber(r, n)
			r.probers[n.Name] = p
		}
		switch {
		case slices.Contains(r.demand.Burst, n.Name):
			p.pace = paceBurst
		case slices.Contains(r.demand.BackOff, n.Name):
			p.pace = paceBackOff
		default:
			p.pace = paceNormal
		}
	}
	maps.DeleteFunc(r.probers, func(name string, _ *prober) bool { return !slices.Contains(r.probed, name) })
	if r.store != nil && r.demand.Confirm {
		r.store.confirm()
	}
}

// happen does what a step says of the agent itself.
func (r *run) happen(e agentEvent) error {
	switch {
	case e.stop > 0:
		r.resume = r.now.Mono.Add(e.stop)
	case e.word == agentRestart:
		saved := r.state.Save(r.now)
		return r.begin(&saved)
	case e.word == agentRestartEmpty:
		return r.begin(nil)
	case e.word == agentIsolated, e.word == agentNotIsolated:
		r.fold(topology.Observation{
			Source: topology.SourceID{Kind: topology.SourceLocal, Name: "isolation"},
			Local:  &topology.Local{Isolated: topology.Bool(e.word == agentIsolated)},
		})
		r.wake = r.now.Mono
	}
	return nil
}

// report folds what a step observed by itself.
func (r *run) report(all []observation) {
	for _, o := range all {
		if o.here { // of the address that the node has now
			o.locate(r.addressOf(o.nodeName()))
		}
		r.fold(o.Observation)
		r.wake = r.now.Mono
	}
}

// addressOf is where the agent knows a node to be, else where the file has it.
func (r *run) addressOf(node string) topology.Address {
	node = consul.LegalName(node)
	for _, n := range r.state.Nodes() {
		if n.Name == node && !n.Address.IsZero() {
			return n.Address
		}
	}
	return r.s.addresses[node]
}
