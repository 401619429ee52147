package apply

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/pgsteer/pgsteer/agent/haproxycfg"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// waitRecheck is how often a group looks whether its clusters' nodes are known
// now: that alone need not wake a subscriber.
const waitRecheck = time.Second

// worker drives one group. All fields but status belong to its goroutine.
type worker struct {
	Group
	views                *latest.Map[string, topology.View]
	now                  topology.Ticker
	log                  *slog.Logger
	runner               Runner
	bus                  Bus
	bring                func(ctx context.Context, before, after []byte) error
	turn                 func(ctx context.Context, bouncer string, leads map[string]string) error
	settleMin, settleMax time.Duration
	status               atomic.Pointer[Status]
	again                chan struct{} // try now what failed

	firstChange, lastChange topology.Mono // not rendered yet; zero: none
	recheck                 topology.Mono // render again then, whether or not anything changed
	guard                   *guard
	waiting, hold           string   // why nothing, or not all, is rendered
	leftOut                 []string // of the newest view

	roles      roles  // whom the desired texts name
	desired    []Text // nil before the first
	generation map[string]uint64
	desiredIs  hash
	diskIs     hash // "" unknown
	runningIs  hash // "" unknown
	failedIs   hash // the last texts with which a reload failed
	adopt      bool // the files on disk may be taken to be what runs
	good       []Text
	rejected   bool              // the check or the preflight refused the desired texts
	owed       bool              // the mark of an owed reload lies beside the files
	binds      []haproxycfg.Bind // that what runs may have, beside those of the good copy and of the files on disk

	backOff    *backoff.ExponentialBackOff
	nextTry    topology.Mono
	reloadedAt topology.Mono // last reload, good or not
	fault      string        // what keeps desired from running
	counts     Status        // counters and last failure; the rest is filled by publish
	logged     string        // what the log said last
}

func newWorker(o Options, g Group) *worker {
	w := &worker{
		Group: g, views: o.Views, now: o.Now, runner: o.Runner, bus: o.Bus, bring: o.Bring, turn: o.Turn,
		log:       o.Logger.With("group", g.Name),
		settleMin: o.SettleMin, settleMax: o.SettleMax, again: make(chan struct{}, 1),
		guard: newGuard(g.EmptyHold), backOff: backoff.NewExponentialBackOff(),
		waiting: "not started yet", logged: string(StateWaiting) + "not started yet",
	}
	w.backOff.InitialInterval, w.backOff.MaxInterval = time.Second, time.Minute
	w.backOff.Multiplier, w.backOff.RandomizationFactor = 2, 0.2
	w.counts.Refused = map[string]uint64{RefusedTemplate: 0, RefusedEmpty: 0, RefusedCheck: 0, RefusedPreflight: 0}
	w.publish()
	return w
}

func (w *worker) run(ctx context.Context) {
	changes := w.views.Subscribe()
	defer changes.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	w.start()
	for ctx.Err() == nil {
		next := w.step(ctx)
		w.publish()
		timer.Stop()
		if next != 0 {
			timer.Reset(max(next.Sub(w.now().Mono), time.Millisecond))
		}
		select {
		case <-ctx.Done():
		case <-changes.Ready():
			w.note(changes.Take())
		case <-w.again:
			w.nextTry = 0
			w.backOff.Reset()
		case <-timer.C:
		}
	}
}

// start reads what an earlier run left beside the files.
func (w *worker) start() {
	w.removeLeftovers()
	now := w.now().Mono
	w.firstChange, w.lastChange = now, now
	w.owed = w.isOwed()
	w.adopt = !w.ReloadAtStart && !w.owed
	if !w.adopt {
		w.good = w.kept(endGood)
	}
	if w.owed {
		w.mayHave(w.kept(endRejected))
	}
	if w.isBlind() {
		w.log.Warn("HAProxy is reloaded without its master's socket (master_socket): a reload that has no effect is not made good, and without an admin socket in the group's files it counts as good")
	}
}

// note takes notice of changed clusters.
func (w *worker) note(clusters []string) {
	if !slices.ContainsFunc(clusters, func(c string) bool { return slices.Contains(w.Clusters, c) }) {
		return
	}
	w.lastChange = w.now().Mono
	if w.firstChange == 0 {
		w.firstChange = w.lastChange
	}
	w.roles.urgent = w.roles.urgent || w.isUrgent(clusters)
}

// renderDue is when to render: once changes have settled, or without any at
// recheck; zero: not before a change.
func (w *worker) renderDue() topology.Mono {
	if w.firstChange == 0 {
		return w.recheck
	}
	if w.roles.urgent {
		return w.firstChange
	}
	return min(w.lastChange.Add(w.settleMin), w.firstChange.Add(w.settleMax))
}

// applyDue is when the desired texts may be applied; zero: nothing is to do.
func (w *worker) applyDue() topology.Mono {
	if w.desired == nil || w.isLive() {
		return 0
	}
	due := max(w.nextTry, 1)
	if !w.mayBring() {
		due = max(due, w.reloadDue())
	}
	return due
}

func (w *worker) isLive() bool { return w.runningIs == w.desiredIs && w.diskIs == w.desiredIs }

// step does what is due and returns when the next thing is; zero: not before a change.
func (w *worker) step(ctx context.Context) topology.Mono {
	if due := w.renderDue(); due != 0 && w.now().Mono >= due {
		w.render()
	}
	if due := w.applyDue(); due != 0 && w.now().Mono >= due {
		w.apply(ctx)
	}
	return earliest(w.renderDue(), w.applyDue())
}

// earliest is the smaller of two moments of which zero means never.
func earliest(a, b topology.Mono) topology.Mono {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// render makes the desired texts of the newest snapshots. When it cannot, the
// earlier ones stay desired.
func (w *worker) render() {
	now := w.now().Mono
	w.firstChange, w.lastChange, w.recheck, w.roles.urgent = 0, 0, 0, false
	snaps, missing := w.snapshots()
	if len(missing) > 0 {
		w.waiting = "the nodes are not known yet of " + strings.Join(missing, ", ")
		w.recheck = now.Add(waitRecheck)
		return
	}
	w.waiting = ""
	c := w.guard.cover(render.ViewOf(snaps, w.withBefore()), now)
	w.leave(c.view.LeftOut)
	w.recheck, w.hold = c.until, ""
	if len(c.held) > 0 {
		w.hold = fmt.Sprintf("all or most nodes are gone at once: %s; what stands is held until %s", strings.Join(c.held, ", "),
			w.now().WallAt(c.until).UTC().Format(time.RFC3339))
	}
	if c.fresh {
		w.counts.Refused[RefusedEmpty]++
	}
	if len(c.unknown) > 0 || !w.nameable(c.view) {
		return
	}
	texts, err := Once(w.Group, c.view)
	if err != nil {
		w.refuse(RefusedTemplate, err.Error(), "")
		w.hold = err.Error()
		return
	}
	w.roles.take(c.view, snaps)
	w.generation = map[string]uint64{}
	for _, s := range snaps {
		if !slices.Contains(c.held, s.Cluster) {
			w.generation[s.Cluster] = s.Generation
		}
	}
	w.want(texts)
	w.publish() // applying takes its time; say what is coming
}

// leave notes what no file can hold, with a warning for each when it appears.
func (w *worker) leave(out []string) {
	for _, what := range out {
		if !slices.Contains(w.leftOut, what) {
			w.log.Warn("something cannot be written into files; all else is", "what", what)
		}
	}
	w.leftOut = out
}

// snapshots returns those of the group's clusters, and the names of clusters
// whose nodes are not known yet.
func (w *worker) snapshots() (snaps []*topology.Snapshot, missing []string) {
	for _, c := range w.Clusters {
		if v := w.views.Get(c); v != nil && v.Snapshot != nil && v.Snapshot.Complete {
			snaps = append(snaps, v.Snapshot)
		} else {
			missing = append(missing, c)
		}
	}
	return snaps, missing
}

// want makes texts the desired ones and compares them with those on disk.
func (w *worker) want(texts []Text) {
	if h := hashOf(texts); h != w.desiredIs {
		w.desired, w.desiredIs = texts, h
		w.fault, w.nextTry, w.rejected = "", 0, false
		w.backOff.Reset()
	}
	w.look()
	if w.adopt && w.diskIs == w.desiredIs {
		w.runningIs, w.good = w.desiredIs, w.desired
		w.saveGood()
		w.log.Info("the files on disk are as desired and are taken to be what runs")
	}
	w.adopt = false
	if w.isLive() {
		w.applied()
		w.fault = ""
		if w.owed {
			w.paid()
		}
	}
}

// look reads what is on disk.
func (w *worker) look() {
	texts, err := w.read()
	if err != nil {
		w.diskIs = "" // the attempt to apply meets the same error and reports it
		return
	}
	w.diskIs = hashOf(texts)
}
