package e2e

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/internal/lab"
	"github.com/pgsteer/pgsteer/internal/lab/labtest"
)

// TestMeshPublisher: Consul's DNS names the primary of a real cluster. The program
// that publishes is killed, the primary moves while nobody publishes, and the other
// agent tells DNS within twice the session's TTL; a later move is told at once.
func TestMeshPublisher(t *testing.T) {
	t.Parallel()
	labtest.Need(t, lab.NeedConsul)
	const ttl = 10 * time.Second
	program := buildProgram(t)
	var consul *lab.Consul
	var p *process
	f := newFront(t, frontOptions{external: func(f *front) {
		var err error
		consul, err = f.lab.ConsulWith(t.Context(), lab.ConsulOptions{DNS: true})
		f.do(err)
		f.o.top = fmt.Sprintf("consul: {address: \"http://%s\"}\nmesh: {mode: external}\n", consul.Addr())
		f.writeConfig()
		p = f.run(program)
	}})
	dns := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, consul.DNSAddr())
	}}
	// The nodes differ by their ports alone.
	named := func(name, node string) func() bool {
		_, port, _ := net.SplitHostPort(f.node(node).Addr())
		return func() bool {
			_, srv, _ := dns.LookupSRV(t.Context(), "", "", name+".main.service.consul.") // an error is no server
			return len(srv) == 1 && strconv.Itoa(int(srv[0].Port)) == port
		}
	}
	took := f.until("n1 by DNS", named("primary", "n1"))
	t.Logf("n1 is the primary by DNS %s after the start of the program", took)

	other := newRigIn(t, f.lab, "other")
	other.configure("%s", f.config())
	other.up()
	other.until("the name of the publisher", func() bool {
		return other.sink("mesh main").Gauges["publisher"] == 0 && other.sink("mesh main").Detail != ""
	})
	p.kill()
	killed := time.Now()
	f.switchover("n2")
	other.is("main", "primary", "n2", topology.Up, topology.CodeWriter)
	other.during(3*time.Second, "nobody publishes", func() bool { return named("primary", "n1")() })
	other.within(2*ttl, "n2 by DNS", named("primary", "n2"))
	took = time.Since(killed)
	t.Logf("n2 is the primary by DNS %s after the publisher was killed; twice the TTL is %s", took, 2*ttl)
	if took > 2*ttl+500*time.Millisecond {
		t.Error("that is more than twice the TTL and a round trip")
	}

	tl := f.switchover("n1")
	other.until("n1 by DNS", named("primary", "n1"))
	t.Logf("n1 is the primary by DNS %s after it took writes", time.Since(tl.NewWritable))
}
