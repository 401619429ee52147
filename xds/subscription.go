package xds

import (
	"maps"
	"slices"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// subscription is what one stream wants of one kind. All of it is guarded by
// the store's mutex.
type subscription struct {
	stream *stream
	kind   kind
	all    bool // wildcard
	// legacy: no name was said yet, so that a request without any means all (delta).
	legacy bool
	// names asked for (state of the world). The set belongs to the library, which
	// changes it only between a watch's end and the next request.
	names map[string]struct{}
	asked int // how many names are asked for, of either protocol
	// few has the first names of a delta client; of one with more, the index is
	// searched when it goes.
	few []string
	// dirty names differ from what the client was sent last.
	dirty map[string]struct{}
	// aside are names of silent clusters that are to be told of later, with the versions
	// that the client has, if it said so; nil: none.
	aside map[string]string
	// owed: an answer is due even if it holds nothing, for the client waits.
	owed bool
	// known is what the client says it has from before, until the first answer.
	known knowledge
	// waiting is the open request: nil while an answer is on its way and not yet
	// acknowledged, so there is at most one.
	waiting answerer
	// unsent names are in the library's queue. It drops an answer that a new
	// request overtakes (state of the world only), so they are not sent until
	// it says so.
	unsent []string
	// flying is what the last delta answer held, unless it was big. A change that was
	// taken back while it was on its way is not sent again, least of all to a client
	// that refuses it.
	flying []*discoveryv3.Resource
	// refused are the listeners that the client refused in the last answer. Each answer with
	// news of listeners offers them again, after the news: what Envoy refuses is mostly an
	// address that another listener has, and that may be free then. The state of the world
	// does so by nature.
	refused []string
	// returned is for the library, which keeps versions in it. What a client has
	// is told by dirty here; so it stays all but empty.
	returned map[string]string
}

// knowledge is the state a client kept from an earlier stream.
type knowledge struct {
	versions map[string]string // delta: by name
	version  string            // state of the world: of the whole kind
}

// answerer sends one answer and reports whether there was one to send.
type answerer interface {
	answer(u *subscription, t *table) (sent bool)
}

func newSubscription(s *stream, k kind) *subscription {
	return &subscription{stream: s, kind: k, legacy: k != kindEndpoint, dirty: make(map[string]struct{}), returned: make(map[string]string)}
}

// smallMap is how many names may have been in a map that is used again: going
// through one costs what it once held.
const smallMap = 32

// settle notes that the client has been sent everything.
func (u *subscription) settle() {
	if len(u.dirty) > smallMap {
		u.dirty = make(map[string]struct{})
	}
	clear(u.dirty)
	u.owed, u.known = false, knowledge{}
}

// setAside takes names of silent clusters out of what is to be sent.
func (u *subscription) setAside(silent map[string]struct{}) {
	if u == nil {
		return
	}
	for name := range u.dirty {
		if _, is := silent[clusterOf(name)]; !is {
			continue
		}
		if u.aside == nil {
			u.aside = make(map[string]string)
		}
		u.aside[name] = u.known.versions[name]
		delete(u.dirty, name)
	}
}

// release puts the names of a cluster back.
func (u *subscription) release(cluster string) {
	if u == nil {
		return
	}
	for name, version := range u.aside {
		if clusterOf(name) != cluster {
			continue
		}
		delete(u.aside, name)
		u.dirty[name] = struct{}{}
		if version == "" {
			continue
		}
		if u.known.versions == nil {
			u.known.versions = make(map[string]string)
		}
		u.known.versions[name] = version
	}
}

// mark notes that a name is to be sent. It appends itself to due if nothing was
// to be sent before; otherwise somebody is already waiting for that moment.
func (u *subscription) mark(name string, due []*subscription) []*subscription {
	if len(u.dirty) == 0 {
		due = append(due, u)
	}
	u.dirty[name] = struct{}{}
	return due
}

// hear notes which listeners the client refuses of the last answer, by its words: Envoy
// has a line for each of them, "NAME: why" with some words before the first.
func (u *subscription) hear(refusal string) {
	if u.refused = nil; u.kind != kindListener {
		return
	}
	t := &u.stream.store.tables[u.kind]
	for line := range strings.Lines(refusal) {
		head, _, _ := strings.Cut(line, ": ")
		name := head[strings.LastIndexByte(head, ' ')+1:]
		if u.find(t, name) != nil {
			u.refused = append(u.refused, name)
		}
	}
	slices.Sort(u.refused)
	u.refused = slices.Compact(u.refused)
}

// uncut are the refused listeners of which a change of the writer ends the sessions: it
// does not while the client keeps what it had.
func (u *subscription) uncut() []string {
	var names []string
	for _, name := range u.refused {
		r := u.stream.store.tables[u.kind].resources[name]
		if r != nil && endsAnyway(r.wire.GetResource().GetValue()) {
			names = append(names, name)
		}
	}
	return names
}

// add and drop follow the client's list of names. A name asked for again is
// sent again: the client has dropped what it had.
func (u *subscription) add(t *table, name string) {
	t.ask(name, u)
	u.dirty[name] = struct{}{}
	u.flying = nil
}

// take is add for a delta client.
func (u *subscription) take(t *table, name string) {
	if !t.asks(name, u) {
		if len(u.few) < smallMap {
			u.few = append(u.few, name)
		}
		u.asked++
	}
	u.add(t, name)
}

// drop gives up a delta client's name.
func (u *subscription) drop(t *table, name string) {
	if t.asks(name, u) {
		if i := slices.Index(u.few, name); i >= 0 {
			u.few = slices.Delete(u.few, i, i+1)
		}
		u.asked--
	}
	t.unask(name, u)
	delete(u.dirty, name)
	delete(u.aside, name)
	u.flying = nil
	if u.all {
		u.dirty[name] = struct{}{} // the protocol wants to be told whether it still exists
	}
}

// wildcard tells whether a delta client wants all after a request. Without names it
// does, until it has said one; that it did so stays when it names some later.
func (u *subscription) wildcard(names deltaNames) bool {
	if u.legacy && len(names.subscribe) == 0 {
		return true
	}
	u.legacy = false
	return (u.all || slices.Contains(names.subscribe, "*")) && !slices.Contains(names.unsubscribe, "*")
}

// setAll follows the wildcard. Everything is marked when it comes; what the
// client turns out to have is left out of the answer.
func (u *subscription) setAll(t *table, all bool) {
	if all == u.all {
		return
	}
	u.all, u.flying = all, nil
	if !all {
		delete(t.all, u)
		return
	}
	t.all[u] = struct{}{}
	u.owed = true
	for name := range t.resources {
		if u.covers(name) {
			u.dirty[name] = struct{}{}
		}
	}
}

// covers reports whether a name is among all that the client wants.
func (u *subscription) covers(name string) bool {
	return u.all && !named(name) && u.stream.sees(name)
}

// adds and removes report whether something that is there, or something that is
// gone, is to be sent.
func (u *subscription) adds(t *table) bool {
	for name := range u.dirty {
		if t.has(name) {
			return true
		}
	}
	return false
}

func (u *subscription) removes(t *table) bool {
	for name := range u.dirty {
		if !t.has(name) {
			return true
		}
	}
	return false
}

// find returns what a client may have of a name, nil for nothing.
func (u *subscription) find(t *table, name string) *resource {
	if !t.asks(name, u) && !u.covers(name) {
		return nil
	}
	r, err := t.find(name, u.stream.zone)
	if err != nil {
		u.stream.log.Error("a resource cannot be renamed, the client goes without it", "name", name, "error", err)
	}
	return r
}

// flies reports whether the last answer held exactly this.
func (u *subscription) flies(r *resource) bool {
	return slices.ContainsFunc(u.flying, func(sent *discoveryv3.Resource) bool {
		return sent.GetName() == r.name && sent.GetVersion() == r.version
	})
}

// close takes a subscription out of the index.
func (u *subscription) close(t *table) {
	u.waiting = nil
	delete(t.all, u)
	switch {
	case u.names != nil:
		for name := range u.names {
			t.unask(name, u)
		}
	case len(u.few) == u.asked:
		for _, name := range u.few {
			t.unask(name, u)
		}
	default:
		for name := range t.asked {
			t.unask(name, u)
		}
	}
}

// deltaRequest is an open delta request.
type deltaRequest struct {
	request *cachev3.DeltaRequest
	out     chan cachev3.DeltaResponse // has room for more than one answer per kind
}

func (d deltaRequest) answer(u *subscription, t *table) bool {
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: t.kind.url(), SystemVersionInfo: t.version()}
	for _, name := range slices.Sorted(maps.Keys(u.dirty)) {
		r := u.find(t, name)
		switch {
		case r == nil:
			resp.RemovedResources = append(resp.RemovedResources, name)
		case u.known.versions[name] != r.version && !u.flies(r):
			resp.Resources = append(resp.Resources, r.wire)
		}
	}
	if len(resp.Resources)+len(resp.RemovedResources) > 0 {
		for _, name := range u.refused {
			if _, told := u.dirty[name]; told {
				continue
			}
			if r := u.find(t, name); r != nil {
				resp.Resources = append(resp.Resources, r.wire)
			}
		}
	} else if !u.owed {
		return false
	}
	if u.flying = nil; len(resp.Resources) <= smallMap {
		u.flying = resp.Resources
	}
	d.out <- &cachev3.DeltaPassthroughResponse{
		DeltaRequest: d.request, DeltaDiscoveryResponse: resp,
		NextVersionMap: u.returned,
	}
	return true
}

// sotwRequest is an open state-of-the-world request.
type sotwRequest struct {
	request *cachev3.Request
	out     chan cachev3.Response // has room for an answer per kind
}

func (q sotwRequest) answer(u *subscription, t *table) bool {
	if t.kind.whole() && u.all && len(u.names) == 0 && u.known.version == t.version() {
		return false // the client has exactly this, from before a restart
	}
	resp := &discoveryv3.DiscoveryResponse{TypeUrl: t.kind.url(), VersionInfo: t.version()}
	for _, name := range u.wanted(t) {
		if r := u.find(t, name); r != nil {
			resp.Resources = append(resp.Resources, &anypb.Any{
				TypeUrl: r.wire.GetResource().GetTypeUrl(), Value: r.wire.GetResource().GetValue(),
			})
		}
	}
	u.unsent = slices.Collect(maps.Keys(u.dirty))
	if u.unsent == nil {
		u.unsent = []string{}
	}
	q.out <- &cachev3.PassthroughResponse{
		Request: q.request, DiscoveryResponse: resp, ReturnedResources: u.returned,
	}
	return true
}

// wanted is what a state-of-the-world answer holds: what changed, or all that
// the client wants where absence means removal.
func (u *subscription) wanted(t *table) []string {
	if !t.kind.whole() {
		return slices.Sorted(maps.Keys(u.dirty))
	}
	set := maps.Clone(u.names)
	if set == nil {
		set = make(map[string]struct{})
	}
	if u.all {
		for name := range t.resources {
			if u.covers(name) {
				set[name] = struct{}{}
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}
