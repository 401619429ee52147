package engine

import (
	"testing"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// members lists nodes as the authority does.
func (w *world) members(names ...string) {
	list := &topology.NodeList{ConfirmedEmpty: len(names) == 0}
	for _, n := range names {
		list.Nodes = append(list.Nodes, topology.Node{Name: n, Address: w.servers[n].probe.Address})
	}
	a := w.authority
	w.fold(consulSource, topology.Observation{Nodes: list, Authority: &a})
}

// byMembers is a settled world whose nodes only the authority lists.
func byMembers(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, patroni)
	w.s = NewState(Options{Cluster: "main", NodeSources: []topology.SourceID{consulSource}, Start: w.now})
	w.wake = w.now.Mono
	w.members("a", "b", "c")
	w.run(3 * sec)
	w.want("primary", "a=up/writer b=down/wrong_role c=down/wrong_role")
	return w
}

// TestMemberBlink: Patroni deletes a member key and writes it anew, and Consul
// drops those of a lost session: no node goes and no session ends by that.
func TestMemberBlink(t *testing.T) {
	w := byMembers(t)
	for _, there := range [][]string{{"b", "c"}, {"a", "c"}, {}} {
		w.members(there...)
		w.run(forgetAfter / 2)
		w.want("primary", "a=up/writer b=down/wrong_role c=down/wrong_role")
		w.want("replica", "b=up/replica c=up/replica")
		w.members("a", "b", "c")
		w.run(sec)
	}
}

// TestMemberGone: a member that stays away is forgotten.
func TestMemberGone(t *testing.T) {
	w := byMembers(t)
	w.members("a", "b")
	w.run(forgetAfter - sec)
	w.members("a", "b")
	w.want("replica", "c=up/replica")
	w.run(sec)
	w.members("a", "b")
	w.decide()
	if _, ok := w.snap.Node("c"); ok {
		t.Errorf("c is still a node\n%s", w.show())
	}
	// One that comes back later is absent anew.
	w.members("a", "b", "c")
	w.run(3 * sec)
	w.members("a", "b")
	w.run(sec)
	w.want("replica", "c=up/replica")
}

// TestMemberRenamed: one server is not kept as two nodes.
func TestMemberRenamed(t *testing.T) {
	w := byMembers(t)
	w.servers["d"] = w.servers["c"]
	delete(w.servers, "c")
	w.members("a", "b", "d")
	w.decide()
	if _, ok := w.snap.Node("c"); ok {
		t.Errorf("c is still a node although d has its address\n%s", w.show())
	}
}

// TestMemberBlinkAtStart: an earlier run knew of the node, so a key that is
// absent when this one begins is no proof either.
func TestMemberBlinkAtStart(t *testing.T) {
	w := byMembers(t)
	saved := w.s.Save(w.now)
	w.s = NewState(Options{Cluster: "main", NodeSources: []topology.SourceID{consulSource}, Saved: &saved, Start: w.now})
	w.wake, w.snap = w.now.Mono, nil
	w.members("b", "c")
	w.run(3 * sec)
	w.want("primary", "a=up/writer b=down/wrong_role c=down/wrong_role")
}
