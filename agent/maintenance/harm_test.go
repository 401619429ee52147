package maintenance

import (
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// verdict is one on a node; with codes it is out for those.
func verdict(node string, codes ...topology.Code) topology.NodeVerdict {
	v := topology.NodeVerdict{Node: node, Verdict: topology.Up}
	for _, c := range codes {
		v.Verdict = topology.Drain
		v.Reasons = append(v.Reasons, topology.Reason{Code: c})
	}
	return v
}

// harmed is a cluster with the primary n1 and pools of several kinds.
func harmed() (*topology.Snapshot, []topology.Pool) {
	down := func(node string) topology.NodeVerdict {
		return topology.NodeVerdict{Node: node, Verdict: topology.Down}
	}
	primary := verdict("n1", topology.CodeWrongRole)
	snap := &topology.Snapshot{Complete: true, Writer: "n1", Pools: []topology.PoolVerdicts{
		{Pool: "rw", Mode: topology.ModeWrite, Nodes: []topology.NodeVerdict{verdict("n1"), down("n2")}},
		{Pool: "ro", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{primary, verdict("n2"), verdict("n3")}},
		{Pool: "strict", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{primary, verdict("n2"), down("n3")}},
		{Pool: "last", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{primary, down("n2"), verdict("n3")}},
	}}
	return snap, []topology.Pool{
		{Name: "rw", Mode: topology.ModeWrite},
		{Name: "ro", Mode: topology.ModeRead, Fallback: topology.FallbackPrimary},
		{Name: "strict", Mode: topology.ModeRead},
		{Name: "last", Mode: topology.ModeRead, Fallback: topology.FallbackPrimary},
	}
}

// check compares sentences by a word of each.
func (c Trial) check(t *testing.T, r Record, want string) {
	t.Helper()
	harm, words := c.Harm(r), strings.Fields(want)
	ok := len(harm) == len(words)
	for i := range words {
		ok = ok && strings.Contains(harm[i], words[i])
	}
	if !ok {
		t.Errorf("%s: %q, want %q", r.Target, harm, want)
	}
}

// What a change would do, before it is made.
func TestHarm(t *testing.T) {
	snap, pools := harmed()
	held, unnamed := *snap, *snap
	held.Writer, held.Held = "", "n1"
	unnamed.Writer, unnamed.Authority.Leader = "", "n1"
	promoted := *snap
	promoted.Authority.Leader = "n2"
	for _, tt := range []struct {
		snap *topology.Snapshot
		t    Target
		want string
	}{
		{snap, Target{Cluster: "c", Node: "n3"}, ""}, // the primary serves last in its place
		{snap, Target{Cluster: "c", Node: "n2"}, "strict"},
		{snap, Target{Cluster: "c", Node: "n2", Pool: "ro"}, ""},
		{snap, Target{Cluster: "c", Pool: "ro"}, "ro"}, // the primary is out of it too
		{snap, Target{Cluster: "c", Node: "n1"}, "primary"},
		{snap, Target{Cluster: "c", Node: "n1", Pool: "ro"}, ""},
		{snap, Target{Cluster: "c"}, "primary ro strict last"},
		{&unnamed, Target{Cluster: "c", Node: "n3"}, "last"}, // nobody could
		{&held, Target{Cluster: "c", Node: "n1"}, "primary"},
		{&unnamed, Target{Cluster: "c", Node: "n1"}, "primary"},
		{&promoted, Target{Cluster: "c", Node: "n2"}, "n2 strict"},
		{&promoted, Target{Cluster: "c", Node: "n1"}, "n1"},
		{&topology.Snapshot{}, Target{Cluster: "c", Node: "n3"}, "nothing"},
		{nil, Target{Cluster: "c", Node: "n3"}, "nothing"},
	} {
		Trial{View: &topology.View{Snapshot: tt.snap}, Pools: pools, Now: noon}.check(t, Record{Target: tt.t}, tt.want)
	}
	Trial{Pools: pools}.check(t, Record{Target: Target{Cluster: "c"}}, "nothing")
}

// What other records take out is gone, whether the decision shows it yet or not, and also
// where a record is of a pool or of the whole cluster; not what this agent's own does, nor
// what is over or of another cluster.
func TestHarmBesideOtherRecords(t *testing.T) {
	snap, pools := harmed()
	out := func(codes ...topology.Code) topology.NodeVerdict { return verdict("n3", codes...) }
	shown, lagging, own := *snap, *snap, *snap
	shown.Pools = []topology.PoolVerdicts{{Pool: "ro", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{verdict("n2"), out(topology.CodeMaintenance)}}}
	lagging.Pools = []topology.PoolVerdicts{{Pool: "ro", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{verdict("n2"), out(topology.CodeMaintenance, topology.CodeLag)}}}
	own.Writer = ""
	own.Pools = []topology.PoolVerdicts{
		{Pool: "rw", Mode: topology.ModeWrite, Nodes: []topology.NodeVerdict{verdict("n1", topology.CodeMaintenance)}},
		{Pool: "ro", Mode: topology.ModeRead, Nodes: []topology.NodeVerdict{verdict("n1", topology.CodeMaintenance, topology.CodeWrongRole), verdict("n2", topology.CodeMaintenance), out(topology.CodeMaintenance)}},
	}
	facts := &topology.Facts{Nodes: map[string]topology.NodeFacts{"n1": {InRecovery: topology.No}, "n2": {InRecovery: topology.Yes}}}
	strict := []topology.Pool{{Name: "rw", Mode: topology.ModeWrite}, {Name: "ro", Mode: topology.ModeRead}}
	n2, n3, n1 := Target{Cluster: "c", Node: "n2"}, Target{Cluster: "c", Node: "n3"}, Target{Cluster: "c", Node: "n1"}
	ended, past := Record{Target: n3, Since: noon, EndedAt: noon}, Record{Target: n3, Since: noon.Add(-2 * time.Hour), Until: noon}
	for name, tt := range map[string]struct {
		snap    *topology.Snapshot
		pools   []topology.Pool
		records []Record
		t       Target
		want    string
	}{
		"alone":                           {snap, strict, nil, n2, ""},
		"not shown yet":                   {snap, strict, []Record{{Target: n3, Since: noon}}, n2, "ro"},
		"shown":                           {&shown, strict, []Record{{Target: n3, Since: noon}}, n2, "ro"},
		"in the pool alone":               {snap, strict, []Record{{Target: Target{Cluster: "c", Node: "n3", Pool: "ro"}, Since: noon}}, n2, "ro"},
		"in another pool":                 {snap, strict, []Record{{Target: Target{Cluster: "c", Node: "n3", Pool: "rw"}, Since: noon}}, n2, ""},
		"in another cluster":              {snap, strict, []Record{{Target: Target{Cluster: "d", Node: "n3"}, Since: noon}}, n2, ""},
		"ended":                           {snap, strict, []Record{ended}, n2, ""},
		"over":                            {snap, strict, []Record{past}, n2, ""},
		"all of it is out already":        {snap, strict, []Record{{Target: Target{Cluster: "c"}, Since: noon}}, n2, ""},
		"the pool is out already":         {snap, strict, []Record{{Target: Target{Cluster: "c", Pool: "ro"}, Since: noon}}, n2, ""},
		"the primary in its place":        {snap, pools[:2], []Record{{Target: n3, Since: noon}}, n2, ""},
		"the primary is out as well":      {snap, pools[:2], []Record{{Target: n3, Since: noon}, {Target: n1, Since: noon}}, n2, "ro"},
		"its own record":                  {&shown, strict, []Record{{Target: n3, Since: noon}}, n3, ""},
		"its own record, the other lags":  {&shown, strict, []Record{{Target: n3, Since: noon}, {Target: n2, Since: noon}}, n3, "ro"},
		"its own record, and it lags":     {&lagging, strict, []Record{{Target: n3, Since: noon}, {Target: n2, Since: noon}}, n3, ""},
		"the word of the authority":       {&shown, strict, nil, n2, "ro"},
		"this agent is out":               {&own, strict, []Record{{Target: Agent, Since: noon}}, n2, ""},
		"this agent is out, and the rest": {&own, strict, []Record{{Target: Agent, Since: noon}, {Target: n3, Since: noon}}, n2, "ro"},
		"this agent is out, the primary serves elsewhere": {&own, pools[:2], []Record{{Target: Agent, Since: noon}, {Target: n3, Since: noon}}, n2, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var s Set
			for _, r := range tt.records {
				s = s.put(kept{Record: r})
			}
			Trial{View: &topology.View{Snapshot: tt.snap, Facts: facts}, Pools: tt.pools, Records: s, Now: noon}.check(t, Record{Target: tt.t}, tt.want)
		})
	}
}

// A primary that is out is the decision's writer no more: without an authority its own
// word tells, as long as nobody else is named. Its server's sessions count also where no
// pool takes writes.
func TestHarmOfAPrimaryThatIsOut(t *testing.T) {
	snap := &topology.Snapshot{Complete: true, Pools: []topology.PoolVerdicts{
		{Pool: "rw", Mode: topology.ModeWrite, Nodes: []topology.NodeVerdict{verdict("n1", topology.CodeMaintenance), {Node: "n2", Verdict: topology.Down}}},
	}}
	rw := []topology.Pool{{Name: "rw", Mode: topology.ModeWrite}}
	facts := &topology.Facts{Nodes: map[string]topology.NodeFacts{"n1": {InRecovery: topology.No}, "n2": {InRecovery: topology.Yes}, "n3": {}}}
	named := *snap
	named.Writer = "n2"
	ends := Sessions{Deadline: noon.Add(time.Minute), Terminate: true}
	for _, tt := range []struct {
		snap  *topology.Snapshot
		facts *topology.Facts
		pools []topology.Pool
		r     Record
		want  string
	}{
		{snap, facts, rw, Record{Target: Target{Cluster: "c", Pool: "rw"}, DrainUntil: noon}, "n1"},
		{snap, facts, rw, Record{Target: Target{Cluster: "c", Node: "n1"}}, "n1"},
		{snap, facts, rw, Record{Target: Target{Cluster: "c", Node: "n2"}}, ""},
		{snap, facts, rw, Record{Target: Target{Cluster: "c", Node: "n3"}}, ""},
		{&named, facts, rw, Record{Target: Target{Cluster: "c", Node: "n1"}}, ""},
		{snap, nil, rw, Record{Target: Target{Cluster: "c", Node: "n1"}}, ""},
		{snap, facts, nil, Record{Target: Target{Cluster: "c", Node: "n1"}}, ""},
		{snap, facts, nil, Record{Target: Target{Cluster: "c", Node: "n1"}, Sessions: ends}, "sessions"},
		{snap, facts, nil, Record{Target: Target{Cluster: "c", Node: "n2"}, Sessions: ends}, ""},
		{snap, facts, rw, Record{Target: Target{Cluster: "c", Node: "n1"}, Sessions: ends}, "pool"},
		{snap, facts, nil, Record{Target: Target{Cluster: "c", Node: "n1"}, Sessions: Sessions{ID: "x", Deadline: noon.Add(time.Minute)}}, ""},
	} {
		Trial{View: &topology.View{Snapshot: tt.snap, Facts: tt.facts}, Pools: tt.pools, Now: noon}.check(t, tt.r, tt.want)
	}
}

// Of what is out already a change takes more when it lasts longer, or sessions end that
// did not, or sooner.
func TestWorsens(t *testing.T) {
	at := func(d time.Duration) time.Time { return noon.Add(d) }
	base := Record{Target: n2, Since: noon, Until: at(time.Hour), DrainUntil: at(time.Minute)}
	open := Record{Target: n2, Since: noon}
	drained := open
	drained.Sessions = Sessions{ID: "x", Deadline: at(time.Minute), EndIdle: true}
	waits := open
	waits.Sessions = Sessions{ID: "y", Deadline: at(time.Second)}
	with := func(r Record, change func(*Record)) Record { change(&r); return r }
	for name, tt := range map[string]struct {
		before, after Record
		want          bool
	}{
		"nothing before":         {Record{}, open, true},
		"over before":            {with(base, func(r *Record) { r.EndedAt = noon }), base, true},
		"words":                  {base, with(base, func(r *Record) { r.Reason, r.Who = "disk", "bob" }), false},
		"longer":                 {base, with(base, func(r *Record) { r.Until = at(2 * time.Hour) }), true},
		"without an end":         {base, with(base, func(r *Record) { r.Until = time.Time{} }), true},
		"shorter":                {base, with(base, func(r *Record) { r.Until = at(time.Minute) }), false},
		"with an end":            {open, with(open, func(r *Record) { r.Until = at(time.Minute) }), false},
		"a drain":                {open, with(open, func(r *Record) { r.DrainUntil = at(time.Minute) }), true},
		"a sooner drain":         {base, with(base, func(r *Record) { r.DrainUntil = at(time.Second) }), true},
		"a later drain":          {base, with(base, func(r *Record) { r.DrainUntil = at(time.Hour) }), false},
		"ending at the server":   {open, drained, true},
		"ending more there":      {drained, with(drained, func(r *Record) { r.Sessions.Terminate = true }), true},
		"waiting there":          {open, waits, false},
		"waiting there alone":    {drained, waits, false},
		"ending where one waits": {waits, drained, true},
		"ending there as before": {drained, with(drained, func(r *Record) { r.Reason = "disk" }), false},
		"no more ending there":   {drained, with(open, func(r *Record) { r.DrainUntil = at(time.Hour) }), true}, // balancers end them
	} {
		if got := tt.after.Worsens(tt.before, noon.Add(time.Second)); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
