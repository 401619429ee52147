package status

import (
	"testing"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// TestUnhealthy: the monitor's two conditions, as the source of its versions 2.0 to
// 2.2 has them.
func TestUnhealthy(t *testing.T) {
	plain := topology.Monitor{Uptime: time.Hour, UnhealthyAfter: 20 * time.Second, StartupGrace: 10 * time.Second}
	for _, c := range []struct {
		name                string
		report, check, up   time.Duration
		health, running     topology.Tri
		since               time.Duration
		unhealthy           bool
		silentIn, graceLeft float64
		conclusion          string
	}{
		{"all is well", time.Second, time.Second, time.Hour, topology.Yes, topology.Yes, 0, false, 19, 0, "no: the keeper is not silent for long enough, its check is not bad"},
		{"bad health alone", time.Second, time.Second, time.Hour, topology.No, topology.Yes, 0, false, 19, 0, "no: the keeper is not silent for long enough"},
		{"silence alone", 20 * time.Second, time.Second, time.Hour, topology.Yes, topology.Yes, 0, false, 0, 0, "no: its check is not bad"},
		{"both", 20 * time.Second, time.Second, time.Hour, topology.No, topology.Yes, 0, true, 0, 0, "yes: the keeper is silent and the check is bad"},
		{"both, since then", 15 * time.Second, time.Second, time.Hour, topology.No, topology.Yes, 5 * time.Second, true, 0, 0, "yes: the keeper is silent and the check is bad"},
		{"both, with a check of before the start", time.Minute, 30 * time.Second, 15 * time.Second, topology.No, topology.Yes, 0, false, 0, 0, "no: its check is older than its start"},
		{"both, in the grace after a start", time.Minute, time.Second, 4 * time.Second, topology.No, topology.Yes, time.Second, false, 0, 5, "no: its grace after a start lasts 5s more"},
		{"PostgreSQL does not run", time.Second, time.Second, time.Second, topology.Yes, topology.No, 0, true, 19, 9, "yes, at once: the keeper says that PostgreSQL does not run"},
	} {
		m := plain
		m.Uptime = c.up
		r := monitorReport(&m, &topology.Assignment{ReportAge: c.report, HealthAge: c.check, Health: c.health, Running: c.running}, c.since)
		if r.Unhealthy != c.unhealthy || *r.SilentIn != c.silentIn || r.GraceLeft != c.graceLeft || r.conclusion() != c.conclusion {
			t.Errorf("%s: got %+v, silent in %v, %q", c.name, *r, *r.SilentIn, r.conclusion())
		}
	}
	never := monitorReport(&plain, &topology.Assignment{ReportAge: -1, HealthAge: -1}, time.Second)
	if never.Unhealthy || never.ReportAge != nil || never.CheckAge != nil || never.keeper() != "has never reported" || never.check() != "not made yet" {
		t.Errorf("without a report: %+v", never)
	}
	if monitorReport(nil, &topology.Assignment{}, 0) != nil || monitorReport(&plain, nil, 0) != nil {
		t.Error("a report without a monitor or an assignment")
	}
}
