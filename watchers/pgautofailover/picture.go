package pgautofailover

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
	"github.com/pgsteer/pgsteer/watchers"
	"github.com/pgsteer/pgsteer/watchers/consul"
)

const (
	// mainCluster is the nodecluster of those that are no read replicas of Citus.
	mainCluster = "default"
	// silentKeeper is after how long a keeper, which reports every second, counts as
	// silent.
	silentKeeper = 5 * time.Second
	// The defaults of the monitor's settings (its extension's, 2.0 to 2.2).
	defaultUnhealthy = 20 * time.Second
	defaultGrace     = 10 * time.Second
)

// defaultCheck are the defaults of health_check_*.
var defaultCheck = topology.HealthCheck{Period: 5 * time.Second, Timeout: 5 * time.Second, MaxRetries: 2, RetryDelay: 2 * time.Second}

// ApplicationName is how a node's upstream calls it.
func ApplicationName(nodeID int64) string { return fmt.Sprintf("pgautofailover_standby_%d", nodeID) }

// Addresses are where clients reach nodes, by the address that the monitor has.
type Addresses map[topology.Address]topology.Address

// Picture makes of an answer what the engine is told: the monitor's word, the
// nodes, and a text for everything that cannot be used as it is. before are the
// members of the picture before. It is pure. The answer must be one that Parse
// found no fault of.
func Picture(a Answer, addresses Addresses, before []topology.Member) (topology.Authority, []topology.Node, []string) {
	p := picture{answer: a, addresses: addresses}
	for _, r := range a.Nodes {
		p.add(r)
	}
	p.name()
	p.judge()
	var out []string
	p.said.Members, out = watchers.Distinct(p.members, before, p.said.Leader)
	slices.SortFunc(p.said.Members, func(a, b topology.Member) int { return cmp.Compare(a.Name, b.Name) })
	var nodes []topology.Node
	for _, m := range p.said.Members {
		nodes = append(nodes, topology.Node{Name: m.Name, Address: m.Address, Tags: m.Tags})
	}
	return p.said, nodes, append(p.faults, out...)
}

// picture is under construction.
type picture struct {
	answer    Answer
	addresses Addresses
	said      topology.Authority
	members   []topology.Member // as the rows are
	faults    []string
}

func (p *picture) fault(r Row, format string, args ...any) {
	p.faults = append(p.faults, fmt.Sprintf("node %d (%s): ", r.ID, watchers.Clip(r.Name))+fmt.Sprintf(format, args...))
}

// add takes one row.
func (p *picture) add(r Row) {
	m := topology.Member{
		Name: consul.LegalName(r.Name), Role: "replica", State: r.Reported, Timeline: topology.Timeline(r.Timeline),
		Application: ApplicationName(r.ID), Tags: r.tags(), Assigned: r.assignment(),
	}
	if m.Name == "" {
		m.Name = fmt.Sprintf("node_%d", r.ID)
	}
	if m.Name != r.Name {
		p.fault(r, "its name cannot be used in balancers; it is called %s", m.Name)
	}
	if _, known := states[r.Goal]; !known {
		p.fault(r, "its goal %q is not known to pgsteer and proves nothing", watchers.Clip(r.Goal))
	}
	var err error
	if m.Address, err = watchers.MemberAddress(r.Host, r.Port); err != nil {
		p.fault(r, "%v", err)
	}
	if at, mapped := p.addresses[m.Address]; mapped {
		m.Address = at
	}
	if m.Assigned.Writes == topology.Yes {
		m.Role = "primary"
	}
	p.said.Timeline = max(p.said.Timeline, m.Timeline)
	if r.SystemID != nil && (p.said.SystemID == 0 || m.Assigned.Writes == topology.Yes) {
		p.said.SystemID = uint64(*r.SystemID) // the unsigned number, shown as bigint
	}
	p.members = append(p.members, m)
}

func (r Row) tags() map[string]string {
	tags := make(map[string]string)
	if r.Priority != nil && *r.Priority == 0 {
		tags[topology.TagNoFailover] = "true"
	}
	if r.NodeCluster != nil && *r.NodeCluster != mainCluster && *r.NodeCluster != "" {
		tags[topology.TagNodeCluster] = *r.NodeCluster
	}
	if len(tags) == 0 {
		return nil
	}
	return tags
}

func (r Row) assignment() *topology.Assignment {
	s := meaning(r.Goal)
	a := &topology.Assignment{
		Goal: r.Goal, Reported: r.Reported, Writes: s.writes, Promoting: s.promoting, Reads: s.reads, Stale: s.stale, Operator: s.operator,
		ReportAge: span(r.ReportAge), HealthAge: span(r.HealthAge), ChangeAge: span(r.ChangeAge), Quorum: r.Quorum != nil && *r.Quorum,
	}
	if r.Running != nil {
		a.Running = topology.Bool(*r.Running)
	}
	if r.Health != nil && *r.Health >= 0 {
		a.Health = topology.Bool(*r.Health > 0)
	}
	if r.Priority != nil {
		a.Priority = *r.Priority
	}
	return a
}

// name finds who is assigned to take writes, and what goes with it.
func (p *picture) name() {
	m := &topology.Monitor{Uptime: span(p.answer.Uptime)}
	p.answer.settings(m)
	p.said.Monitor = m
	if p.answer.Version != nil {
		m.Version = *p.answer.Version
	}
	if f := p.answer.Formation; f != nil {
		m.SyncStandbys = f.SyncStandbys
	}
	var claimants []int
	for i, n := range p.members {
		if n.Assigned.Writes == topology.Yes {
			claimants = append(claimants, i)
		}
	}
	if len(claimants) > 1 {
		for _, i := range claimants {
			m.Claimants = append(m.Claimants, p.members[i].Name)
		}
		slices.Sort(m.Claimants)
		p.faults = append(p.faults, "several nodes have a goal in which they take writes: "+strings.Join(m.Claimants, " "))
	}
	if len(claimants) != 1 {
		return
	}
	leader := claimants[0]
	p.said.Leader = p.members[leader].Name
	// A position is reported only by a keeper whose PostgreSQL has just answered it.
	if r := p.answer.Nodes[leader]; r.Word != nil && r.Running != nil && *r.Running {
		p.said.OptimeIndex = uint64(*r.Word)
	}
	if slices.Contains(syncing, p.members[leader].Assigned.Goal) {
		p.said.SyncMode = "quorum" // ANY n of all that have replicationquorum
		for _, n := range p.members {
			if a := n.Assigned; a.Quorum && a.Goal == secondary && a.Reported == secondary {
				p.said.SyncStandbys = append(p.said.SyncStandbys, n.Name)
			}
		}
		slices.Sort(p.said.SyncStandbys)
	}
}

// settings are the monitor's own, or all of its defaults when one of them is not told.
func (a Answer) settings(m *topology.Monitor) {
	c := a.Check
	if a.Unhealthy == nil || a.Grace == nil || c.Period == nil || c.Timeout == nil || c.MaxRetries == nil || c.RetryDelay == nil {
		m.UnhealthyAfter, m.StartupGrace, m.Check, m.Assumed = defaultUnhealthy, defaultGrace, defaultCheck, true
		return
	}
	m.UnhealthyAfter, m.StartupGrace = span(a.Unhealthy), span(a.Grace)
	m.Check = topology.HealthCheck{Period: span(c.Period), Timeout: span(c.Timeout), MaxRetries: *c.MaxRetries, RetryDelay: span(c.RetryDelay)}
}

// judge finishes the word on reads. A replica must have confirmed its goal. That
// the monitor finds it in bad health counts only together with a silent keeper,
// and only while the monitor hears from the primary's: else it is the monitor that
// hears nobody.
func (p *picture) judge() {
	heard := false
	for _, m := range p.members {
		a := m.Assigned
		heard = heard || m.Name == p.said.Leader && a.ReportAge >= 0 && a.ReportAge < silentKeeper
	}
	for _, m := range p.members {
		a := m.Assigned
		switch {
		case a.Goal != secondary:
		case a.Reported != secondary:
			a.Reads, a.Why = topology.Drain, "its goal is secondary; it confirmed "+watchers.Clip(a.Reported)
		case a.Health == topology.No && a.ReportAge >= silentKeeper && heard:
			a.Reads, a.Why = topology.Drain, fmt.Sprintf("the monitor cannot reach it, nor has its keeper reported for %s", a.ReportAge.Round(time.Second))
		}
	}
}
