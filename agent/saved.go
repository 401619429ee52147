package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/statefile"
	"github.com/pgsteer/pgsteer/agent/status"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// savedVersion is the format of the saved state.
const savedVersion = 1

// retryWrite is how long a failed write waits before it is tried again.
const retryWrite = 5 * time.Second

// store keeps the saved state of clusters in a folder, a file each. Writing is
// off the decision's path: a full or hung disk delays no decision.
type store struct {
	dir   string
	log   *slog.Logger
	ready watchers.Nudge

	mu      sync.Mutex                            // guards everything below
	pending map[string]topology.Saved             // newest per cluster, not yet written
	foreign map[string]map[string]json.RawMessage // what a file holds that this version does not know
	err     error                                 // of the last write
	since   time.Time                             // since when err, or its absence, holds
}

func newStore(dir string, log *slog.Logger) *store {
	return &store{
		dir: dir, log: log, ready: watchers.NewNudge(), since: time.Now(),
		pending: make(map[string]topology.Saved), foreign: make(map[string]map[string]json.RawMessage),
	}
}

func (s *store) path(cluster string) string { return filepath.Join(s.dir, "cluster-"+cluster+".json") }

// load returns a cluster's saved state, nil when there is none. A file that
// cannot be used is set aside and reported; it never stops the agent.
func (s *store) load(cluster string) *topology.Saved {
	s.mu.Lock()
	newest, unwritten := s.pending[cluster]
	s.mu.Unlock()
	if unwritten {
		return &newest
	}
	path := s.path(cluster)
	b, err := config.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var v topology.Saved
	var foreign map[string]json.RawMessage
	if err == nil {
		v, foreign, err = decodeSaved(b, cluster)
	}
	if err == nil {
		s.mu.Lock()
		s.foreign[cluster] = foreign
		s.mu.Unlock()
		return &v
	}
	aside, failed := statefile.SetAside(path)
	s.log.Error("saved state cannot be used, starting without it; the file is set aside", "file", path, "aside", aside, "err", err)
	if failed != nil {
		s.log.Error("saved state cannot be set aside and will be overwritten", "file", path, "err", failed)
	}
	return nil
}

// decodeSaved reads a state, and apart from it the keys that a newer release of
// the same format may have added.
func decodeSaved(b []byte, cluster string) (v topology.Saved, foreign map[string]json.RawMessage, err error) {
	if err := json.Unmarshal(b, &v); err != nil {
		return v, nil, err
	}
	if v.Version != savedVersion || v.Cluster != cluster {
		return v, nil, fmt.Errorf("it is of version %d for cluster %q, not of version %d for %q", v.Version, v.Cluster, savedVersion, cluster)
	}
	for _, n := range v.Nodes {
		// Names end up in commands to balancers, whoever wrote the file.
		if err := topology.CheckName(n.Name); err != nil {
			return v, nil, fmt.Errorf("a node of it: %w", err)
		}
	}
	foreign, err = statefile.Foreign(b, new(topology.Saved))
	return v, foreign, err
}

// put hands over the newest state of a cluster to be written.
func (s *store) put(v topology.Saved) {
	s.mu.Lock()
	s.pending[v.Cluster] = v
	s.mu.Unlock()
	s.ready.Set()
}

// run writes until ctx ends, and then what is left, once.
func (s *store) run(ctx context.Context) {
	for {
		var retry <-chan time.Time
		if !s.flush() {
			retry = time.After(retryWrite)
		}
		select {
		case <-ctx.Done():
			s.flush()
			return
		case <-s.ready.C():
		case <-retry:
		}
	}
}

// flush writes everything pending and reports whether it could.
func (s *store) flush() bool {
	s.mu.Lock()
	batch := maps.Clone(s.pending)
	s.mu.Unlock()
	var errs []error
	for _, cluster := range slices.Sorted(maps.Keys(batch)) {
		v := batch[cluster]
		if err := s.write(v); err != nil {
			errs = append(errs, err)
			continue
		}
		s.mu.Lock()
		if s.pending[cluster].SavedAt.Equal(v.SavedAt) { // else a newer one waits
			delete(s.pending, cluster)
		}
		s.mu.Unlock()
	}
	if len(batch) > 0 {
		s.note(errors.Join(errs...))
	}
	return len(errs) == 0
}

// note reports when writing begins to fail, and when it works again.
func (s *store) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && s.err == nil:
		s.since = time.Now()
		s.log.Error("the state cannot be written; it is tried again every few seconds, decisions go on", "folder", s.dir, "err", err)
	case err == nil && s.err != nil:
		s.since = time.Now()
		s.log.Info("the state is written again", "folder", s.dir)
	}
	s.err = err
}

// status shows the state folder among the sinks.
func (s *store) status() status.Sink {
	s.mu.Lock()
	defer s.mu.Unlock()
	sink := status.Sink{Name: "state", State: status.SinkOK, Since: s.since}
	if s.err != nil {
		sink.State, sink.Error = status.SinkFailing, s.err.Error()
	}
	return sink
}

// write replaces a cluster's file.
func (s *store) write(v topology.Saved) error {
	s.mu.Lock()
	foreign := s.foreign[v.Cluster]
	s.mu.Unlock()
	b, err := statefile.Encode(v, foreign)
	if err != nil {
		return fmt.Errorf("encode the state of %s: %w", v.Cluster, err)
	}
	return statefile.Write(s.path(v.Cluster), b)
}

// sameSaved compares everything but the time.
func sameSaved(a, b topology.Saved) bool {
	sameNode := func(x, y topology.Node) bool {
		return x.Name == y.Name && x.Address == y.Address && maps.Equal(x.Tags, y.Tags)
	}
	return a.Cluster == b.Cluster && a.Writer == b.Writer && a.SystemID == b.SystemID && a.Timeline == b.Timeline &&
		slices.EqualFunc(a.Nodes, b.Nodes, sameNode) && maps.EqualFunc(a.Lost, b.Lost, time.Time.Equal) &&
		maps.EqualFunc(a.Verdicts, b.Verdicts, maps.Equal[map[string]topology.Verdict, map[string]topology.Verdict])
}
