package doctor

import (
	"context"
	"net"
	"strings"
	"testing"
)

// free is an address of loopback at which nobody listens.
func free(t *testing.T) (string, net.Listener) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().String(), l
}

func TestRefuse(t *testing.T) {
	at, taken := free(t)
	pool := func(refuse, more string) Options {
		return options(t, more+"\nclusters: {main: {nodes: {n1: 10.0.0.1:5432}, pools: {primary: {mode: write, listen: \"127.0.0.1:5000\", refuse: \""+refuse+"\"}}}}")
	}
	const (
		haproxy = `templates: [{name: lb, files: [{builtin: haproxy, destination: /x/h.cfg}], check: [haproxy, -c, -f, "{{.Staged}}"], reload: ["true"]}]`
		other   = `templates: [{name: lb, clusters: [b], files: [{builtin: haproxy, destination: /x/h.cfg}], check: [haproxy, -c, -f, "{{.Staged}}"], reload: ["true"]}]`
		noXDS   = "\nlisten: {xds: off}"
		near    = "\nlisten: {xds: \"127.0.0.1:7434\"}"
		far     = "\nlisten: {xds: \"0.0.0.0:7434\"}"
	)
	row := "pool main/primary " + at + ": "
	got := of(t, "refuse", pool(at, haproxy+noXDS))
	if len(got) != 1 || !strings.HasPrefix(got[0], "FAIL "+row) || !strings.Contains(got[0], "in use") {
		t.Errorf("a port that another program has: %q", got)
	}
	own := pool(at, haproxy+noXDS)
	own.Agent = func(context.Context) *Agent { return &Agent{Listeners: map[string]string{"refusal main/primary": at}} }
	same(t, of(t, "refuse", own), "OK "+row+"the running agent's own; templates are told of it; balancers of this host alone reach it")
	_, port, _ := net.SplitHostPort(at)
	own.Agent = func(context.Context) *Agent {
		return &Agent{Listeners: map[string]string{"status": "127.0.0.2:" + port}}
	}
	if got := of(t, "refuse", own); !strings.HasPrefix(got[0], "FAIL ") {
		t.Errorf("the agent has the port at another address: %q", got)
	}
	own.Agent = func(context.Context) *Agent { return &Agent{Silent: context.DeadlineExceeded} }
	same(t, of(t, "refuse", own))
	_ = taken.Close()
	for _, tt := range []struct{ more, want string }{
		{haproxy + noXDS, "OK " + row + "can be bound; templates are told of it; balancers of this host alone reach it"},
		{haproxy + near, "OK " + row + "can be bound; templates and Envoys are told of it; balancers of this host alone reach it"},
		{haproxy + far, "WARN " + row + "listen.xds 0.0.0.0:7434 may serve Envoys of other hosts, and for those this address is their own host: their clients see a closed connection"},
		{noXDS, "WARN " + row + "no balancer is told of it: no template renders cluster main, and listen.xds is off"},
	} {
		same(t, of(t, "refuse", pool(at, tt.more)), tt.want)
	}
	// A template of another cluster tells nobody.
	o := options(t, other+noXDS+"\nclusters: {b: {nodes: {n1: 10.0.0.2:5432}}, main: {nodes: {n1: 10.0.0.1:5432}, pools: {primary: {mode: write, listen: \"127.0.0.1:5000\", refuse: \""+at+"\"}}}}")
	if got := of(t, "refuse", o); len(got) != 1 || !strings.HasPrefix(got[0], "WARN "+row+"no balancer is told") {
		t.Errorf("%q", got)
	}
	// Nor does one for a PgBouncer, which takes sessions before a balancer does.
	bouncing := "pgbouncers: [{name: edge, address: 10.0.0.5:6432, databases: [{name: app, pool: main/primary}]}]\ntemplates: [{name: edge, roles: true, pgbouncer: edge, files: [{builtin: pgbouncer, destination: /x/pgb.ini}]}]"
	if got := of(t, "refuse", pool(at, bouncing+noXDS)); len(got) != 1 || !strings.HasPrefix(got[0], "WARN "+row+"no balancer is told") {
		t.Errorf("%q", got)
	}
	got = of(t, "refuse", pool("192.0.2.1:7441", haproxy+noXDS))
	if len(got) != 1 || !strings.HasPrefix(got[0], "FAIL pool main/primary 192.0.2.1:7441: ") {
		t.Errorf("an address that this host has not: %q", got)
	}
	same(t, of(t, "refuse", options(t, "")))
}

// TestRefuseBeyondLoopback: an address of this host that others can reach is good for
// Envoys of other hosts.
func TestRefuseBeyondLoopback(t *testing.T) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		n, is := a.(*net.IPNet)
		if !is || !n.IP.IsGlobalUnicast() || n.IP.IsLoopback() {
			continue
		}
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(n.IP.String(), "0"))
		if err != nil {
			continue
		}
		at := l.Addr().String()
		_ = l.Close()
		o := options(t, "listen: {xds: \"0.0.0.0:7434\"}\nclusters: {main: {nodes: {n1: 10.0.0.1:5432}, pools: {primary: {mode: write, listen: \"127.0.0.1:5000\", refuse: \""+at+"\"}}}}")
		same(t, of(t, "refuse", o), "OK pool main/primary "+at+": can be bound; Envoys are told of it; balancers of other hosts need a way to it")
		return
	}
	t.Skip("this host has no address beyond loopback")
}
