package xds

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// Changes that are not urgent wait until nothing more came for settleQuiet, at
// most settleMost, so that weights and lags that move together go out once.
const (
	settleQuiet = 200 * time.Millisecond
	settleMost  = 2 * time.Second
)

// undecidedMost is how long an undecided cluster keeps the others from being served after
// a start. An Envoy that starts waits 15 s for its first answer.
const undecidedMost = 10 * time.Second

// publisher carries decisions into the store. All but waiting belongs to the
// goroutine of run.
type publisher struct {
	views    *latest.Map[string, topology.View]
	clusters func() []string
	settings resources.Settings
	hold     *hold
	files    *files // nil: none
	leaving  leaving
	moves    moves
	changed  chan Settings // newer settings
	now      topology.Ticker
	log      *slog.Logger
	store    *store

	published map[string]*publication // by cluster
	pending   map[string]settling
	anew      []string            // clusters that are to be published by newer settings
	toFiles   map[string]*encoded // clusters that changed since files were told; nil: gone
	tell      bool                // there is something to tell them
	started   bool
	recount   bool          // which clusters are known may have changed
	openAt    topology.Mono // when answers are given although clusters are not known

	mu      sync.Mutex // guards waiting
	waiting []string   // clusters of which nothing is known
}

// publication is what stands at Envoy for one cluster.
type publication struct {
	generation uint64 // the snapshot's
	urgent     uint64 // and its urgent one
	older      uint64 // the last generation that came after it and is none
	set        *encoded
	writers    map[string]string
	checked    map[string][]resources.Host
	warnings   []string
}

// settling is a change that waits.
type settling struct{ first, due topology.Mono }

func newPublisher(o Options, st *store) *publisher {
	p := &publisher{
		views: o.Views, clusters: o.Clusters, now: o.Now, log: o.Logger, store: st,
		hold:      newHold(o.Memory, o.Settings.Release, o.Logger),
		published: make(map[string]*publication), pending: make(map[string]settling),
		leaving: make(leaving), moves: make(moves), changed: make(chan Settings, 1), toFiles: make(map[string]*encoded),
	}
	p.set(o.Settings)
	if o.Files != "" {
		p.files = newFiles(o.Files, o.Logger)
	}
	return p
}

// set takes settings.
func (p *publisher) set(s Settings) {
	p.settings, p.hold.release = s.Settings, s.Release
	p.settings.Standing, p.settings.Leaving = p.standing, p.leaving.of
}

// standing tells who the writer of a pool is as it stands at Envoy.
func (p *publisher) standing(cluster, pool string) (string, bool) {
	pub := p.published[cluster]
	if pub == nil {
		return "", false
	}
	w, known := pub.writers[resources.Name(cluster, pool)]
	return w, known
}

// run publishes until ctx ends.
func (p *publisher) run(ctx context.Context) {
	sub := p.views.Subscribe()
	defer sub.Close()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	p.openAt, p.recount = p.now().Mono.Add(undecidedMost), true
	p.begin()
	for {
		timer.Reset(p.untilDue())
		select {
		case <-ctx.Done():
			return
		case <-sub.Ready():
			for _, cluster := range sub.Take() {
				p.take(cluster)
			}
		case <-timer.C:
			p.publishDue()
		case s := <-p.changed:
			p.set(s)
			p.anew, p.recount = p.views.Keys(), true // clusters may have come
		}
		p.publishAnew()
		p.begin()
		p.tellFiles()
	}
}

// tellFiles hands over what changed, from when Envoys are answered on.
func (p *publisher) tellFiles() {
	if p.files == nil || !p.started || !p.tell {
		return
	}
	p.files.put(p.toFiles, p.waiting)
	p.toFiles, p.tell = make(map[string]*encoded), false
}

// noteFiles has files told of a cluster's newest set, nil when it is gone.
func (p *publisher) noteFiles(cluster string, set *encoded) {
	if p.files != nil {
		p.toFiles[cluster], p.tell = set, true
	}
}

// take publishes a cluster's newest decision, or lets it settle.
func (p *publisher) take(cluster string) {
	v := p.views.Get(cluster)
	if v == nil {
		p.remove(cluster)
		return
	}
	now := p.now().Mono
	if !v.Valid(now) {
		// What cannot be believed changes nothing. It is looked at again, since a
		// view that comes back to life wakes nobody.
		p.pending[cluster] = settling{now, now.Add(settleQuiet)}
		return
	}
	pub := p.published[cluster]
	if pub == nil || pub.urgent != v.Snapshot.Urgent {
		p.publish(cluster, v.Snapshot)
		return
	}
	w, again := p.pending[cluster]
	if !again {
		w.first = now
	}
	w.due = min(now.Add(settleQuiet), w.first.Add(settleMost))
	p.pending[cluster] = w
}

// publishDue publishes what has settled, if it may still be believed.
func (p *publisher) publishDue() {
	now := p.now().Mono
	for cluster, w := range p.pending {
		if now < w.due {
			continue
		}
		switch v := p.views.Get(cluster); {
		case v.Valid(now):
			p.publish(cluster, v.Snapshot)
		case v == nil:
			p.remove(cluster)
		default:
			p.pending[cluster] = settling{now, now.Add(settleQuiet)}
		}
	}
}

// anewAtOnce is how many clusters are published anew before decisions are looked at:
// with thousands of clusters a failover must not wait for all of them.
const anewAtOnce = 10

// publishAnew publishes some of what is to be published by other settings.
func (p *publisher) publishAnew() {
	now, n := p.now().Mono, min(anewAtOnce, len(p.anew))
	next := p.anew[:n]
	p.anew = p.anew[n:]
	for _, cluster := range next {
		if v := p.views.Get(cluster); v.Valid(now) {
			p.publish(cluster, v.Snapshot)
		} else {
			p.pending[cluster] = settling{now, now.Add(settleQuiet)}
		}
	}
}

// untilDue is the time to the next change that has settled.
func (p *publisher) untilDue() time.Duration {
	now, next := p.now().Mono, time.Hour
	if len(p.anew) > 0 {
		return 0
	}
	if !p.started && p.openAt > now {
		next = min(next, p.openAt.Sub(now))
	}
	for _, w := range p.pending {
		next = min(next, w.due.Sub(now))
	}
	return max(next, 0)
}

// publish puts a decision into the store. What cannot be built, and pools of
// which nothing is known, leave what stands.
func (p *publisher) publish(cluster string, snap *topology.Snapshot) {
	delete(p.pending, cluster)
	if p.overtaken(cluster, snap) {
		return
	}
	checked := p.hold.checked(cluster) // from before a start
	if old := p.published[cluster]; old != nil {
		checked = old.checked
	}
	if at, again := p.leaving.note(snap, checked, p.settings.Check.Interval, p.now().Mono); again {
		p.again(cluster, at)
	}
	snap = p.apart(snap)
	set, err := resources.Build(snap, p.settings)
	if err == nil && len(set.Withheld)+len(set.Unsure) > 0 && p.published[cluster] == nil {
		return // not known yet: the cluster goes on waiting
	}
	if err == nil {
		err = p.hold.keepChecked(&set, p.leaving, p.settings.Check.Address)
	}
	var next *encoded
	if err == nil {
		next, err = encode(set)
	}
	if err != nil {
		p.log.Error("a decision cannot be expressed for Envoy; what was served last stays", "cluster", cluster, "error", err)
		return
	}
	p.hold.keep(next[kindListener], set.Writers, func(node string) string { return addressOf(snap, node) })
	pub := &publication{generation: snap.Generation, urgent: snap.Urgent, set: next, writers: set.Writers, checked: set.Checked, warnings: set.Warnings}
	if old := p.published[cluster]; old != nil {
		next.keep(old.set, set.Withheld)
		for _, pool := range set.Withheld {
			if w, known := old.writers[pool]; known {
				pub.writers[pool] = w
			}
			if hosts, known := old.checked[pool]; known {
				pub.checked[pool] = hosts
			}
		}
	}
	p.hold.forget(cluster, next)
	p.warn(cluster, pub)
	p.recount = p.recount || p.published[cluster] == nil
	p.published[cluster] = pub
	p.toldMoves()
	p.noteFiles(cluster, next)
	if n := p.store.apply(cluster, next); n > 0 {
		p.log.Debug("served to Envoys", "cluster", cluster, "generation", snap.Generation, "resources", n)
	}
}

// again has a cluster looked at at a moment, or earlier.
func (p *publisher) again(cluster string, at topology.Mono) {
	if w, waits := p.pending[cluster]; !waits || at < w.due {
		p.pending[cluster] = settling{at, at}
	}
}

// overtaken reports whether a decision is older than what is published, as one of a
// predecessor that was left behind in a reload. It changes nothing, and is looked at again,
// since a newer one in its place may wake nobody.
func (p *publisher) overtaken(cluster string, snap *topology.Snapshot) bool {
	old := p.published[cluster]
	if old == nil || snap.Generation >= old.generation {
		return false
	}
	p.again(cluster, p.now().Mono.Add(settleQuiet))
	if old.older != snap.Generation {
		old.older = snap.Generation
		p.log.Warn("a decision is older than what is served to Envoys, and is not served", "cluster", cluster, "generation", snap.Generation, "served", old.generation)
	}
	return true
}

// warn logs what was left out, when that changed.
func (p *publisher) warn(cluster string, pub *publication) {
	var old []string
	if o := p.published[cluster]; o != nil {
		old = o.warnings
	}
	for _, w := range pub.warnings {
		if !slices.Contains(old, w) {
			p.log.Warn("something is not served to Envoys", "cluster", cluster, "what", w)
		}
	}
}

// remove takes a cluster away that is no longer configured. One that is, and
// only lost its view for a moment, stays as it is.
func (p *publisher) remove(cluster string) {
	delete(p.pending, cluster)
	if slices.Contains(p.clusters(), cluster) {
		now := p.now().Mono
		p.pending[cluster] = settling{now, now.Add(settleMost)} // the configuration may follow
		return
	}
	delete(p.published, cluster)
	p.moves.drop(cluster)
	p.recount = true
	p.noteFiles(cluster, nil)
	p.hold.forget(cluster, nil)
	p.store.apply(cluster, nil)
}

// begin lets answers out once: as soon as every cluster is published, or after a while.
// Of clusters that are not, then or later, clients hear nothing and keep what they have.
func (p *publisher) begin() {
	late := !p.started && p.now().Mono >= p.openAt
	if !p.recount && !late {
		return
	}
	p.recount, p.tell = false, true
	var waiting []string
	clusters := p.clusters()
	for _, c := range clusters {
		if p.published[c] == nil {
			waiting = append(waiting, c)
		}
	}
	slices.Sort(waiting)
	p.mu.Lock()
	p.waiting = waiting
	p.mu.Unlock()
	p.store.keepSilent(waiting)
	switch {
	case p.started:
	case len(waiting) == 0 && len(clusters) > 0:
		p.start(clusters)
		p.log.Info("every cluster is decided or held; Envoys are answered", "clusters", len(clusters))
	case late && len(waiting) < len(clusters):
		p.start(clusters)
		p.log.Warn("Envoys are answered although nothing is known of some clusters; what they have of these stays", "clusters", waiting, "after", undecidedMost)
	}
	p.toldMoves()
}

// start lets answers out. What stood of clusters that left the configuration before this
// start is nothing that an Envoy keeps.
func (p *publisher) start(clusters []string) {
	p.hold.retain(clusters)
	p.started = true
	p.store.start()
}

func (p *publisher) waitingFor() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.waiting)
}
