package simulate

import (
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// monitorFile is a monitor's word on the group, in a raw observation.
type monitorFile struct {
	Version        text   `yaml:"version"`
	Claimants      []text `yaml:"claimants"`
	SyncStandbys   int64  `yaml:"number_sync_standbys"`
	Uptime         span   `yaml:"uptime"`
	UnhealthyAfter span   `yaml:"unhealthy_after"`
	StartupGrace   span   `yaml:"startup_grace"`
	CheckPeriod    span   `yaml:"check_period"`
	CheckTimeout   span   `yaml:"check_timeout"`
	CheckRetries   int64  `yaml:"check_max_retries"`
	CheckDelay     span   `yaml:"check_retry_delay"`
	Assumed        bool   `yaml:"assumed"`
}

// assignedFile is its word on a node.
type assignedFile struct {
	Goal      text             `yaml:"goal"`
	Reported  text             `yaml:"reported"`
	Writes    topology.Tri     `yaml:"writes"`
	Promoting bool             `yaml:"promoting"`
	Reads     topology.Verdict `yaml:"reads"`
	Stale     bool             `yaml:"stale"`
	Operator  bool             `yaml:"operator"`
	Why       text             `yaml:"why"`
	Running   topology.Tri     `yaml:"running"`
	ReportAge span             `yaml:"report_age"`
	Health    topology.Tri     `yaml:"health"`
	HealthAge span             `yaml:"health_age"`
	ChangeAge span             `yaml:"change_age"`
	Priority  int64            `yaml:"priority"`
	Quorum    bool             `yaml:"quorum"`
}

func (w *monitorFile) value() *topology.Monitor {
	if w == nil {
		return nil
	}
	m := &topology.Monitor{
		Version: string(w.Version), SyncStandbys: int(w.SyncStandbys), Uptime: time.Duration(w.Uptime),
		UnhealthyAfter: time.Duration(w.UnhealthyAfter), StartupGrace: time.Duration(w.StartupGrace), Assumed: w.Assumed,
		Check: topology.HealthCheck{
			Period: time.Duration(w.CheckPeriod), Timeout: time.Duration(w.CheckTimeout), MaxRetries: int(w.CheckRetries), RetryDelay: time.Duration(w.CheckDelay),
		},
	}
	for _, c := range w.Claimants {
		m.Claimants = append(m.Claimants, string(c))
	}
	return m
}

func (w *assignedFile) value() *topology.Assignment {
	if w == nil {
		return nil
	}
	return &topology.Assignment{
		Goal: string(w.Goal), Reported: string(w.Reported), Writes: w.Writes, Promoting: w.Promoting, Reads: w.Reads, Stale: w.Stale,
		Operator: w.Operator, Why: string(w.Why), Running: w.Running, ReportAge: time.Duration(w.ReportAge), Health: w.Health,
		HealthAge: time.Duration(w.HealthAge), ChangeAge: time.Duration(w.ChangeAge), Priority: int(w.Priority), Quorum: w.Quorum,
	}
}

func (f fields) flag(key string, b bool) { f.raw(key, strconv.FormatBool(b)) }

func (f fields) monitor(m *topology.Monitor) {
	if m == nil {
		return
	}
	below := newFields()
	below.text("version", m.Version)
	below.texts("claimants", m.Claimants)
	below.raw("number_sync_standbys", strconv.Itoa(m.SyncStandbys))
	below.duration("uptime", m.Uptime)
	below.duration("unhealthy_after", m.UnhealthyAfter)
	below.duration("startup_grace", m.StartupGrace)
	below.duration("check_period", m.Check.Period)
	below.duration("check_timeout", m.Check.Timeout)
	below.raw("check_max_retries", strconv.Itoa(m.Check.MaxRetries))
	below.duration("check_retry_delay", m.Check.RetryDelay)
	below.flag("assumed", m.Assumed)
	f.present("monitor", below)
}

func (f fields) assigned(a *topology.Assignment) {
	if a == nil {
		return
	}
	below := newFields()
	below.text("goal", a.Goal)
	below.text("reported", a.Reported)
	below.tri("writes", a.Writes)
	below.flag("promoting", a.Promoting)
	if a.Reads != topology.Undecided {
		below.raw("reads", a.Reads.String())
	}
	below.flag("stale", a.Stale)
	below.flag("operator", a.Operator)
	below.text("why", a.Why)
	below.tri("running", a.Running)
	below.duration("report_age", a.ReportAge)
	below.tri("health", a.Health)
	below.duration("health_age", a.HealthAge)
	below.duration("change_age", a.ChangeAge)
	below.raw("priority", strconv.Itoa(a.Priority))
	below.flag("quorum", a.Quorum)
	f.present("assigned", below)
}

func (f fields) texts(key string, all []string) {
	if len(all) == 0 {
		return
	}
	l := list()
	for _, s := range all {
		l.Content = append(l.Content, scalar(s))
	}
	f.put(key, l)
}

// present puts a map on one line, also an empty one: that it is there says something.
func (f fields) present(key string, below fields) {
	below.n.Style = yaml.FlowStyle
	f.put(key, below.n)
}
