// Package statefile keeps small JSON files that must survive a crash of the host.
//
// Guarantees: a file is replaced as a whole or not at all, and is on the disk when
// Write returns without an error (file and folder are synced). Keys that this
// release does not know are kept by those who use Foreign and Encode. A file that
// cannot be used is set aside, never deleted.
package statefile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Foreign returns the keys of a JSON object that a struct does not know: those of a
// newer release. known points to a struct that nobody else uses.
func Foreign(b []byte, known any) (map[string]json.RawMessage, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	for key := range all {
		one, err := json.Marshal(map[string]any{key: nil}) // null is right for every field
		if err != nil {
			return nil, err
		}
		d := json.NewDecoder(bytes.NewReader(one))
		d.DisallowUnknownFields()
		if d.Decode(known) == nil {
			delete(all, key)
		}
	}
	return all, nil
}

// Encode writes a struct as a JSON object for people, together with foreign keys.
func Encode(v any, foreign map[string]json.RawMessage) ([]byte, error) {
	ours, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	all := maps.Clone(foreign)
	if err := json.Unmarshal(ours, &all); err != nil {
		return nil, err
	}
	return json.MarshalIndent(all, "", "  ")
}

// Write replaces a file atomically: temporary file in the same folder, fsync,
// rename, fsync of the folder. The folder is made when it is missing; only the
// owner may read either.
func Write(path string, b []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the state folder: %w", err)
	}
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir), renameio.WithStaticPermissions(0o600))
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
	return syncFolder(dir)
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

// SetAside renames a file that cannot be used, and returns its new name.
func SetAside(path string) (string, error) {
	aside := path + ".corrupt"
	return aside, os.Rename(path, aside)
}
