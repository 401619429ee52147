package file

import (
	"context"
	"log/slog"
	"path/filepath"
	"time"
)

// FollowOptions say which file is followed, and how. Path is required.
type FollowOptions struct {
	Path   string
	Settle time.Duration // how long a file must rest; zero: 100 ms
	Poll   time.Duration // between looks without an event; zero: 30 s
	Logger *slog.Logger  // nil: nothing is logged
}

func (o FollowOptions) withDefaults() FollowOptions {
	if o.Settle <= 0 {
		o.Settle = 100 * time.Millisecond
	}
	if o.Poll <= 0 {
		o.Poll = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Follow calls look at once, whenever the file may have changed and then rested
// for Settle, and every Poll, until ctx ends. A look that returns false is
// repeated after Settle, to confirm what it found. Follow itself never opens
// the file, and calls look from one goroutine.
func Follow(ctx context.Context, o FollowOptions, look func() (settled bool)) {
	follow(ctx, o.withDefaults(), watchFolder, look)
}

func follow(ctx context.Context, o FollowOptions, notify func(folder string) (notices, error), look func() bool) {
	folder := filepath.Dir(o.Path)
	n, err := notify(folder)
	if err != nil {
		o.Logger.Warn("changes of the folder cannot be watched, the file is polled instead",
			"folder", folder, "every", o.Poll, "error", err)
	}
	defer n.close()
	// A file that never rests is looked at all the same, once in a polling interval.
	rested, due := time.NewTimer(0), time.NewTimer(o.Poll)
	defer rested.Stop()
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case name, ok := <-n.names:
			if !ok {
				n.names = nil // the system stopped telling; polling goes on
			} else if concerns(o.Path, name) {
				rested.Reset(o.Settle)
			}
			continue
		case <-rested.C:
		case <-due.C:
		}
		n.again() // the folder may be another one by now
		if look() {
			due.Reset(o.Poll)
		} else {
			due.Reset(o.Settle)
		}
	}
}

// concerns reports whether a changed name in the folder can mean the file. A
// mounted Kubernetes ConfigMap changes by a swap of the link ..data alone.
func concerns(path, name string) bool {
	base := filepath.Base(name)
	return base == filepath.Base(path) || base == "..data"
}
