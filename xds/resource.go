package xds

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	resourcev3 "github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/pgsteer/pgsteer/xds/resources"
)

// kind is a type of resource, in the order in which additions are sent.
type kind int

const (
	kindCluster kind = iota
	kindEndpoint
	kindListener
	kinds // how many there are
)

func (k kind) url() string {
	return [kinds]string{resourcev3.ClusterType, resourcev3.EndpointType, resourcev3.ListenerType}[k]
}

// whole reports whether a state-of-the-world answer must hold everything: what
// such a list lacks is deleted.
func (k kind) whole() bool { return k != kindEndpoint }

func (k kind) String() string { return [kinds]string{"CDS", "EDS", "LDS"}[k] }

func kindOf(url string) (kind, bool) {
	for k := range kinds {
		if k.url() == url {
			return k, true
		}
	}
	return 0, false
}

// resource is one resource as it goes over the wire, shared by all streams and
// never changed.
type resource struct {
	name    string
	version string // hash of the bytes
	sum     uint64 // hash of name and content, for the version of the whole type
	wire    *discoveryv3.Resource
	// zones has what clients of a zone get instead; see resources.Assignment.
	zones map[string]*resource
}

// in is the resource for a client of a zone.
func (r *resource) in(zone string) *resource {
	if r != nil && r.zones[zone] != nil {
		return r.zones[zone]
	}
	return r
}

func newResource(k kind, name string, m proto.Message) (*resource, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding %s %s: %w", k, name, err)
	}
	return resourceOf(k, name, b), nil
}

// resourceOf is the resource whose content is b.
func resourceOf(k kind, name string, b []byte) *resource {
	sum := sha256.Sum256(b)
	version := hex.EncodeToString(sum[:8])
	mark := sha256.Sum256([]byte(name + "\x00" + version))
	return &resource{
		name: name, version: version, sum: binary.BigEndian.Uint64(mark[:]),
		wire: &discoveryv3.Resource{Name: name, Version: version, Resource: &anypb.Any{TypeUrl: k.url(), Value: b}},
	}
}

// addZones adds what clients of zones get, while nobody else has the resource.
func (r *resource) addZones(zones map[string]*endpointv3.ClusterLoadAssignment) error {
	if len(zones) == 0 {
		return nil
	}
	r.zones = make(map[string]*resource, len(zones))
	for zone, a := range zones {
		z, err := newResource(kindEndpoint, r.name, a)
		if err != nil {
			return err
		}
		r.zones[zone] = z
		mark := sha256.Sum256([]byte(zone + "\x00" + z.version))
		r.sum ^= binary.BigEndian.Uint64(mark[:])
	}
	return nil
}

// renamed is the assignment of a pool under another name: a client that asks by
// the name of an older pgsteer must not find the pool empty.
func renamed(r *resource, name string) (*resource, error) {
	a := resources.NoEndpoints(name)
	if r != nil {
		if err := proto.Unmarshal(r.wire.GetResource().GetValue(), a); err != nil {
			return nil, fmt.Errorf("decoding %s: %w", r.name, err)
		}
		a.ClusterName = name
	}
	return newResource(kindEndpoint, name, a)
}

// encoded is a Set on the wire.
type encoded [kinds]map[string]*resource

func encode(set resources.Set) (*encoded, error) {
	var e encoded
	for k := range kinds {
		e[k] = make(map[string]*resource)
	}
	put := func(k kind, name string, m proto.Message) error {
		r, err := newResource(k, name, m)
		e[k][name] = r
		return err
	}
	for _, c := range set.Clusters {
		if err := put(kindCluster, c.GetName(), c); err != nil {
			return nil, err
		}
	}
	assign := func(a resources.Assignment) error {
		err := put(kindEndpoint, a.GetClusterName(), a.ClusterLoadAssignment)
		if err != nil {
			return err
		}
		return e[kindEndpoint][a.GetClusterName()].addZones(a.Zones)
	}
	for _, a := range set.Endpoints {
		if err := assign(a); err != nil {
			return nil, err
		}
	}
	for _, l := range set.Listeners {
		if err := put(kindListener, l.GetName(), l); err != nil {
			return nil, err
		}
	}
	for _, api := range set.APIs {
		name := api.Listener.GetName()
		if err := errors.Join(put(kindCluster, name, api.Cluster), assign(api.Endpoints), put(kindListener, name, api.Listener)); err != nil {
			return nil, err
		}
	}
	return &e, nil
}

// keep takes over from an older set what belongs to withheld pools.
func (e *encoded) keep(old *encoded, withheld []string) {
	if old == nil {
		return
	}
	for k := range kinds {
		for name, r := range old[k] {
			if slices.Contains(withheld, poolOf(name)) {
				e[k][name] = r
			}
		}
	}
}

// poolOf cuts the hash off a name of endpoints: main/primary@0123 and the names
// of other kinds all give main/primary.
func poolOf(name string) string {
	pool, _, _ := strings.Cut(name, "@")
	return pool
}

// named reports whether a resource is served only to those who ask for it by name.
func named(name string) bool { return resources.IsAPI(name) }

// clusterOf is the cluster that a resource belongs to.
func clusterOf(name string) string {
	cluster, _, _ := strings.Cut(name, "/")
	return cluster
}
