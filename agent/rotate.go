package agent

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/pgsteer/pgsteer/agent/config"
)

// rotating is a value in files that somebody may replace at any time. It is read
// anew at each use; while the files cannot be used, the last good value serves.
type rotating[T any] struct {
	paths []string
	parse func(texts [][]byte) (T, error)
	log   *slog.Logger

	mu      sync.Mutex // guards everything below
	texts   [][]byte   // of value
	value   T
	trouble string // what keeps the files from being used, "" for nothing
}

// newRotating reads the files for the first time; here a fault is an error.
func newRotating[T any](log *slog.Logger, parse func([][]byte) (T, error), paths ...string) (*rotating[T], error) {
	r := &rotating[T]{paths: paths, parse: parse, log: log}
	return r, r.read()
}

func (r *rotating[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.trouble
	r.trouble = ""
	if err := r.read(); err != nil {
		r.trouble = err.Error()
	}
	switch {
	case r.trouble != "" && r.trouble != before:
		r.log.Warn("a changed file cannot be used, what it held before serves on", "files", r.paths, "err", r.trouble)
	case r.trouble == "" && before != "":
		r.log.Info("the file can be used again", "files", r.paths)
	}
	return r.value
}

func (r *rotating[T]) read() error {
	texts := make([][]byte, 0, len(r.paths))
	for _, p := range r.paths {
		b, err := config.ReadFile(p)
		if err != nil {
			return err
		}
		texts = append(texts, b)
	}
	if r.texts != nil && slices.EqualFunc(texts, r.texts, bytes.Equal) {
		return nil
	}
	v, err := r.parse(texts)
	if err != nil {
		return fmt.Errorf("%s: %w", r.paths[0], err)
	}
	r.texts, r.value = texts, v
	return nil
}
