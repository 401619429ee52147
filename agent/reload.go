package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/config"
)

// reload: all that can fail comes first, then the old stops, then the new starts.
// Only the goroutine of Run calls it.
func (a *Agent) reload(ctx context.Context) error {
	a.tellReloading()
	cfg, err := a.load()
	if err == nil {
		err = a.exchange(ctx, cfg)
	}
	a.mu.Lock()
	a.configErr = err
	if err == nil {
		a.configAt = a.o.Clock()
	}
	a.mu.Unlock()
	if err != nil {
		a.log.Error("the configuration was not taken; what runs goes on unchanged", "err", err)
	}
	a.tellReady()
	return err
}

func (a *Agent) exchange(ctx context.Context, cfg *config.Config) error {
	if err := fixed(a.cfg.Load(), cfg); err != nil {
		return err
	}
	next, stale, err := a.build(cfg)
	if err != nil {
		return err
	}
	a.cfg.Store(cfg) // sinks see the names of clusters here
	old := a.take(next, stale)
	// A part ends before its successor begins: two would write the same files, and
	// a cluster's successor goes on from where it ended.
	if err := stop(old); err != nil {
		a.log.Error("a part of the old configuration is left behind", "err", err)
	}
	a.start(ctx, next)
	a.applyLive(cfg)
	a.log.Info("configuration taken", "started", names(next), "stopped", names(old))
	return nil
}

// fixed refuses what cannot change while the agent runs.
func fixed(before, after *config.Config) error {
	var errs []error
	if before.StateDir != after.StateDir {
		errs = append(errs, errors.New("state_dir cannot change while the agent runs; restart it instead"))
	}
	if before.Log.Format != after.Log.Format {
		errs = append(errs, errors.New("log.format cannot change while the agent runs; restart it instead"))
	}
	return errors.Join(errs...)
}

// take puts the new parts into their places and returns the stale ones.
func (a *Agent) take(next map[string]*part, stale []string) map[string]*part {
	a.mu.Lock()
	defer a.mu.Unlock()
	old := make(map[string]*part)
	for _, name := range stale {
		old[name] = a.parts[name]
		delete(a.parts, name)
	}
	maps.Copy(a.parts, next)
	return old
}

// applyLive hands over what running parts take without a restart.
func (a *Agent) applyLive(cfg *config.Config) {
	a.setLevel(cfg)
	a.mu.Lock()
	defer a.mu.Unlock()
	for name, c := range a.clusters {
		if _, ok := cfg.Cluster(name); !ok {
			delete(a.clusters, name)
			if v := a.views.Get(name); v != nil {
				a.generations[name] = v.Snapshot.Generation
			}
			a.views.Delete(name)
			continue
		}
		p := cfg.Policy(name)
		if !samePolicy(*c.policy.Load(), p) {
			c.tap.Cut(cutByReload)
		}
		c.policy.Store(&p)
		c.wake.Set()
	}
	for _, p := range a.parts {
		if p.live != nil {
			p.live(cfg)
		}
	}
}

func names(parts map[string]*part) string {
	return strings.Join(slices.Sorted(maps.Keys(parts)), " ")
}
