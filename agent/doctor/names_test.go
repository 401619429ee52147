package doctor

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func TestNames(t *testing.T) {
	o := options(t, `clusters:
  a: {nodes: {n1: 10.0.0.1:5432, n2: db2:5432}}
  b: {authority: pg_auto_failover, pg_auto_failover: {monitors: ["mon:5432", "[::1]:5432"]}}`)
	same(t, of(t, "names", o)) // nobody resolves
	lookup := func(found map[string]string, err error) {
		o.Lookup = func(_ context.Context, host string) ([]netip.Addr, error) {
			if at := found[host]; at != "" {
				return []netip.Addr{netip.MustParseAddr(at), netip.MustParseAddr("::ffff:" + at), netip.MustParseAddr("10.9.9.9")}[:1+len(found)/2], nil
			}
			return nil, err
		}
	}
	lookup(map[string]string{"db2": "10.0.0.2", "mon": "10.0.0.3"}, nil)
	same(t, of(t, "names", o), "OK a/n2 db2: 10.0.0.2; one of them is used", "OK cluster b, monitor mon: 10.0.0.3; one of them is used")
	lookup(map[string]string{"db2": "10.0.0.2"}, &net.DNSError{Err: "no such host", Name: "mon", IsNotFound: true})
	same(t, of(t, "names", o), "OK a/n2 db2: 10.0.0.2", "FAIL cluster b, monitor mon: there is no such name")
	lookup(nil, nil)
	same(t, of(t, "names", o), "FAIL a/n2 db2: there is no such name", "FAIL cluster b, monitor mon: there is no such name")
	lookup(nil, errors.New("the resolver is away"))
	same(t, of(t, "names", o), "WARN a/n2 db2: the resolver is away", "WARN cluster b, monitor mon: the resolver is away")
	// What the running agent has resolved goes by its name.
	o.Agent = func(context.Context) *Agent {
		return &Agent{Nodes: map[string][]topology.Node{"b": {{Name: "n1", HostName: "db7", Address: topology.Address{Host: "10.0.0.7", Port: 1}}}}}
	}
	lookup(map[string]string{"db7": "10.0.0.7"}, errors.New("x"))
	same(t, of(t, "names", o), "WARN a/n2 db2: x", "OK b/n1 db7: 10.0.0.7", "WARN cluster b, monitor mon: x")
}
