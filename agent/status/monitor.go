package status

import (
	"fmt"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// MonitorReport is what pg_auto_failover's monitor says of a node, and why it calls
// it unhealthy or does not yet. The monitor does so when the node's keeper has been
// silent for node_considered_unhealthy_timeout, its own check of the node is bad and
// was made after its start, and startup_grace_period since that start is over; or at
// once when the keeper says that PostgreSQL does not run (IsUnhealthy of version
// 2.0 to 2.2). Ages are those of its last word and the time since then; while it is
// away they are those of its last word alone, and whether it calls the node unhealthy
// is unknown: keepers may report to it, or it may be down and do nothing.
type MonitorReport struct {
	// Away: it does not answer this agent, or its last answer is too old. AnsweredAge is
	// the time since then; nil: it has not answered since the agent's start.
	Away        bool     `json:"away"`
	AnsweredAge *float64 `json:"answered_seconds_ago,omitempty"`

	Goal     string `json:"goal"`
	Reported string `json:"reported"` // the state that the node confirmed
	Priority int    `json:"candidate_priority"`
	Quorum   bool   `json:"replication_quorum"`
	// ChangeAge is the time since either state changed; nil: unknown.
	ChangeAge *float64 `json:"changed_seconds_ago,omitempty"`
	// SyncStandbys is number_sync_standbys of the formation.
	SyncStandbys int `json:"number_sync_standbys"`

	Running   topology.Tri `json:"running"` // PostgreSQL, by the keeper's word
	ReportAge *float64     `json:"report_seconds_ago,omitempty"`
	// SilentIn is after how long of silence the keeper counts as silent; zero: it does;
	// nil: unknown.
	SilentIn *float64     `json:"silent_in_seconds,omitempty"`
	Health   topology.Tri `json:"health"` // good, by the monitor's own check
	CheckAge *float64     `json:"checked_seconds_ago,omitempty"`
	// CheckCounts: the check was made after the monitor's start.
	CheckCounts bool `json:"check_counts"`
	// BadWithin is after how long at most the check is bad if the node answers nothing
	// from now on; nil: unknown.
	BadWithin *float64 `json:"check_bad_within_seconds,omitempty"`
	// Uptime is the time since the monitor's start; nil: unknown.
	Uptime    *float64     `json:"monitor_uptime_seconds,omitempty"`
	GraceLeft *float64     `json:"startup_grace_left_seconds,omitempty"` // nil: unknown
	Unhealthy topology.Tri `json:"unhealthy"`
	// Promotion is who could be promoted in the primary's place, or why nobody could;
	// empty for another node than the primary, and while the monitor is away.
	Promotion string `json:"promotion,omitempty"`

	SilentAfter  float64 `json:"node_considered_unhealthy_timeout_seconds"`
	Grace        float64 `json:"startup_grace_period_seconds"`
	CheckPeriod  float64 `json:"health_check_period_seconds"`
	CheckTimeout float64 `json:"health_check_timeout_seconds"`
	CheckRetries int     `json:"health_check_max_retries"`
	CheckDelay   float64 `json:"health_check_retry_delay_seconds"`
	Assumed      bool    `json:"settings_assumed,omitempty"` // they are the monitor's defaults
	Version      string  `json:"version,omitempty"`
}

// heard is how a monitor was heard last.
type heard struct {
	current bool
	age     time.Duration // since its last answer; negative: never
}

// monitorReport is nil for a node that no monitor has assigned a state.
func monitorReport(m *topology.Monitor, a *topology.Assignment, h heard) *MonitorReport {
	if m == nil || a == nil {
		return nil
	}
	r := &MonitorReport{
		Away: !h.current, AnsweredAge: age(h.age, 0), Goal: a.Goal, Reported: a.Reported, Priority: a.Priority, Quorum: a.Quorum, Running: a.Running, Health: a.Health,
		SilentAfter: m.UnhealthyAfter.Seconds(), Grace: m.StartupGrace.Seconds(), Assumed: m.Assumed, Version: m.Version, SyncStandbys: m.SyncStandbys,
		CheckPeriod: m.Check.Period.Seconds(), CheckTimeout: m.Check.Timeout.Seconds(), CheckRetries: m.Check.MaxRetries, CheckDelay: m.Check.RetryDelay.Seconds(),
	}
	since := h.since()
	r.ReportAge, r.ChangeAge, r.Uptime = age(a.ReportAge, since), age(a.ChangeAge, since), age(m.Uptime, since)
	if a.Health != topology.Unknown { // the column has a time before the first check too
		r.CheckAge = age(a.HealthAge, since)
	}
	r.CheckCounts = r.CheckAge != nil && checkCounts(m, a)
	if !h.current {
		return r
	}
	if a.ReportAge >= 0 {
		r.SilentIn = new(max(0, m.UnhealthyAfter-a.ReportAge-since).Seconds())
	}
	if within := m.Check.BadWithin(); within > 0 && a.Health != topology.No {
		r.BadWithin = new(within.Seconds())
	}
	r.GraceLeft = new(graceLeft(m, since).Seconds())
	r.Unhealthy = topology.Bool(unhealthy(m, a, since))
	return r
}

// since is the time since its last word by which that goes on; zero while it is away.
func (h heard) since() time.Duration {
	if !h.current {
		return 0
	}
	return max(0, h.age)
}

// unhealthy is IsUnhealthy of the monitor, some time after its word.
func unhealthy(m *topology.Monitor, a *topology.Assignment, since time.Duration) bool {
	return a.Running == topology.No ||
		silent(m, a, since) && a.Health == topology.No && checkCounts(m, a) && graceLeft(m, since) == 0
}

// silent reports whether the keeper counts as silent.
func silent(m *topology.Monitor, a *topology.Assignment, since time.Duration) bool {
	return a.ReportAge >= 0 && a.ReportAge+since >= m.UnhealthyAfter
}

// checkCounts reports whether the check was made after the monitor's start.
func checkCounts(m *topology.Monitor, a *topology.Assignment) bool {
	return a.HealthAge >= 0 && (m.Uptime < 0 || a.HealthAge <= m.Uptime)
}

// graceLeft is what is left of the monitor's grace after its start; it counts as over
// when that start is not known.
func graceLeft(m *topology.Monitor, since time.Duration) time.Duration {
	if m.Uptime < 0 {
		return 0
	}
	return max(0, m.StartupGrace-m.Uptime-since)
}

// age is in seconds, of an age by a clock of others and the time since; nil: unknown.
func age(d, since time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	return new((d + since).Seconds())
}

// monitor prints the monitor's conditions, each with its value and the time left.
func (r rows) monitor(m *MonitorReport) {
	if m == nil {
		return
	}
	text := "goal " + m.Goal
	if m.Reported != m.Goal {
		text += ", confirmed " + m.Reported
	}
	if m.ChangeAge != nil {
		text += ", since " + seconds(*m.ChangeAge)
	}
	switch {
	case m.Away && m.AnsweredAge != nil:
		text = "its last word, " + seconds(*m.AnsweredAge) + " ago: " + text
	case m.Away:
		text = "its last word, before this agent's start: " + text
	}
	quorum := "no part of the quorum"
	if m.Quorum {
		quorum = "in the quorum"
	}
	r.add("monitor", "%s; candidate priority %d, %s", text, m.Priority, quorum)
	r.add("keeper", "%s", m.keeper())
	r.add("check", "%s", m.check())
	r.add("started", "%s", m.started())
	r.add("unhealthy", "%s", m.conclusion())
	if m.Promotion != "" {
		r.add("promotion", "%s", m.Promotion)
	}
	r.add("settings", "%s", m.settings())
}

// settings are the monitor's limits, those by which the lines above were judged.
func (m *MonitorReport) settings() string {
	text := "node_considered_unhealthy_timeout " + seconds(m.SilentAfter) + ", startup_grace_period " + seconds(m.Grace)
	if m.CheckTimeout > 0 {
		text += fmt.Sprintf(", health_check_period %s, _timeout %s, _max_retries %d, _retry_delay %s",
			seconds(m.CheckPeriod), seconds(m.CheckTimeout), m.CheckRetries, seconds(m.CheckDelay))
	}
	if m.Assumed {
		text += "; these are defaults, the monitor's own could not be read"
	}
	return text
}

// started is since when the monitor runs, and whether its grace after that is over.
func (m *MonitorReport) started() string {
	switch {
	case m.Uptime == nil:
		return "the monitor has not told when"
	case m.Away:
		return "the monitor " + seconds(*m.Uptime) + " before that"
	case *m.GraceLeft > 0:
		return fmt.Sprintf("the monitor %s ago; its grace after a start lasts %s more", seconds(*m.Uptime), seconds(*m.GraceLeft))
	}
	return "the monitor " + seconds(*m.Uptime) + " ago; its grace after a start is over"
}

func (m *MonitorReport) keeper() string {
	if m.ReportAge == nil {
		return "has never reported"
	}
	if m.Away {
		return fmt.Sprintf("had reported %s before that, PostgreSQL ran: %s", seconds(*m.ReportAge), m.Running)
	}
	text := fmt.Sprintf("reported %s ago, PostgreSQL runs: %s", seconds(*m.ReportAge), m.Running)
	if *m.SilentIn == 0 {
		return text + "; silent for longer than " + seconds(m.SilentAfter)
	}
	return text + fmt.Sprintf("; silent after %s, that is in %s", seconds(m.SilentAfter), seconds(*m.SilentIn))
}

func (m *MonitorReport) check() string {
	text := map[topology.Tri]string{topology.Yes: "good", topology.No: "bad", topology.Unknown: "not made yet"}[m.Health]
	switch {
	case m.CheckAge != nil && m.Away:
		text += ", made " + seconds(*m.CheckAge) + " before that"
	case m.CheckAge != nil:
		text += ", made " + seconds(*m.CheckAge) + " ago"
	}
	switch {
	case m.Health == topology.No && !m.CheckCounts:
		text += "; before the monitor's start, so it does not count"
	case m.BadWithin != nil:
		text += "; bad within " + seconds(*m.BadWithin) + " if the node answers nothing from now on"
	}
	return text
}

// conclusion says whether the monitor calls the node unhealthy, or what is missing.
func (m *MonitorReport) conclusion() string {
	switch {
	case m.Away:
		since := "since this agent's start"
		if m.AnsweredAge != nil {
			since = "for " + seconds(*m.AnsweredAge)
		}
		return "unknown: the monitor has not answered " + since + "; nothing fails over meanwhile, unless it is out of this agent's reach alone"
	case m.Running == topology.No:
		return "yes, at once: the keeper says that PostgreSQL does not run"
	case m.Unhealthy == topology.Yes:
		return "yes: the keeper is silent and the check is bad"
	}
	var missing []string
	if m.SilentIn == nil || *m.SilentIn > 0 {
		missing = append(missing, "the keeper is not silent for long enough")
	}
	if m.Health != topology.No {
		missing = append(missing, "its check is not bad")
	} else if !m.CheckCounts {
		missing = append(missing, "its check is older than its start")
	}
	if *m.GraceLeft > 0 {
		missing = append(missing, "its grace after a start lasts "+seconds(*m.GraceLeft)+" more")
	}
	return "no: " + strings.Join(missing, ", ")
}
