package record

import (
	"slices"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

func (m *masker) observation(o topology.Observation) topology.Observation {
	o.Source, o.Documents = m.source(o.Source), nil // no rule reads those
	if o.Cluster != "" {
		o.Cluster = "c1" // an agent's state goroutine folds those of its cluster alone
	}
	if f := o.Failure; f != nil {
		o.Failure = &topology.Failure{
			Class: f.Class, Text: m.text(f.Text), Node: m.node(f.Node), Address: m.address(f.Address), Asked: f.Asked, Port: f.Port,
		}
	}
	if o.Probe != nil {
		o.Probe = m.probe(*o.Probe)
	}
	if o.Nodes != nil {
		o.Nodes = &topology.NodeList{Nodes: m.nodeList(o.Nodes.Nodes), ConfirmedEmpty: o.Nodes.ConfirmedEmpty}
	}
	if o.Authority != nil {
		o.Authority = m.authority(*o.Authority)
	}
	if p := o.Port; p != nil {
		o.Port = &topology.PortOpen{Node: m.node(p.Node), Address: m.address(p.Address), Port: p.Port}
	}
	return o
}

func (m *masker) probe(p topology.Probe) *topology.Probe {
	p.Node, p.Address, p.SystemID = m.node(p.Node), m.address(p.Address), m.system(p.SystemID)
	p.Receiver.SenderHost = m.host(p.Receiver.SenderHost)
	var standbys []topology.Standby
	for _, s := range p.Standbys {
		standbys = append(standbys, topology.Standby{
			Name: m.application(s.Name), State: m.word(s.State), SyncState: m.word(s.SyncState), ReplayLSN: s.ReplayLSN,
		})
	}
	p.Standbys = standbys
	return &p
}

func (m *masker) authority(a topology.Authority) *topology.Authority {
	a.Leader, a.SystemID, a.SyncMode = m.node(a.Leader), m.system(a.SystemID), m.word(a.SyncMode)
	var standbys []string
	for _, s := range a.SyncStandbys {
		standbys = append(standbys, m.application(s))
	}
	var members []topology.Member
	for _, x := range a.Members {
		members = append(members, topology.Member{
			Name: m.node(x.Name), Role: m.word(x.Role), State: m.word(x.State), Timeline: x.Timeline, LSN: x.LSN,
			Address: m.address(x.Address), APIURL: m.text(x.APIURL), Tags: m.tags(x.Tags),
			Application: m.application(x.Application), Assigned: m.assigned(x.Assigned),
		})
	}
	a.SyncStandbys, a.Members = standbys, members
	if a.Monitor != nil {
		monitor := *a.Monitor
		monitor.Version, monitor.Claimants = m.text(monitor.Version), nil
		for _, c := range a.Monitor.Claimants {
			monitor.Claimants = append(monitor.Claimants, m.node(c))
		}
		a.Monitor = &monitor
	}
	return &a
}

func (m *masker) assigned(a *topology.Assignment) *topology.Assignment {
	if a == nil {
		return nil
	}
	out := *a
	out.Goal, out.Reported, out.Why = m.word(a.Goal), m.word(a.Reported), m.text(a.Why)
	return &out
}

// words are what Patroni 4 says of a member's role and state (postgresql/misc.py,
// ha.py), PostgreSQL 18 of a standby's (pg_stat_replication), and the states of
// pg_auto_failover 2.
var words = strings.Split("primary|replica|standby_leader|sync_standby|quorum_standby|promoted|demoted|uninitialized|"+
	"running|streaming|in archive recovery|starting|start failed|stopping|stopped|stop failed|crashed|restarting|restart failed|"+
	"creating replica|initializing new cluster|initdb failed|running custom bootstrap script|custom bootstrap failed|"+
	"starting after custom bootstrap|startup|catchup|backup|async|potential|sync|quorum|"+
	"single|wait_primary|join_primary|apply_settings|secondary|catchingup|prepare_promotion|stop_replication|draining|demote_timeout|"+
	"prepare_maintenance|wait_maintenance|maintenance|dropped|report_lsn|fast_forward|join_secondary|wait_standby|init|unknown", "|")

// word keeps a word of a fixed vocabulary, whatever a node may be called.
func (m *masker) word(s string) string {
	if slices.Contains(words, s) {
		return s
	}
	return m.text(s)
}
