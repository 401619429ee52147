package xds

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// listenAt puts pools at addresses; the others listen nowhere.
func (c *cluster) listenAt(release string, at map[string]string) {
	c.settings.Release = release
	c.settings.Listen = func(cluster, pool string) (topology.Address, bool) {
		a, err := topology.ParseAddress(at[cluster+"/"+pool])
		return a, err == nil
	}
	c.rig.server.Reconfigure(c.settings)
}

// TestEnvoyListenMovesToAnotherPool: a port that goes from one pool to another of its
// cluster is listened on by the other.
func TestEnvoyListenMovesToAnotherPool(t *testing.T) {
	c := newCluster(t)
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	c.reach("n1")
	c.listenAt("", map[string]string{"main/replica": c.front})
	c.reach("n2")
	same(t, "refused", uint64(0), c.rig.server.Status().Refused["LDS"])
}

// TestEnvoyListenMovesToAnotherCluster: the other one's listener, which was refused while
// the port was taken, is offered again when it is free.
func TestEnvoyListenMovesToAnotherCluster(t *testing.T) {
	for _, c := range []struct {
		what  string
		later map[string]string // where the one of before listens then
	}{
		{"it listens nowhere", nil},
		{"it listens elsewhere", map[string]string{"main/primary": freePorts(t, 1)[0]}},
	} {
		t.Run(c.what, func(t *testing.T) { moveToAnotherCluster(t, c.later) })
	}
}

func moveToAnotherCluster(t *testing.T, later map[string]string) {
	t.Helper()
	c := newCluster(t)
	c.decide("", up, down)
	other := decision("zeta", 1, up, down)
	other.Pools[0].Nodes[0].Address = c.b.address()
	c.rig.set(other)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	c.reach("n1")
	c.listenAt("", map[string]string{"main/primary": c.front, "zeta/primary": c.front})
	c.refused(1, "zeta/primary")
	at := map[string]string{"zeta/primary": c.front}
	maps.Copy(at, later)
	c.listenAt("now", at)
	c.reach("n2")
}

// TestEnvoyRefusesAnExchange: two pools that exchange ports are refused, and so is every
// later change of theirs, so that another writer cuts nobody: that is said by name. In two
// steps they are not.
func TestEnvoyRefusesAnExchange(t *testing.T) {
	c := newCluster(t)
	ports := freePorts(t, 2)
	back, third := ports[0], ports[1]
	c.listenAt("", map[string]string{"main/primary": c.front, "main/replica": back})
	c.decide("", up, down)
	startEnvoy(t, BootstrapOptions{Servers: []topology.Address{mustParse(t, c.rig.addr)}})
	held := c.reachAll("n1", 1)
	c.listenAt("now", map[string]string{"main/primary": back, "main/replica": c.front})
	c.refused(1, "main/primary")
	c.decide("", down, up)
	c.refused(2, "main/primary")
	c.live("though there is another writer", held)
	since := time.Now()
	c.listenAt("first step", map[string]string{"main/primary": third, "main/replica": c.front})
	c.cut(held, since)
	until(t, "nothing is refused", func() bool { return len(c.rig.server.Status().Streams[0].Uncut) == 0 })
}

// refused waits until Envoy refused listeners for the nth time, and wants those by which
// sessions are not cut.
func (c *cluster) refused(times uint64, uncut ...string) {
	c.t.Helper()
	until(c.t, "it is refused", func() bool {
		s := c.rig.server.Status()
		return s.Refused["LDS"] == times && slices.Equal(s.Streams[0].Uncut, uncut)
	})
}
