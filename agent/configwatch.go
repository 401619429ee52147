package agent

import (
	"context"
	"crypto/sha256"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settleConfig lets an editor finish before the file is read.
	settleConfig = 200 * time.Millisecond
	// pollConfig finds changes of which the system says nothing, as on some
	// network file systems.
	pollConfig = 30 * time.Second
)

// watchConfig reloads when the configuration file's contents change. The folder
// is watched, since editors and deployments replace the file itself.
func (a *Agent) watchConfig(ctx context.Context, path string) {
	events := make(<-chan fsnotify.Event)
	if w, err := fsnotify.NewWatcher(); err != nil {
		a.log.Warn("changes of the configuration file are found by polling only", "file", path, "every", pollConfig, "err", err)
	} else {
		defer func() { _ = w.Close() }()
		if err := w.Add(filepath.Dir(path)); err != nil {
			a.log.Warn("changes of the configuration file are found by polling only", "file", path, "every", pollConfig, "err", err)
		}
		events = w.Events
	}
	known := digest(path)
	settle := time.NewTimer(pollConfig)
	defer settle.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-events:
			if ok && filepath.Base(e.Name) == filepath.Base(path) {
				settle.Reset(settleConfig)
			}
			continue
		case <-settle.C:
			settle.Reset(pollConfig)
		}
		// A file that is gone for a moment, or for good, changes nothing.
		if now := digest(path); now != nil && string(now) != string(known) {
			known = now
			a.log.Info("the configuration file has changed", "file", path)
			_ = a.Reload(ctx) // it logs its own outcome
		}
	}
}

func digest(path string) []byte {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	h := sha256.Sum256(b)
	return h[:]
}
