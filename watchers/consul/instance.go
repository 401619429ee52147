package consul

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
)

// NodeNames says what the node of a service's instance is called.
type NodeNames string

// The ways to name nodes.
const (
	NamedByNode NodeNames = "node" // as the Consul node that it runs on
	NamedByID   NodeNames = "id"   // as the instance, whose name is its ID up from the last slash: Patroni registers SCOPE/NAME
	NamedByMeta NodeNames = "meta" // as its metadata says under "node"
)

// instances are what a query of the catalog is reduced to, in the order of their
// Consul nodes and IDs.
type instances []instance

// instance is one instance of a service.
type instance struct {
	node, id string
	address  string // the instance's own, else its node's
	port     int
	tags     []string
	meta     map[string]string
}

func reduceInstances(all []*api.CatalogService) instances {
	out := make(instances, 0, len(all))
	for _, s := range all {
		tags := slices.Sorted(slices.Values(s.ServiceTags))
		out = append(out, instance{
			node: s.Node, id: s.ServiceID, address: cmp.Or(s.ServiceAddress, s.Address), port: s.ServicePort,
			tags: tags, meta: s.ServiceMeta,
		})
	}
	slices.SortFunc(out, func(a, b instance) int {
		return cmp.Or(strings.Compare(a.node, b.node), strings.Compare(a.id, b.id))
	})
	return out
}

func (in instances) equal(other instances) bool {
	return slices.EqualFunc(in, other, func(a, b instance) bool {
		return a.node == b.node && a.id == b.id && a.address == b.address && a.port == b.port &&
			slices.Equal(a.tags, b.tags) && maps.Equal(a.meta, b.meta)
	})
}

func (in instance) String() string { return in.id + " on " + in.node }

// nodes makes nodes of instances. One that cannot be a node is left out and
// disturbs no other.
func (c *Catalog) nodes(all instances) (nodes []topology.Node, faults []fault) {
	type named struct {
		topology.Node
		of instance
	}
	var usable []named
	for _, in := range all {
		if c.o.Tag != "" && !slices.Contains(in.tags, c.o.Tag) {
			continue
		}
		n, errs := in.asNode(c.o.NodeNames)
		for _, err := range errs {
			faults = append(faults, fault{key: in.String(), err: err.Error()})
		}
		if n.Name != "" && !n.Address.IsZero() {
			usable = append(usable, named{n, in})
		}
	}
	pick := choice[named]{
		key:  func(n named) string { return strings.ToLower(n.Name) },
		name: func(n named) string { return n.Name },
		rank: func(name string) int {
			if slices.ContainsFunc(c.before, func(b topology.Node) bool { return b.Name == name }) {
				return 0
			}
			return 1
		},
		out: func(n, kept named) {
			faults = append(faults, fault{n.of.String(), "its node would be called " + n.Name + ", as that of " + kept.of.String() + " is (case does not count)"})
		},
	}
	usable = oneOfEach(usable, pick)
	pick.key = func(n named) string { return n.Address.String() }
	pick.out = func(n, kept named) {
		faults = append(faults, fault{n.of.String(), "it has the address of " + kept.of.String() + ", and one server cannot be two nodes"})
	}
	for _, n := range oneOfEach(usable, pick) {
		nodes = append(nodes, n.Node)
	}
	slices.SortFunc(nodes, func(a, b topology.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, faults
}

// asNode makes a node of an instance; without a name or an address it is none.
func (in instance) asNode(names NodeNames) (topology.Node, []error) {
	var faults faultList
	name := in.node
	switch names {
	case NamedByNode:
	case NamedByID:
		name = in.id[strings.LastIndexByte(in.id, '/')+1:]
	case NamedByMeta:
		name = in.meta["node"]
	}
	n := topology.Node{Name: LegalName(name), Tags: in.tagged()}
	switch {
	case name == "":
		faults.add("it has no name of a node (%s)", names)
	case n.Name != name:
		faults.add("name %q cannot be used in balancers and is called %s here", watchers.Clip(name), n.Name)
	}
	if in.port < 0 || in.port > 1<<16-1 {
		faults.add("port %d is none", in.port)
		return n, faults
	}
	n.Address = faults.server(topology.Address{Host: in.address, Port: uint16(in.port)}, "address")
	return n, faults
}

// tagged makes tags of an instance's tags and metadata: "reports" is reports:
// true, "zone=a" is zone: a, and the metadata wins. Words for roles are left
// out, as Patroni writes them: they change with each switchover, while a node's
// tags are settings.
func (in instance) tagged() map[string]string {
	out := make(map[string]string, len(in.tags)+len(in.meta))
	for _, tag := range in.tags {
		key, value, ok := strings.Cut(tag, "=")
		if !ok {
			value = "true"
		}
		if key != "" && !slices.Contains(roleTags(), strings.ToLower(tag)) {
			out[key] = value
		}
	}
	maps.Copy(out, in.meta)
	if len(out) == 0 {
		return nil
	}
	return out
}

// roleTags are the tags that Patroni's registration and pgsteer's own write for
// roles.
func roleTags() []string {
	return []string{
		"primary", "master", "replica", "standby-leader", "sync", "async", "quorum", "promoted", "demoted", "uninitialized",
	}
}
