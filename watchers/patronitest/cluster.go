package patronitest

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// The versions whose answers can be had.
const (
	V3 = "3.0.2"
	V4 = "4.1.5"
)

// Store is what the cluster's store holds.
type Store struct {
	Leader  string           // the leader key; empty: there is none
	Members map[string]Entry // the members' keys
	Sync    []string         // of the sync key
	Pause   bool             // also said by Config
	// Config, History and Failsafe are the values of these keys; an empty one is no key.
	Config, History, Failsafe string
	Optime                    uint64
}

// Entry is a member's key.
type Entry struct {
	APIURL   string
	Host     string
	Port     int
	State    string
	Timeline int
	LSN      uint64
	Tags     map[string]any
}

func (s Store) clone() Store {
	s.Members, s.Sync = maps.Clone(s.Members), slices.Clone(s.Sync)
	return s
}

// Member is one Patroni.
type Member struct {
	Name    string
	Version string // V3 or V4
	Lock    bool   // its last write to the leader key was not a ttl ago
	Replica bool   // its PostgreSQL is in recovery
	Away    bool   // its PostgreSQL does not answer
	// Blind: it cannot read the store. It then has no list, and while paused it
	// says of a primary that it leads, whoever holds the key.
	Blind bool
	// Sight is the store as it sees it; nil: as it is. It shows a read by a cache
	// whose watch stands still.
	Sight *Store
	// New: it has just taken the key; its own list is from before.
	New bool

	Timeline int
	Location uint64 // of a primary
	SystemID string

	Down bool // refuses connections
	Hung bool // does not answer; to a client it is the same as a cut line
}

// Cluster is the fake. Make it with New.
type Cluster struct {
	mu       sync.Mutex // guards everything below
	scope    string
	store    Store
	members  map[string]*Member // by name
	at       map[string]string  // host:port -> member
	script   func(Request) Fault
	requests []Request
}

// New returns a healthy cluster with the first of the names as its leader, on
// timeline 5. Members are at http://NAME.test:8008, their PostgreSQL at
// 192.0.2.11:5432 and following, and all are of version V4.
func New(scope string, names ...string) *Cluster {
	c := &Cluster{scope: scope, members: map[string]*Member{}, at: map[string]string{}, store: Store{
		Leader: names[0], Members: map[string]Entry{}, Optime: 50000000,
		Config: `{"ttl":30,"loop_wait":10,"retry_timeout":10}`, History: `[[4,49000000,"no recovery target specified"]]`,
	}}
	for i, n := range names {
		c.members[n] = &Member{
			Name: n, Version: V4, Lock: i == 0, Replica: i != 0, Timeline: 5, Location: 50000000, SystemID: "7713754238407433424",
		}
		c.store.Members[n] = Entry{
			APIURL: URL(n) + "/patroni", Host: fmt.Sprintf("192.0.2.%d", 11+i), Port: 5432, State: "running", Timeline: 5, LSN: 50000000,
		}
		c.at[n+".test:8008"] = n
	}
	return c
}

// URL is where a member of New answers.
func URL(member string) string { return "http://" + member + ".test:8008" }

// Change changes the store.
func (c *Cluster) Change(f func(s *Store)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.store)
}

// Member changes members. Those that are not named first are all.
func (c *Cluster) Member(f func(m *Member), names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range slices.Sorted(maps.Keys(c.members)) {
		if len(names) == 0 || slices.Contains(names, n) {
			f(c.members[n])
		}
	}
}

// Freeze makes members see the store as it is now from here on; Thaw ends that.
func (c *Cluster) Freeze(names ...string) {
	c.mu.Lock()
	sight := c.store.clone()
	c.mu.Unlock()
	c.Member(func(m *Member) { m.Sight = &sight }, names...)
}

// Thaw makes members see the store as it is.
func (c *Cluster) Thaw(names ...string) { c.Member(func(m *Member) { m.Sight = nil }, names...) }

// Lead gives the key to a member as an election does: it holds the key and is
// the primary of the next timeline, and nobody else believes so.
func (c *Cluster) Lead(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.members[c.store.Leader]
	c.store.Leader = name
	timeline := 0
	for n, m := range c.members {
		timeline = max(timeline, m.Timeline)
		m.Lock, m.New = n == name, n == name
	}
	if old != nil && old.Name != name {
		old.Replica = true
	}
	m := c.members[name]
	m.Replica, m.Timeline = false, timeline+1
	e := c.store.Members[name]
	e.Timeline = m.Timeline
	c.store.Members[name] = e
}

// Move has an address answered by a member.
func (c *Cluster) Move(address, member string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at[address] = member
}

// Script sets what happens to each request from now on; nil: nothing. It is
// called once a request, possibly by several goroutines.
func (c *Cluster) Script(f func(Request) Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.script = f
}

// Requests returns every request so far, oldest first.
func (c *Cluster) Requests() []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.requests)
}

// Request is a request as a member saw it, or did not.
type Request struct {
	At     time.Time
	Member string // empty: nobody is at the address
	URL    string // scheme://host:port
	Path   string
}

// Fault changes the answer to one request. The zero value changes nothing.
type Fault struct {
	Status   int           // zero: the true one
	Body     string        // with Status, or in place of the true one
	Location string        // where a redirect leads
	Delay    time.Duration // answers this much later
	Hang     bool          // no byte until the client gives up
	Err      error         // instead of an answer
	Cut      int           // the body ends after this many bytes
}
