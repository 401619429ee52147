package config

import "testing"

func TestConsulService(t *testing.T) {
	c, err := Parse("t", []byte(`
consul: {namespace: team, partition: az1}
local: main/n1
clusters:
  main: {consul_service: {name: pg, tag: main, node_names: id}, pools: {replica: {weights: {n9: 50}}}}
  other: {consul_service: {name: pg}}
`))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, ConsulService{Name: "pg", Tag: "main", NodeNames: NamedByID}, c.Clusters[0].ConsulService)
	compare(t, ConsulService{Name: "pg", NodeNames: NamedByNode}, c.Clusters[1].ConsulService)
	compare(t, [2]string{"team", "az1"}, [2]string{c.Consul.Namespace, c.Consul.Partition})
	if !c.UsesConsul() {
		t.Error("nodes out of Consul do not use Consul")
	}
	c.Clusters = c.Clusters[:1]
	c.Clusters[0].ConsulService.Name, c.Clusters[0].Inventory = "", "nodes.yaml"
	if c.UsesConsul() {
		t.Error("a cluster of an inventory uses Consul")
	}
}

// Each group of a Citus cluster is a cluster of its own, with keys of its own.
func TestCitusGroups(t *testing.T) {
	c, err := Parse("t", []byte(`
clusters:
  coordinator: {authority: patroni, patroni: {scope: demo, group: 0}}
  worker: {authority: patroni, patroni: {scope: demo, group: 12, namespace: /db/}}
  plain: {authority: patroni, patroni: {scope: demo}}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, cl := range c.Clusters {
		got = append(got, cl.Patroni.KeyScope()+" "+cl.Patroni.KeyPrefix())
	}
	compare(t, []string{"demo/0 service/demo/0/", "demo/12 db/demo/12/", "demo service/demo/"}, got)
}
