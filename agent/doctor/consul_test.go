package doctor

import (
	"strings"
	"testing"
)

// Where Consul is configured, records in a file are a warning: other agents do not obey.
func TestMaintenanceStore(t *testing.T) {
	const alone = "WARN : in a file of this agent alone, although Consul is configured: other agents go on serving a node that is taken out here"
	for yaml, want := range map[string]string{
		"":                                     "",
		"maintenance: {store: file}":           "",
		"consul: {address: \"http://c:8500\"}": alone,
		"clusters: {a: {authority: patroni}}":  alone,
		"mesh: {mode: external}":               alone,
		"consul: {token_file: t}\nmaintenance: {store: consul, key: k}":     "OK : in Consul's key k, which all agents obey that have it",
		"clusters: {a: {authority: patroni}}\nmaintenance: {store: consul}": "OK : in Consul's key pgsteer/maintenance, which all agents obey that have it",
	} {
		if got := strings.Join(of(t, "maintenance-store", options(t, yaml)), "|"); got != want {
			t.Errorf("%q: %q, want %q", yaml, got, want)
		}
	}
}
