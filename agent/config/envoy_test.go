package config

import "testing"

// Where Envoy asks about nodes, and where its files are.
func TestEnvoyPlaces(t *testing.T) {
	const clusters = "clusters: {main: {nodes: {n1: 10.0.0.1:5432}}}\n"
	for text, want := range map[string]ListenAddress{
		"":                                      "127.0.0.1:7432",
		"listen: {health: \"10.0.0.9:7000\"}\n": "10.0.0.9:7000",
		"envoy: {check_address: 10.0.0.8:9000}\n": "10.0.0.8:9000",
	} {
		c, err := Parse("/etc/pgsteer/pgsteer.yaml", []byte(text+clusters))
		if err != nil {
			t.Fatal(err)
		}
		compare(t, want, c.Checks())
	}
	c, err := Parse("/etc/pgsteer/pgsteer.yaml", []byte("envoy: {files: envoy}\n"+clusters))
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "/etc/pgsteer/envoy", c.Envoy.Files)
	for address, want := range map[ListenAddress]bool{"": false, "0.0.0.0:1": false, "[::]:1": false, "127.0.0.1:0": false, "db:1": false, "[::1]:1": true} {
		if got := reachable(address); got != want {
			t.Errorf("%q: %t, want %t", address, got, want)
		}
	}
}
