package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// Pace is how often a node is asked.
type Pace int32

// The paces. The zero value is Normal.
const (
	// Normal asks for everything every Interval.
	Normal Pace = iota
	// Burst asks for the role every BurstInterval besides, over a session that
	// stands; it opens none faster.
	Burst
	// BackOff makes at most one attempt in two seconds while no session stands.
	BackOff
)

// Options of a Prober. Cluster, Node, Address, User and Now are required.
type Options struct {
	Cluster, Node string
	Address       topology.Address
	// User to log in as, Database to log in to; empty: postgres.
	User, Database string
	// Password is asked before every login, so that it can change; nil: none. A
	// login that was refused is tried again as soon as it returns another one.
	Password func() string
	// TLS is used for every login; nil: none. An empty ServerName is the host of
	// Address.
	TLS *tls.Config
	// PlainToo lets a login go on without TLS when the server does not offer it,
	// or refuses the role over TLS (libpq's sslmode prefer).
	PlainToo bool

	Interval       time.Duration // between full probes; zero: 1 s
	BurstInterval  time.Duration // between role probes in Burst; zero: 50 ms
	QueryTimeout   time.Duration // of each question; zero: 800 ms
	ConnectTimeout time.Duration // of the kept session's login, whole; zero: 800 ms
	LoginEvery     time.Duration // between fresh logins; zero: 5 s
	LoginTimeout   time.Duration // of a fresh login; zero: 2 s

	// WriteProbe is a table, with or without its schema, into which a row is
	// written every second while the node is writable, in a session of its own.
	// It needs the columns agent (text, primary key) and at (timestamptz). Empty:
	// nothing is written.
	WriteProbe string
	// Agent is the row that WriteProbe writes, so that agents do not wait for one
	// another; empty: pgsteer.
	Agent string

	// Now reads the agent's clocks.
	Now topology.Ticker
	// Jitter draws a duration from 0 to its argument for the first fresh login,
	// so that many nodes are not asked in step; nil: at random.
	Jitter func(time.Duration) time.Duration
	// Dial and Lookup replace the network; nil: the system's.
	Dial   func(ctx context.Context, network, address string) (net.Conn, error)
	Lookup func(ctx context.Context, host string) ([]string, error)
	// Logger takes changes of a node's state; nil: nothing is logged.
	Logger *slog.Logger
}

func (o *Options) setDefaults() {
	for _, d := range []struct {
		set  *time.Duration
		zero time.Duration
	}{
		{&o.Interval, time.Second},
		{&o.BurstInterval, 50 * time.Millisecond},
		{&o.QueryTimeout, 800 * time.Millisecond},
		{&o.ConnectTimeout, 800 * time.Millisecond},
		{&o.LoginEvery, 5 * time.Second},
		{&o.LoginTimeout, 2 * time.Second},
	} {
		if *d.set <= 0 {
			*d.set = d.zero
		}
	}
	if o.Database == "" {
		o.Database = "postgres"
	}
	if o.Agent == "" {
		o.Agent = "pgsteer"
	}
	if o.Password == nil {
		o.Password = func() string { return "" }
	}
	if o.Jitter == nil {
		o.Jitter = func(d time.Duration) time.Duration { return rand.N(d + 1) }
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.Lookup == nil {
		o.Lookup = net.DefaultResolver.LookupHost
	}
	o.Lookup = (&names{lookup: o.Lookup}).Lookup
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

func (o *Options) check() error {
	var errs []error
	for _, f := range []struct {
		missing bool
		name    string
	}{
		{o.Cluster == "", "Cluster"},
		{o.Node == "", "Node"},
		{o.User == "", "User"},
		{o.Address.IsZero(), "Address"},
		{o.Now == nil, "Now"},
	} {
		if f.missing {
			errs = append(errs, errors.New("postgres prober: option "+f.name+" is required"))
		}
	}
	return errors.Join(errs...)
}

// Prober watches one node. Make it with New.
type Prober struct {
	o      Options
	door   *door // of the kept session and the fresh logins
	pace   atomic.Int32
	ports  atomic.Pointer[Ports]
	bell   *bell   // wakes the goroutine of Run
	writes *writes // nil: nothing is written

	loop  loop           // belongs to the goroutine of Run
	fresh fresh          // belongs to the goroutine of the fresh login
	tasks sync.WaitGroup // that goroutine, and those of the checks
	// turn puts questions in a goroutine that ends with the answer, and its stack
	// with it: that of the one that sleeps stays as small as a stack can be.
	turn sync.WaitGroup

	mu     sync.Mutex // guards the order of the observations
	report func(topology.Observation)
	seq    uint64
}

var _ watchers.Source = (*Prober)(nil)

// New returns a prober, or every option that is missing.
func New(o Options) (*Prober, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.setDefaults()
	o.Logger = o.Logger.With("cluster", o.Cluster, "node", o.Node, "address", o.Address.String())
	p := &Prober{o: o, bell: newBell()}
	p.door = newDoor(&p.o, o.Address, p.bell.ask)
	p.door.settings = ownNames
	p.loop.ports = make(map[uint16]portRun)
	_, err := p.door.config("", &link{door: p.door})
	if err == nil && o.WriteProbe != "" {
		p.writes, err = newWrites(p, o.WriteProbe)
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// ownNames keeps the names in the probe's statements from meaning something else.
var ownNames = map[string]string{"search_path": "pg_catalog"}

// SetPace changes how often the node is asked. It never blocks and may be called
// by any goroutine at any time, also before Run.
func (p *Prober) SetPace(pace Pace) {
	if Pace(p.pace.Swap(int32(pace))) != pace {
		p.bell.replan()
	}
}

// Nudge asks for a full probe now, unless the server's last answer keeps
// attempts back. It never blocks.
func (p *Prober) Nudge() { p.bell.ask() }

// Run probes until ctx ends; it returns nil then, after every connection has
// been closed. It may be called once.
func (p *Prober) Run(ctx context.Context, report func(topology.Observation)) error {
	p.report = report
	now := p.o.Now().Mono
	p.loop.nextFull, p.loop.nextLogin = now, now.Add(p.o.Jitter(p.o.LoginEvery))
	if p.writes != nil {
		p.tasks.Go(p.writes.run)
	}
	defer context.AfterFunc(ctx, p.bell.wake)()
	for p.sleep(ctx) {
		p.followPorts(ctx)
		p.turn.Go(func() { p.step(ctx) })
		p.turn.Wait()
	}
	if p.writes != nil {
		p.writes.close()
	}
	p.tasks.Wait()
	if s := p.loop.session; s != nil {
		s.end(nil)
	}
	p.door.conns.part()
	return nil
}

// seen reports what a node said.
func (p *Prober) seen(asked topology.Clock, probe topology.Probe) {
	probe.Node, probe.Address = p.o.Node, p.o.Address
	p.emit(topology.Observation{AskedAt: asked, Probe: &probe})
}

// failed reports why a node said nothing.
func (p *Prober) failed(asked topology.Clock, f *topology.Failure, kind topology.ProbeKind) {
	f.Asked = kind
	p.emit(topology.Observation{AskedAt: asked, Failure: f})
}

// failure names the node by its own address, whichever door was shut.
func (o *Options) failure(class topology.FailureClass, text string) *topology.Failure {
	return &topology.Failure{Class: class, Text: text, Node: o.Node, Address: o.Address}
}

func (p *Prober) emit(o topology.Observation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seq++
	o.Cluster, o.Seq = p.o.Cluster, p.seq
	o.Source = topology.SourceID{Kind: topology.SourcePostgres, Name: p.o.Node}
	o.At = p.o.Now()
	p.report(o)
}
