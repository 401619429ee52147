package render

import (
	"net/netip"
	"strings"
	"testing"
)

func TestCheckHAProxy(t *testing.T) {
	server := func(name, at string) Server { return Server{Name: name, Address: netip.MustParseAddrPort(at)} }
	at := []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:5000")}
	view := View{Clusters: []Cluster{{Name: "main", Pools: []Pool{
		{Cluster: "main", Name: "primary", Servers: []Server{server("n1", "10.0.0.1:5432"), server("n6", "[fd00::6]:5432")}},
		{Cluster: "main", Name: "reports", Servers: []Server{server("n1", "10.0.0.1:6432")}},
		{Cluster: "main", Name: "sync", Listen: at, Servers: []Server{server("n3", "10.0.0.3:5432")}},
		{Cluster: "main", Name: "async", Listen: at, Servers: []Server{server("n3", "10.0.0.3:5432")}},
		{Cluster: "main", Name: "twins", Listen: at, Servers: []Server{server("n4", "10.0.0.4:5432"), server("n5", "10.0.0.4:5432")}},
		{Cluster: "main", Name: "unreached", Servers: []Server{server("n3", "10.0.0.3:5432")}},
	}}}}
	const whole = "frontend f\n bind 127.0.0.1:5000\nbackend b\n server n1 10.0.0.1:5432\n server n6 [fd00::6]:5432 check\n" +
		"backend r\n server n1 10.0.0.1:6432\nbackend s\n server n3 10.0.0.3:5432\nbackend a\n server n3 10.0.0.3:5432\n" +
		"backend t\n server n4 10.0.0.4:5432\n server n5 10.0.0.4:5432\n"
	for _, c := range []struct{ name, text, fault string }{
		{"whole", whole, ""},
		{"cut in the middle of a line", whole[:len(whole)-3], "does not end"},
		{"cut after a line", whole[:strings.Index(whole, "backend r")], "pool main/reports lacks its node n1 at 10.0.0.1:6432"},
		{"without a server", strings.Replace(whole, "server n6", "# server n6", 1), "pool main/primary lacks its node n6 at [fd00::6]:5432"},
		{"a longer port is another one", strings.Replace(whole, ":6432", ":64320", 1), "lacks its node n1"},
		{"a pool of the same nodes", strings.Replace(whole, "backend a\n server n3 10.0.0.3:5432\n", "", 1), "pools main/sync, main/async have a listen and a node at 10.0.0.3:5432, which stands in no more than 1 of its sections"},
		{"a pool in another's section", strings.Replace(whole, "backend a\n", "", 1), "a pool is missing"},
		{"without a listener", strings.Replace(whole, "bind", "#bind", 1), "no bind"},
		{"a listen with its address", "listen f 127.0.0.1:5000\n" + whole[strings.Index(whole, "backend b"):], ""},
	} {
		err := CheckHAProxy([]byte(c.text), view)
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %v, want %q", c.name, err, c.fault)
		}
	}
}
