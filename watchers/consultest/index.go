package consultest

import (
	"maps"
	"slices"
	"strings"
)

// index finds instances, or checks, by what they have in common, so that a question about
// one of many costs no look at all.
type index[K comparable] map[K]map[serviceID]struct{}

func (x index[K]) add(k K, id serviceID) {
	if x[k] == nil {
		x[k] = make(map[serviceID]struct{})
	}
	x[k][id] = struct{}{}
}

func (x index[K]) drop(k K, id serviceID) {
	if delete(x[k], id); len(x[k]) == 0 {
		delete(x, k)
	}
}

// of returns what there is of a key, sorted by node and ID.
func (x index[K]) of(k K) []serviceID {
	return slices.SortedFunc(maps.Keys(x[k]), func(a, b serviceID) int {
		return strings.Compare(a.node+"\x00"+a.id, b.node+"\x00"+b.id)
	})
}

// The functions below need Agent.mu.

// putService and dropService keep the indexes of instances.
func (a *Agent) putService(id serviceID, s Service) {
	if old, ok := a.services[id]; ok {
		a.byName.drop(old.ServiceName, id)
	}
	a.services[id] = s
	a.byName.add(s.ServiceName, id)
	a.byNode.add(id.node, id)
}

func (a *Agent) dropService(id serviceID) {
	a.byName.drop(a.services[id].ServiceName, id)
	a.byNode.drop(id.node, id)
	delete(a.services, id)
}

// putCheck and dropCheck keep the index of checks.
func (a *Agent) putCheck(id serviceID, c Check) {
	a.dropCheck(id)
	a.checks[id] = c
	a.checksOf.add(serviceID{id.node, c.ServiceID}, id)
}

func (a *Agent) dropCheck(id serviceID) {
	if c, ok := a.checks[id]; ok {
		a.checksOf.drop(serviceID{id.node, c.ServiceID}, id)
		delete(a.checks, id)
	}
}

// listing is what a recursive read found, while no key has changed since.
type listing struct {
	writes uint64 // of keys, until then
	pairs  []Pair
	newest uint64 // index of the newest change below the prefix, deletions too
}

// listed is what lies below a prefix. It is kept until a key changes: a write to the
// catalog wakes those who wait for keys too, and there may be ten thousand keys.
func (a *Agent) listed(prefix string) listing {
	if l, ok := a.listings[prefix]; ok && l.writes == a.writes {
		return l
	}
	l := listing{writes: a.writes, pairs: a.list(prefix)}
	for _, p := range l.pairs {
		l.newest = max(l.newest, p.ModifyIndex)
	}
	for k, i := range a.graves {
		if strings.HasPrefix(k, prefix) {
			l.newest = max(l.newest, i)
		}
	}
	a.listings[prefix] = l
	return l
}
