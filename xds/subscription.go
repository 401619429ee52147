package xds

import (
	"maps"
	"slices"

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
	// names asked for. The set belongs to the library, which changes it only
	// between a watch's end and the next request.
	names map[string]struct{}
	asked int // how many names there were at the last request, for the status
	// dirty names differ from what the client was sent last.
	dirty map[string]struct{}
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
	return &subscription{stream: s, kind: k, dirty: make(map[string]struct{}), returned: make(map[string]string)}
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

// mark notes that a name is to be sent. It appends itself to due if nothing was
// to be sent before; otherwise somebody is already waiting for that moment.
func (u *subscription) mark(name string, due []*subscription) []*subscription {
	if len(u.dirty) == 0 {
		due = append(due, u)
	}
	u.dirty[name] = struct{}{}
	return due
}

// add and drop follow the client's list of names. A name asked for again is
// sent again: the client has dropped what it had.
func (u *subscription) add(t *table, name string) {
	t.ask(name, u)
	u.dirty[name] = struct{}{}
}

func (u *subscription) drop(t *table, name string) {
	t.unask(name, u)
	delete(u.dirty, name)
	if u.all {
		u.dirty[name] = struct{}{} // the protocol wants to be told whether it still exists
	}
}

// setAll follows the wildcard. Everything is marked when it comes; what the
// client turns out to have is left out of the answer.
func (u *subscription) setAll(t *table, all bool) {
	if all == u.all {
		return
	}
	u.all = all
	if !all {
		delete(t.all, u)
		return
	}
	t.all[u] = struct{}{}
	u.owed = true
	for name := range t.resources {
		if u.stream.sees(name) {
			u.dirty[name] = struct{}{}
		}
	}
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
	if _, asked := u.names[name]; !asked && (!u.all || !u.stream.sees(name)) {
		return nil
	}
	r, err := t.find(name)
	if err != nil {
		u.stream.log.Error("a resource cannot be renamed, the client goes without it", "name", name, "error", err)
	}
	return r
}

// close takes a subscription out of the index.
func (u *subscription) close(t *table) {
	u.waiting = nil
	delete(t.all, u)
	for name := range u.names {
		t.unask(name, u)
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
		case u.known.versions[name] != r.version:
			resp.Resources = append(resp.Resources, r.wire)
		}
	}
	if !u.owed && len(resp.Resources)+len(resp.RemovedResources) == 0 {
		return false
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
	if t.kind.whole() && u.all && u.known.version == t.version() {
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
			set[name] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(set))
}
