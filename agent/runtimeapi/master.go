package runtimeapi

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgsteer/pgsteer/agent/haproxycli"
	"github.com/pgsteer/pgsteer/agent/latest"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// blind is how long a master's socket may be silent before that is trouble: while
// the master starts anew in a reload it answers nobody, up to 3 s on some versions.
const blind = 5 * time.Second

// share bounds the time spent on old workers: a look that took long is followed by
// that many times as long without one.
const share = 10

// MasterStatus is how the workers of one master process fare.
type MasterStatus struct {
	Socket string
	// Old counts the workers that a reload replaced and that still have sessions.
	Old int
	// Sessions are those of old workers with servers that are not up, as of the last
	// look, before it ended those with servers that are down.
	Sessions Sessions
	// Ended counts the sessions that were ended in old workers.
	Ended uint64
	// Err is what keeps old workers out of reach, nil when nothing does.
	Err error
	// Since is when Err, or its absence, began.
	Since time.Time
}

// master ends, in the old workers of one master process, the sessions to servers
// that are down. Its fields belong to the goroutine of run, except status.
type master struct {
	o       *Options
	at      haproxycli.Socket
	log     *slog.Logger
	rosters map[string]roster
	moves   moves
	urgent  map[string]uint64 // the last urgent generation seen, by cluster
	version string            // of the workers, at the last look that told it

	wellAt topology.Mono // the last look that went through
	lookAt topology.Mono // the next one

	mu     sync.Mutex
	status MasterStatus
}

func newMaster(o *Options, at haproxycli.Socket) *master {
	at.Timeout, at.Dial = o.Timeout, o.Dial
	return &master{
		o: o, at: at, log: o.Logger.With("master", at.Address),
		rosters: make(map[string]roster), moves: newMoves(), urgent: make(map[string]uint64), status: MasterStatus{Socket: at.Address},
	}
}

// run looks at the old workers after every urgent decision, and at intervals: a session
// may have been on its way when its worker was replaced, and a worker may have been
// replaced before it could be told of a decision.
func (m *master) run(ctx context.Context) {
	sub := m.o.Views.Subscribe()
	defer sub.Close()
	m.wellAt = m.now()
	m.setErr(nil)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sub.Ready():
			if urgent := m.note(sub); !urgent && m.now() < m.lookAt {
				continue // weights and lags end no session
			}
		case <-timer.C:
		}
		began := m.now()
		err := m.look(ctx)
		m.judge(ctx, err)
		pause := min(share*m.now().Sub(began), 5*time.Second)
		if err != nil {
			pause = 0 // a lost writer's sessions may be there, which nobody has ended yet
		}
		m.lookAt = m.now().Add(max(m.o.Recheck, pause))
		timer.Reset(m.lookAt.Sub(m.now()))
	}
}

func (m *master) now() topology.Mono { return m.o.Now().Mono }

// note remembers which servers there are, so that one whose node leaves the list
// is known when the reload that follows leaves its sessions to an old worker. It
// reports whether a change is urgent.
func (m *master) note(sub *latest.Subscription[string, topology.View]) (urgent bool) {
	for _, cluster := range sub.Take() {
		v := m.o.Views.Get(cluster)
		if v == nil || v.Snapshot == nil {
			delete(m.rosters, cluster)
			delete(m.urgent, cluster)
			continue
		}
		if seen, ok := m.urgent[cluster]; !ok || seen != v.Snapshot.Urgent {
			urgent = true
		}
		m.urgent[cluster] = v.Snapshot.Urgent
		if m.rosters[cluster] == nil {
			m.rosters[cluster] = make(roster)
		}
		m.rosters[cluster].note(m.o, v.Snapshot)
		m.moves.note(m.o, v.Snapshot)
	}
	return urgent
}

// judge records how a look went.
func (m *master) judge(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		m.wellAt = m.now()
		m.setErr(nil)
		return
	}
	if m.now().Sub(m.wellAt) < blind && !errors.Is(err, errMasterLevel) {
		return
	}
	if m.setErr(err) {
		m.log.Warn("HAProxy's old workers are out of reach; sessions there outlive a lost writer until hard-stop-after", "err", err)
	}
}

// look ends the sessions of old workers to servers that are down.
func (m *master) look(ctx context.Context) error {
	procs, err := m.at.Processes(ctx)
	if err != nil {
		return err
	}
	if procs.Version != "" && procs.Version != m.version {
		m.version = procs.Version
		haproxycli.Warn(m.log, m.version)
	}
	if len(procs.Old) == 0 {
		m.count(0, Sessions{}, 0)
		m.moves.forget()
		return nil
	}
	verdicts := verdicts(m.o, m.rosters)
	pids := slices.Sorted(maps.Keys(procs.Old))
	all, errs := make([]swept, len(pids)), make([]error, len(pids))
	var workers sync.WaitGroup
	for i, pid := range pids { // at once, since one that hangs must not keep the others waiting
		workers.Go(func() { all[i], errs[i] = m.worker(ctx, pid, verdicts) })
	}
	workers.Wait()
	var found Sessions
	var ended uint64
	for _, w := range all {
		found.Down, found.Draining, ended = found.Down+w.found.Down, found.Draining+w.found.Draining, ended+w.ended
	}
	m.count(len(pids), found, ended)
	return errors.Join(errs...)
}

// worker ends the sessions of one old worker to servers that are down, or that it has
// at an address of before. When it does not tell its addresses, those that are down
// end all the same.
func (m *master) worker(ctx context.Context, pid int, verdicts map[server]topology.Verdict) (swept, error) {
	moved, unknown := m.moves.in(ctx, m.at, pid)
	w, err := m.sweep(ctx, pid, func(srv server) topology.Verdict {
		v, judged := verdicts[srv]
		if judged && moved[srv] {
			return topology.Down
		}
		return v
	})
	return w, errors.Join(unknown, err)
}

func (m *master) count(old int, found Sessions, ended uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.status.Old, m.status.Sessions = old, found
	m.status.Ended += ended
}

// setErr records how the master fares and reports whether it was well before.
func (m *master) setErr(err error) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.status.Err
	m.status.Err = err
	fell, rose := turned(was, err, &m.status.Since, m.o.Now().Wall)
	if rose {
		m.log.Info("HAProxy's old workers are in reach again", "was", was)
	}
	return fell
}

func (m *master) report() MasterStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.status
}
