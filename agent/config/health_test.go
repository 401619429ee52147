package config

import "testing"

func TestParseHealth(t *testing.T) {
	c, err := Parse("/etc/pgsteer/pgsteer.yaml", []byte(`
listen:
  health: off
  health_tls: {address: "[::1]:7442", cert_file: a.pem, key_file: a.key, client_ca_file: /ca.pem}
health: {compat: patroni4, drain_status: not_found}
clusters: {main: {nodes: {n1: 10.0.0.1:5432}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, TLSListener{Address: "[::1]:7442", CertFile: "/etc/pgsteer/a.pem", KeyFile: "/etc/pgsteer/a.key", ClientCAFile: "/ca.pem"}, c.Listen.HealthTLS)
	compare(t, Health{Compat: HealthPatroni4, DrainStatus: DrainNotFound}, c.Health)
	compare(t, Health{Compat: HealthStrict, DrainStatus: DrainUnavailable}, Default().Health)
}
