package mesh

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
	"golang.org/x/time/rate"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

// How the locks are kept.
const (
	locksEvery  = time.Second // at least, between looks at what is to be done
	leaveWithin = 2 * time.Second
	// lookGap, for each of the clusters, lets a look, which costs as much as there are
	// clusters, answer the words of many of them: 10 ms for ten thousand.
	lookGap = time.Microsecond
	// lockDelay is the shortest that Consul takes for another than its default of 15 s.
	// It need not protect from the holder of before: each write checks the lock.
	lockDelay = time.Millisecond
	// fewLocks are as many as are taken one by one at once. More are taken many in a
	// transaction, at most so many transactions a second: a publisher that takes over ten
	// thousand clusters has them within ten seconds or so.
	fewLocks       = 16
	takesPerSecond = 8
)

// locks keeps one session, and with it the lock of every cluster that this agent
// publishes. One goroutine, that of run, talks to Consul.
type locks struct {
	o     *Options
	log   *slog.Logger
	watch *consul.Watch[map[string]holding]
	wake  watchers.Nudge

	requests *rate.Limiter // of all clusters
	takes    *rate.Limiter // transactions that take locks

	mu      sync.Mutex // guards everything below
	all     map[string]*lock
	session string
	renewed topology.Mono
	cut     bool // it could not be renewed when that was due
	doubt   bool // it may be unknown to Consul, whose state was put back perhaps; to renew it tells
	heard   bool // the store has told who holds what
	err     error
	deaf    error // why the store does not tell who holds what
}

// holding is a key of a lock.
type holding struct{ session, name string }

func newLocks(o *Options, requests *rate.Limiter) *locks {
	k := &locks{
		o: o, log: o.Logger, wake: watchers.NewNudge(), all: make(map[string]*lock),
		requests: requests, takes: rate.NewLimiter(takesPerSecond, takesPerSecond),
	}
	k.watch = consul.NewWatch(consul.WatchOptions[map[string]holding]{
		Client: o.Client, What: "locks " + o.KeyPrefix, Every: 200 * time.Millisecond, Now: o.Now, Logger: o.Logger,
		Query: k.query, Equal: maps.Equal[map[string]holding, map[string]holding],
		Empty: func(m map[string]holding) bool { return len(m) == 0 }, Deliver: k.deliver,
	})
	return k
}

func (k *locks) query(_ context.Context, q *api.QueryOptions) (map[string]holding, *api.QueryMeta, error) {
	pairs, meta, err := k.o.Client.KV().List(k.o.KeyPrefix, q)
	out := make(map[string]holding, len(pairs))
	for _, p := range pairs {
		if p.Session != "" {
			out[p.Key] = holding{p.Session, string(p.Value)}
		}
	}
	return out, meta, err
}

// add makes the lock of a cluster known; nudge is set when it comes or goes.
func (k *locks) add(cluster, key string, nudge watchers.Nudge) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all[cluster] = &lock{key: k.o.KeyPrefix + key, nudge: nudge}
}

// hold returns the session that holds the lock of a cluster for this agent, "" when
// another agent has it or nobody, with the other one's name. fit says that this
// agent could publish the cluster; one that cannot leaves the lock to others.
func (k *locks) hold(cluster string, fit bool) (session, other string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.all[cluster]
	if fit != l.fit {
		l.fit = fit
		if l.unfit = 0; !fit {
			l.unfit = k.o.Now().Mono
		}
		k.wake.Set()
	}
	if !l.held {
		return "", l.holder
	}
	return k.session, ""
}

// lost notes that Consul does not know the lock as this agent's. It may be again.
func (k *locks) lost(cluster string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all[cluster].held, k.doubt = false, true
	k.watch.Restart()
	k.wake.Set()
}

// deliver takes over what the store says of the locks.
func (k *locks) deliver(r consul.Result[map[string]holding]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case r.Failure != nil: // a lock that is held is checked by each write
		k.deaf = errors.New(r.Failure.Text)
		return
	case r.Unsure != "": // a sure answer follows
		return
	}
	k.heard, k.deaf = true, nil
	for _, l := range k.all {
		h := r.Value[l.key]
		if h.session != "" && h.name == "" {
			h.name = "session " + h.session
		}
		l.owned(h, k.o.Now().Mono)
		held := h.session != "" && h.session == k.session
		k.doubt = k.doubt || l.held && !held
		l.set(held)
	}
	k.wake.Set()
}

// run keeps the session and takes and leaves locks until ctx ends, then leaves all.
func (k *locks) run(ctx context.Context) {
	var watching sync.WaitGroup
	watching.Go(func() { k.watch.Run(ctx) })
	defer watching.Wait()
	defer k.leave()
	tick := time.NewTicker(locksEvery)
	defer tick.Stop()
	gap := time.Duration(len(k.all)) * lookGap
	gather := time.NewTimer(gap)
	defer gather.Stop()
	for {
		err := k.turn(ctx)
		if ctx.Err() != nil {
			return
		}
		k.note(err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-k.wake.C():
			if err != nil {
				continueAt(ctx, tick)
			}
			gather.Reset(gap)
			select {
			case <-ctx.Done():
				return
			case <-gather.C:
			}
		}
	}
}

// continueAt waits for the next tick: what failed is not tried more often.
func continueAt(ctx context.Context, tick *time.Ticker) {
	select {
	case <-ctx.Done():
	case <-tick.C:
	}
}

func (k *locks) note(err error) {
	k.mu.Lock()
	before := k.err
	k.err = err
	k.doubt = k.doubt || err != nil
	k.mu.Unlock()
	switch {
	case err != nil && before == nil:
		k.log.Warn("the locks of publishers cannot be kept, what stands in Consul stays; trying again every second", "err", err)
	case err == nil && before != nil:
		k.log.Info("the locks of publishers are kept again")
		k.watch.Restart() // it may be pausing for long
	}
}

// turn does what is due.
func (k *locks) turn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.o.Timeout)
	defer cancel()
	if err := k.keepSession(ctx); err != nil {
		return err
	}
	k.forgive(ctx)
	take, leave := k.due()
	if len(take) <= fewLocks {
		leave, take = append(leave, take...), nil
	}
	for _, cluster := range leave {
		if err := k.settle(ctx, cluster); err != nil {
			return err
		}
	}
	return k.takeMany(ctx, take)
}

// due are the clusters whose locks are to be taken, those last that the token might not
// take, and those whose locks are to be left.
func (k *locks) due() (take, leave []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.o.Now().Mono
	for cluster, l := range k.all {
		switch {
		case l.leaves(now):
			leave = append(leave, cluster)
		case k.session == "" || !k.heard || !l.takes(k.session, now):
		case l.denied == nil || now.Sub(l.deniedAt) >= locksEvery:
			take = append(take, cluster)
		}
	}
	slices.SortFunc(take, func(a, b string) int {
		return cmp.Or(cmp.Compare(k.all[a].deniedAt, k.all[b].deniedAt), cmp.Compare(a, b))
	})
	slices.Sort(leave)
	return take, leave
}

// keepSession renews the session, or makes one as soon as a cluster needs it.
func (k *locks) keepSession(ctx context.Context) error {
	k.mu.Lock()
	session, age := k.session, k.o.Now().Mono.Sub(k.renewed)
	due := age >= k.o.SessionTTL/3 || k.doubt || age >= unfitFor/3 && anyFault(k.all) // is it Consul, or this agent?
	needed := session != "" || anyFit(k.all)
	k.mu.Unlock()
	w, err := k.o.Client.WriteOptions(ctx)
	switch {
	case session == "" && !needed, session != "" && !due:
		return nil
	case err != nil:
		k.isCut()
		return failure(k.o, "keep the publisher's session", err)
	case session != "":
		entry, _, err := k.o.Client.API().Session().Renew(session, w)
		if err != nil {
			k.isCut()
			return failure(k.o, "renew the publisher's session", err)
		}
		if entry != nil {
			k.begun(session)
			return nil
		}
		k.log.Warn("Consul has ended the publisher's session; a new one is made", "session", session)
		k.begun("")
	}
	session, _, err = k.o.Client.API().Session().CreateNoChecks(&api.SessionEntry{
		Name: "pgsteer publisher " + k.o.Name, TTL: k.o.SessionTTL.String(), Behavior: api.SessionBehaviorRelease, LockDelay: lockDelay,
	}, w)
	if err != nil {
		return failure(k.o, "make a session for the publisher's locks", err)
	}
	k.begun(session)
	k.watch.Restart()
	return nil
}

func anyFit(all map[string]*lock) bool {
	for _, l := range all {
		if l.fit {
			return true
		}
	}
	return false
}

func anyFault(all map[string]*lock) bool {
	for _, l := range all {
		if l.fault != nil {
			return true
		}
	}
	return false
}

// isCut notes that the session cannot be renewed, be it that Consul is away.
func (k *locks) isCut() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cut = true
}

// begun notes the present session, "" for none. The locks of the one before are free;
// the watch need not tell, since it may never have seen them held. What failed while the
// session could not be renewed either is no fault of this agent's: after an outage it
// goes on, and does not leave to others what it has not tried again.
func (k *locks) begun(session string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.all {
		if k.cut {
			l.fault = nil
		}
		if session != k.session && l.by == k.session {
			l.owned(holding{}, k.o.Now().Mono)
			l.set(false)
		}
	}
	k.session, k.renewed, k.cut, k.doubt = session, k.o.Now().Mono, false, false
}

// settle takes the lock of a cluster when it is free, or leaves it when this agent
// has not been able to publish for a while.
func (k *locks) settle(ctx context.Context, cluster string) error {
	k.mu.Lock()
	l, now := k.all[cluster], k.o.Now().Mono
	take, leave := k.session != "" && k.heard && l.takes(k.session, now), l.leaves(now)
	pair, fault := &api.KVPair{Key: l.key, Value: []byte(k.o.Name), Session: k.session}, l.fault
	k.mu.Unlock()
	if !take && !leave {
		return nil
	}
	w, err := k.o.Client.WriteOptions(ctx)
	if err != nil {
		return failure(k.o, "take or leave the lock "+l.key, err)
	}
	if leave {
		return k.release(cluster, pair, fault, w)
	}
	got, _, err := k.o.Client.KV().Acquire(pair, w)
	if isDenied(err) { // which is no word on the other locks
		k.deny(map[string]error{cluster: failure(k.o, "take the lock "+l.key, err)})
		return nil
	}
	if err != nil {
		return failure(k.o, "take the lock "+l.key, err)
	}
	k.taken(cluster, got, now)
	return nil
}

// leave ends the session, which frees every lock at once.
func (k *locks) leave() {
	k.mu.Lock()
	session := k.session
	k.mu.Unlock()
	if session == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveWithin)
	defer cancel()
	w, err := k.o.Client.WriteOptions(ctx)
	if err == nil {
		_, err = k.o.Client.API().Session().Destroy(session, w)
	}
	if err != nil {
		k.log.Warn("the publisher's locks could not be freed; Consul frees them when the session's time is over", "within", 2*k.o.SessionTTL, "err", err)
	}
}
