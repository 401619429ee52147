package consul

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// instanceCase is what becomes of instances, after a list that had the nodes before.
type instanceCase struct {
	name   string
	o      CatalogOptions
	before []topology.Node
	in     []*api.CatalogService
	want   string
	faults string // parts of them, by bars
}

func instanceCases() []instanceCase {
	at := func(node, id, address string, port int) *api.CatalogService {
		return &api.CatalogService{Node: node, Address: "192.0.2.1", ServiceID: id, ServiceAddress: address, ServicePort: port}
	}
	with := func(s *api.CatalogService, meta map[string]string, tags ...string) *api.CatalogService {
		s.ServiceMeta, s.ServiceTags = meta, tags
		return s
	}
	return []instanceCase{
		{"the node's address", CatalogOptions{}, nil, []*api.CatalogService{at("db1", "pg", "", 5433)}, "db1=192.0.2.1:5433", ""},
		{"the instance's address", CatalogOptions{}, nil, []*api.CatalogService{at("db1", "pg", "192.0.2.9", 5433)}, "db1=192.0.2.9:5433", ""},
		{"no port", CatalogOptions{}, nil, []*api.CatalogService{at("db1", "pg", "192.0.2.9", 0)}, "db1=192.0.2.9:5432", ""},
		{"a name", CatalogOptions{}, nil, []*api.CatalogService{at("db1", "pg", "db1.example", 5432)}, "db1=db1.example:5432", ""},
		{"IPv6", CatalogOptions{}, nil, []*api.CatalogService{at("db1", "pg", "2001:DB8:0::12", 5432)}, "db1=[2001:db8::12]:5432", ""},
		{"IPv4 in IPv6", CatalogOptions{}, nil, []*api.CatalogService{at("db1", "pg", "::ffff:192.0.2.7", 5432)}, "db1=192.0.2.7:5432", ""},
		{"no address", CatalogOptions{}, nil, []*api.CatalogService{at("db1", "pg", "0.0.0.0", 5432), at("db2", "pg", "a b", 5432), at("db3", "pg", "192.0.2.3", 70000)}, "", "every interface|DNS name|port 70000"},
		{"by ID", CatalogOptions{NodeNames: NamedByID}, nil, []*api.CatalogService{at("db1", "main/n1", "192.0.2.1", 1), at("db1", "n2", "192.0.2.1", 2)}, "n1=192.0.2.1:1 n2=192.0.2.1:2", ""},
		{"by metadata", CatalogOptions{NodeNames: NamedByMeta}, nil, []*api.CatalogService{
			with(at("db1", "pg", "192.0.2.1", 1), map[string]string{"node": "n1"}), at("db1", "other", "192.0.2.1", 2),
		}, "n1=192.0.2.1:1,node:n1", "no name of a node (meta)"},
		{"an illegal name", CatalogOptions{NodeNames: NamedByID}, nil, []*api.CatalogService{at("db1", "a b", "192.0.2.1", 1)}, LegalName("a b") + "=192.0.2.1:1", "cannot be used in balancers"},
		{"tags and metadata", CatalogOptions{}, nil, []*api.CatalogService{
			with(at("db1", "pg", "", 1), map[string]string{"zone": "b"}, "zone=a", "reports", "Primary", "=", "x="),
		}, "db1=192.0.2.1:1,reports:true,x:,zone:b", ""},
		{"one tag", CatalogOptions{Tag: "main"}, nil, []*api.CatalogService{
			with(at("db1", "pg", "", 1), nil, "main"), with(at("db2", "pg", "192.0.2.2", 1), nil, "other"), at("db3", "pg", "192.0.2.3", 1),
		}, "db1=192.0.2.1:1,main:true", ""},
		{"one name twice", CatalogOptions{}, nil, []*api.CatalogService{at("db1", "b", "", 2), at("db1", "a", "", 1)}, "db1=192.0.2.1:1", "as that of a on db1 is"},
		{"names that differ by case", CatalogOptions{}, []topology.Node{{Name: "db1"}}, []*api.CatalogService{at("DB1", "a", "", 1), at("db1", "a", "", 2)}, "db1=192.0.2.1:2", "case does not count"},
		{"one address twice", CatalogOptions{}, []topology.Node{{Name: "db2"}}, []*api.CatalogService{at("db1", "a", "", 1), at("db2", "a", "", 1)}, "db2=192.0.2.1:1", "has the address of a on db2"},
	}
}

func TestNodesOfInstances(t *testing.T) {
	for _, c := range instanceCases() {
		t.Run(c.name, func(t *testing.T) {
			for range 2 { // in either order
				slices.Reverse(c.in)
				source := &Catalog{o: c.o, before: c.before}
				nodes, faults := source.nodes(reduceInstances(c.in))
				got := ""
				if len(nodes) > 0 {
					got = listed(topology.Observation{Nodes: &topology.NodeList{Nodes: nodes}})
				}
				if got != c.want {
					t.Errorf("nodes %q, want %q", got, c.want)
				}
				var texts []string
				for _, f := range faults {
					texts = append(texts, f.key+": "+f.err)
				}
				want := strings.FieldsFunc(c.faults, func(r rune) bool { return r == '|' })
				if len(texts) != len(want) {
					t.Fatalf("faults %q, want %q", texts, want)
				}
				for i, text := range texts {
					if !strings.Contains(text, want[i]) {
						t.Errorf("fault %q, want %q in it", text, want[i])
					}
				}
			}
		})
	}
}

func TestInstancesEqual(t *testing.T) {
	base := func() *api.CatalogService {
		return &api.CatalogService{Node: "n", ServiceID: "i", Address: "a", ServicePort: 1, ServiceTags: []string{"x", "y"}, ServiceMeta: map[string]string{"k": "v"}}
	}
	got := map[string]bool{}
	for name, change := range map[string]func(*api.CatalogService){
		"nothing":           func(*api.CatalogService) {},
		"the order of tags": func(s *api.CatalogService) { s.ServiceTags = []string{"y", "x"} },
		"an index":          func(s *api.CatalogService) { s.ModifyIndex++ },
		"the Consul node":   func(s *api.CatalogService) { s.Node = "m" },
		"the ID":            func(s *api.CatalogService) { s.ServiceID = "j" },
		"the address":       func(s *api.CatalogService) { s.ServiceAddress = "b" },
		"the port":          func(s *api.CatalogService) { s.ServicePort = 2 },
		"a tag":             func(s *api.CatalogService) { s.ServiceTags = []string{"x", "z"} },
		"the metadata":      func(s *api.CatalogService) { s.ServiceMeta["k"] = "w" },
	} {
		s := base()
		change(s)
		got[name] = reduceInstances([]*api.CatalogService{base()}).equal(reduceInstances([]*api.CatalogService{s}))
	}
	want := map[string]bool{
		"nothing": true, "the order of tags": true, "an index": true,
		"the Consul node": false, "the ID": false, "the address": false, "the port": false, "a tag": false, "the metadata": false,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("equal after a change of (-want +got):\n%s", diff)
	}
}
