package mesh

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// When a lock is left to others.
const (
	// unfitFor is how long this agent must have been blind, or without a write that
	// succeeds.
	unfitFor = 5 * time.Second
	// unfitMost is the same for one that nobody has relieved: its time doubles, so that
	// a token without rights for a thousand clusters does not flood Consul.
	unfitMost = time.Minute
	// othersWithin is how long a lock must be free until it is taken by an agent that
	// could not write: those that can wait for it and take it at once.
	othersWithin = 2 * time.Second
	// barredTTLs is for how many TTLs of the session such an agent comes after others.
	barredTTLs = 3
)

// lock is one cluster's, as it is known here. Its methods need locks.mu.
type lock struct {
	key    string
	nudge  watchers.Nudge // of who waits for the lock
	fit    bool           // this agent could publish
	unfit  topology.Mono  // since when it could not
	held   bool
	holder string        // who holds it by the store's last word, "" while it is free
	by     string        // the session of the holder
	vacant topology.Mono // since when nobody holds it

	fault   error         // why the holder's requests fail; nil: they do not
	failing topology.Mono // since when
	barred  topology.Mono // until when others come first; zero: they do not
	left    error         // why it was left last
	leftAt  time.Time
	token   string // with which the requests failed
	turns   int    // how often in a row it was left for a fault, and taken since nobody else did

	denied   error // the token may not take it; nil: it may, as far as is known
	deniedAt topology.Mono
}

func (l *lock) set(held bool) {
	if l.held != held {
		if l.held = held; held {
			l.fault = nil // it is tried anew
		}
		l.nudge.Set()
	}
}

// owned takes down who holds it.
func (l *lock) owned(h holding, now topology.Mono) {
	if h.session == "" && (l.by != "" || l.vacant == 0) {
		l.vacant = now
	}
	if l.by, l.holder = h.session, h.name; l.by != "" { // it is not for this agent to take now
		l.denied, l.deniedAt = nil, 0
	}
}

// takes reports whether to take it with a session. One that is this session's by the
// last word may be another's by now, or free again; to take what one has does no harm.
func (l *lock) takes(session string, now topology.Mono) bool {
	switch {
	case !l.fit, l.held, l.by != "" && l.by != session:
		return false
	case l.barred > now:
		return l.by == "" && now.Sub(l.vacant) >= othersWithin
	}
	return true
}

// leaves reports whether to leave it to others.
func (l *lock) leaves(now topology.Mono) bool {
	return l.held && (!l.fit && now.Sub(l.unfit) >= unfitFor || l.fault != nil && now.Sub(l.failing) >= min(unfitMost, unfitFor<<min(l.turns, 4)))
}

// fares notes how the requests of the holder of a lock went.
func (k *locks) fares(cluster string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.all[cluster]
	switch {
	case err == nil:
		l.fault, l.barred, l.turns = nil, 0, 0
	case l.held:
		if l.fault == nil {
			l.failing = k.o.Now().Mono
		}
		l.fault = err
	}
}

// trouble is what keeps the lock of a cluster from being kept, nil when nothing does.
func (k *locks) trouble(cluster string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.all[cluster]
	var left error
	if l.barred > k.o.Now().Mono && !l.held {
		left = fmt.Errorf("this agent could not publish and left that to others at %s; it does so again with another token, when nobody has for %s, or after %s: %s",
			l.leftAt.Format(time.TimeOnly), othersWithin, barredTTLs*k.o.SessionTTL, cause(l.left))
	}
	return errors.Join(k.err, k.deaf, l.denied, left)
}

// unrenewed is when a session was renewed last, if that is so long ago that Consul may
// have ended it, and when it has; else zero.
func (k *locks) unrenewed(session string) (since, ends time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.o.Now()
	if session == "" || session != k.session || now.Mono.Sub(k.renewed) < k.o.SessionTTL {
		return time.Time{}, time.Time{}
	}
	since = now.WallAt(k.renewed)
	return since, since.Add(2 * k.o.SessionTTL)
}

// forgive lets this agent take a lock as others do, once it has another token than that
// with which it could not write.
func (k *locks) forgive(ctx context.Context) {
	w, err := k.o.Client.WriteOptions(ctx)
	if err != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.all {
		if l.token != w.Token {
			l.barred, l.turns = 0, 0
		}
	}
}

// release leaves a lock to others, because of a fault unless it is nil. When the right to
// its key is lost too, the end of the session frees it, and with it the locks of the other
// clusters, which are taken anew.
func (k *locks) release(cluster string, pair *api.KVPair, fault error, w *api.WriteOptions) error {
	_, _, err := k.o.Client.KV().Release(pair, w)
	ended := false
	if err != nil {
		_, failed := k.o.Client.API().Session().Destroy(pair.Session, w)
		ended = failed == nil
	}
	if err != nil && !ended {
		return failure(k.o, "leave the lock "+pair.Key, err)
	}
	k.noteLeft(cluster, fault, w.Token)
	if ended {
		k.begun("")
	}
	return nil
}

// noteLeft: the watch may have told already that others have the lock.
func (k *locks) noteLeft(cluster string, fault error, token string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, now := k.all[cluster], k.o.Now()
	if fault == nil {
		k.log.Info("this agent has no decision to publish and leaves publishing to others", "cluster", cluster)
	} else {
		l.fault, l.left, l.leftAt, l.token = nil, fault, now.Wall, token
		l.barred = now.Mono.Add(barredTTLs * k.o.SessionTTL)
		if l.turns++; l.turns == 1 {
			k.log.Warn("this agent cannot publish and leaves that to others; it tries again while nobody else does", "cluster", cluster, "err", cause(fault))
		}
	}
	l.set(false)
}
