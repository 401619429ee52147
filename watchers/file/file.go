// Package file is the source of nodes that somebody wrote down: in the config,
// or in an inventory file that is watched. Follow watches any other file.
//
// Guarantees: a file that vanishes, is empty, cannot be read or holds a fault
// changes nothing; it is reported with the reason and read again. A list counts
// once two reads, a settling time apart, found the same bytes, so a file that
// is just being written is never taken for a shorter list. A change is noticed
// within a quarter of a second where the system tells of it, else within the
// polling interval.
package file

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// Options of a Source. Cluster, Now and exactly one of Static and Path are
// required.
type Options struct {
	Cluster string
	// Name identifies the source among those of the cluster; empty: Path, or
	// "config" for a static list.
	Name string
	// Static is the list of the config. It is reported once, and again after Set.
	Static []topology.Node
	// Path is an inventory file, read by Parse, which gets the path for its
	// messages. Parse must not keep text.
	Path  string
	Parse func(name string, text []byte) ([]topology.Node, error)

	Settle time.Duration // how long a file must rest; zero: 100 ms
	Poll   time.Duration // between looks without an event; zero: 30 s

	// Now reads the agent's clocks.
	Now topology.Ticker
	// Logger takes changes; nil: nothing is logged.
	Logger *slog.Logger
}

// Source reports nodes. Make it with New.
type Source struct {
	o      Options
	notify func(folder string) (notices, error) // the system's word of changes

	report func(topology.Observation)
	seq    uint64
	static atomic.Pointer[[]topology.Node] // the config's newest list
	again  watchers.Nudge                  // it is another one

	candidate []byte // hash of a read that waits for its confirmation
	accepted  []byte // hash of the newest list
	fault     string // the newest fault; empty: the newest read was good
}

var _ watchers.Source = (*Source)(nil)

// New returns a source, or what is wrong with its options.
func New(o Options) (*Source, error) {
	switch {
	case o.Cluster == "" || o.Now == nil:
		return nil, errors.New("source of nodes: options Cluster and Now are required")
	case (o.Path == "") == (len(o.Static) == 0):
		return nil, errors.New("source of nodes: exactly one of a static list and a file is required")
	case o.Path != "" && o.Parse == nil:
		return nil, errors.New("source of nodes: a file needs option Parse")
	}
	if err := check(o.Static); err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = "config"
		if o.Path != "" {
			o.Name = o.Path
		}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = o.Logger.With("cluster", o.Cluster, "source", o.Name)
	s := &Source{o: o, notify: watchFolder, again: watchers.NewNudge()}
	s.static.Store(&o.Static)
	return s, nil
}

// Set replaces the list of the config, while the source runs or before. It may be
// called by anyone. An error says what is wrong with the list; then the old one stays.
func (s *Source) Set(nodes []topology.Node) error {
	if len(nodes) == 0 {
		return errors.New("source of nodes: a static list needs a node")
	}
	if err := check(nodes); err != nil {
		return err
	}
	if old := s.static.Swap(&nodes); !slices.EqualFunc(*old, nodes, alike) {
		s.again.Set()
	}
	return nil
}

func alike(a, b topology.Node) bool {
	return a.Name == b.Name && a.Address == b.Address && maps.Equal(a.Tags, b.Tags)
}

// Run reports the list, and a file's list again whenever it changes, until ctx
// ends; then it returns nil. It may be called once.
func (s *Source) Run(ctx context.Context, report func(topology.Observation)) error {
	s.report = report
	if s.o.Path == "" {
		for {
			now := s.o.Now()
			s.emit(topology.Observation{AskedAt: now, Nodes: &topology.NodeList{Nodes: *s.static.Load()}})
			select {
			case <-ctx.Done():
				return nil
			case <-s.again.C():
			}
		}
	}
	o := FollowOptions{Path: s.o.Path, Settle: s.o.Settle, Poll: s.o.Poll, Logger: s.o.Logger}
	follow(ctx, o.withDefaults(), s.notify, s.read)
	return nil
}

func (s *Source) emit(o topology.Observation) {
	s.seq++
	o.Cluster, o.Seq, o.At = s.o.Cluster, s.seq, s.o.Now()
	o.Source = topology.SourceID{Kind: topology.SourceFile, Name: s.o.Name}
	s.report(o)
}
