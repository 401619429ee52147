package xds

import (
	"maps"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unservedURL is of a type that nobody serves.
const unservedURL = "type.googleapis.com/envoy.service.runtime.v3.Runtime"

func urlOf(k kind) string {
	if k == kinds {
		return unservedURL
	}
	return k.url()
}

func newSpeaker(t *testing.T, protocol string) speaker {
	t.Helper()
	switch protocol {
	case "delta":
		return &deltaSpeaker{t: t}
	case "sotw":
		return &sotwSpeaker{t: t}
	default:
		t.Fatalf("%q is no protocol", protocol)
		return nil
	}
}

// replies are the answers that have come, and whether more can.
func replies[M interface{ GetTypeUrl() string }](in <-chan M, texts func(M) []string) (all []reply, alive bool) {
	for {
		select {
		case m, open := <-in:
			if !open {
				return all, false
			}
			k, _ := kindOf(m.GetTypeUrl())
			all = append(all, reply{k, plain(k, texts(m)), m})
		default:
			return all, true
		}
	}
}

// manners are what a client does with answers, for either protocol.
type manners struct {
	modes [kinds + 1]mode
	held  []reply
}

func (m *manners) set(k kind, now mode) (release []reply) {
	m.modes[k] = now
	if now == holds {
		return nil
	}
	of := func(r reply) bool { return r.kind == k }
	for _, r := range m.held {
		if of(r) {
			release = append(release, r)
		}
	}
	m.held = slices.DeleteFunc(m.held, of)
	return release
}

// deltaSpeaker keeps the versions of what it has, and says so on a new stream.
type deltaSpeaker struct {
	t    *testing.T
	d    *delta
	has  [kinds]map[string]string
	said [kinds + 1]bool // something, on this stream
	manners
}

func (c *deltaSpeaker) hello(s served) {
	c.d, c.said, c.held = newDelta(c.t, s.client()), [kinds + 1]bool{}, nil
}
func (c *deltaSpeaker) goodbye() { c.d.hangUp() }
func (c *deltaSpeaker) forget()  { c.has = [kinds]map[string]string{} }

func (c *deltaSpeaker) ask(k kind, names []string) {
	q := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: urlOf(k), ResourceNamesSubscribe: names}
	if !c.said[k] && k < kinds {
		q.InitialResourceVersions = c.has[k]
	}
	c.said[k] = true
	c.d.send(q)
}

func (c *deltaSpeaker) unask(k kind, names []string) {
	c.d.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: urlOf(k), ResourceNamesUnsubscribe: names})
}

func (c *deltaSpeaker) take() (all []reply, alive bool) { return replies(c.d.in, c.d.texts) }

func (c *deltaSpeaker) ack(r reply) {
	m := r.m.(*discoveryv3.DeltaDiscoveryResponse)
	switch c.modes[r.kind] {
	case holds:
		c.held = append(c.held, r)
	case refuses:
		c.nack(r)
	case accepts:
		if c.has[r.kind] == nil {
			c.has[r.kind] = make(map[string]string)
		}
		maps.Copy(c.has[r.kind], versions(m))
		for _, name := range m.GetRemovedResources() {
			delete(c.has[r.kind], name)
		}
		c.d.ack(m)
	}
}

func (c *deltaSpeaker) nack(r reply) { c.d.nack(r.m.(*discoveryv3.DeltaDiscoveryResponse), "refused") }

func (c *deltaSpeaker) mode(k kind, m mode) {
	for _, r := range c.set(k, m) {
		c.ack(r)
	}
}

// sotwSpeaker keeps which names it asks for, and which version it has.
type sotwSpeaker struct {
	t       *testing.T
	c       *sotw
	names   [kinds + 1][]string
	version [kinds + 1]string
	nonce   [kinds + 1]string
	manners
}

func (c *sotwSpeaker) hello(s served) {
	c.c, c.held = newSotw(c.t, s.client()), nil
	c.names, c.nonce = [kinds + 1][]string{}, [kinds + 1]string{}
}
func (c *sotwSpeaker) goodbye() { c.c.hangUp() }
func (c *sotwSpeaker) forget()  { c.version = [kinds + 1]string{} }

func (c *sotwSpeaker) ask(k kind, names []string) {
	for _, name := range names {
		if !slices.Contains(c.names[k], name) {
			c.names[k] = append(c.names[k], name)
		}
	}
	c.send(k, nil)
}

func (c *sotwSpeaker) unask(k kind, names []string) {
	c.names[k] = slices.DeleteFunc(c.names[k], func(n string) bool { return slices.Contains(names, n) })
	c.send(k, nil)
}

func (c *sotwSpeaker) send(k kind, refusal *status.Status) {
	q := &discoveryv3.DiscoveryRequest{TypeUrl: urlOf(k), ResourceNames: slices.Clone(c.names[k]), VersionInfo: c.version[k], ResponseNonce: c.nonce[k]}
	if refusal != nil {
		q.ErrorDetail = refusal.Proto()
	}
	c.c.send(q)
}

func (c *sotwSpeaker) take() (all []reply, alive bool) { return replies(c.c.in, c.c.texts) }

func (c *sotwSpeaker) ack(r reply) {
	m := r.m.(*discoveryv3.DiscoveryResponse)
	switch c.modes[r.kind] {
	case holds:
		c.held = append(c.held, r)
	case refuses:
		c.nack(r)
	case accepts:
		c.version[r.kind], c.nonce[r.kind] = m.GetVersionInfo(), m.GetNonce()
		c.send(r.kind, nil)
	}
}

func (c *sotwSpeaker) nack(r reply) {
	c.nonce[r.kind] = r.m.(*discoveryv3.DiscoveryResponse).GetNonce()
	c.send(r.kind, status.New(codes.InvalidArgument, "refused"))
}

func (c *sotwSpeaker) mode(k kind, m mode) {
	for _, r := range c.set(k, m) {
		c.ack(r)
	}
}
