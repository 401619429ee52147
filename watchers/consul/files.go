package consul

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
)

// watchedFile notices that a file was changed or replaced, by looking at it.
type watchedFile struct {
	path string
	last os.FileInfo // nil: could not be looked at
}

// changed reports whether the file differs from what it was at the last call.
// The first call reports true.
func (f *watchedFile) changed() bool {
	now, err := os.Stat(f.path)
	if err != nil {
		now = nil
	}
	was := f.last
	f.last = now
	if was == nil || now == nil {
		return was != now
	}
	return !os.SameFile(was, now) || !was.ModTime().Equal(now.ModTime()) || was.Size() != now.Size()
}

// tokenFile is an ACL token that may be rotated at any time.
type tokenFile struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex // guards everything below
	file    watchedFile
	token   string
	version uint64 // counts tokens that were read
	err     error
}

// read returns the token. A file that vanished or became empty after it was
// read once leaves the old token in use, since a rotation may be under way.
func (f *tokenFile) read() (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.file.path = f.path
	if f.file.changed() || f.token == "" {
		f.load()
	}
	if f.token == "" {
		return "", f.err
	}
	return f.token, nil
}

func (f *tokenFile) load() {
	b, err := os.ReadFile(f.path)
	token := strings.TrimSpace(string(b))
	if err == nil && token == "" {
		err = errors.New("the file is empty")
	}
	if err == nil && strings.ContainsAny(token, "\r\n\x00") {
		err = errors.New("the file holds more than one line")
	}
	if err != nil {
		f.err = &tokenError{path: f.path, err: err}
		if f.token != "" {
			f.log.Warn("token file for Consul cannot be used, the old token stays", "file", f.path, "err", err)
		}
		return
	}
	if token != f.token {
		f.version++
	}
	f.token, f.err = token, nil
}

// tokenError says that no token could be read.
type tokenError struct {
	path string
	err  error
}

func (e *tokenError) Error() string { return fmt.Sprintf("token file %s: %v", e.path, e.err) }

func (e *tokenError) Unwrap() error { return e.err }

// current returns a number that changes with the token.
func (f *tokenFile) current() uint64 {
	if f == nil {
		return 0
	}
	_, _ = f.read() // its error comes up at the next request
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.version
}
