package apply

import (
	"context"
	"errors"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// errReloadLater: the files stand, and the reload that they need waits for the
// least time between two.
var errReloadLater = errors.New("the reload waits for reload_interval")

// reloadDue is when the next reload may be; zero: at once.
func (w *worker) reloadDue() topology.Mono {
	if w.reloadedAt == 0 || w.Settings.Roles { // a writer cannot wait
		return 0
	}
	return w.reloadedAt.Add(w.ReloadInterval)
}

// mayBring reports whether what runs is known, so that it can be changed.
func (w *worker) mayBring() bool {
	return w.Runtime && w.bring != nil && len(w.good) == len(w.desired) && w.runningIs != "" && hashOf(w.good) == w.runningIs
}

// brought has the running processes changed without a reload, one file after the
// other, and reports whether they now are as desired. Like a reload it is not
// broken off when the agent stops.
func (w *worker) brought(ctx context.Context) bool {
	if !w.mayBring() {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.Timeout)
	defer cancel()
	for i, now := range w.desired {
		if string(w.good[i].Bytes) == string(now.Bytes) {
			continue
		}
		if err := w.bring(ctx, w.good[i].Bytes, now.Bytes); err != nil {
			w.runningIs = "" // it may have half of it
			w.log.Info("the running process cannot be changed, so it is reloaded", "why", err)
			return false
		}
	}
	w.counts.Runtime++
	return true
}
