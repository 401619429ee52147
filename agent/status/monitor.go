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
	CheckCounts bool         `json:"check_counts"`
	GraceLeft   *float64     `json:"startup_grace_left_seconds,omitempty"` // nil: unknown
	Unhealthy   topology.Tri `json:"unhealthy"`

	SilentAfter float64 `json:"node_considered_unhealthy_timeout_seconds"`
	Grace       float64 `json:"startup_grace_period_seconds"`
	Assumed     bool    `json:"settings_assumed,omitempty"` // they are the monitor's defaults
	Version     string  `json:"version,omitempty"`
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
	}
	var since time.Duration
	if h.current {
		since = max(0, h.age)
	}
	r.ReportAge, r.ChangeAge, r.CheckAge = age(a.ReportAge, since), age(a.ChangeAge, since), age(a.HealthAge, since)
	r.CheckCounts = a.HealthAge >= 0 && (m.Uptime < 0 || a.HealthAge <= m.Uptime)
	if !h.current {
		return r
	}
	if a.ReportAge >= 0 {
		r.SilentIn = new(max(0, m.UnhealthyAfter-a.ReportAge-since).Seconds())
	}
	r.GraceLeft = new(0.0)
	if m.Uptime >= 0 {
		r.GraceLeft = new(max(0, m.StartupGrace-m.Uptime-since).Seconds())
	}
	silent := r.SilentIn != nil && *r.SilentIn == 0
	r.Unhealthy = topology.Bool(a.Running == topology.No || silent && a.Health == topology.No && r.CheckCounts && *r.GraceLeft == 0)
	return r
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
	r.add("unhealthy", "%s", m.conclusion())
	r.add("settings", "%s", m.settings())
}

// settings are the monitor's limits, those by which the lines above were judged.
func (m *MonitorReport) settings() string {
	text := "node_considered_unhealthy_timeout %s, startup_grace_period %s"
	if m.Assumed {
		text = "node_considered_unhealthy_timeout %s (default), startup_grace_period %s (default); the monitor's own could not be read"
	}
	return fmt.Sprintf(text, seconds(m.SilentAfter), seconds(m.Grace))
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
	if m.Health == topology.No && !m.CheckCounts {
		text += "; before the monitor's start, so it does not count"
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
