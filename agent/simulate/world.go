package simulate

import (
	"cmp"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// What a healthy server says where a scenario leaves it out.
const (
	defaultSystemID = 7300000000000000001
	defaultLSN      = 50_000_000
	defaultVersion  = 170000
	// runsSince is how long servers have been running when a scenario begins.
	runsSince = time.Hour
	// receiverTimeout is PostgreSQL's wal_receiver_timeout: a receiver that hears
	// nothing for so long ends.
	receiverTimeout = time.Minute
)

// world is the truth: what the watchers find when they ask.
type world struct {
	startWall time.Time
	now       time.Duration // scenario time
	servers   map[string]*server
	names     []string                    // of the servers, sorted
	lineages  map[uint64]lineage          // by system identifier, those that are known
	addresses map[string]topology.Address // of every node that the scenario names
	// locate returns where a node is now, as standbys dial it.
	locate func(node string) topology.Address
	listed []topology.Node // what the list of nodes says
	keys   *keys           // nil: the authority is not Patroni
	consul outcome         // of every read; empty: it answers
	// monitor is nil unless the authority is pg_auto_failover.
	monitor *monitor
}

// answers reports whether somebody who asks the server gets a word of it.
func (s *server) answers() bool {
	switch topology.FailureClass(s.fails) {
	case topology.FailRefused, topology.FailReset, topology.FailStarting, topology.FailShutdown:
		return false
	default:
		return !s.silent()
	}
}

// silent reports whether the server's host says nothing at all.
func (s *server) silent() bool {
	switch topology.FailureClass(s.fails) {
	case topology.FailTimeout, topology.FailUnreachable, topology.FailName:
		return true
	default:
		return false
	}
}

func (s *server) inRecovery() bool { return or(s.recovery, true) }

func or[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

func (w *world) server(name string) *server {
	if s := w.servers[consul.LegalName(name)]; s != nil {
		return s
	}
	return &server{fails: outcome(topology.FailTimeout)}
}

// lineage is what the servers of one system identifier have in common.
type lineage struct {
	// primary is the node that a standby follows by default: the writable one on
	// the highest timeline, by name among equals; "" when there is none.
	primary string
	highest timeline // that a file says of any of them, 1 at least
}

// lineage is kept until a step changes a server: each probe of each node asks
// for it several times.
func (w *world) lineage(of *server) lineage {
	id := of.id()
	if l, known := w.lineages[id]; known {
		return l
	}
	l := lineage{highest: 1}
	for _, s := range w.servers {
		if s.id() == id {
			l.highest = max(l.highest, or(s.tli, 0))
		}
	}
	best := timeline(0)
	for _, name := range w.names {
		s := w.servers[name]
		if own := or(s.tli, l.highest); !s.inRecovery() && s.id() == id && (l.primary == "" || own > best) {
			l.primary, best = name, own
		}
	}
	w.lineages[id] = l
	return l
}

func (s *server) id() uint64 { return or(s.systemID, defaultSystemID) }

// timeline is the one a node is on: its own, or that of the primary it follows.
func (w *world) timeline(name string) timeline {
	s := w.server(name)
	if s.tli != nil {
		return *s.tli
	}
	l := w.lineage(s)
	if s.inRecovery() && l.primary != "" {
		return w.timeline(l.primary)
	}
	return l.highest
}

// upstream is whom a standby receives from; "" for a primary or an orphan.
func (w *world) upstream(name string) string {
	s := w.server(name)
	if !s.inRecovery() {
		return ""
	}
	if s.sender != nil {
		return *s.sender
	}
	return w.lineage(s).primary
}

// offered is the position up to which a node can send to its standbys. The walk
// upwards is bounded, since a file may let nodes follow each other in a circle.
func (w *world) offered(name string, hops int) position {
	s := w.server(name)
	switch {
	case !s.inRecovery():
		return or(s.lsn, defaultLSN)
	case s.replay != nil:
		return max(*s.replay, or(s.receive, 0))
	case hops == 0 || w.upstream(name) == "":
		return or(s.receive, defaultLSN)
	}
	return w.offered(w.upstream(name), hops-1)
}

// maxHops is how long a cascade may be.
const maxHops = 8

// receiverOf is the state of a standby's WAL receiver and the age of its last
// message: those of a link whose other end does what the file says of it.
func (w *world) receiverOf(name string) (state string, age time.Duration) {
	s, up := w.server(name), w.upstream(name)
	state = receiverNone
	if u := w.server(up); up != "" && up != name {
		switch {
		case u.answers():
			state = receiverStreaming
		case u.silent() && w.now-u.failingAt < receiverTimeout:
			state, age = receiverStreaming, w.now-u.failingAt
		}
	}
	state = or(s.receiver, state)
	if state == receiverNone || state == receiverUnknown {
		return state, -1
	}
	return state, time.Duration(or(s.messageAge, span(age)))
}

// probe is what a full probe of a node that answers finds.
func (w *world) probe(name string) topology.Probe {
	s := w.server(name)
	p := topology.Probe{
		Node: name, Kind: topology.ProbeFull,
		InRecovery: topology.Bool(s.inRecovery()), ReadOnly: topology.Bool(or(s.readOnly, s.inRecovery())),
		SystemID: s.id(), Timeline: topology.Timeline(w.timeline(name)),
		StartedAt:     w.startWall.Add(time.Duration(or(s.startedAt, span(-runsSince)))),
		ServerVersion: defaultVersion, SyncWaiters: int(or(s.syncWaiters, 0)),
		ApplyDelay: or(s.applyDelay, 0), Upstream: topology.Bool(or(s.upstream, s.inRecovery())),
		Receiver: topology.Receiver{Running: topology.No, Streaming: topology.No, MessageAge: -1},
		Standbys: w.standbys(name),
	}
	if !s.inRecovery() {
		p.WriteLSN = topology.LSN(or(s.lsn, defaultLSN))
		return p
	}
	p.ReplayPaused = topology.Bool(or(s.paused, false))
	w.receive(name, &p)
	return p
}

// receive fills in what a standby says of its stream.
func (w *world) receive(name string, p *topology.Probe) {
	s, up := w.server(name), w.upstream(name)
	state, age := w.receiverOf(name)
	sent := position(0) // what the upstream has told
	switch state {
	case receiverUnknown:
		p.Receiver.Running, p.Receiver.Streaming = topology.Unknown, topology.Unknown
		sent = w.offered(up, maxHops)
	case receiverStreaming, receiverStarting:
		sent = w.offered(up, maxHops)
		a := w.locate(up)
		p.Receiver = topology.Receiver{
			Running: topology.Yes, Streaming: topology.Bool(state == receiverStreaming),
			Timeline:  topology.Timeline(or(s.receiverTLI, timeline(p.Timeline))),
			LatestEnd: topology.LSN(or(s.latestEnd, sent)), SenderHost: a.Host, SenderPort: a.Port, MessageAge: age,
		}
	}
	replay := or(s.replay, or(s.receive, w.offered(name, maxHops)))
	p.ReplayLSN = topology.LSN(replay)
	p.ReceiveLSN = topology.LSN(or(s.receive, max(replay, sent)))
}

// standbys are the rows of pg_stat_replication: the standbys that stream from a
// node and answer, unless the file lists them.
func (w *world) standbys(name string) []topology.Standby {
	var out []topology.Standby
	s, sync := w.server(name), w.keys.syncStandbys()
	if s.replication != nil {
		for _, r := range *s.replication {
			out = append(out, topology.Standby{
				Name: r.Name, State: cmp.Or(r.State, receiverStreaming), SyncState: cmp.Or(r.SyncState, "async"), ReplayLSN: topology.LSN(r.Replay),
			})
		}
		return out
	}
	for _, o := range w.names {
		peer := w.servers[o]
		if !peer.answers() || !peer.inRecovery() || w.upstream(o) != name {
			continue
		}
		if state, _ := w.receiverOf(o); state == receiverNone || state == receiverStarting {
			continue
		}
		replay := or(peer.replay, or(peer.receive, w.offered(o, maxHops)))
		out = append(out, topology.Standby{
			Name: o, State: receiverStreaming, SyncState: cmp.Or(sync[o], "async"), ReplayLSN: topology.LSN(replay),
		})
	}
	return out
}
