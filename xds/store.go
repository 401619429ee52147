package xds

import (
	"fmt"
	"sync"
)

// store is what is served, and who asked for it. A change costs what its own
// cluster and those who asked for its names cost, whatever else is stored.
type store struct {
	mu      sync.Mutex // guards everything below, and the fields of streams where they say so
	open    bool       // answers are given
	tables  [kinds]table
	current map[string]*encoded // by cluster
	// silent are the clusters that are configured and of which nothing is known yet.
	// Clients keep what they have of them, and are told nothing.
	silent map[string]struct{}
	roster roster // of open streams
}

func newStore() *store {
	s := &store{current: make(map[string]*encoded)}
	for k := range s.tables {
		s.tables[k] = newTable(kind(k), &s.roster)
	}
	return s
}

// apply replaces the resources of one cluster; nil removes them. Additions go
// cluster, endpoints, listener; removals listener, cluster, endpoints, so that
// nothing ever refers to what is not there. Listeners come and go in one change, since
// one may take the address of another: Envoy removes first.
func (s *store) apply(cluster string, next *encoded) (changed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.current[cluster]
	if old == nil {
		old = new(encoded)
	}
	speaks := false
	if next == nil {
		delete(s.current, cluster)
		next = new(encoded)
	} else {
		s.current[cluster] = next
		if _, speaks = s.silent[cluster]; speaks {
			delete(s.silent, cluster)
			s.release(cluster)
		}
	}
	var gone [kinds][]string
	for k := range kinds {
		put, lost := difference(old[k], next[k])
		gone[k] = lost
		changed += len(put) + len(lost)
		if k == kindEndpoint {
			// Whoever asked for a name of before has its pool's new endpoints from here
			// on: the listener that follows sends its sessions there.
			for _, name := range lost {
				s.tables[k].remove(name)
			}
		}
		if k == kindListener {
			s.change(k, put, lost)
		} else {
			s.change(k, put, nil)
		}
	}
	s.change(kindCluster, nil, gone[kindCluster])
	s.change(kindEndpoint, nil, gone[kindEndpoint])
	if speaks {
		s.flushAll()
	}
	return changed
}

// keepSilent says of which clusters nothing is known. What is owed of others goes out.
func (s *store) keepSilent(clusters []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.silent
	s.silent = make(map[string]struct{}, len(clusters))
	for _, c := range clusters {
		s.silent[c] = struct{}{}
	}
	for c := range old {
		if _, still := s.silent[c]; !still {
			s.release(c)
		}
	}
	if s.open && len(old) > 0 {
		s.flushAll()
	}
}

// configured reports whether there is such a cluster, decided or not. It needs s.mu.
func (s *store) configured(cluster string) bool {
	_, silent := s.silent[cluster]
	return silent || s.current[cluster] != nil
}

// release has clients told of a cluster again.
func (s *store) release(cluster string) {
	for st := range s.roster.streams {
		for _, u := range st.subs {
			u.release(cluster)
		}
	}
}

func (s *store) flushAll() {
	for st := range s.roster.streams {
		st.flushAll()
	}
}

// change stores resources of one kind and sends them to whoever waits.
func (s *store) change(k kind, put []*resource, gone []string) {
	t := &s.tables[k]
	var due []*subscription
	for _, r := range put {
		t.put(r)
		due = t.mark(r.name, due)
	}
	for _, name := range gone {
		t.remove(name)
		due = t.mark(name, due)
	}
	for _, u := range due {
		u.stream.flush(k)
	}
}

// start begins to answer, in the order of kinds on every stream.
func (s *store) start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
	s.flushAll()
}

func difference(old, next map[string]*resource) (put []*resource, gone []string) {
	for name, r := range next {
		if o := old[name]; o == nil || o.sum != r.sum {
			put = append(put, r)
		}
	}
	for name := range old {
		if next[name] == nil {
			gone = append(gone, name)
		}
	}
	return put, gone
}

// table is the resources of one kind and an index of who asked for what.
type table struct {
	kind      kind
	roster    *roster
	resources map[string]*resource
	sum       uint64 // of all resources, in no order
	text      string // of sum; empty: not written yet
	// current is the resource of each pool, whatever the hash in its name.
	current map[string]*resource
	asked   map[string]seatSet             // by name
	names   map[string]map[string]struct{} // names asked for, by pool
	all     map[*subscription]struct{}     // wildcards
}

func newTable(k kind, r *roster) table {
	return table{
		kind:      k,
		roster:    r,
		resources: make(map[string]*resource),
		current:   make(map[string]*resource),
		asked:     make(map[string]seatSet),
		names:     make(map[string]map[string]struct{}),
		all:       make(map[*subscription]struct{}),
	}
}

// version of the whole kind: the same on every agent that serves the same.
func (t *table) version() string {
	if t.text == "" {
		t.text = fmt.Sprintf("%016x", t.sum)
	}
	return t.text
}

func (t *table) put(r *resource) {
	t.text = ""
	if old := t.resources[r.name]; old != nil {
		t.sum ^= old.sum
	}
	t.sum ^= r.sum
	t.resources[r.name] = r
	if !named(r.name) {
		t.current[poolOf(r.name)] = r
	}
}

func (t *table) remove(name string) {
	old := t.resources[name]
	if old == nil {
		return
	}
	t.text = ""
	t.sum ^= old.sum
	delete(t.resources, name)
	if t.current[poolOf(name)] == old {
		delete(t.current, poolOf(name))
	}
}

// has reports whether find would return a resource.
func (t *table) has(name string) bool { return t.kind == kindEndpoint || t.resources[name] != nil }

// find returns a resource for a client of a zone, nil when there is none. Endpoints are always found:
// under another hash of a known pool they are the pool's, else they are empty,
// since Envoy takes a missing assignment for "no news" and warms for ever.
func (t *table) find(name, zone string) (*resource, error) {
	if r := t.resources[name]; r != nil || t.kind != kindEndpoint {
		return r.in(zone), nil
	}
	return renamed(t.current[poolOf(name)].in(zone), name)
}

// mark tells everybody concerned that a name changed. It appends to due those
// who had nothing to be sent before.
func (t *table) mark(name string, due []*subscription) []*subscription {
	for u := range t.all {
		if u.covers(name) {
			due = u.mark(name, due)
		}
	}
	if t.kind != kindEndpoint {
		return t.markAsked(name, due)
	}
	for other := range t.names[poolOf(name)] {
		if named(other) != named(name) {
			continue
		}
		due = t.markAsked(other, due)
	}
	return due
}

// markAsked tells those who asked for exactly this name.
func (t *table) markAsked(name string, due []*subscription) []*subscription {
	for seat := range t.asked[name].all {
		due = t.roster.seats[seat].subs[t.kind].mark(name, due)
	}
	return due
}

func (t *table) ask(name string, u *subscription) {
	set, known := t.asked[name]
	set.add(u.stream.seat)
	t.asked[name] = set
	if !known {
		pool := poolOf(name)
		if t.names[pool] == nil {
			t.names[pool] = make(map[string]struct{})
		}
		t.names[pool][name] = struct{}{}
	}
}

// asks reports whether somebody asked for exactly this name.
func (t *table) asks(name string, u *subscription) bool { return t.asked[name].has(u.stream.seat) }

func (t *table) unask(name string, u *subscription) {
	if !t.asked[name].remove(u.stream.seat) {
		return
	}
	delete(t.asked, name)
	pool := poolOf(name)
	delete(t.names[pool], name)
	if len(t.names[pool]) == 0 {
		delete(t.names, pool)
	}
}
