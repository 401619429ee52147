package status

import (
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// standing is a node by the word of a monitor that heard from it a second ago.
func standing(name, goal, reported string, change ...func(*topology.Assignment)) topology.Member {
	a := &topology.Assignment{
		Goal: goal, Reported: reported, Reads: topology.Up, Running: topology.Yes, ReportAge: time.Second, Health: topology.Yes, HealthAge: 3 * time.Second, Priority: 50, Quorum: true,
	}
	for _, c := range change {
		c(a)
	}
	return topology.Member{Name: name, Assigned: a}
}

// What a node may be besides.
var (
	dead = func(a *topology.Assignment) {
		a.ReportAge, a.Health = 25*time.Second, topology.No
	}
	hushed    = func(a *topology.Assignment) { a.ReportAge = 25 * time.Second }
	checkedIn = func(a *topology.Assignment) {
		a.Health, a.ReportAge, a.HealthAge = topology.No, time.Second, 3*time.Second
	}
	checkBad = func(a *topology.Assignment) {
		a.Health, a.ReportAge, a.HealthAge = topology.No, 4*time.Second, 3*time.Second
	}
	unchecked = func(a *topology.Assignment) { a.Health = topology.Unknown }
	stopped   = func(a *topology.Assignment) { a.Running = topology.No }
	never     = func(a *topology.Assignment) { a.Priority = 0 }
	preferred = func(a *topology.Assignment) { a.Priority = 90 }
	outside   = func(a *topology.Assignment) { a.Quorum = false }
	replaced  = func(a *topology.Assignment) { a.Reads = topology.Down }
	promoted  = func(a *topology.Assignment) { a.Promoting = true }
)

// TestPromotion: who could be promoted, by the monitor's rules (FSM of version 2.0 to
// 2.2), or why nobody could.
func TestPromotion(t *testing.T) {
	primary := standing("n1", "primary", "primary", dead)
	ready := standing("n2", "secondary", "secondary")
	unseen := ", unless it lacks more than promote_wal_log_threshold, which is not seen here"
	waits := "nobody: the monitor wants the positions of all of the quorum first, and none comes from "
	for _, c := range []struct {
		name    string
		members []topology.Member
		leader  string
		sync    int
		want    string
	}{
		{"a node alone", []topology.Member{standing("n1", "single", "single")}, "n1", 0, "nobody: the group has no other node"},
		{"another that is dropped", []topology.Member{standing("n1", "single", "single"), standing("n2", "dropped", "secondary")}, "n1", 0, "nobody: the group has no other node"},

		{"the only standby", []topology.Member{primary, ready}, "n1", 0, "n2" + unseen},
		{"it keeps out of the quorum", []topology.Member{primary, standing("n2", "secondary", "secondary", outside)}, "n1", 1, "n2" + unseen},
		{"it must never be", []topology.Member{primary, standing("n2", "secondary", "secondary", never)}, "n1", 0, "nobody: n2 has candidate priority 0"},
		{"it catches up", []topology.Member{primary, standing("n2", "catchingup", "catchingup")}, "n1", 0, "nobody: n2 is in state catchingup"},
		{"it is lost, so the primary goes on alone", []topology.Member{standing("n1", "wait_primary", "wait_primary", dead), standing("n2", "catchingup", "secondary", dead)}, "n1", 0, "nobody: n2 has the goal catchingup and has confirmed secondary"},
		{"it has not confirmed", []topology.Member{primary, standing("n2", "secondary", "catchingup")}, "n1", 0, "nobody: n2 has the goal secondary and has confirmed catchingup"},
		{"its PostgreSQL is stopped", []topology.Member{primary, standing("n2", "secondary", "secondary", stopped)}, "n1", 0, "nobody: PostgreSQL does not run on n2"},
		{"its check is bad, its keeper reports", []topology.Member{primary, standing("n2", "secondary", "secondary", checkedIn)}, "n1", 0, "n2" + unseen},
		{"its check is bad", []topology.Member{primary, standing("n2", "secondary", "secondary", checkBad)}, "n1", 0, "nobody: the check of n2 is bad and its keeper has not reported since"},
		{"its check is bad, its keeper never reported", []topology.Member{primary, standing("n2", "secondary", "secondary", checkedIn, func(a *topology.Assignment) { a.ReportAge = -1 })}, "n1", 0, "nobody: the check of n2 is bad and its keeper has not reported since"},
		{"it was not checked", []topology.Member{primary, standing("n2", "secondary", "secondary", unchecked)}, "n1", 0, "nobody: the monitor has not checked n2 yet"},

		{"a primary between two states", []topology.Member{standing("n1", "primary", "wait_primary", dead), ready}, "n1", 0, "nobody: the monitor replaces no primary between two states, and n1 has the goal primary and has confirmed wait_primary"},
		{"a primary with new settings", []topology.Member{standing("n1", "apply_settings", "primary", dead), ready}, "n1", 0, "n2" + unseen},

		{"two standbys", []topology.Member{primary, ready, standing("n3", "catchingup", "catchingup")}, "n1", 1, "n2 or n3" + unseen},
		{"one of them is preferred", []topology.Member{primary, ready, standing("n3", "secondary", "secondary", preferred), standing("n4", "secondary", "secondary")}, "n1", 0, "n3" + unseen},
		{"one of them must never be", []topology.Member{primary, ready, standing("n3", "secondary", "secondary", never)}, "n1", 1, "n2" + unseen},
		{"one of them is stopped", []topology.Member{primary, ready, standing("n3", "secondary", "secondary", stopped)}, "n1", 0, "n2" + unseen},
		{"neither", []topology.Member{primary, standing("n2", "secondary", "secondary", never), standing("n3", "secondary", "secondary", stopped), standing("n4", "maintenance", "maintenance")}, "n1", 0, "nobody: n2 has candidate priority 0, PostgreSQL does not run on n3, n4 is in state maintenance"},
		{"one is dead", []topology.Member{primary, ready, standing("n3", "catchingup", "secondary", dead)}, "n1", 0, waits + "n3"},
		{"all are", []topology.Member{primary, standing("n2", "catchingup", "secondary", dead), standing("n3", "catchingup", "secondary", dead)}, "n1", 0, waits + "n2 and n3"},
		{"one is silent, its check is good", []topology.Member{primary, ready, standing("n3", "secondary", "secondary", hushed)}, "n1", 0, "n2 or n3" + unseen},
		{"one is dead, outside of the quorum", []topology.Member{primary, ready, standing("n3", "catchingup", "secondary", dead, outside)}, "n1", 0, "n2" + unseen},
		{"one is dead, its position is known", []topology.Member{primary, ready, standing("n3", "report_lsn", "report_lsn", dead)}, "n1", 0, "n2" + unseen},
		{"both are dead, outside of the quorum", []topology.Member{primary, standing("n2", "catchingup", "secondary", dead, outside), standing("n3", "catchingup", "secondary", dead, outside)}, "n1", 0, "nobody: n2 is unhealthy, n3 is unhealthy"},
		{"both are outside of the quorum, and commits wait for nobody", []topology.Member{primary, standing("n2", "secondary", "secondary", outside), standing("n3", "secondary", "secondary", outside)}, "n1", 0, "n2 or n3" + unseen},
		{"too few for commits", []topology.Member{primary, ready, standing("n3", "secondary", "secondary", outside)}, "n1", 1, "nobody: number_sync_standbys 1 wants 2 standbys of the quorum that tell their positions, and there are 1"},

		{"the election", []topology.Member{standing("n1", "draining", "primary", dead, replaced), standing("n2", "report_lsn", "report_lsn"), standing("n3", "report_lsn", "secondary")}, "", 1, "n2 or n3" + unseen},
		{"nobody left may be", []topology.Member{standing("n1", "draining", "primary", dead, replaced), standing("n2", "report_lsn", "report_lsn", never), standing("n3", "report_lsn", "report_lsn", never)}, "", 1, "nobody: n2 has candidate priority 0, n3 has candidate priority 0"},
		{"a former primary votes", []topology.Member{standing("n1", "demoted", "demoted", replaced), standing("n2", "report_lsn", "report_lsn", never)}, "", 0, "n1" + unseen},
		{"a former primary is dead", []topology.Member{standing("n1", "demoted", "demoted", replaced, dead), standing("n2", "report_lsn", "report_lsn"), standing("n3", "report_lsn", "report_lsn")}, "", 0, waits + "n1"},
		{"a promotion", []topology.Member{standing("n1", "demote_timeout", "primary", dead, replaced), standing("n2", "stop_replication", "prepare_promotion", promoted)}, "", 0, "n2, which has the goal stop_replication"},
		{"a winner that lacks WAL", []topology.Member{standing("n1", "draining", "primary", dead, replaced), standing("n2", "fast_forward", "report_lsn"), standing("n3", "report_lsn", "report_lsn")}, "", 0, "n2, which has the goal fast_forward"},
	} {
		a := topology.Authority{Leader: c.leader, Members: c.members, Monitor: &topology.Monitor{Uptime: time.Hour, UnhealthyAfter: 20 * time.Second, StartupGrace: 10 * time.Second, SyncStandbys: c.sync}}
		if got := promotion("n1", &a, 0); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

// TestPromotionStandsWithThePrimary, and with every node while there is none.
func TestPromotionStandsWithThePrimary(t *testing.T) {
	a := topology.Authority{
		Leader: "n1", Members: []topology.Member{standing("n1", "primary", "primary"), standing("n2", "secondary", "secondary")},
		Monitor: &topology.Monitor{Uptime: time.Hour, UnhealthyAfter: 20 * time.Second},
	}
	if promotion("n1", &a, 0) == "" || promotion("n2", &a, 0) != "" {
		t.Error("with a primary it stands with another node, or nowhere")
	}
	a.Leader = ""
	if promotion("n1", &a, 0) == "" || promotion("n2", &a, 0) == "" {
		t.Error("without a primary it stands with some nodes alone")
	}
	a.Monitor.Claimants = []string{"n1", "n2"}
	if promotion("n1", &a, 0) != "" {
		t.Error("the monitor contradicts itself, and something is concluded")
	}
}

// TestPromotionCountsOn: a standby that has gone silent since the monitor's word.
func TestPromotionCountsOn(t *testing.T) {
	lost := standing("n3", "secondary", "secondary", func(a *topology.Assignment) { a.ReportAge, a.Health = 19*time.Second, topology.No })
	a := topology.Authority{
		Leader: "n1", Members: []topology.Member{standing("n1", "primary", "primary"), standing("n2", "secondary", "secondary"), lost},
		Monitor: &topology.Monitor{Uptime: time.Hour, UnhealthyAfter: 20 * time.Second},
	}
	early, late := promotion("n1", &a, 0), promotion("n1", &a, time.Second)
	if early[:8] != "n2 or n3" || late[:7] != "nobody:" {
		t.Errorf("got %q, then %q", early, late)
	}
}
