package config

import (
	"testing"
)

func TestPatroniREST(t *testing.T) {
	c, err := Parse("t", []byte(`
clusters:
  main:
    authority: patroni
    patroni:
      source: rest
      scope: prod
      endpoints: ["https://10.0.0.1:8008", "https://[fd00::2]:8008/"]
      ca_file: /etc/ca.pem
      cert_file: /etc/a.pem
      key_file: /etc/a.key
      server_name: patroni.example
`))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, Patroni{
		Source: SourceREST, Scope: "prod", Namespace: "service",
		Endpoints: []string{"https://10.0.0.1:8008", "https://[fd00::2]:8008/"},
		CAFile:    "/etc/ca.pem", CertFile: "/etc/a.pem", KeyFile: "/etc/a.key", ServerName: "patroni.example",
	}, c.Clusters[0].Patroni)
	if c.UsesConsul() {
		t.Error("a configuration without a cluster in Consul uses Consul")
	}
}

// Two clusters of one scope are two clusters where no key is read.
func TestPatroniRESTSameScope(t *testing.T) {
	text := `
clusters:
  a: {authority: patroni, patroni: {source: rest, scope: prod, endpoints: ["http://10.0.0.1:8008"]}}
  b: {authority: patroni, patroni: {source: rest, scope: prod, endpoints: ["http://10.0.0.2:8008"]}}
  c: {authority: patroni, patroni: {scope: prod}}
`
	c, err := Parse("t", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if !c.UsesConsul() {
		t.Error("the third cluster needs Consul")
	}
}
