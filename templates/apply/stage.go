package apply

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/google/renameio/v2"
)

// Endings of the files beside a destination.
const (
	endGood     = ".pgsteer-good"
	endRejected = ".pgsteer-rejected"
	endPending  = ".pgsteer-pending"
)

// beside is the path of a dot file beside a destination.
func beside(destination, end string) string {
	return filepath.Join(filepath.Dir(destination), "."+filepath.Base(destination)+end)
}

// read returns the texts on disk; Bytes is nil for a file that does not exist.
func (g Group) read() ([]Text, error) {
	texts := make([]Text, 0, len(g.Files))
	for _, f := range g.Files {
		if info, err := os.Stat(f.Destination); err == nil && !info.Mode().IsRegular() {
			return nil, fmt.Errorf("reading the present file: %s is no regular file", f.Destination)
		}
		b, err := os.ReadFile(f.Destination)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("reading the present file: %w", err)
		}
		if err == nil && b == nil {
			b = []byte{}
		}
		texts = append(texts, Text{Destination: f.Destination, Bytes: b})
	}
	return texts, nil
}

// staging is a group's texts in temporary files beside their destinations.
type staging struct {
	group  Group
	texts  []Text
	before []Text // what was at the destinations
	files  []*renameio.PendingFile
}

// stage writes texts into temporary files, with mode and owner as they will be.
// The caller must call discard.
func (g Group) stage(texts []Text) (*staging, error) {
	before, err := g.read()
	if err != nil {
		return nil, err
	}
	s := &staging{group: g, texts: texts, before: before}
	for i, t := range texts {
		f, err := write(t.Destination, t.Bytes, g.Files[i].Mode)
		if err != nil {
			s.discard()
			return nil, fmt.Errorf("staging %s: %w", t.Destination, err)
		}
		s.files = append(s.files, f)
	}
	return s, nil
}

// check runs the group's check on the staged files. Only an exit code of its own
// is a rejection; a program that is missing or too slow says nothing about them.
func (s *staging) check(ctx context.Context, run Runner) (output string, err error) {
	if len(s.group.Check) == 0 {
		return "", nil
	}
	args, err := s.group.places(s.paths()).expand(s.group.Check)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.group.Timeout)
	defer cancel()
	output, err = run.Run(ctx, args)
	var exit *ExitError
	switch {
	case err == nil:
		return "", nil
	case errors.As(err, &exit) && exit.Code != 126 && exit.Code != 127: // a shell's "cannot run", "not found"
		return output, &rejection{RefusedCheck, fmt.Errorf("%s: %w", args[0], err)}
	default:
		return output, fmt.Errorf("the check did not come to a result, the files are not used: %w", err)
	}
}

func (s *staging) paths() []string {
	paths := make([]string, 0, len(s.files))
	for _, f := range s.files {
		paths = append(paths, f.Name())
	}
	return paths
}

// discard removes the temporary files that were not put in place.
func (s *staging) discard() {
	for _, f := range s.files {
		_ = f.Cleanup() // at worst a dot file stays, and the next start removes it
	}
}

// replace puts the staged files in place, all or none.
func (s *staging) replace() error {
	for i, f := range s.files {
		if s.before[i].Bytes != nil && bytes.Equal(s.before[i].Bytes, s.texts[i].Bytes) {
			continue // the mode is as we once set it, or as somebody wants it
		}
		if err := f.CloseAtomicallyReplace(); err != nil {
			err = fmt.Errorf("replacing %s: %w", s.texts[i].Destination, explain(err))
			return errors.Join(err, s.group.put(s.before[:i]))
		}
	}
	return syncFolders(s.texts)
}

// put makes the destinations hold the given texts, and removes those that did
// not exist. It goes on after an error.
func (g Group) put(texts []Text) error {
	var errs []error
	for i, t := range texts {
		if err := g.putOne(t, g.Files[i].Mode); err != nil {
			errs = append(errs, fmt.Errorf("putting the earlier %s back: %w", t.Destination, err))
		}
	}
	return errors.Join(append(errs, syncFolders(texts))...)
}

func (g Group) putOne(t Text, mode fs.FileMode) error {
	if t.Bytes == nil {
		if err := os.Remove(t.Destination); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if now, err := os.ReadFile(t.Destination); err == nil && bytes.Equal(now, t.Bytes) {
		return nil
	}
	return put(t.Destination, t.Bytes, mode)
}

// put writes a file in one step: it is there whole, or as it was.
func put(path string, text []byte, mode fs.FileMode) error {
	f, err := write(path, text, mode)
	if err != nil {
		return err
	}
	defer func() { _ = f.Cleanup() }()
	return explain(f.CloseAtomicallyReplace())
}

// write fills a temporary file for a destination, in the same folder: the one of
// the link's target where the destination is a link.
func write(destination string, text []byte, mode fs.FileMode) (*renameio.PendingFile, error) {
	path, owner, err := resolve(destination)
	if err != nil {
		return nil, err
	}
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(filepath.Dir(path)), renameio.WithStaticPermissions(mode))
	if err != nil {
		return nil, explain(err)
	}
	_, err = f.Write(text)
	if err == nil {
		err = keepOwner(f.File, owner)
	}
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		_ = f.Cleanup()
		return nil, explain(err)
	}
	return f, nil
}

// resolve follows links, so that they stay and their target is replaced. The
// second value is nil when there is no file yet.
func resolve(destination string) (string, *syscall.Stat_t, error) {
	if _, err := os.Lstat(destination); errors.Is(err, fs.ErrNotExist) {
		return destination, nil, nil
	}
	path, err := filepath.EvalSymlinks(destination)
	if err != nil {
		return "", nil, fmt.Errorf("following the link: %w", err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return "", nil, err
	}
	if !st.Mode().IsRegular() {
		return "", nil, fmt.Errorf("%s is no regular file", path)
	}
	owner, _ := st.Sys().(*syscall.Stat_t)
	return path, owner, nil
}

// keepOwner gives the new file the old one's owner and group. Without the right
// to give files away the owner becomes ours, but the group must stay: the
// program that reads the file often does so by its group.
func keepOwner(f *os.File, old *syscall.Stat_t) error {
	if old == nil || f.Chown(int(old.Uid), int(old.Gid)) == nil {
		return nil
	}
	if err := f.Chown(-1, int(old.Gid)); err != nil {
		return fmt.Errorf("keeping the file's group %d: %w", old.Gid, err)
	}
	return nil
}

// explain adds what an operator can do to errors that say too little.
func explain(err error) error {
	switch {
	case errors.Is(err, syscall.EBUSY), errors.Is(err, syscall.EXDEV):
		return fmt.Errorf("%w (a file that is mounted by itself cannot be replaced; mount its folder instead)", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w (the folder must exist, it is not made)", err)
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w (the folder must be writable: files are replaced by a rename)", err)
	}
	return err
}

func syncFolders(texts []Text) error {
	done := map[string]bool{}
	for _, t := range texts {
		path, err := filepath.EvalSymlinks(t.Destination)
		if err != nil {
			path = t.Destination
		}
		dir := filepath.Dir(path)
		if done[dir] {
			continue
		}
		done[dir] = true
		if err := syncFolder(dir); err != nil {
			return fmt.Errorf("making the change of folder %s durable: %w", dir, err)
		}
	}
	return nil
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// removeLeftovers deletes temporary files of a run that was killed. Their names
// are those that renameio makes: a dot, the name, digits.
func (g Group) removeLeftovers() {
	for _, f := range g.Files {
		path, _, err := resolve(f.Destination)
		if err != nil {
			continue
		}
		ours := regexp.MustCompile(`^\.` + regexp.QuoteMeta(filepath.Base(path)) + `[0-9]+$`)
		entries, _ := os.ReadDir(filepath.Dir(path)) // staging will say why it cannot be read
		for _, e := range entries {
			if e.Type().IsRegular() && ours.MatchString(e.Name()) {
				_ = os.Remove(filepath.Join(filepath.Dir(path), e.Name()))
			}
		}
	}
}

// keep writes a copy of texts beside their destinations.
func (g Group) keep(texts []Text, end string) error {
	var errs []error
	for i, t := range texts {
		if err := put(beside(t.Destination, end), t.Bytes, g.Files[i].Mode); err != nil {
			errs = append(errs, fmt.Errorf("keeping a copy of %s: %w", t.Destination, err))
		}
	}
	return errors.Join(errs...)
}

// kept reads such copies back; nil unless all are there.
func (g Group) kept(end string) []Text {
	texts := make([]Text, 0, len(g.Files))
	for _, f := range g.Files {
		b, err := os.ReadFile(beside(f.Destination, end))
		if err != nil {
			return nil
		}
		texts = append(texts, Text{Destination: f.Destination, Bytes: b})
	}
	return texts
}
