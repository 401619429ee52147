package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/engine"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/tap"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// viewLife is how long a view may be believed. Decisions turn at least once a
// second, so a view that is older means that the state goroutine stands still.
const viewLife = 5 * time.Second

// confirmEvery bounds how often the authority is asked again while in doubt.
const confirmEvery = 500 * time.Millisecond

// cluster is the one goroutine that owns a cluster's State.
type cluster struct {
	name   string
	policy atomic.Pointer[topology.Policy]
	wake   watchers.Nudge // the policy changed
	inbox  chan topology.Observation
	over   chan struct{} // closed when run has ended; then the state is anybody's
	now    topology.Ticker
	views  *latest.Map[string, topology.View]
	save   func(topology.Saved)
	// maintenance is what operators took out.
	maintenance func() topology.Maintenance
	heard       <-chan struct{} // closed once that is known
	log         *slog.Logger
	// watch follows the state's nodes and demands with probes.
	watch *watch
	tap   tap.Tap // sees what is folded and decided

	before    *topology.Saved // what the state began with, nil for nothing
	state     *engine.State
	last      *topology.Snapshot
	saved     topology.Saved
	confirmed topology.Mono
}

// run decides until ctx ends, or until a source does, which is a fault: one that
// is gone would be taken for one that is calm. Ending changes nothing that was
// published.
func (c *cluster) run(ctx context.Context) error {
	defer close(c.over)
	defer c.tap.Close(cutByEnd)
	defer c.watch.rest()
	timer := time.NewTimer(0)
	defer timer.Stop()
	c.learn(ctx)
	for {
		var news []topology.Observation
		select {
		case <-ctx.Done():
			return nil
		case o := <-c.inbox:
			news = []topology.Observation{o}
		case <-c.wake.C():
		case <-timer.C:
		case err := <-c.watch.faults:
			return err
		}
		if ctx.Err() != nil {
			return nil // one that was left behind in a reload says nothing more, and records nothing undecided
		}
		for _, o := range news {
			c.fold(o)
			c.drain()
		}
		next := c.decide(ctx)
		timer.Reset(time.Duration(next - c.now().Mono))
	}
}

// learnFor is how long a first decision waits for what other agents know.
const learnFor = time.Second

// learn waits for the records that other agents have: who was taken out there must
// not come in here because this agent began later.
func (c *cluster) learn(ctx context.Context) {
	patience := time.NewTimer(learnFor)
	defer patience.Stop()
	select {
	case <-c.heard:
	case <-patience.C:
	case <-ctx.Done():
	}
}

func (c *cluster) fold(o topology.Observation) {
	engine.Observe(c.state, o)
	c.tap.Folded(o)
}

// drain folds what else has arrived, so that a burst of observations is decided once.
func (c *cluster) drain() {
	for range cap(c.inbox) {
		select {
		case o := <-c.inbox:
			c.fold(o)
		default:
			return
		}
	}
}

// report hands an observation to the state goroutine, unless that has ended.
func (c *cluster) report(ctx context.Context) func(topology.Observation) {
	return func(o topology.Observation) {
		select {
		case c.inbox <- o:
		case <-c.over:
		case <-ctx.Done():
		}
	}
}

func (c *cluster) decide(ctx context.Context) topology.Mono {
	now, policy := c.now(), c.policy.Load()
	out := c.maintenance()
	snap, demand, next := engine.Decide(*policy, now, c.state, out)
	view := &topology.View{Snapshot: snap, Facts: engine.Facts(c.state, now), ValidUntil: now.Mono.Add(viewLife), Maintenance: out, At: now.Wall}
	if snap == c.last {
		c.views.Refresh(c.name, view)
	} else {
		c.views.Set(c.name, view)
		c.logChange(c.last, snap)
		c.last = snap
	}
	c.remember(now)
	c.tap.Decided(tap.Decided{At: now, Snapshot: snap, Saved: c.saved})
	c.watch.check(policy)
	c.watch.follow(ctx, snap.Nodes, demand)
	if demand.Confirm && now.Mono.Sub(c.confirmed) >= confirmEvery {
		c.confirmed = now.Mono
		c.watch.confirm()
	}
	return next
}

// remember writes down what should outlive this process, when it changed.
func (c *cluster) remember(now topology.Clock) {
	s := c.state.Save(now)
	if sameSaved(c.saved, s) {
		return
	}
	c.saved = s
	c.save(s)
}

// logChange says what changed, why, and what now.
func (c *cluster) logChange(before, after *topology.Snapshot) {
	was := ""
	if before != nil {
		was = before.Writer
	}
	if was != after.Writer {
		c.log.Info("writer changed", "writer", after.Writer, "was", was, "leader", after.Authority.Leader, "generation", after.Generation)
	}
	for _, p := range after.Pools {
		for _, n := range p.Nodes {
			c.logVerdict(before, p.Pool, n)
		}
	}
	if before == nil || before.Authority.State == after.Authority.State {
		return
	}
	say := c.log.Info
	if after.Authority.State == topology.AuthorityStateLost {
		say = c.log.Warn
	}
	say("authority changed", "state", after.Authority.State, "was", before.Authority.State)
}

func (c *cluster) logVerdict(before *topology.Snapshot, pool string, n topology.NodeVerdict) {
	var was topology.NodeVerdict
	if before != nil {
		if p, ok := before.Pool(pool); ok {
			was, _ = p.Verdict(n.Node)
		}
	}
	if was.Verdict == n.Verdict && was.Reason().Code == n.Reason().Code {
		return
	}
	r, level := n.Reason(), slog.LevelInfo
	if r.Code.Info().Severity == topology.SeverityError {
		level = slog.LevelWarn
	}
	c.log.Log(context.Background(), level, "verdict changed", "pool", pool, "node", n.Node, "verdict", n.Verdict.String(), "was", was.Verdict.String(),
		"reason", string(r.Code), "text", r.Text)
}

// buildCluster makes the part that watches and decides one cluster.
func (a *Agent) buildCluster(cfg *config.Config, cl config.Cluster, client *consul.Client) (*part, error) {
	w, err := newWatch(cl, client, a.now, a.log)
	if err != nil {
		return nil, fmt.Errorf("cluster %s cannot be watched: %w", cl.Name, err)
	}
	c := a.newCluster(cfg, cl, w)
	return &part{
		begin: func() { a.adopt(c) },
		run:   func(ctx context.Context) error { return runCluster(ctx, c) },
		live:  w.takeNodes,
	}, nil
}

func (a *Agent) newCluster(cfg *config.Config, cl config.Cluster, w *watch) *cluster {
	c := &cluster{
		name: cl.Name, wake: watchers.NewNudge(), inbox: make(chan topology.Observation, 4), over: make(chan struct{}),
		now: a.now, views: &a.views, save: a.store.put, log: w.log, watch: w,
		maintenance: func() topology.Maintenance { return a.book.Set().Of(cl.Name) },
	}
	w.report, w.bursts = c.report, &a.bursts
	policy := cfg.Policy(cl.Name)
	c.policy.Store(&policy)
	return c
}

// adopt gives a cluster its state: by what its predecessor in this process
// knew, or by what an earlier process saved. Either holds and admits nobody.
func (a *Agent) adopt(c *cluster) {
	a.mu.Lock()
	old, generation := a.clusters[c.name], a.generations[c.name]
	a.mu.Unlock()
	o := engine.Options{Cluster: c.name, NodeSources: c.watch.nodeSources(), Start: a.now(), Generation: generation}
	if v := a.views.Get(c.name); v != nil {
		o.Generation = v.Snapshot.Generation
	}
	if old != nil {
		o.Saved = old.handover()
		o.Continues = o.Saved != nil
	}
	if o.Saved == nil {
		o.Saved = a.store.load(c.name)
	}
	c.before, c.state, c.heard = o.Saved, engine.NewState(o), a.book.Heard()
	if o.Saved != nil {
		c.watch.know(o.Saved.Nodes)
	}
	a.mu.Lock()
	a.clusters[c.name] = c
	a.mu.Unlock()
}

// handover is what a cluster that has ended knew. One that could not be stopped
// is still at work on it; then nil, and what it saved must do.
func (c *cluster) handover() *topology.Saved {
	select {
	case <-c.over:
		s := c.state.Save(c.now())
		return &s
	default:
		return nil
	}
}

// runCluster runs the state goroutine and the sources until ctx ends, or until
// one of them fails.
func runCluster(ctx context.Context, c *cluster) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.watch.begin(ctx, c.report(ctx))
	err := ended(ctx, c.run(ctx))
	cancel()
	c.watch.wg.Wait()
	return err
}
