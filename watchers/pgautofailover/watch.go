package pgautofailover

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
	"github.com/pgsteer/pgsteer/watchers/postgres"
)

// The defaults of a watcher.
const (
	defaultFormation = "default"
	defaultDatabase  = "pg_auto_failover"
	defaultUser      = "pgsteer"
	defaultPoll      = 2 * time.Second
	defaultTimeout   = 2 * time.Second
)

// Options of a watcher. Cluster, Monitors and Now are required.
type Options struct {
	Cluster string // as in observations
	// Monitors are where the monitor may be. They are tried in this order, and the
	// first one that answers is kept.
	Monitors []topology.Address
	// Formation and Group name the cluster at the monitor; empty: default, 0.
	Formation string
	Group     int
	// User and Database to log in as; empty: pgsteer, pg_auto_failover.
	User, Database string
	// Password, TLS and PlainToo are as a prober's; TLS makes the configuration for
	// a monitor's host, nil: without TLS.
	Password func() string
	TLS      func(host string) *tls.Config
	PlainToo bool
	// Addresses are where clients reach the nodes, where that is another address
	// than the monitor's for them.
	Addresses Addresses
	// Poll is how often the table is read although nothing woke us; zero: 2 s.
	Poll time.Duration
	// Timeout of a login and of each question; zero: 2 s.
	Timeout time.Duration
	Now     topology.Ticker
	Jitter  func(time.Duration) time.Duration // of the back-off; nil: at random
	Logger  *slog.Logger                      // nil discards
}

// Watcher watches one group. It is a watchers.Source.
type Watcher struct {
	o       Options
	log     *slog.Logger
	confirm watchers.Nudge // somebody wants to know now
	stirred watchers.Nudge // the monitor said something unasked
	lines   []*line
	seq     uint64 // of the last observation; owned by Run
}

// line is the way to one monitor.
type line struct {
	*postgres.Line
	at     topology.Address
	schema string // where the tables are; empty: not looked for yet
}

var _ watchers.Source = (*Watcher)(nil)

// New prepares a watcher; it asks nothing yet. An error is a fault of the options.
func New(o Options) (*Watcher, error) {
	if len(o.Monitors) == 0 {
		return nil, errors.New("a watcher of pg_auto_failover needs the address of its monitor")
	}
	o.setDefaults()
	w := &Watcher{
		o: o, log: o.Logger.With("cluster", o.Cluster, "formation", o.Formation, "group", o.Group),
		confirm: watchers.NewNudge(), stirred: watchers.NewNudge(),
	}
	for _, at := range o.Monitors {
		l, err := postgres.NewLine(w.lineOptions(at), w.stirred.Set)
		if err != nil {
			return nil, fmt.Errorf("a watcher of pg_auto_failover's monitor at %s: %w", at, err)
		}
		w.lines = append(w.lines, &line{Line: l, at: at})
	}
	return w, nil
}

func (o *Options) setDefaults() {
	for _, s := range []struct {
		set   *string
		empty string
	}{{&o.Formation, defaultFormation}, {&o.User, defaultUser}, {&o.Database, defaultDatabase}} {
		if *s.set == "" {
			*s.set = s.empty
		}
	}
	if o.Poll <= 0 {
		o.Poll = defaultPoll
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (w *Watcher) lineOptions(at topology.Address) postgres.LineOptions {
	var secure *tls.Config
	if w.o.TLS != nil {
		secure = w.o.TLS(at.Host)
	}
	settings := postgres.GoneSettings()
	settings["default_transaction_read_only"] = "on"
	settings["statement_timeout"] = strconv.FormatInt(w.o.Timeout.Milliseconds(), 10) // PostgreSQL does not read "1m0s"
	return postgres.LineOptions{
		Options: postgres.Options{
			Cluster: w.o.Cluster, Node: "monitor", Address: at, User: w.o.User, Database: w.o.Database,
			Password: w.o.Password, TLS: secure, PlainToo: w.o.PlainToo,
			ConnectTimeout: w.o.Timeout, QueryTimeout: w.o.Timeout, Now: w.o.Now, Logger: w.o.Logger,
		},
		// First listen, then read, then wait: so no change falls between. A copy of the
		// monitor, which may be behind, refuses to listen while it is in recovery.
		Opening: []string{"LISTEN state"}, Settings: settings,
	}
}

// SourceID is the identity of a group's monitor in observations.
func SourceID(formation string, group int) topology.SourceID {
	return topology.SourceID{Kind: topology.SourceMonitor, Name: formation + "/" + strconv.Itoa(group)}
}

// ID is the source's identity in observations.
func (w *Watcher) ID() topology.SourceID { return SourceID(w.o.Formation, w.o.Group) }

// Confirm asks for a read now. It never blocks; several calls before the read are
// one. While the monitor fails, the pause between attempts goes on.
func (w *Watcher) Confirm() { w.confirm.Set() }

// Run watches until ctx ends; its error is always nil. It may be called once.
func (w *Watcher) Run(ctx context.Context, report func(topology.Observation)) error {
	newTurns(w, report).run(ctx)
	for _, l := range w.lines {
		l.Close()
	}
	return nil
}
