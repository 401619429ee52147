package tap

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func port(node string, number uint16) topology.Observation {
	return topology.Observation{Source: pg(node), Port: &topology.PortOpen{Node: node, Address: n1, Port: number}}
}

func portFailure(number uint16) topology.Observation {
	o := failure("n1", topology.ProbePort, topology.FailRefused)
	o.Failure.Port = number
	return o
}

func unknownRole() topology.Observation {
	o := probe("n1", topology.ProbeFull)
	o.Probe.InRecovery = topology.Unknown
	return o
}

func consul(leader string, more ...func(*topology.Observation)) topology.Observation {
	o := topology.Observation{
		Source: topology.SourceID{Kind: topology.SourceConsul, Name: "main"}, Authority: &topology.Authority{Leader: leader},
		Nodes: &topology.NodeList{Nodes: []topology.Node{{Name: "n1"}}},
	}
	for _, change := range more {
		change(&o)
	}
	return o
}

func consulFailure(class topology.FailureClass) topology.Observation {
	return topology.Observation{Source: topology.SourceID{Kind: topology.SourceConsul, Name: "main"}, Failure: &topology.Failure{Class: class}}
}

func file(names ...string) topology.Observation {
	l := &topology.NodeList{}
	for _, n := range names {
		l.Nodes = append(l.Nodes, topology.Node{Name: n})
	}
	return topology.Observation{Source: topology.SourceID{Kind: topology.SourceFile, Name: "config"}, Nodes: l}
}

const (
	full, role, login, write = topology.ProbeFull, topology.ProbeRole, topology.ProbeLogin, topology.ProbeWrite
	timeout, refused         = topology.FailTimeout, topology.FailRefused
)

// keeping says which of the observations, counted from 1, are what the agent knows.
var keeping = []struct {
	name string
	all  []topology.Observation
	want []uint64
}{
	{"the newest of each way of asking", []topology.Observation{
		probe("n1", full), probe("n1", login), probe("n1", role), probe("n1", full), probe("n1", write), probe("n1", role), probe("n2", full),
	}, []uint64{2, 4, 5, 6, 7}},
	{"the first failure and the last", []topology.Observation{
		probe("n1", full), failure("n1", full, timeout), failure("n1", full, timeout), failure("n1", full, timeout),
	}, []uint64{1, 2, 4}},
	{"each class apart", []topology.Observation{
		failure("n1", full, refused), failure("n1", full, timeout), failure("n1", full, timeout), failure("n1", full, refused),
	}, []uint64{1, 2, 3, 4}},
	{"an answer ends failures of the same question", []topology.Observation{
		failure("n1", full, timeout), failure("n1", role, timeout), failure("n1", login, timeout), failure("n2", full, timeout), probe("n1", role),
	}, []uint64{3, 4, 5}},
	{"a login ends those of logins alone", []topology.Observation{
		failure("n1", full, timeout), failure("n1", login, timeout), probe("n1", login),
	}, []uint64{1, 3}},
	{"an answer that tells no role ends nothing", []topology.Observation{failure("n1", full, timeout), unknownRole()}, []uint64{1, 2}},
	{"each port apart", []topology.Observation{
		portFailure(6432), portFailure(6433), port("n1", 6432), port("n1", 6434),
	}, []uint64{2, 3, 4}},
	{"an authority's failures", []topology.Observation{
		consul("n1"), consulFailure(timeout), consulFailure(timeout), consulFailure(timeout),
	}, []uint64{1, 2, 4}},
	{"and their end", []topology.Observation{consul("n1"), consulFailure(timeout), consul("n1")}, []uint64{3}},
	{"since when the leader key is absent", []topology.Observation{
		consul("n1"), consul("n1"), consul(""), consul(""), consul(""),
	}, []uint64{2, 3, 5}},
	{"and its end", []topology.Observation{consul("n1"), consul(""), consul(""), consul("n2")}, []uint64{4}},
	{"a picture without a list of nodes", []topology.Observation{
		consul("n1"), consul("n1", func(o *topology.Observation) { o.Nodes = nil }),
	}, []uint64{1, 2}},
	{"an empty list that nobody confirmed replaces none", []topology.Observation{file("n1"), file()}, []uint64{1, 2}},
	{"a list replaces the one before", []topology.Observation{file("n1"), file("n2")}, []uint64{2}},
}

func TestKept(t *testing.T) {
	for _, tt := range keeping {
		t.Run(tt.name, func(t *testing.T) {
			var k kept
			for i, o := range tt.all {
				o.Seq = uint64(i + 1)
				k.take(o)
			}
			var got []uint64
			for _, o := range k.all() {
				got = append(got, o.Seq)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

func TestNodesThatAreGoneAreForgotten(t *testing.T) {
	var tap Tap
	tap.Folded(file("n1", "n2"))
	tap.Folded(probe("n1", topology.ProbeFull))
	tap.Folded(probe("n2", topology.ProbeFull))
	tap.Decided(Decided{Snapshot: snapshot("n1", "n2")})
	if _, now := tap.read(1); len(now.observations) != 3 {
		t.Errorf("%d observations are kept, want 3", len(now.observations))
	}
	tap.Decided(Decided{Snapshot: snapshot("n1")})
	_, now := tap.read(1)
	if len(now.observations) != 2 || now.observations[1].Source != pg("n1") {
		t.Errorf("kept is %+v", now.observations)
	}
}
