package consultest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Pair is one key with what Consul keeps beside it.
type Pair struct {
	Key                                 string
	Value                               []byte
	Flags                               uint64
	Session                             string `json:",omitempty"`
	CreateIndex, ModifyIndex, LockIndex uint64
}

// Agent is the fake. Make it with New.
type Agent struct {
	mu       sync.Mutex // guards everything below
	index    uint64     // of the last write
	pairs    map[string]Pair
	order    []string          // the keys, sorted
	graves   map[string]uint64 // deleted key -> index of its deletion
	sessions map[string]Session
	serial   int
	changed  chan struct{} // closed by the next write
	halted   chan struct{} // open while the agent is frozen; nil: it runs
	down     chan struct{} // closed while the agent is down
	isDown   bool
	token    string
	hidden   []string // prefixes of keys and names of services that no token may read
	script   func(Request) Fault
	requests []Request

	writes   uint64             // of keys, so far
	listings map[string]listing // by prefix

	services map[serviceID]Service
	byName   index[string]       // instances by the service's name
	byNode   index[string]       // instances by node
	checks   map[serviceID]Check // by node and ID of the check
	checksOf index[serviceID]    // checks by instance
	nodes    map[string]Node     // that were registered as such
	catalog  catalogIndexes
}

// Session is what a client holds keys with.
type Session struct {
	ID       string
	Name     string
	Behavior string // delete or release
	TTL      string
}

// New returns an agent with an empty store. Its index begins above 1, as that of
// a Consul which has elected a leader.
func New() *Agent {
	return &Agent{
		index: 10, pairs: map[string]Pair{}, graves: map[string]uint64{}, sessions: map[string]Session{},
		changed: make(chan struct{}), down: make(chan struct{}),
		listings: map[string]listing{}, services: map[serviceID]Service{}, byName: index[string]{}, byNode: index[string]{},
		checks: map[serviceID]Check{}, checksOf: index[serviceID]{}, nodes: map[string]Node{}, catalog: catalogIndexes{of: map[string]uint64{}},
	}
}

// Put writes keys and values in turn, each without a session, keeping the
// session a key has.
func (a *Agent) Put(keysAndValues ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		a.put(keysAndValues[i], []byte(keysAndValues[i+1]))
	}
}

// Acquire writes a key and binds it to a session, which is made if need be. It
// reports false when another session holds the key.
func (a *Agent) Acquire(key, value, session string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.sessions[session]; !ok {
		a.sessions[session] = Session{ID: session, Behavior: "delete"}
	}
	return a.acquire(key, []byte(value), session)
}

// Delete removes keys.
func (a *Agent) Delete(keys ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range keys {
		a.remove(k)
	}
}

// DeleteTree removes every key with a prefix.
func (a *Agent) DeleteTree(prefix string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.list(prefix) {
		a.remove(p.Key)
	}
}

// EndSession does what the end of a session's TTL does: its keys are deleted
// (or released, by its behavior).
func (a *Agent) EndSession(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endSession(id)
}

// Sessions returns all sessions.
func (a *Agent) Sessions() []Session {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.sessions))
}

// Get returns a key.
func (a *Agent) Get(key string) (Pair, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p, ok := a.pairs[key]
	return p, ok
}

// Pairs returns all keys.
func (a *Agent) Pairs() []Pair {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.list("")
}

// Index returns the index of the last write.
func (a *Agent) Index() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.index
}

// SetIndex moves the index as a restored snapshot does: that of the store, and
// of every key, which becomes the given one at most.
func (a *Agent) SetIndex(index uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.index = index
	for k, p := range a.pairs {
		p.ModifyIndex = min(p.ModifyIndex, index)
		p.CreateIndex = min(p.CreateIndex, index)
		a.pairs[k] = p
	}
	clear(a.graves)
	a.writes++
	a.broadcast()
}

// The functions below need a.mu.

func (a *Agent) broadcast() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// put writes a key, keeping its session.
func (a *Agent) put(key string, value []byte) { a.write(key, value, a.pairs[key].Session) }

// write writes a key. The same value and session again are no write, as in Consul.
func (a *Agent) write(key string, value []byte, session string) {
	p, ok := a.pairs[key]
	if ok && bytes.Equal(p.Value, value) && p.Session == session {
		return
	}
	a.index++
	if !ok {
		p = Pair{Key: key, CreateIndex: a.index}
		at, _ := slices.BinarySearch(a.order, key)
		a.order = slices.Insert(a.order, at, key)
	}
	if session != "" && p.Session != session {
		p.LockIndex++
	}
	p.Value, p.Session, p.ModifyIndex = value, session, a.index
	a.pairs[key] = p
	delete(a.graves, key)
	a.writes++
	a.broadcast()
}

func (a *Agent) acquire(key string, value []byte, session string) bool {
	if old := a.pairs[key].Session; old != "" && old != session {
		return false
	}
	a.write(key, value, session)
	return true
}

func (a *Agent) release(key string, value []byte, session string) bool {
	if old, ok := a.pairs[key]; !ok || old.Session != session {
		return false
	}
	a.write(key, value, "")
	return true
}

func (a *Agent) remove(key string) {
	if _, ok := a.pairs[key]; !ok {
		return
	}
	a.index++
	delete(a.pairs, key)
	at, _ := slices.BinarySearch(a.order, key)
	a.order = slices.Delete(a.order, at, at+1)
	a.graves[key] = a.index
	a.writes++
	a.broadcast()
}

func (a *Agent) endSession(id string) {
	s, ok := a.sessions[id]
	if !ok {
		return
	}
	delete(a.sessions, id)
	for _, p := range a.list("") {
		switch {
		case p.Session != id:
		case s.Behavior == "release":
			a.release(p.Key, p.Value, id)
		default:
			a.remove(p.Key)
		}
	}
}

func (a *Agent) newSession(s Session) Session {
	a.serial++
	s.ID = fmt.Sprintf("00000000-0000-0000-0000-%012d", a.serial)
	if s.Behavior == "" {
		s.Behavior = "release"
	}
	a.sessions[s.ID] = s
	return s
}

func (a *Agent) list(prefix string) []Pair {
	var out []Pair
	for at, _ := slices.BinarySearch(a.order, prefix); at < len(a.order) && strings.HasPrefix(a.order[at], prefix); at++ {
		out = append(out, a.pairs[a.order[at]])
	}
	return out
}

// lookup returns what a read finds and the index that belongs to it: of a key
// its own, of a prefix the newest change below it (deletions too), and of
// nothing the store's, never 0.
func (a *Agent) lookup(key string, recurse bool) ([]Pair, uint64) {
	if !recurse {
		if p, ok := a.pairs[key]; ok {
			return []Pair{p}, p.ModifyIndex
		}
		return nil, max(a.index, 1)
	}
	l := a.listed(key)
	if l.newest == 0 || len(l.pairs) == 0 {
		return l.pairs, max(a.index, 1)
	}
	return l.pairs, l.newest
}

// lookupKeys is lookup with what a fault makes of it and without hidden keys.
func (a *Agent) lookupKeys(r Request, f Fault) find {
	pairs, index := a.lookup(r.Key, r.Recurse)
	found := find{index: index, missing: len(pairs) == 0 && !r.Recurse}
	pairs, found.filtered = a.shown(pairs)
	if f.Pairs != nil {
		pairs = f.Pairs
	}
	if len(pairs) > 0 && !f.Empty {
		found.body = pairs
	}
	return found
}

// shown leaves out what is hidden, and tells whether there was any.
func (a *Agent) shown(pairs []Pair) (rest []Pair, filtered bool) {
	if len(a.hidden) == 0 {
		return pairs, false
	}
	rest = slices.DeleteFunc(slices.Clone(pairs), func(p Pair) bool { return a.hides(p.Key) })
	return rest, len(rest) < len(pairs)
}

func (a *Agent) hides(name string) bool {
	return slices.ContainsFunc(a.hidden, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
}
