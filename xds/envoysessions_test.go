package xds

import (
	"slices"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/xds/resources"
)

// live fails the test for a session that was cut.
func (c *cluster) live(when string, all []*session) {
	c.t.Helper()
	for _, s := range all {
		if err := s.works(); err != nil {
			c.t.Fatalf("%s a session to %s was cut: %v", when, s.node, err)
		}
	}
}

// closed waits until nobody is let in.
func (c *cluster) closed() {
	c.t.Helper()
	until(c.t, "no session is let in", func() bool {
		s, err := open(c.front)
		if err == nil {
			_ = s.conn.Close()
		}
		return err != nil
	})
}

// TestEnvoySessionsHealthCheck: in this mode a writer that only drains keeps its
// sessions, one that lost the role loses them within a check, whether another
// follows or none, and so does a node that is gone; an agent that does not answer
// cuts nobody and keeps nobody out.
func TestEnvoySessionsHealthCheck(t *testing.T) {
	c := newClusterWith(t, resources.SessionsHealthCheck)
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	var took []time.Duration
	for range 3 {
		held := c.reachAll("n1", 20)
		c.decide("", drain, down)
		c.closed()
		c.live("while the writer drains", held)
		since := time.Now()
		c.decide("", down, up)
		took = append(took, c.cut(held, since))
		held = c.reachAll("n2", 20)
		since = time.Now()
		c.decide("", down, down)
		took = append(took, c.cut(held, since))
		c.decide("", up, down)
	}
	t.Logf("20 sessions ended after %v", took)
	if best, worst := slices.Min(took), slices.Max(took); best > 2*resources.DefaultCheckInterval || worst > 5*time.Second {
		t.Errorf("sessions ended after %v at best and %v at worst, with a check every %s", best, worst, resources.DefaultCheckInterval)
	}
	held := c.reachAll("n1", 5)
	c.gone()
	c.cut(held, time.Now())
	held = c.reachAll("n2", 5)
	c.silence()
	<-time.After(5 * resources.DefaultCheckInterval) // what is asked meanwhile stays without an answer
	c.live("while the agent does not answer", held)
	c.live("opened while the agent does not answer", c.reachAll("n2", 1))
}

// TestEnvoyCheckedClusterIsHeld: other settings leave sessions in Envoy's sight, so
// that those of before end too when their node goes down.
func TestEnvoyCheckedClusterIsHeld(t *testing.T) {
	c := newClusterWith(t, resources.SessionsHealthCheck)
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	held := c.reachAll("n1", 5)
	other := c.settings
	other.ConnectTimeout = 2 * time.Second
	c.rig.server.Reconfigure(other)
	until(t, "the cluster is held", func() bool {
		return slices.Equal(c.rig.server.Status().HeldClusters, []string{"main/primary", "main/replica"})
	})
	held = append(held, c.reach("n1"))
	c.decide("", down, up)
	c.cut(held, time.Now())
	c.reach("n2")
}

// TestEnvoyCheckAddressIsHeld: so does another address at which Envoy asks.
func TestEnvoyCheckAddressIsHeld(t *testing.T) {
	c := newClusterWith(t, resources.SessionsHealthCheck)
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	held := c.reachAll("n1", 5)
	c.check(c.rig.views) // another one, beside the first
	c.rig.server.Reconfigure(c.settings)
	until(t, "the cluster is held", func() bool {
		return slices.Equal(c.rig.server.Status().HeldClusters, []string{"main/primary", "main/replica"})
	})
	held = append(held, c.reach("n1"))
	c.decide("", down, up)
	c.cut(held, time.Now())
	c.reach("n2")
}

// gone publishes a decision in which n2 is the writer and n1 is no node any more.
func (c *cluster) gone() {
	c.gen++
	snap := decision("main", c.gen, up)
	snap.Nodes[0].Name, snap.Nodes[0].Address = "n2", c.b.address()
	for p := range snap.Pools {
		snap.Pools[p].Nodes[0].Node, snap.Pools[p].Nodes[0].Address = "n2", c.b.address()
	}
	c.rig.set(snap)
}

// TestEnvoySessionsKeep: in this mode a change of writer ends nothing.
func TestEnvoySessionsKeep(t *testing.T) {
	c := newClusterWith(t, resources.SessionsKeep)
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	held := c.reachAll("n1", 20)
	c.decide("", down, up)
	fresh := c.reachAll("n2", 1)
	c.live("after a change of writer", append(held, fresh...))
	c.decide("", down, down)
	c.closed()
	c.live("without a writer", held)
}

// TestEnvoyListenerIsHeld: other settings, such as another pgsteer would bring,
// cut nobody before they are released; then they do.
func TestEnvoyListenerIsHeld(t *testing.T) {
	c := newCluster(t)
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	held := c.reachAll("n1", 20)
	other := c.settings
	other.Sessions = func(string, string) resources.Sessions { return resources.SessionsKeep }
	other.ConnectTimeout = 2 * time.Second // the cluster changes, too
	c.rig.server.Reconfigure(other)
	until(t, "the listener is held", func() bool { return slices.Equal(c.rig.server.Status().Held, []string{"main/primary"}) })
	c.decide("", drain, down)
	c.closed()
	c.decide("", up, down)
	c.live("with other settings", append(held, c.reachAll("n1", 1)...))
	other.Release = "now"
	c.rig.server.Reconfigure(other)
	c.cut(held, time.Now())
	held = c.reachAll("n1", 1)
	c.decide("", down, up)
	c.reach("n2")
	c.live("kept, as it is set now,", held)
}

// TestEnvoyChangesAgents: an Envoy that knows two agents goes on with the other
// one, which has nothing to send again, and follows its decisions.
func TestEnvoyChangesAgents(t *testing.T) {
	c := newCluster(t)
	first := c.rig
	second := newRig(t, Options{Settings: c.settings, Views: first.views})
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, first.addr), mustParse(t, second.addr)}})
	held := c.reachAll("n1", 20)
	if len(first.server.Status().Streams) == 0 {
		first, second = second, first
	}
	first.stop()
	until(t, "Envoy asks the other agent", func() bool {
		s := second.server.Status().Streams
		return len(s) == 1 && len(s[0].Types) == int(kinds)
	})
	for _, ty := range second.server.Status().Streams[0].Types {
		if ty.Resources > 0 || ty.Refused > 0 {
			t.Errorf("the other agent sends %d resources of %s again; %d are refused", ty.Resources, ty.Type, ty.Refused)
		}
	}
	c.live("with the other agent", append(held, c.reachAll("n1", 1)...))
	c.decide("", down, up)
	c.cut(held, time.Now())
	c.reach("n2")
}

// TestEnvoyMovedWriter: the sessions to a writer's old address end although its name stays
// and nobody saw it down, and new ones reach the new address.
func TestEnvoyMovedWriter(t *testing.T) {
	c := newCluster(t)
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	held := c.reachAll("n1", 10)
	c.a = newBackend(t, "n1 elsewhere")
	since := time.Now()
	c.decide("", up, down)
	t.Logf("10 sessions ended after %v", c.cut(held, since))
	c.live("at the new address", c.reachAll("n1 elsewhere", 1))
}
