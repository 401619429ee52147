package status

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestTroubleOfTheProbe: a failure is told as what it is.
func TestTroubleOfTheProbe(t *testing.T) {
	login := &topology.Failure{Class: topology.FailAuth, Asked: topology.ProbeLogin}
	port := &topology.Failure{Class: topology.FailRefused, Asked: topology.ProbePort, Port: 6432}
	hidden := func(n *topology.NodeFacts) { n.Probe.Receiver = topology.Receiver{} }
	type trouble struct{ Failing, Login, Rights, Slots bool }
	for _, c := range []struct {
		name   string
		edit   func(*topology.NodeFacts)
		source *topology.Failure
		want   trouble
	}{
		{"none", func(*topology.NodeFacts) {}, nil, trouble{}},
		{"a new login fails", func(n *topology.NodeFacts) { n.Failure = login }, nil, trouble{Login: true}},
		{"a new login fails, by its source", func(*topology.NodeFacts) {}, login, trouble{Login: true}},
		{"a port fails", func(*topology.NodeFacts) {}, port, trouble{}},
		{"everything fails", func(n *topology.NodeFacts) { *n = failing(*n, topology.FailAuth, "") }, login, trouble{Failing: true}},
		{"never answered", func(n *topology.NodeFacts) { n.AnsweredAt = 0 }, login, trouble{}},
		{"no slot at all", func(n *topology.NodeFacts) { *n = failing(*n, topology.FailSlots, "") }, nil, trouble{Failing: true, Slots: true}},
		{"no slot for a new login", func(*topology.NodeFacts) {}, &topology.Failure{Class: topology.FailSlots, Asked: topology.ProbeLogin}, trouble{Login: true, Slots: true}},
		{"the receiver is hidden", hidden, nil, trouble{Rights: true}},
		{"it was hidden before the promotion", func(n *topology.NodeFacts) { hidden(n); n.InRecovery = topology.No }, nil, trouble{}},
		{"it is hidden and nobody answers", func(n *topology.NodeFacts) { hidden(n); *n = failing(*n, topology.FailTimeout, "") }, nil, trouble{Failing: true}},
	} {
		v := view("main", func(_ *topology.Snapshot, f *topology.Facts) {
			change(f, "n2", c.edit)
			f.Sources[2].Failure = c.source
		})
		n := clusterReport("main", v, topology.Clock{Mono: now, Wall: wall}).Nodes[1]
		got := trouble{n.Failure != nil, n.LoginFailure != nil, n.PrivilegesMissing, n.SlotsExhausted}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got)\n%s", c.name, d)
		}
	}
}

// TestSaturatedIsTold: a server whose slots are taken is told by its reason too,
// when the failure that showed it was followed by a good answer.
func TestSaturatedIsTold(t *testing.T) {
	v := view("main", func(s *topology.Snapshot, _ *topology.Facts) {
		set(s, "replica", "n2", topology.Up, topology.CodeSaturated, "all connection slots are taken")
	})
	n := clusterReport("main", v, topology.Clock{Mono: now, Wall: wall}).Nodes
	if n[0].SlotsExhausted || !n[1].SlotsExhausted {
		t.Errorf("slots exhausted: n1 %t, n2 %t; want n2", n[0].SlotsExhausted, n[1].SlotsExhausted)
	}
}

// TestStandbysAreListedByOthers: a row of pg_stat_replication is told at both
// ends; an application that calls itself like the node it asks is no standby.
func TestStandbysAreListedByOthers(t *testing.T) {
	rows := []topology.Standby{{Name: "n1", State: "streaming", SyncState: "async"}, {Name: "n2", State: "streaming", SyncState: "quorum"}}
	v := view("main", func(_ *topology.Snapshot, f *topology.Facts) {
		change(f, "n1", func(n *topology.NodeFacts) { n.Probe.Standbys = rows })
	})
	r := clusterReport("main", v, topology.Clock{Mono: now, Wall: wall})
	if d := cmp.Diff([]StandbyReport(nil), r.Nodes[0].ListedBy); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]StandbyReport{{"n1", "streaming", "quorum"}}, r.Nodes[1].ListedBy); d != "" {
		t.Error(d)
	}
}

// TestPoolLine: an empty pool is marked unless it is meant to be empty.
func TestPoolLine(t *testing.T) {
	all := func(v topology.Verdict, code topology.Code) *topology.Snapshot {
		return view("main", func(s *topology.Snapshot, _ *topology.Facts) {
			for _, n := range s.Nodes {
				set(s, "primary", n.Name, v, code, "")
			}
		}).Snapshot
	}
	for _, c := range []struct {
		name string
		s    *topology.Snapshot
		want string
	}{
		{"one", view("main", nil).Snapshot, "  pool primary (write): 1 of 3 up"},
		{"a standby cluster", all(topology.Down, topology.CodeStandbyCluster), "  pool primary (write): 0 of 3 up, nobody takes new sessions"},
		{"trouble", all(topology.Down, topology.CodeRefused), "! pool primary (write): 0 of 3 up, nobody takes new sessions"},
		{"no leader", all(topology.Drain, topology.CodeReadOnly), "! pool primary (write): 0 of 3 up, nobody takes new sessions"},
		{"a start", all(topology.Undecided, topology.CodeRoleUnknown), "  pool primary (write): 0 of 3 up, undecided: balancers keep what they have"},
	} {
		var b strings.Builder
		writePool(&b, c.s.Pools[0])
		if got := strings.TrimSuffix(b.String(), "\n"); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestDurations(t *testing.T) {
	for _, c := range []struct {
		d              time.Duration
		span, verbatim string
	}{
		{0, "0s", "0s"},
		{1234 * time.Microsecond, "1ms", "1.234ms"},
		{290 * time.Millisecond, "290ms", "290ms"},
		{1234 * time.Millisecond, "1.2s", "1.234s"},
		{59600 * time.Millisecond, "1m", "59.6s"},
		{10 * time.Minute, "10m", "10m"},
		{90 * time.Minute, "1h30m", "1h30m"},
		{10 * time.Hour, "10h", "10h"},
		{time.Hour + time.Second, "1h0m1s", "1h0m1s"},
	} {
		if got := span(c.d); got != c.span {
			t.Errorf("%s is about %s, want %s", c.d, got, c.span)
		}
		if got := exactly(c.d); got != c.verbatim {
			t.Errorf("%s is %s, want %s", c.d, got, c.verbatim)
		}
	}
}
