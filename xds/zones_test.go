package xds

import (
	"fmt"
	"slices"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// inZones tags the nodes of a decision.
func inZones(snap *topology.Snapshot, zones ...string) *topology.Snapshot {
	for i, z := range zones {
		snap.Nodes[i].Tags = map[string]string{topology.TagZone: z}
	}
	return snap
}

// priorities of the one assignment that comes next: [[n1] [n2 n3]].
func (d *delta) priorities() string {
	d.t.Helper()
	m := d.next(kindEndpoint)
	d.ack(m)
	var levels [][]string
	for _, l := range unpack(d.t, m.GetResources()[0].GetResource().GetValue(), new(endpointv3.ClusterLoadAssignment)).GetEndpoints() {
		if int(l.GetPriority()) != len(levels) {
			d.t.Errorf("priority %d follows %d others", l.GetPriority(), len(levels))
		}
		var names []string
		for _, e := range l.GetLbEndpoints() {
			names = append(names, e.GetEndpoint().GetObservabilityName())
		}
		levels = append(levels, names)
	}
	return fmt.Sprint(levels)
}

// TestZones: each client gets the nodes of its own zone first, whatever the others
// get and by whatever name it asks, and hears when a node's zone changes.
func TestZones(t *testing.T) {
	r := newRig(t, Options{})
	snap := inZones(decision("main", 1, down, down, down), "a", "b", "b")
	r.set(snap)
	name, old := endpointsOf(t, snap, "replica"), "main/replica@000000000000"
	clients := make(map[string]*delta)
	for zone, want := range map[string]string{"a": "[[n1] [n2 n3]]", "b": "[[n2 n3] [n1]]", "c": "[[n1 n2 n3]]", "": "[[n1 n2 n3]]"} {
		d := r.delta(t)
		d.zone = zone
		for _, n := range []string{name, old, resources.APIName("main", "replica")} {
			d.ask(kindEndpoint, n)
			same(t, "in zone "+zone+" by "+n, want, d.priorities())
		}
		clients[zone] = d
	}
	var told []string
	for _, s := range r.server.Status().Streams {
		told = append(told, s.Zone)
	}
	slices.Sort(told)
	same(t, "zones in the status", []string{"", "a", "b", "c"}, told)
	r.set(inZones(decision("main", 2, down, down, down), "a", "a", "b"))
	for zone, want := range map[string]string{"a": "[[n1 n2] [n3]]", "b": "[[n3] [n1 n2]]"} {
		same(t, "later in zone "+zone, want, clients[zone].priorities())
	}
}

// TestEnvoyPrefersItsZone: an Envoy sends to its zone alone while a node of it
// takes sessions, to the others as soon as none does, and back.
func TestEnvoyPrefersItsZone(t *testing.T) {
	for _, mode := range []resources.Sessions{resources.SessionsKeep, resources.SessionsHealthCheck} {
		t.Run(string(mode), func(t *testing.T) {
			c := newClusterWith(t, mode)
			front := mustParse(t, c.front)
			c.settings.Listen = func(_, pool string) (topology.Address, bool) { return front, pool == "replica" }
			c.rig.server.Reconfigure(c.settings)
			c.decideIn("a", "b", down, down) // in the write pool: both are up for reads
			startEnvoy(t, BootstrapOptions{Zone: "a", Servers: []topology.Address{mustParse(t, c.rig.addr)}})
			c.reach("n1")
			c.alone("n1")
			for _, gone := range []topology.Verdict{drain, up} { // both are down for reads
				c.decideIn("a", "b", gone, down)
				c.reach("n2")
				c.alone("n2")
				c.decideIn("a", "b", down, down)
				c.reach("n1")
				c.alone("n1")
			}
			c.readers(topology.Drain)
			c.reach("n2")
			c.alone("n2")
			c.decideIn("", "", down, down)
			c.reach("n1")
			c.reach("n2")
		})
	}
}

// TestEnvoyAsksAboutMovedZones: whatever zones change, Envoy goes on asking about the nodes
// to which it has sessions, and ends them when their node goes down.
func TestEnvoyAsksAboutMovedZones(t *testing.T) {
	for _, c := range []struct {
		what          string
		before, after [2]string // zones of n1 and n2
	}{
		{"another node comes into a second zone", [2]string{"a", "a"}, [2]string{"a", "b"}},
		{"another node comes from a second zone", [2]string{"a", "b"}, [2]string{"a", "a"}},
		{"another node comes into the zone of Envoy", [2]string{"b", "b"}, [2]string{"b", "a"}},
		{"another node leaves the zone of Envoy", [2]string{"b", "a"}, [2]string{"b", "b"}},
		{"the node leaves the zone of Envoy", [2]string{"a", "b"}, [2]string{"b", "a"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			e := newClusterWith(t, resources.SessionsHealthCheck)
			front := mustParse(t, e.front)
			e.settings.Listen = func(_, pool string) (topology.Address, bool) { return front, pool == "replica" }
			e.rig.server.Reconfigure(e.settings)
			e.decideIn(c.before[0], c.before[1], down, up) // n2 is down for reads
			startEnvoy(t, BootstrapOptions{Zone: "a", Servers: []topology.Address{mustParse(t, e.rig.addr)}})
			held := e.reachAll("n1", 5)
			sent := func() uint64 { return e.rig.server.Status().Streams[0].Types[kindEndpoint].Acked }
			acked := sent()
			e.decideIn(c.after[0], c.after[1], down, down)
			until(t, "Envoy has the zones", func() bool { return sent() > acked })
			<-time.After(2 * resources.DefaultCheckInterval) // in which Envoy asks about a host that is new to it
			e.decideWith(down, down, func(snap *topology.Snapshot) {
				inZones(snap, c.after[0], c.after[1])
				snap.Pools[1].Nodes[0].Verdict = topology.Down
			})
			e.cut(held, time.Now())
			e.reach("n2")
		})
	}
}

// decideIn is decide with the zones of both nodes.
func (c *cluster) decideIn(zoneA, zoneB string, a, b topology.Verdict) {
	c.decideWith(a, b, func(snap *topology.Snapshot) { inZones(snap, zoneA, zoneB) })
}

// readers gives n1, in zone a, a verdict in the read pool, while n2 is up there.
func (c *cluster) readers(v topology.Verdict) {
	c.decideWith(down, down, func(snap *topology.Snapshot) {
		inZones(snap, "a", "b")
		snap.Pools[1].Nodes[0].Verdict = v
	})
}

// alone wants all of many sessions to reach a node.
func (c *cluster) alone(node string) {
	c.t.Helper()
	var got []string
	for range 50 {
		s, err := open(c.front)
		if err != nil {
			c.t.Fatal(err)
		}
		_ = s.conn.Close()
		got = append(got, s.node)
	}
	slices.Sort(got)
	same(c.t, "reached", []string{node}, slices.Compact(got))
}
