package builtin_test

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/templates/render"
)

// say is a verdict on whichever node it is given to.
func say(v topology.Verdict, weight int, code topology.Code) topology.NodeVerdict {
	return topology.NodeVerdict{Verdict: v, Weight: weight, Reasons: []topology.Reason{{Code: code}}}
}

// withPool adds a pool, with a verdict for each node. Port 0 is the nodes' own.
func withPool(s *topology.Snapshot, p topology.Pool, verdicts ...topology.NodeVerdict) {
	pool := topology.PoolVerdicts{Pool: p.Name, Mode: p.Mode}
	for i, n := range s.Nodes {
		v := verdicts[i]
		v.Node, v.Address = n.Name, n.Address
		if p.Port != 0 {
			v.Address.Port = p.Port
		}
		pool.Nodes = append(pool.Nodes, v)
	}
	s.Pools = append(s.Pools, pool)
}

// wide is a cluster with pools of every kind: behind a PgBouncer, narrowed to
// some nodes, with weights, served by the primary or by a stale replica. The
// names of two nodes differ by case only.
func wide() *topology.Snapshot {
	s := snapshotOf("main", []topology.Node{
		{Name: "N2", Address: topology.Address{Host: "2001:db8::2", Port: 5432}},
		{Name: "n1", Address: topology.Address{Host: "10.0.0.1", Port: 5432}},
		{Name: "n2", Address: topology.Address{Host: "10.0.0.2", Port: 5433}},
	}, "n1")
	writer, standby := say(topology.Up, 100, topology.CodeWriter), say(topology.Down, 100, topology.CodeWrongRole)
	other := say(topology.Drain, 100, topology.CodeNotSelected)
	withPool(s, topology.Pool{Name: "rw-bouncer", Mode: topology.ModeWrite, Port: 6432}, standby, writer, standby)
	withPool(s, topology.Pool{Name: "ro-bouncer", Mode: topology.ModeRead, Port: 6432},
		say(topology.Up, 25, topology.CodeRamping), standby, say(topology.Up, 60, topology.CodeReplica))
	withPool(s, topology.Pool{Name: "reports", Mode: topology.ModeRead}, say(topology.Up, 10, topology.CodeFallbackStale), other, other)
	withPool(s, topology.Pool{Name: "sync", Mode: topology.ModeRead}, other, say(topology.Up, 30, topology.CodeFallback), other)
	return s
}

func wideSettings() render.Settings {
	s := settings("main")
	for i, pool := range []string{"rw-bouncer", "ro-bouncer", "reports", "sync"} {
		s.Listen[render.PoolID{Cluster: "main", Pool: pool}] = []netip.AddrPort{
			netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(6000+i)),
		}
	}
	return s
}

// Neither a choice of nodes nor a weight is in the file: only who is there, and
// where the pool's sessions go.
func TestVerdictsOfWidePoolsChangeNothing(t *testing.T) {
	want := mustRender(t, render.ViewOf([]*topology.Snapshot{wide()}, wideSettings()))
	for name, v := range map[string]topology.NodeVerdict{
		"undecided": say(topology.Undecided, 100, topology.CodePort), "up": say(topology.Up, 1, topology.CodeReplica),
		"not selected": say(topology.Drain, 100, topology.CodeNotSelected), "down": say(topology.Down, 100, topology.CodeRefused),
	} {
		snap := wide()
		for _, p := range snap.Pools {
			for i := range p.Nodes {
				p.Nodes[i].Verdict, p.Nodes[i].Weight, p.Nodes[i].Reasons = v.Verdict, v.Weight, v.Reasons
			}
		}
		got := mustRender(t, render.ViewOf([]*topology.Snapshot{snap}, wideSettings()))
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("all %s (-before +now):\n%s", name, diff)
		}
	}
}

// A pool that moves to another port changes its own servers and no others.
func TestPortOfAPool(t *testing.T) {
	servers := func(s *topology.Snapshot) []string {
		_, servers := shape(mustRender(t, render.ViewOf([]*topology.Snapshot{s}, wideSettings())))
		return servers
	}
	moved := wide()
	for i := range moved.Pools[3].Nodes {
		moved.Pools[3].Nodes[i].Address.Port = 7432
	}
	before := servers(wide())
	differ := slices.DeleteFunc(servers(moved), func(s string) bool { return slices.Contains(before, s) })
	want := []string{
		"be_main_ro-bouncer N2 [2001:db8::2]:7432", "be_main_ro-bouncer n1 10.0.0.1:7432", "be_main_ro-bouncer n2 10.0.0.2:7432",
	}
	if diff := cmp.Diff(want, differ); diff != "" {
		t.Error(diff)
	}
}

// loopback listens at one port of several loopback addresses.
func loopback(t *testing.T, hosts ...string) (all []net.Listener) {
	t.Helper()
	for range 20 {
		port := "0"
		all = nil
		for _, host := range hosts {
			l, err := net.Listen("tcp4", net.JoinHostPort(host, port))
			if err != nil {
				break // the port is taken there: another one
			}
			all = append(all, l)
			_, port, _ = net.SplitHostPort(l.Addr().String())
		}
		if len(all) == len(hosts) {
			return all
		}
		for _, l := range all {
			l.Close()
		}
	}
	t.Fatalf("no port is free at all of %v", hosts)
	return nil
}

// A real HAProxy sends the sessions of a pool with its own port there, and those
// of the other pools to the nodes themselves. Of two replicas that are up, one at
// a quarter of its weight gets a fifth of the sessions.
func TestServesPoolsByPortAndWeight(t *testing.T) {
	bouncers := loopback(t, "127.0.0.1", "127.0.0.2")
	port := uint16(bouncers[0].Addr().(*net.TCPAddr).Port)
	var nodes []topology.Node
	for i, l := range bouncers {
		name := fmt.Sprintf("n%d", i+1)
		answeringAt(t, l, saying("bouncer "+name))
		node := answeringAt(t, loopback(t, l.Addr().(*net.TCPAddr).IP.String())[0], saying(name))
		nodes = append(nodes, topology.Node{Name: name, Address: addressOf(node)})
	}
	snap := snapshotOf("main", nodes, "n1")
	withPool(snap, topology.Pool{Name: "rw-bouncer", Mode: topology.ModeWrite, Port: port}, topology.NodeVerdict{}, topology.NodeVerdict{})
	s := &served{primary: free(t), replica: free(t)}
	bouncer := free(t)
	s.agent.m = map[string]string{
		"main primary n1": "up 100%", "main primary n2": "down #in recovery", "main primary !guard": "down",
		"main rw-bouncer n1": "down #port", "main rw-bouncer n2": "up 100%", "main rw-bouncer !guard": "down",
		"main replica n1": "up 25%", "main replica n2": "up 100%",
	}
	s.on(t, snap, render.Settings{
		Agent: answering(t, "tcp4", s.agent.answer),
		Listen: map[render.PoolID][]netip.AddrPort{
			{Cluster: "main", Pool: "primary"}: {s.primary}, {Cluster: "main", Pool: "replica"}: {s.replica}, {Cluster: "main", Pool: "rw-bouncer"}: {bouncer},
		},
		Options: render.Options{AgentInterval: 50 * time.Millisecond},
	})
	s.start(t)
	eventually(t, "writes reach n1 itself", func() bool { return ask(s.primary) == "n1" })
	eventually(t, "writes through the bouncer reach the one at n2", func() bool { return ask(bouncer) == "bouncer n2" })
	eventually(t, "20 sessions are spread 4 to 16", func() bool {
		got := spread(t, s.replica, 20)
		return got["n1"] == 4 && got["n2"] == 16
	})
}

// spread opens sessions that last together and counts who serves them.
func spread(t *testing.T, port netip.AddrPort, sessions int) map[string]int {
	t.Helper()
	count := map[string]int{}
	for range sessions {
		c, err := net.DialTimeout("tcp", port.String(), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		line, _ := bufio.NewReader(c).ReadString('\n')
		count[strings.TrimSpace(line)]++
	}
	return count
}
