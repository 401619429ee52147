package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// savedVersion is the format of the saved state.
const savedVersion = 1

// store keeps the saved state of clusters in a folder, a file each. Writing is
// off the decision's path: a full or hung disk delays no decision.
type store struct {
	dir string
	log *slog.Logger

	mu      sync.Mutex
	pending map[string]topology.Saved // newest per cluster, not yet written; guarded by mu
	err     error                     // of the last write; guarded by mu
	since   time.Time                 // guarded by mu
	ready   chan struct{}
}

func newStore(dir string, log *slog.Logger) *store {
	return &store{dir: dir, log: log, pending: make(map[string]topology.Saved), ready: make(chan struct{}, 1)}
}

func (s *store) path(cluster string) string { return filepath.Join(s.dir, "cluster-"+cluster+".json") }

// load reads a cluster's saved state. A file that cannot be read as one is set
// aside and reported; it never stops the agent.
func (s *store) load(cluster string) *topology.Saved {
	path := s.path(cluster)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var v topology.Saved
	if err == nil {
		err = json.Unmarshal(b, &v)
	}
	if err == nil && (v.Version != savedVersion || v.Cluster != cluster) {
		err = fmt.Errorf("it is of version %d for cluster %q, not of version %d for %q", v.Version, v.Cluster, savedVersion, cluster)
	}
	if err == nil {
		return &v
	}
	aside := path + ".corrupt"
	s.log.Error("saved state cannot be used, starting without it; the file is set aside", "file", path, "aside", aside, "err", err)
	if err := os.Rename(path, aside); err != nil {
		s.log.Error("saved state cannot be set aside", "file", path, "err", err)
	}
	return nil
}

// put hands over the newest state of a cluster to be written.
func (s *store) put(v topology.Saved) {
	s.mu.Lock()
	s.pending[v.Cluster] = v
	s.mu.Unlock()
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// retryWrite is how long a failed write waits before it is tried again.
const retryWrite = 5 * time.Second

// run writes until ctx ends, and then what is left, once.
func (s *store) run(ctx context.Context) error {
	for {
		var retry <-chan time.Time
		if !s.flush() {
			retry = time.After(retryWrite)
		}
		select {
		case <-ctx.Done():
			s.flush()
			return nil
		case <-s.ready:
		case <-retry:
		}
	}
}

// flush writes everything pending and reports whether it could.
func (s *store) flush() bool {
	s.mu.Lock()
	batch := s.pending
	s.pending = make(map[string]topology.Saved)
	s.mu.Unlock()
	var failed error
	for name, v := range batch {
		if err := s.write(v); err != nil {
			failed = err
			s.mu.Lock()
			if _, newer := s.pending[name]; !newer {
				s.pending[name] = v
			}
			s.mu.Unlock()
		}
	}
	s.note(failed, len(batch) > 0)
	return failed == nil
}

func (s *store) note(err error, tried bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil && s.err == nil:
		s.since = time.Now()
		s.log.Error("the state cannot be written; it is tried again every few seconds, decisions go on", "folder", s.dir, "err", err)
	case err == nil && s.err != nil && tried:
		s.log.Info("the state is written again", "folder", s.dir)
	case err == nil && !tried:
		return
	}
	s.err = err
}

// trouble returns the error of the last write and since when writing fails.
func (s *store) trouble() (error, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err, s.since
}

// write replaces a cluster's file atomically: temporary file in the same
// folder, fsync, rename, fsync of the folder.
func (s *store) write(v topology.Saved) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return fmt.Errorf("make the state folder: %w", err)
	}
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the state of %s: %w", v.Cluster, err)
	}
	path := s.path(v.Cluster)
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(s.dir), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = f.Cleanup() }()
	if _, err := f.Write(append(b, '\n')); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := f.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return syncFolder(s.dir)
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("open the state folder: %w", err)
	}
	defer func() { _ = d.Close() }()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync the state folder %s: %w", dir, err)
	}
	return nil
}

// sameSaved compares everything but the time.
func sameSaved(a, b topology.Saved) bool {
	sameNode := func(x, y topology.Node) bool {
		return x.Name == y.Name && x.Address == y.Address && maps.Equal(x.Tags, y.Tags)
	}
	return a.Cluster == b.Cluster && a.Writer == b.Writer && a.SystemID == b.SystemID && a.Timeline == b.Timeline &&
		slices.EqualFunc(a.Nodes, b.Nodes, sameNode) &&
		maps.EqualFunc(a.Verdicts, b.Verdicts, maps.Equal[map[string]topology.Verdict, map[string]topology.Verdict])
}
