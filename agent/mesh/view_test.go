package mesh

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// scene is a view of cluster main, written as a list of nodes:
//
//	n1 up/writer -/wrong_role no
//
// has the verdict of the write pool, that of the read pool, each with its code (and
// a weight behind a colon), and whether it is in recovery.
func scene(t *testing.T, now topology.Mono, text string) *topology.View {
	t.Helper()
	snap := &topology.Snapshot{
		Cluster: "main", Generation: 1, Urgent: 1, Complete: true,
		Pools: []topology.PoolVerdicts{{Pool: "primary", Mode: topology.ModeWrite}, {Pool: "replica", Mode: topology.ModeRead}},
	}
	facts := &topology.Facts{Nodes: map[string]topology.NodeFacts{}}
	for line := range strings.Lines(strings.TrimSpace(text)) {
		w := strings.Fields(line)
		if len(w) != 4 {
			t.Fatalf("%q has not four words", line)
		}
		n := topology.Node{Name: w[0], Address: topology.Address{Host: "10.0.0." + strings.TrimLeft(w[0], "n"), Port: 5432}}
		snap.Nodes = append(snap.Nodes, n)
		for i := range snap.Pools {
			v := verdict(t, w[1+i])
			v.Node, v.Address = n.Name, n.Address
			snap.Pools[i].Nodes = append(snap.Pools[i].Nodes, v)
			if i == 0 && v.Verdict == topology.Up {
				snap.Writer = n.Name
			}
		}
		var f topology.NodeFacts
		if w[3] != "unknown" {
			f.Probe = &topology.Probe{Node: n.Name, Timeline: 3, ServerVersion: 150018}
			if err := f.InRecovery.UnmarshalText([]byte(w[3])); err != nil {
				t.Fatal(err)
			}
		}
		facts.Nodes[n.Name] = f
	}
	return &topology.View{Snapshot: snap, Facts: facts, ValidUntil: now.Add(time.Hour)}
}

func verdict(t *testing.T, text string) (v topology.NodeVerdict) {
	t.Helper()
	text, weight, _ := strings.Cut(text, ":")
	word, code, ok := strings.Cut(text, "/")
	if !ok || v.Verdict.UnmarshalText([]byte(word)) != nil {
		t.Fatalf("%q is no verdict with its code", text)
	}
	v.Weight = 100
	if weight != "" {
		if _, err := fmt.Sscan(weight, &v.Weight); err != nil {
			t.Fatal(err)
		}
	}
	v.Reasons = []topology.Reason{{Code: topology.Code(code), Text: "as it is"}}
	return v
}

// The scenes that most tests need.
const (
	n1Leads = `
n1 up/writer down/wrong_role no
n2 down/wrong_role up/replica yes`
	n2Leads = `
n1 down/wrong_role up/replica yes
n2 up/writer down/wrong_role no`
	nobody = `
n1 undecided/no_evidence undecided/no_evidence unknown
n2 undecided/no_evidence undecided/no_evidence unknown`
)
