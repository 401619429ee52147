package consul

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/consul/api"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestPicture: a picture is what the watcher would report of the same keys.
func TestPicture(t *testing.T) {
	pairs := api.KVPairs{
		{Key: "service/main/leader", Value: []byte("n1"), Session: "s1"},
		{Key: "service/main/members/n1", Value: []byte(`{"conn_url":"postgres://192.0.2.11:5432/postgres","role":"master","state":"running"}`), Session: "s1"},
		{Key: "service/main/members/n2", Value: []byte(`{"conn_url":"postgres://2001:db8::13:5432/postgres","role":"replica"}`), Session: "s2"},
		{Key: "service/other/leader", Value: []byte("x")},
	}
	authority, nodes, faults := Picture("service/main/", pairs)
	state := parseScope("service/main/", pairs)
	if d := cmp.Diff(state.authority, authority); d != "" {
		t.Errorf("authority (-watcher +picture):\n%s", d)
	}
	want := []topology.Node{{Name: "n1", Address: topology.Address{Host: "192.0.2.11", Port: 5432}}}
	if d := cmp.Diff(want, nodes); d != "" {
		t.Errorf("nodes (-want +got):\n%s", d)
	}
	text := []string{`service/main/members/n2: conn_url: "2001:db8::13:5432" is not host:port (an IPv6 address needs brackets)`}
	if d := cmp.Diff(text, faults); d != "" {
		t.Errorf("faults (-want +got):\n%s", d)
	}
	if authority.Leader != "n1" || authority.SessionAgrees != topology.Yes || len(authority.Members) != 2 {
		t.Errorf("authority is %+v", authority)
	}
}
