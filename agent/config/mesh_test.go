package config

import (
	"fmt"
	"testing"
	"time"
)

// What is published of a file, under which name, and which node is on this host.
func TestPublished(t *testing.T) {
	const clusters = `
clusters:
  main: {nodes: {n1: 10.0.0.1:5432}}
  Other.eu: {nodes: {n1: 10.0.1.1:5432}, mesh: {service: other-eu, node: n1, tags: [gold], write_pool: primary, read_pool: replica}}
  third: {nodes: {n1: 10.0.2.1:5432}, mesh: {publish: false}}
`
	for text, want := range map[string]string{
		"": "",
		"mesh: {mode: local, tags: [blue], sidecar: true}\nlocal: main/n1\n": "main=main(n1) Other.eu=other-eu(n1) ",
		"mesh: {mode: local, when_dead: stay}\nlocal: main/n1\n":             "main=main(n1) Other.eu=other-eu(n1) ",
	} {
		yaml := text + clusters
		if text == "" {
			yaml = "clusters: {main: {nodes: {n1: 10.0.0.1:5432}}}"
		}
		c, err := Parse("pgsteer.yaml", []byte(yaml))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, cl := range c.Published() {
			got += fmt.Sprintf("%s=%s(%s) ", cl.Name, cl.MeshService(), c.MeshNode(cl))
		}
		if got != want || c.UsesConsul() != (want != "") {
			t.Errorf("%q publishes %q, want %q; uses Consul: %t", text, got, want, c.UsesConsul())
		}
		if c.Mesh.SessionTTL != 10*time.Second || c.Mesh.Key != "pgsteer/mesh" {
			t.Errorf("defaults are %+v", c.Mesh)
		}
	}
}
