package apply

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
)

// Applier keeps groups of files as they should be. Make it with New.
type Applier struct {
	groups []*worker
}

// New checks the options and every group; the error lists all faults. Nothing
// is read or written before Run.
func New(o Options) (*Applier, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Runner == nil {
		o.Runner = &Exec{}
	}
	if o.Bus == nil {
		o.Bus = dbus.NewSystemConnectionContext
	}
	if o.SettleMin <= 0 {
		o.SettleMin = 200 * time.Millisecond
	}
	if o.SettleMax <= 0 {
		o.SettleMax = 2 * time.Second
	}
	a := &Applier{}
	for _, g := range o.Groups {
		a.groups = append(a.groups, newWorker(o, g.withDefaults()))
	}
	return a, nil
}

// Run works until the context ends, and then returns nil. It is called once.
func (a *Applier) Run(ctx context.Context) error {
	var running sync.WaitGroup
	for _, g := range a.groups {
		running.Go(func() { g.run(ctx) })
	}
	running.Wait()
	<-ctx.Done() // without groups there is nothing to do, which is no reason to end
	return nil
}

// Retry tries at once what failed, or what a check refused: somebody may have
// mended what stood in the way. The least time between two reloads is kept. It
// returns without waiting and may be called at any time.
func (a *Applier) Retry() {
	for _, g := range a.groups {
		select {
		case g.again <- struct{}{}:
		default: // it is asked for already
		}
	}
}

// Status returns the status of each group in the order of the options. It may be
// called at any time.
func (a *Applier) Status() []Status {
	all := make([]Status, 0, len(a.groups))
	for _, g := range a.groups {
		s := *g.status.Load()
		s.Applied, s.Refused, s.LeftOut = maps.Clone(s.Applied), maps.Clone(s.Refused), slices.Clone(s.LeftOut)
		all = append(all, s)
	}
	return all
}
