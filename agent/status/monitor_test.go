package status

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// monitored is a cluster of pg_auto_failover whose primary froze 12 s ago: the monitor
// does nothing yet.
func monitored(more func(*topology.Snapshot, *topology.Facts)) *world {
	return newWorld(view("main", func(s *topology.Snapshot, f *topology.Facts) {
		s.Authority.Kind = topology.AuthorityMonitor
		f.Sources[0].Source = topology.SourceID{Kind: topology.SourceMonitor, Name: "default/0"}
		f.Sources[0].OKAt, f.AuthoritySource = before(time.Second), f.Sources[0].Source
		assign := func(name, goal string, health topology.Tri, report time.Duration) topology.Member {
			return topology.Member{Name: name, Role: "replica", State: goal, Timeline: 5, Assigned: &topology.Assignment{
				Goal: goal, Reported: goal, Reads: topology.Up, Running: topology.Yes, ReportAge: report, Health: health, HealthAge: 3 * time.Second, ChangeAge: time.Hour, Priority: 50, Quorum: true,
			}}
		}
		f.Authority = &topology.Authority{
			Leader:  "n1",
			Members: []topology.Member{assign("n1", "primary", topology.Yes, 11*time.Second), assign("n2", "secondary", topology.Yes, time.Second), assign("n3", "secondary", topology.Yes, time.Second)},
			Monitor: &topology.Monitor{Version: "2.0", Uptime: time.Hour, UnhealthyAfter: 20 * time.Second, StartupGrace: 10 * time.Second, Check: usualCheck},
		}
		for i := range f.Authority.Members {
			n := f.Nodes[f.Authority.Members[i].Name]
			n.Member = &f.Authority.Members[i]
			f.Nodes[n.Member.Name] = n
		}
		n1 := failing(f.Nodes["n1"], topology.FailTimeout, "login to 10.0.0.1:5432 as pgsteer: no answer within 800ms")
		f.Nodes["n1"] = n1
		set(s, "primary", "n1", topology.Drain, topology.CodeSilent, "no answer since 11:59:48")
		if more != nil {
			more(s, f)
		}
	}))
}

var usualCheck = topology.HealthCheck{Period: 5 * time.Second, Timeout: 5 * time.Second, MaxRetries: 2, RetryDelay: 2 * time.Second}

// TestUnhealthy: the monitor's two conditions, as the source of its versions 2.0 to
// 2.2 has them.
func TestUnhealthy(t *testing.T) {
	plain := topology.Monitor{Uptime: time.Hour, UnhealthyAfter: 20 * time.Second, StartupGrace: 10 * time.Second}
	for _, c := range []struct {
		name                string
		report, check, up   time.Duration
		health, running     topology.Tri
		since               time.Duration
		unhealthy           topology.Tri
		silentIn, graceLeft float64
		conclusion          string
	}{
		{"all is well", time.Second, time.Second, time.Hour, topology.Yes, topology.Yes, 0, topology.No, 19, 0, "no: the keeper is not silent for long enough, its check is not bad"},
		{"bad health alone", time.Second, time.Second, time.Hour, topology.No, topology.Yes, 0, topology.No, 19, 0, "no: the keeper is not silent for long enough"},
		{"silence alone", 20 * time.Second, time.Second, time.Hour, topology.Yes, topology.Yes, 0, topology.No, 0, 0, "no: its check is not bad"},
		{"both", 20 * time.Second, time.Second, time.Hour, topology.No, topology.Yes, 0, topology.Yes, 0, 0, "yes: the keeper is silent and the check is bad"},
		{"both, since then", 15 * time.Second, time.Second, time.Hour, topology.No, topology.Yes, 5 * time.Second, topology.Yes, 0, 0, "yes: the keeper is silent and the check is bad"},
		{"both, with a check of before the start", time.Minute, 30 * time.Second, 15 * time.Second, topology.No, topology.Yes, 0, topology.No, 0, 0, "no: its check is older than its start"},
		{"both, in the grace after a start", time.Minute, time.Second, 4 * time.Second, topology.No, topology.Yes, time.Second, topology.No, 0, 5, "no: its grace after a start lasts 5s more"},
		{"PostgreSQL does not run", time.Second, time.Second, time.Second, topology.Yes, topology.No, 0, topology.Yes, 19, 9, "yes, at once: the keeper says that PostgreSQL does not run"},
	} {
		m := plain
		m.Uptime = c.up
		r := monitorReport(&m, &topology.Assignment{ReportAge: c.report, HealthAge: c.check, Health: c.health, Running: c.running}, heard{true, c.since})
		if r.Unhealthy != c.unhealthy || *r.SilentIn != c.silentIn || *r.GraceLeft != c.graceLeft || r.conclusion() != c.conclusion {
			t.Errorf("%s: got %+v, silent in %v, %q", c.name, *r, *r.SilentIn, r.conclusion())
		}
	}
	never := monitorReport(&plain, &topology.Assignment{ReportAge: -1, HealthAge: -1}, heard{true, time.Second})
	if never.Unhealthy != topology.No || never.ReportAge != nil || never.CheckAge != nil || never.keeper() != "has never reported" || never.check() != "not made yet" {
		t.Errorf("without a report: %+v", never)
	}
	if never.BadWithin != nil {
		t.Errorf("the settings of the check are not known, yet it is bad within %vs", *never.BadWithin)
	}
	if monitorReport(nil, &topology.Assignment{}, heard{}) != nil || monitorReport(&plain, nil, heard{}) != nil {
		t.Error("a report without a monitor or an assignment")
	}
}

// TestMonitorsCheck: what is printed of the monitor's own check. A node that was never checked
// has a time of that all the same, the one of its registration.
func TestMonitorsCheck(t *testing.T) {
	const silent = "; bad within 26s if the node answers nothing from now on"
	for _, c := range []struct {
		name   string
		health topology.Tri
		age    time.Duration
		away   bool
		want   string
	}{
		{"never", topology.Unknown, 12 * time.Second, false, "not made yet" + silent},
		{"never, without a time", topology.Unknown, -1, false, "not made yet" + silent},
		{"never, as far as known", topology.Unknown, 12 * time.Second, true, "not made yet"},
		{"good", topology.Yes, 3 * time.Second, false, "good, made 4s ago" + silent},
		{"good, as far as known", topology.Yes, 3 * time.Second, true, "good, made 3s before that"},
		{"bad", topology.No, 3 * time.Second, false, "bad, made 4s ago"},
		{"bad before the start", topology.No, 2 * time.Hour, false, "bad, made 2h0m1s ago; before the monitor's start, so it does not count"},
	} {
		m := topology.Monitor{Uptime: time.Hour, UnhealthyAfter: 20 * time.Second, Check: usualCheck}
		r := monitorReport(&m, &topology.Assignment{ReportAge: time.Second, Health: c.health, HealthAge: c.age}, heard{!c.away, time.Second})
		if got := r.check(); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if c.health == topology.Unknown && (r.CheckAge != nil || r.CheckCounts) {
			t.Errorf("%s: a check that was not made is %vs old, counts %t", c.name, r.CheckAge, r.CheckCounts)
		}
	}
}

// TestMonitorsStart: what is printed of the monitor's start.
func TestMonitorsStart(t *testing.T) {
	for _, c := range []struct {
		up   time.Duration
		away bool
		want string
	}{
		{time.Hour, false, "the monitor 1h0m1s ago; its grace after a start is over"},
		{4 * time.Second, false, "the monitor 5s ago; its grace after a start lasts 5s more"},
		{9 * time.Second, false, "the monitor 10s ago; its grace after a start is over"},
		{4 * time.Second, true, "the monitor 4s before that"},
		{-1, false, "the monitor has not told when"},
	} {
		m := topology.Monitor{Uptime: c.up, StartupGrace: 10 * time.Second}
		if got := monitorReport(&m, &topology.Assignment{}, heard{!c.away, time.Second}).started(); got != c.want {
			t.Errorf("up for %s, away %t: got %q, want %q", c.up, c.away, got, c.want)
		}
	}
}

// TestUnhealthyIsUnknownWhileTheMonitorIsAway: its conditions go on by its own clock,
// and keepers may reach it, so that no age and no conclusion is made of its last word.
func TestUnhealthyIsUnknownWhileTheMonitorIsAway(t *testing.T) {
	word := topology.Assignment{Goal: "primary", Reported: "primary", ReportAge: time.Minute, ChangeAge: time.Hour, HealthAge: 3 * time.Second, Health: topology.No, Running: topology.No}
	m := topology.Monitor{Uptime: time.Second, UnhealthyAfter: 20 * time.Second, StartupGrace: 10 * time.Second}
	for _, c := range []struct {
		age        time.Duration
		conclusion string
	}{
		{90 * time.Second, "unknown: the monitor has not answered for 1m30s; nothing fails over meanwhile, unless it is out of this agent's reach alone"},
		{-1, "unknown: the monitor has not answered since this agent's start; nothing fails over meanwhile, unless it is out of this agent's reach alone"},
	} {
		r := monitorReport(&m, &word, heard{age: c.age})
		if r.Unhealthy != topology.Unknown || !r.Away || r.SilentIn != nil || r.GraceLeft != nil {
			t.Errorf("conditions of a monitor that is away: %+v", *r)
		}
		if *r.ReportAge != 60 || *r.CheckAge != 3 || *r.ChangeAge != 3600 {
			t.Errorf("ages %v, %v, %v are not those of its last word", *r.ReportAge, *r.CheckAge, *r.ChangeAge)
		}
		if got := r.conclusion(); got != c.conclusion {
			t.Errorf("got %q, want %q", got, c.conclusion)
		}
	}
}

// TestMonitorIsAway: its word counts only while the authority is current and the view
// is believed.
func TestMonitorIsAway(t *testing.T) {
	for _, c := range []struct {
		name  string
		state string
		valid time.Duration
		away  bool
	}{
		{"current", topology.AuthorityStateCurrent, time.Second, false},
		{"lost", topology.AuthorityStateLost, time.Second, true},
		{"unknown", topology.AuthorityStateUnknown, time.Second, true},
		{"nothing is decided any more", topology.AuthorityStateCurrent, -time.Second, true},
	} {
		w := monitored(nil)
		v := w.views.Get("main")
		v.Snapshot.Authority.State, v.ValidUntil = c.state, now.Add(c.valid)
		m := clusterReport("main", v, w.at).Nodes[0].Monitor
		if m.Away != c.away || *m.AnsweredAge != 1 {
			t.Errorf("%s: away %t, last answer %vs ago", c.name, m.Away, *m.AnsweredAge)
		}
	}
}

// TestManualShowsTheMonitor: the manual's pictures are what is printed.
func TestManualShowsTheMonitor(t *testing.T) {
	page, err := os.ReadFile("../../docs/pg_auto_failover.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []string{"monitor", "monitor-nobody", "monitor-away"} {
		_, text, _ := strings.Cut(explain(t, worlds[w](), "main/n1").Text, "\n  monitor ")
		text, _, ok := strings.Cut(text, "\n  authority ")
		if picture := "  monitor " + text + "\n"; !ok || !strings.Contains(string(page), picture) {
			t.Errorf("docs/pg_auto_failover.md lacks this:\n%s", picture)
		}
	}
}
