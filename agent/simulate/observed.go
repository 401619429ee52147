package simulate

import (
	"time"

	"github.com/pgsteer/pgsteer/agent/config"
	"github.com/pgsteer/pgsteer/agent/topology"
)

// observation turns a written observation into a value. The node is the
// source's when none is written, and everything is of the step's moment.
func (f *file) observation(v config.Value, w observationFile, at time.Duration) observation {
	if w.Source == (sourceID{}) {
		v.Key("source").Fault("an observation names its source, such as source: postgres/a")
	}
	o := observation{Observation: topology.Observation{Cluster: f.Name, Source: topology.SourceID(w.Source), Seq: w.Seq}}
	if w.Cluster != nil {
		o.Cluster = string(*w.Cluster)
	}
	o.At = f.clock(or(w.At, span(at)), w.Wall)
	o.AskedAt = f.clock(or(w.Asked, or(w.At, span(at))), w.AskedWall)
	said := 0
	if w.Failure != nil {
		o.Failure, said = w.Failure.value(o.Source), said+1
		o.here = o.Source.Kind == topology.SourcePostgres && w.Failure.Address == nil
	}
	if w.Probe != nil {
		o.Probe, said = w.Probe.value(o.Source), said+1
		o.here = w.Probe.Address == nil
	}
	if w.Port != nil {
		o.Port, said = &topology.PortOpen{
			Node: nodeOr(w.Port.Node, o.Source), Address: or(w.Port.Address, topology.Address{}), Port: w.Port.Port,
		}, said+1
		o.here = w.Port.Address == nil
	}
	if w.Nodes != nil {
		o.Nodes, said = w.Nodes.value(), said+1
	}
	if w.Authority != nil {
		o.Authority, said = w.Authority.value(), said+1
	}
	if w.Local != nil {
		o.Local, said = &topology.Local{Isolated: w.Local.Isolated}, said+1
	}
	if said == 0 {
		v.Fault("an observation has one of failure, probe, nodes, authority, local, port")
	}
	return o
}

// clock is a moment of the scenario on both clocks.
func (f *file) clock(at span, wall *time.Time) topology.Clock {
	c := topology.Clock{Mono: topology.Mono(f.Start.Mono + at), Wall: f.Start.Wall.UTC().Add(time.Duration(at))}
	if wall != nil {
		c.Wall = wall.UTC()
	}
	return c
}

func nodeOr(name *text, src topology.SourceID) string {
	if name == nil && src.Kind == topology.SourcePostgres {
		return src.Name
	}
	return string(or(name, ""))
}

func (w *failureFile) value(src topology.SourceID) *topology.Failure {
	return &topology.Failure{
		Class: topology.FailureClass(w.Class), Text: string(w.Text), Node: nodeOr(w.Node, src),
		Address: or(w.Address, topology.Address{}), Asked: topology.ProbeKind(w.Asked), Port: w.Port,
	}
}

func (w *probeFile) value(src topology.SourceID) *topology.Probe {
	p := &topology.Probe{
		Node: nodeOr(w.Node, src), Address: or(w.Address, topology.Address{}), Kind: topology.ProbeKind(w.Kind),
		InRecovery: w.InRecovery, ReadOnly: w.ReadOnly, SystemID: w.SystemID, Timeline: topology.Timeline(w.Timeline),
		WriteLSN: topology.LSN(w.Write), ReceiveLSN: topology.LSN(w.Receive), ReplayLSN: topology.LSN(w.Replay),
		ReplayedAt: utc(w.ReplayedAt), ReplayPaused: w.ReplayPaused, ApplyDelay: time.Duration(w.ApplyDelay), Upstream: w.Upstream,
		Receiver: topology.Receiver{
			Running: w.Receiver.Running, Streaming: w.Receiver.Streaming, Timeline: topology.Timeline(w.Receiver.Timeline),
			LatestEnd: topology.LSN(w.Receiver.LatestEnd), SenderHost: string(w.Receiver.SenderHost), SenderPort: w.Receiver.SenderPort,
			MessageAge: time.Duration(w.Receiver.MessageAge),
		},
		StartedAt: utc(w.StartedAt), ServerVersion: int(w.ServerVersion), SyncWaiters: int(w.SyncWaiters),
	}
	for _, s := range w.Standbys {
		p.Standbys = append(p.Standbys, topology.Standby{
			Name: string(s.Name), State: string(s.State), SyncState: string(s.SyncState), ReplayLSN: topology.LSN(s.Replay),
		})
	}
	return p
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return t.UTC()
}

func (w *nodesFile) value() *topology.NodeList {
	l := &topology.NodeList{ConfirmedEmpty: w.ConfirmedEmpty}
	for _, n := range w.List {
		l.Nodes = append(l.Nodes, topology.Node{Name: string(n.Name), Address: n.Address, Tags: tags(n.Tags)})
	}
	return l
}

func tags(in map[text]text) map[string]string {
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]string, len(in))
	for k, v := range in {
		out[string(k)] = string(v)
	}
	return out
}

func (w *authorityFile) value() *topology.Authority {
	a := &topology.Authority{
		Leader: string(w.Leader), SessionAgrees: w.SessionAgrees, Pause: w.Pause, Failsafe: w.Failsafe, StandbyCluster: w.StandbyCluster,
		TTL: time.Duration(w.TTL), LoopWait: time.Duration(w.LoopWait), RetryTimeout: time.Duration(w.RetryTimeout),
		SystemID: w.SystemID, Timeline: topology.Timeline(w.Timeline), Optime: topology.LSN(w.Optime), OptimeIndex: w.OptimeIndex,
		SyncMode: string(w.SyncMode), Monitor: w.Monitor.value(),
	}
	for _, s := range w.SyncStandbys {
		a.SyncStandbys = append(a.SyncStandbys, string(s))
	}
	for _, m := range w.Members {
		a.Members = append(a.Members, topology.Member{
			Name: string(m.Name), Role: string(m.Role), State: string(m.State), Timeline: topology.Timeline(m.Timeline),
			LSN: topology.LSN(m.LSN), Address: m.Address, APIURL: string(m.APIURL), Tags: tags(m.Tags),
			Application: string(m.Application), Assigned: m.Assigned.value(),
		})
	}
	return a
}
