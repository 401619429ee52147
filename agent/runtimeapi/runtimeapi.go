// Package runtimeapi pushes decisions into running HAProxy processes over their
// admin sockets, so that a change of role reaches HAProxy in milliseconds and its
// agent checks are only the safety net.
//
// Guarantees: what goes out is told before what comes in, so that no push opens a
// moment with two writers; the guard of a pool closes first and opens last.
// Undecided nodes, and whole views that are no longer valid, are not mentioned.
// A server that HAProxy has at another address than its node is down, and one that it
// does not have yet is told nothing until it does.
// Each socket has its own goroutine and always gets the newest decision, never a
// queue: one that hangs or is away delays nobody and catches up in one step. Only
// what HAProxy confirmed counts as applied; after any failure, and when HAProxy's
// process has changed, everything is said again. Nothing is said that an agent
// check could not say: a pushed weight lies where the agent's lies, the next check
// replaces it, and should pgsteer die it stays no longer than that one's would.
//
// A process that lives on after a reload of HAProxy (an "old worker") has no admin
// socket any more and runs no checks. It is reached over the master's socket, where
// the sessions to servers that are down are ended one by one. Bring changes which
// servers HAProxy has, so that a node that comes, goes or moves needs no reload.
package runtimeapi

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// Options configures a Pusher.
type Options struct {
	// Sockets are HAProxy's admin sockets: the path of a UNIX socket, or host:port
	// on loopback. HAProxy must give them "level admin".
	Sockets []string
	// Masters are the sockets of HAProxy's master processes (-S), over which old
	// workers are reached; written as Sockets are.
	Masters []string
	// Ready has a server that comes in leave MAINT and DRAIN too, whoever set them: for
	// agent checks that set them themselves (agentcheck.AdminAlways).
	Ready bool
	// Views are the decisions, by cluster. Required.
	Views *latest.Map[string, topology.View]
	// Now reads the clocks. Required.
	Now topology.Ticker
	// Names returns the backend of a pool. Nil: be_<cluster>_<pool>.
	Names func(cluster, pool string) string
	// Guards returns the guard backend of a pool, whose server is "g"; "" when the
	// pool has none. Nil: guard_<cluster>_<pool> for write pools.
	Guards func(cluster string, p topology.PoolVerdicts) string
	// Settle is how long a change that is not urgent waits for others, MaxSettle
	// how long it waits at most. Zero: 200 ms, 2 s.
	Settle, MaxSettle time.Duration
	// Recheck is how often HAProxy's process is compared with the known one, and
	// old workers are looked for. Zero: 250 ms.
	Recheck time.Duration
	// Count is how often sessions with servers that are not up are counted. Zero: 5 s.
	Count time.Duration
	// Repush is how long after an answer that was no success everything is said
	// again; it doubles up to a minute while the answers stay bad. Zero: 5 s.
	Repush time.Duration
	// Patience is how long HAProxy may lack a server, or a server's new address, before
	// that is an error: the file is checked first, and Bring or a reload come after the
	// decision. Zero: 10 s.
	Patience time.Duration
	// Timeout bounds one exchange with a socket. Zero: 1 s.
	Timeout time.Duration
	// Dial opens a socket. Nil: the operating system's.
	Dial haproxycli.Dialer
	// Logger; nil: nothing is logged.
	Logger *slog.Logger
}

// Status is how one socket fares.
type Status struct {
	Socket string
	// Process is HAProxy's process id, "" before the first answer.
	Process string
	// Applied is the generation that HAProxy has confirmed, by cluster.
	Applied map[string]uint64
	// Err is what keeps the newest decision from being applied, nil when nothing does.
	Err error
	// Since is when Err, or its absence, began.
	Since time.Time
	// Pushes counts exchanges that carried commands.
	Pushes uint64
	// Sessions are those that the process has with servers that are not up.
	Sessions Sessions
}

// Pusher pushes to a set of sockets.
type Pusher struct {
	sockets []*socket
	masters []*master
}

// New returns a pusher. It fails when a required option is missing or a socket is
// neither a path nor on loopback: commands of level admin do not belong on a network.
func New(o Options) (*Pusher, error) {
	if o.Views == nil || o.Now == nil {
		return nil, errors.New("runtimeapi needs Views and Now")
	}
	o = withDefaults(o)
	p := &Pusher{}
	var faults []error
	for _, s := range o.Sockets {
		at, err := haproxycli.Parse(s)
		faults = append(faults, err)
		p.sockets = append(p.sockets, newSocket(&o, at))
	}
	for _, s := range o.Masters {
		at, err := haproxycli.Parse(s)
		faults = append(faults, err)
		p.masters = append(p.masters, newMaster(&o, at))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return p, nil
}

func withDefaults(o Options) Options {
	o.Settle = cmp.Or(o.Settle, 200*time.Millisecond)
	o.MaxSettle = cmp.Or(o.MaxSettle, 2*time.Second)
	o.Recheck = cmp.Or(o.Recheck, 250*time.Millisecond)
	o.Count = cmp.Or(o.Count, 5*time.Second)
	o.Repush = cmp.Or(o.Repush, 5*time.Second)
	o.Patience = cmp.Or(o.Patience, 10*time.Second)
	o.Timeout = cmp.Or(o.Timeout, time.Second)
	if o.Names == nil {
		o.Names = func(cluster, pool string) string { return "be_" + cluster + "_" + pool }
	}
	if o.Guards == nil {
		o.Guards = defaultGuard
	}
	if o.Dial == nil {
		o.Dial = new(net.Dialer).DialContext
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

func defaultGuard(cluster string, p topology.PoolVerdicts) string {
	if p.Mode != topology.ModeWrite {
		return ""
	}
	return "guard_" + cluster + "_" + p.Pool
}

// Run pushes until ctx ends, then returns nil. HAProxy stays as it is.
func (p *Pusher) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, s := range p.sockets {
		wg.Go(func() { s.run(ctx) })
	}
	for _, m := range p.masters {
		wg.Go(func() { m.run(ctx) })
	}
	wg.Wait()
	return nil
}

// Status returns how every socket fares, in the order of the options.
func (p *Pusher) Status() []Status {
	var out []Status
	for _, s := range p.sockets {
		out = append(out, s.report())
	}
	return out
}

// Masters returns how every master's workers fare, in the order of the options.
func (p *Pusher) Masters() []MasterStatus {
	var out []MasterStatus
	for _, m := range p.masters {
		out = append(out, m.report())
	}
	return out
}
