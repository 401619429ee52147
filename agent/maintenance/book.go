package maintenance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/statefile"
)

// Shared is a document that all agents read and change, such as a key in Consul.
type Shared interface {
	// Change replaces the document by what edit makes of its newest text, if nobody
	// else did meanwhile; else edit is asked again. Empty: there is none yet. A nil
	// result of edit changes nothing.
	Change(ctx context.Context, edit func(old []byte) ([]byte, error)) error
	// String names it for people.
	String() string
}

// Options configures a Book. All but Logger and Write are required.
type Options struct {
	// Path is the local file: the only store, or the copy of the shared one.
	Path string
	// Read reads a file of limited size.
	Read func(path string) ([]byte, error)
	// Write replaces the file and syncs it; nil: statefile.Write.
	Write func(path string, b []byte) error
	Now   func() time.Time
	// Changed is called after each change of the records; it must not block.
	Changed func()
	Logger  *slog.Logger // nil: nothing is logged
}

// retryWrite is how long a failed copy waits before it is written again.
const retryWrite = 5 * time.Second

// Book is what this agent knows of all records. It is safe for concurrent use;
// reads take no lock.
type Book struct {
	o   Options
	set atomic.Pointer[Set]

	change sync.Mutex // serializes changes and what the store says; held while the store is asked

	mu      sync.Mutex // guards everything below
	shared  Shared     // nil: the local file alone
	named   bool       // Share was called
	heard   chan struct{}
	told    bool   // heard is closed
	trouble error  // of the shared store
	unsaved error  // of the local copy
	corrupt error  // of the file at the start, told until the next change
	missing string // records that the shared store has lost, as told last
}

// Open reads the local file. One that cannot be used is set aside and reported;
// it never stops the agent.
func Open(o Options) *Book {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Write == nil {
		o.Write = statefile.Write
	}
	b := &Book{o: o, heard: make(chan struct{})}
	s, err := b.read()
	if err != nil {
		aside, failed := statefile.SetAside(o.Path)
		o.Logger.Error("maintenance records cannot be used, starting without them; the file is set aside. Look there for who was out",
			"file", o.Path, "aside", aside, "err", err)
		if failed != nil {
			o.Logger.Error("maintenance records cannot be set aside and will be overwritten", "file", o.Path, "err", failed)
		}
		b.corrupt = fmt.Errorf("the file was unusable and is at %s: %w", aside, err)
	}
	b.set.Store(&s)
	if n := len(s.Active(o.Now())); n > 0 {
		o.Logger.Info("maintenance goes on from before the start", "records", n, "file", o.Path)
	}
	return b
}

func (b *Book) read() (Set, error) {
	text, err := b.o.Read(b.o.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return Set{}, nil
	}
	if err != nil {
		return Set{}, err
	}
	if len(text) == 0 { // a crash of the disk; this program never wrote that
		return Set{}, errors.New("the file is empty")
	}
	return Decode(text)
}

// Set returns the newest records.
func (b *Book) Set() Set { return *b.set.Load() }

// Now is the moment by which records count.
func (b *Book) Now() time.Time { return b.o.Now() }

// Share names the store that all agents share from now on; nil: the local file
// is all there is.
func (b *Book) Share(s Shared) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shared, b.named, b.trouble, b.missing = s, true, nil, ""
	if s == nil {
		b.nowHeard()
	}
}

// Heard is closed once the shared store has answered for the first time, or none
// needs to: before, others may have taken out what this agent does not know of.
func (b *Book) Heard() <-chan struct{} { return b.heard }

// nowHeard needs b.mu.
func (b *Book) nowHeard() {
	if !b.told {
		b.told = true
		close(b.heard)
	}
}

// Trouble returns what keeps the shared store or the local copy from being used.
func (b *Book) Trouble() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(b.trouble, b.unsaved, b.corrupt)
}

// Lost notes that the shared store cannot be read: what is known stays.
func (b *Book) Lost(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.trouble = fmt.Errorf("%w; the local copy holds", err)
}

// Take takes over what the shared store says. What it does not say, or what cannot
// be read of it, changes nothing here.
func (b *Book) Take(text []byte) {
	b.change.Lock()
	defer b.change.Unlock()
	remote, err := Decode(text)
	if err != nil {
		b.mu.Lock()
		first := b.trouble == nil
		b.trouble = fmt.Errorf("the shared %w; the local copy holds", err)
		b.mu.Unlock()
		if first {
			b.o.Logger.Error("shared maintenance records cannot be read; the local copy holds", "err", err)
		}
		return
	}
	remote = remote.only(isShared)
	before := b.Set()
	next := before.merge(remote).tidy(b.o.Now())
	b.noteMissing(before, remote)
	b.mu.Lock()
	b.trouble = nil
	b.mu.Unlock()
	b.take(before, next)
	b.mu.Lock()
	b.nowHeard()
	b.mu.Unlock()
}

// Confirm takes over what the shared store says at this moment, or says why that is
// not known. Without a shared store everything is known.
func (b *Book) Confirm(ctx context.Context) error {
	b.mu.Lock()
	shared, named := b.shared, b.named
	b.mu.Unlock()
	switch {
	case !named:
		return errors.New("which store has the maintenance records is not known yet")
	case shared == nil:
		return nil
	}
	var now []byte
	err := shared.Change(ctx, func(old []byte) ([]byte, error) {
		if _, err := Decode(old); err != nil {
			return nil, err
		}
		now = old
		return nil, nil
	})
	if err != nil {
		return fmt.Errorf("read the maintenance records in %s: %w", shared, err)
	}
	b.Take(now)
	return nil
}

func isShared(r Record) bool { return r.Target != Agent }

// noteMissing reports records that hold here and that the store has lost.
func (b *Book) noteMissing(mine, remote Set) {
	var names []string
	for _, r := range mine.Active(b.o.Now()) {
		if _, ok := remote.Get(r.Target); !ok && isShared(r) {
			names = append(names, r.String())
		}
	}
	missing := strings.Join(names, "; ")
	b.mu.Lock()
	news := missing != b.missing
	b.missing = missing
	b.mu.Unlock()
	if news && missing != "" {
		b.o.Logger.Warn("records are gone from the shared store without an end; they hold here until their time or an explicit end, and are written back with the next change", "missing", missing)
	}
}

// take makes a set the newest one, and saves it. b.change is held.
func (b *Book) take(before, next Set) {
	old, err := before.Encode()
	text, err2 := next.Encode()
	if err == nil && err2 == nil && string(old) == string(text) {
		return
	}
	b.set.Store(&next)
	b.save()
	b.o.Changed()
}

// save writes the local file. b.change is held.
func (b *Book) save() {
	text, err := b.Set().Encode()
	if err == nil {
		err = b.o.Write(b.o.Path, text)
	}
	b.mu.Lock()
	before := b.unsaved
	b.unsaved, b.corrupt = err, nil
	b.mu.Unlock()
	switch {
	case err != nil && before == nil:
		b.o.Logger.Error("the copy of the maintenance records cannot be written; it is tried again every few seconds", "file", b.o.Path, "err", err)
	case err == nil && before != nil:
		b.o.Logger.Info("the maintenance records are written again", "file", b.o.Path)
	}
}

// Run writes the local copy again while that fails, until ctx ends.
func (b *Book) Run(ctx context.Context) {
	tick := time.NewTicker(retryWrite)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		b.change.Lock()
		b.mu.Lock()
		failing := b.unsaved != nil
		b.mu.Unlock()
		if failing {
			b.save()
		}
		b.change.Unlock()
	}
}

// Edit makes the next set of one, or says that there is nothing to change.
type Edit func(Set) (next Set, changed bool)

// errFull refuses to take out more. An end is never refused for it.
var errFull = fmt.Errorf("what is out would fill more than %d KiB, and one value must hold it all; end some of it, or take out a pool or a cluster by one record", room>>10)

// Change makes a change of a target durable, and then puts it into effect. On an
// error nothing has changed.
func (b *Book) Change(ctx context.Context, t Target, edit Edit) error {
	b.change.Lock()
	defer b.change.Unlock()
	b.mu.Lock()
	shared := b.shared
	b.mu.Unlock()
	before := b.Set()
	if shared == nil || t == Agent {
		return b.changeHere(before, edit)
	}
	var next Set
	err := shared.Change(ctx, func(old []byte) ([]byte, error) {
		remote, err := Decode(old)
		if err != nil {
			return nil, err
		}
		now := b.o.Now()
		mine := before.merge(remote.only(isShared)).tidy(now)
		edited, changed := edit(mine)
		next = edited
		if !changed {
			return nil, nil
		}
		theirs := edited.only(isShared)
		if size := theirs.size(now); size > room && size > mine.only(isShared).size(now) {
			return nil, errFull
		}
		return theirs.Compact()
	})
	if errors.Is(err, errFull) {
		return fmt.Errorf("change the maintenance records in %s: %w; nothing was changed", shared, err)
	}
	if err != nil {
		return fmt.Errorf("change the maintenance records in %s: %w; nothing was changed, unless the store took it and its answer was lost", shared, err)
	}
	b.take(before, next)
	return nil
}

func (b *Book) changeHere(before Set, edit Edit) error {
	next, changed := edit(before)
	if !changed {
		return nil
	}
	text, err := next.Encode()
	if err == nil {
		err = b.o.Write(b.o.Path, text)
	}
	if err != nil {
		return fmt.Errorf("save the maintenance records: %w; nothing was changed", err)
	}
	b.set.Store(&next)
	b.mu.Lock()
	b.unsaved, b.corrupt = nil, nil
	b.mu.Unlock()
	b.o.Changed()
	return nil
}
