package xds

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// stream is one client's stream. It stands behind a protocol server of the
// library that serves this stream alone, as its cache and as its callbacks, so
// every call is known to come from this client.
type stream struct {
	store *store
	log   *slog.Logger
	notes *notes
	// certified are the node ids that the client's certificate proves; nil: any.
	certified []string
	// names of the delta request that is being read.
	names deltaNames
	// answers tells whether the request that is being read is the word on an answer, and
	// refusal why it is refused, "" when it is accepted.
	answers bool
	refusal string
	// Guarded by the store's mutex:
	seat int // in its roster
	subs [kinds]*subscription
	// zone that the client says it is in; empty: none.
	zone string
	// only holds the clusters that the client's node metadata names, or else the one that
	// its own cluster is called after; nil: all.
	only map[string]struct{}
}

// deltaNames are what a delta request adds and gives up.
type deltaNames struct{ subscribe, unsubscribe []string }

// sees reports whether a wildcard of this client covers a resource.
func (s *stream) sees(name string) bool {
	if s.only == nil {
		return true
	}
	_, ok := s.only[clusterOf(name)]
	return ok
}

// flush answers for one kind if the client waits for it and something is due.
// The store's mutex is held.
func (s *stream) flush(k kind) {
	u := s.subs[k]
	if u == nil || u.waiting == nil || !s.store.open {
		return
	}
	if s.setAside(); s.behind(k) || s.wouldForget(u) {
		return
	}
	if len(u.dirty) == 0 && !u.owed {
		return
	}
	if u.waiting.answer(u, &s.store.tables[k]) {
		u.waiting = nil
	}
	u.settle()
	if k == kindListener {
		s.flush(kindCluster)
	}
}

// setAside keeps what is owed of clusters that are silent for later: nothing is known of
// them, not even that they are gone.
func (s *stream) setAside() {
	if len(s.store.silent) == 0 {
		return
	}
	for _, u := range s.subs {
		u.setAside(s.store.silent)
	}
}

// wouldForget: a client of the state of the world drops what an answer lacks. One that
// has something from before is not answered while a cluster that it may have is silent.
func (s *stream) wouldForget(u *subscription) bool {
	if !u.kind.whole() || u.known.version == "" {
		return false
	}
	for cluster := range s.store.silent {
		if _, wants := s.only[cluster]; wants || s.only == nil {
			return true
		}
	}
	return false
}

func (s *stream) flushAll() {
	for k := range kinds {
		s.flush(k)
	}
}

// behind holds an answer back while another kind of this stream must go first.
//
// Listeners wait for clusters and endpoints that are new or changed: a listener
// that changed hands cuts its sessions, and whoever returns at once must find the
// new writer, not the old one. Clusters that only go wait for listeners that go,
// which send to them; with anything new they do not wait, so that the two never
// wait for each other.
func (s *stream) behind(k kind) bool {
	switch k {
	case kindListener:
		return s.ahead(kindCluster, (*subscription).adds) || s.ahead(kindEndpoint, (*subscription).adds)
	case kindCluster:
		return !s.subs[k].adds(&s.store.tables[k]) && s.ahead(kindListener, (*subscription).removes)
	default:
		return false
	}
}

// ahead reports whether something of a kind is still to be sent.
func (s *stream) ahead(k kind, due func(*subscription, *table) bool) bool {
	u := s.subs[k]
	return u != nil && (u.unsent != nil || due(u, &s.store.tables[k]))
}

// CreateDeltaWatch takes a delta request: a subscription, an acknowledgement or
// a refusal. A kind that we do not serve is parked for ever, since an error
// would end the whole stream.
func (s *stream) CreateDeltaWatch(req *cachev3.DeltaRequest, sub cachev3.Subscription, out chan cachev3.DeltaResponse) (func(), error) {
	k, served := kindOf(req.GetTypeUrl())
	if !served {
		return func() {}, nil
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	t := &s.store.tables[k]
	u, first := s.subscription(k)
	if first {
		u.known.versions = maps.Clone(sub.ReturnedResources())
	}
	s.hear(u)
	names := s.names
	u.setAll(t, u.wildcard(names))
	if first && u.all {
		for name := range u.known.versions { // those that are gone must be told
			u.dirty[name] = struct{}{}
		}
	}
	for _, name := range names.subscribe {
		if name != "*" {
			u.take(t, name)
		}
	}
	for _, name := range names.unsubscribe {
		if name != "*" {
			u.drop(t, name)
		}
	}
	return s.wait(k, deltaRequest{req, out}), nil
}

// CreateWatch takes a state-of-the-world request; see CreateDeltaWatch.
func (s *stream) CreateWatch(req *cachev3.Request, sub cachev3.Subscription, out chan cachev3.Response) (func(), error) {
	k, served := kindOf(req.GetTypeUrl())
	if !served {
		return func() {}, nil
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	t := &s.store.tables[k]
	u, first := s.subscription(k)
	if first {
		u.owed, u.known.version = true, req.GetVersionInfo()
	}
	s.hear(u)
	for _, name := range u.unsent { // dropped: overtaken by this request
		u.dirty[name] = struct{}{}
	}
	u.owed, u.unsent = u.owed || u.unsent != nil, nil
	old, names := u.names, sub.SubscribedResources()
	u.names, u.asked = names, len(names)
	u.setAll(t, sub.IsWildcard())
	for name := range old {
		if _, in := names[name]; !in {
			t.unask(name, u)
			delete(u.dirty, name)
			delete(u.aside, name)
		}
	}
	for name := range names {
		if _, in := old[name]; !in {
			u.add(t, name)
		}
	}
	return s.wait(k, sotwRequest{req, out}), nil
}

func (s *stream) subscription(k kind) (u *subscription, first bool) {
	if s.subs[k] == nil {
		s.subs[k], first = newSubscription(s, k), true
	}
	return s.subs[k], first
}

// hear takes the client's word on the last answer from the request that is being read.
func (s *stream) hear(u *subscription) {
	if !s.answers {
		return
	}
	was := u.uncut()
	u.hear(s.refusal)
	if now := u.uncut(); len(now) > 0 && !slices.Equal(was, now) {
		s.log.Error("Envoy refused the listeners of write pools: it does not end their sessions when the writer changes, before it has accepted them",
			"node", s.notes.node(), "listeners", now, "error", s.refusal)
	}
}

// wait answers a request now or keeps it. What it sends may set free what was
// held back. The function returned forgets the request.
func (s *stream) wait(k kind, a answerer) func() {
	u := s.subs[k]
	u.waiting = a
	s.flush(k)
	s.flush(kindListener)
	return func() {
		s.store.mu.Lock()
		defer s.store.mu.Unlock()
		u.waiting = nil
	}
}

// sent notes that a state-of-the-world answer is on the wire.
func (s *stream) sent(url string) {
	k, served := kindOf(url)
	if !served {
		return
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if u := s.subs[k]; u != nil {
		u.unsent = nil
	}
	s.flush(kindListener)
	s.flush(kindCluster)
}

// identify reads who the client is from its first request, and refuses one that
// its certificate does not know.
func (s *stream) identify(n *corev3.Node) error {
	if s.certified != nil && !s.notes.known() && !slices.Contains(s.certified, n.GetId()) {
		s.notes.ledger.impostors.Add(1)
		s.log.Warn("an Envoy was refused, its node id is no name in its certificate", "node", n.GetId(), "certificate", s.certified)
		return status.Errorf(codes.PermissionDenied, "node id %q is no name in the client's certificate (%s)", n.GetId(), strings.Join(s.certified, ", "))
	}
	if !s.notes.identify(n) {
		return nil
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.zone = n.GetLocality().GetZone()
	list := n.GetMetadata().GetFields()["pg"].GetStructValue().GetFields()["clusters"].GetListValue().GetValues()
	if len(list) == 0 {
		if own := n.GetCluster(); s.store.configured(own) {
			s.only = map[string]struct{}{own: {}}
		}
		return nil
	}
	s.only = make(map[string]struct{}, len(list))
	for _, v := range list {
		s.only[v.GetStringValue()] = struct{}{}
	}
	return nil
}

func (s *stream) close() {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for k, u := range s.subs {
		if u != nil {
			u.close(&s.store.tables[k])
		}
	}
	s.store.roster.leave(s)
}

// The library's callbacks. It makes them on the stream's own goroutine, before
// it looks at a request and before it sends an answer.

// OnStreamOpen implements the library's callbacks.
func (s *stream) OnStreamOpen(context.Context, int64, string) error { return nil }

// OnStreamClosed implements the library's callbacks.
func (s *stream) OnStreamClosed(int64, *corev3.Node) {}

// OnStreamRequest notes acknowledgements and refusals.
func (s *stream) OnStreamRequest(_ int64, r *discoveryv3.DiscoveryRequest) error {
	if err := s.identify(r.GetNode()); err != nil {
		return err // it ends the stream
	}
	s.received(r.GetTypeUrl(), r.GetResponseNonce(), r.GetErrorDetail() != nil, r.GetErrorDetail().GetMessage())
	return nil
}

// OnStreamResponse notes what was sent.
func (s *stream) OnStreamResponse(_ context.Context, _ int64, _ *discoveryv3.DiscoveryRequest, r *discoveryv3.DiscoveryResponse) {
	s.notes.sent(r.GetTypeUrl(), len(r.GetResources()))
	s.sent(r.GetTypeUrl())
}

// OnDeltaStreamOpen implements the library's callbacks.
func (s *stream) OnDeltaStreamOpen(context.Context, int64, string) error { return nil }

// OnDeltaStreamClosed implements the library's callbacks.
func (s *stream) OnDeltaStreamClosed(int64, *corev3.Node) {}

// OnStreamDeltaRequest notes acknowledgements and refusals. It keeps the names of
// the request from the library, which would hold a set of them for as long as the
// stream lives; the index of the store has them already. CreateDeltaWatch follows.
func (s *stream) OnStreamDeltaRequest(_ int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	s.names = deltaNames{r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe()}
	r.ResourceNamesSubscribe, r.ResourceNamesUnsubscribe = nil, nil
	if err := s.identify(r.GetNode()); err != nil {
		return err // it ends the stream
	}
	s.received(r.GetTypeUrl(), r.GetResponseNonce(), r.GetErrorDetail() != nil, r.GetErrorDetail().GetMessage())
	return nil
}

// OnStreamDeltaResponse notes what was sent.
func (s *stream) OnStreamDeltaResponse(_ int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
	s.notes.sent(r.GetTypeUrl(), len(r.GetResources()))
}

// received notes an acknowledgement or a refusal. A refusal is logged once for
// its text; nothing is sent again before something changed.
func (s *stream) received(url, nonce string, refused bool, text string) {
	s.answers, s.refusal = nonce != "", text
	switch {
	case nonce == "":
		s.notes.asked(url)
	case !refused:
		s.notes.acked(url)
	case s.notes.nacked(url, text):
		s.log.Warn("Envoy refused a resource and keeps what it had; it is offered again when it changes, and a listener when another one does",
			"node", s.notes.node(), "type", url, "error", text)
	}
}
