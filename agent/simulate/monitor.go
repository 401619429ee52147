package simulate

import (
	"maps"
	"slices"
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers/pgautofailover"
)

// keeperEvery is how often a keeper reports.
const keeperEvery = time.Second

// monitor is pg_auto_failover's monitor as it stands now.
type monitor struct {
	fails outcome // of every read; empty: it answers
	rows  map[string]*monitorRow
	ids   map[string]int64 // of every node that ever had a row
}

// monitorRow is a row of its node table. A nil field has the value of a healthy
// node in its goal.
type monitorRow struct {
	goal        string
	reported    *string
	running     *bool
	health      *string
	reportAge   *span // at the step that says so; it grows from there
	healthAge   *span
	since       time.Duration // when that was, in scenario time
	priority    *int64
	quorum      *bool
	nodeCluster *string
	tli         *timeline
	systemID    *uint64
	address     *topology.Address
}

// The words for a node's health at the monitor.
var rowHealth = map[string]int{"good": 1, "bad": 0, "unknown": -1}

// monitorChange is what a step says of the monitor: how reading it ends, or rows.
type monitorChange struct {
	fails *outcome
	rows  []rowChange
}

type rowChange struct {
	node    string
	gone    bool
	changes []func(*monitorRow)
}

// rowField reads a value into a field; null gives it back to its default.
func rowField[T any](at func(*monitorRow) **T) func(config.Value) func(*monitorRow) {
	return func(v config.Value) func(*monitorRow) {
		if isNull(v) {
			return func(r *monitorRow) { *at(r) = nil }
		}
		x := new(T)
		v.Into(x)
		return func(r *monitorRow) { *at(r) = x }
	}
}

// rowKeys are the keys of a node below monitor.
var rowKeys = map[string]func(config.Value) func(*monitorRow){
	"goal": func(v config.Value) func(*monitorRow) {
		var goal string
		v.Into(&goal)
		return func(r *monitorRow) { r.goal = goal }
	},
	"reported":    rowField(func(r *monitorRow) **string { return &r.reported }),
	"running":     rowField(func(r *monitorRow) **bool { return &r.running }),
	"health":      healthWord,
	"report_age":  rowField(func(r *monitorRow) **span { return &r.reportAge }),
	"health_age":  rowField(func(r *monitorRow) **span { return &r.healthAge }),
	"priority":    rowField(func(r *monitorRow) **int64 { return &r.priority }),
	"quorum":      rowField(func(r *monitorRow) **bool { return &r.quorum }),
	"nodecluster": rowField(func(r *monitorRow) **string { return &r.nodeCluster }),
	"tli":         rowField(func(r *monitorRow) **timeline { return &r.tli }),
	"system_id":   rowField(func(r *monitorRow) **uint64 { return &r.systemID }),
	"address":     rowField(func(r *monitorRow) **topology.Address { return &r.address }),
}

func healthWord(v config.Value) func(*monitorRow) {
	if word, written := v.Text(); written {
		if _, known := rowHealth[word]; !known {
			v.Fault("%s", config.UnknownWord(word, sortedKeys(rowHealth)))
		}
	}
	return rowField(func(r *monitorRow) **string { return &r.health })(v)
}

// monitorChanges reads what a step says of the monitor: a word, or a map by node
// of a goal or of keys.
func monitorChanges(v config.Value) *monitorChange {
	c := &monitorChange{fails: new(outcome)}
	if _, word := v.Text(); word {
		v.Into(c.fails)
		return c
	}
	for name, below := range v.Entries() {
		r := rowChange{node: name, gone: isNull(below)}
		if _, word := below.Text(); word && !r.gone {
			r.changes = append(r.changes, rowKeys["goal"](below))
		} else if !r.gone {
			for key, value := range below.Entries() {
				read, known := rowKeys[key]
				if !known {
					value.Fault("unknown key: %s", config.UnknownWord(key, sortedKeys(rowKeys)))
					continue
				}
				r.changes = append(r.changes, read(value))
			}
		}
		c.rows = append(c.rows, r)
	}
	return c
}

// apply takes a step's change.
func (m *monitor) apply(c *monitorChange, now time.Duration) {
	m.fails = *c.fails
	for _, change := range c.rows {
		if change.gone {
			delete(m.rows, change.node)
			continue
		}
		row := monitorRow{}
		if old := m.rows[change.node]; old != nil {
			row = *old
		}
		was := row
		for _, set := range change.changes {
			set(&row)
		}
		if row.reportAge != was.reportAge || row.healthAge != was.healthAge {
			row.since = now
		}
		if m.ids[change.node] == 0 {
			m.ids[change.node] = int64(len(m.ids) + 1)
		}
		m.rows[change.node] = &row
	}
}

// answer is what a read of the monitor's tables brings now.
func (m *monitor) answer(w *world) pgautofailover.Answer {
	version, uptime := "2.0", (runsSince + w.now).Seconds()
	a := pgautofailover.Answer{Version: &version, Uptime: &uptime, Formation: &pgautofailover.Formation{}}
	for _, name := range slices.Sorted(maps.Keys(m.rows)) {
		a.Nodes = append(a.Nodes, m.rows[name].row(name, m.ids[name], w))
	}
	return a
}

func (r *monitorRow) row(name string, id int64, w *world) pgautofailover.Row {
	at := or(r.address, w.addresses[name])
	system, health, priority := int64(or(r.systemID, defaultSystemID)), rowHealth[or(r.health, "good")], int(or(r.priority, 50))
	running, quorum, cluster := or(r.running, true), or(r.quorum, true), or(r.nodeCluster, "default")
	reported, checked := w.ageOf(r.reportAge, r.since), w.ageOf(r.healthAge, r.since)
	age, checkAge := reported.Seconds(), checked.Seconds()
	word := w.startWall.Add(w.now - reported).UnixMicro()
	return pgautofailover.Row{
		ID: id, Name: name, Host: at.Host, Port: at.Port, SystemID: &system, Goal: r.goal, Reported: or(r.reported, r.goal),
		Running: &running, Timeline: uint32(or(r.tli, w.timeline(name))), Health: &health, Priority: &priority, Quorum: &quorum,
		NodeCluster: &cluster, ReportAge: &age, HealthAge: &checkAge, Word: &word,
	}
}

// ageOf is an age that was said at a moment; without one it is that of somebody who
// reports every second, on the second.
func (w *world) ageOf(said *span, since time.Duration) time.Duration {
	if said == nil {
		return w.now % keeperEvery
	}
	return time.Duration(*said) + w.now - since
}
