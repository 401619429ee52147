package pgbouncer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/statefile"
)

// Paused is a database that was paused here, or is about to be.
type Paused struct {
	Bouncer  string    `json:"bouncer"`
	Database string    `json:"database"`
	Since    time.Time `json:"since"`
	// Address is where that console is and User who is logged in there, for one that is
	// configured no more, or by another name. Empty in a file of an earlier release.
	Address string `json:"address,omitempty"`
	User    string `json:"user,omitempty"`
}

// saved is the file of a record.
type saved struct {
	Paused []Paused `json:"paused"`
	// Turned is the writer for which a bouncer's databases of a cluster were
	// reconnected last, by bouncer and cluster.
	Turned map[string]map[string]string `json:"turned,omitempty"`
}

// record is what must outlive this process: what was paused, on the disk before it is.
type record struct {
	path string

	mu      sync.Mutex // guards everything below, and the file
	now     saved
	foreign map[string]json.RawMessage
	// unwritten says that now is ahead of the file, by what was struck off alone.
	unwritten bool
}

// openRecord reads the file. One that cannot be used is set aside, and the error says
// so; the record then begins empty.
func openRecord(path string) (*record, error) {
	r := &record{path: path}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &r.now)
	}
	if err == nil {
		r.foreign, err = statefile.Foreign(b, new(saved))
	}
	if err != nil {
		r.now = saved{}
		aside, err2 := statefile.SetAside(path)
		return r, errors.Join(fmt.Errorf("%s cannot be used, so it is not known which databases of PgBouncers were paused; look at SHOW DATABASES, the file is now %s: %w",
			path, aside, err), err2)
	}
	return r, nil
}

// adopt gives what was paused to the bouncer that is at the same address now, whatever
// its name is.
func (r *record) adopt(known map[string]*bouncer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, p := range r.now.Paused {
		for name, b := range known {
			if b.Address == p.Address {
				r.now.Paused[i].Bouncer = name
			}
		}
	}
}

// paused are the databases of a bouncer that were paused here.
func (r *record) paused(bouncer string) (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.now.Paused {
		if p.Bouncer == bouncer {
			names = append(names, p.Database)
		}
	}
	return names
}

// all is what was paused here, by bouncer.
func (r *record) all() []Paused {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.now.Paused)
}

// strangers are those of bouncers that are not configured.
func (r *record) strangers(known map[string]*bouncer) []Paused {
	return slices.DeleteFunc(r.all(), func(p Paused) bool { return known[p.Bouncer] != nil })
}

// pause notes databases. After an error nothing is noted and nothing may be paused.
func (r *record) pause(b Bouncer, names []string, at time.Time) error {
	return r.change(func(s *saved) {
		s.Paused = without(s.Paused, b.Name, names)
		for _, n := range names {
			s.Paused = append(s.Paused, Paused{Bouncer: b.Name, Database: n, Since: at, Address: b.Address, User: b.User})
		}
	})
}

// resumed strikes databases off, also when the disk does not take it: somebody else may
// pause them next, which must not look like ours.
func (r *record) resumed(bouncer string, names []string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now.Paused, r.unwritten = without(r.now.Paused, bouncer, names), true
	return r.write(r.now)
}

// rewrite writes what could not be written when it was struck off.
func (r *record) rewrite() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.unwritten {
		return nil
	}
	return r.write(r.now)
}

func without(all []Paused, bouncer string, names []string) []Paused {
	return slices.DeleteFunc(slices.Clone(all), func(p Paused) bool {
		return p.Bouncer == bouncer && slices.Contains(names, p.Database)
	})
}

// turnedTo is the writer to which a bouncer's databases of a cluster were turned
// last, "" for none.
func (r *record) turnedTo(bouncer, cluster string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now.Turned[bouncer][cluster]
}

// turned notes that they were turned. An error costs one more RECONNECT after a restart.
func (r *record) turned(bouncer, cluster, writer string) error {
	return r.change(func(s *saved) {
		turned := make(map[string]map[string]string)
		for b, clusters := range s.Turned {
			turned[b] = make(map[string]string)
			maps.Copy(turned[b], clusters)
		}
		if turned[bouncer] == nil {
			turned[bouncer] = make(map[string]string)
		}
		turned[bouncer][cluster] = writer
		s.Turned = turned
	})
}

// change writes the file and only then takes the change over.
func (r *record) change(to func(*saved)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	next := r.now
	to(&next)
	slices.SortFunc(next.Paused, func(a, b Paused) int {
		return cmp.Or(cmp.Compare(a.Bouncer, b.Bouncer), cmp.Compare(a.Database, b.Database))
	})
	if err := r.write(next); err != nil {
		return err
	}
	r.now = next
	return nil
}

// write replaces the file; r.mu is held.
func (r *record) write(s saved) error {
	b, err := statefile.Encode(s, r.foreign)
	if err == nil {
		err = statefile.Write(r.path, b)
	}
	if err != nil {
		return fmt.Errorf("note which databases of PgBouncers are paused: %w", err)
	}
	r.unwritten = false
	return nil
}
