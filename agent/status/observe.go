package status

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// report builds the whole report.
func (s *Server) report() Report {
	now := s.o.Now()
	r := Report{Agent: s.o.Agent(), Clusters: []ClusterReport{}, Sinks: append([]Sink{}, s.o.Sinks()...)}
	for _, name := range slices.Sorted(slices.Values(s.o.Clusters())) {
		r.Clusters = append(r.Clusters, clusterReport(name, s.o.Views.Get(name), now))
	}
	slices.SortFunc(r.Sinks, func(a, b Sink) int { return cmp.Compare(a.Name, b.Name) })
	return r
}

func clusterReport(name string, v *topology.View, now topology.Clock) ClusterReport {
	r := ClusterReport{Name: name, Claims: []string{}, Nodes: []NodeReport{}, Sources: []SourceReport{}}
	if v == nil || v.Snapshot == nil {
		return r
	}
	r.Valid, r.Snapshot = v.Valid(now.Mono), v.Snapshot
	if v.Facts == nil {
		return r
	}
	r.Timeline, r.SystemID = v.Facts.Timeline, v.Facts.SystemID
	r.Claims = append(r.Claims, v.Facts.Claims...)
	if a := v.Facts.Authority; a != nil {
		r.Authority = authorityReport(a)
	}
	for _, n := range v.Snapshot.Nodes {
		r.Nodes = append(r.Nodes, nodeReport(n, v, now.Mono))
	}
	for _, s := range v.Facts.Sources {
		r.Sources = append(r.Sources, sourceReport(s, now.Mono))
	}
	return r
}

func authorityReport(a *topology.Authority) *AuthorityReport {
	r := &AuthorityReport{
		Pause: a.Pause, Failsafe: a.Failsafe, StandbyCluster: a.StandbyCluster, SyncMode: a.SyncMode, SyncStandbys: a.SyncStandbys,
	}
	if a.LoopWait > 0 && a.RetryTimeout > 0 {
		r.LeaderGap = (a.LoopWait + a.RetryTimeout).Seconds()
	}
	return r
}

// addMonitor moves a monitor's word out of the member's.
func (r *NodeReport) addMonitor(v *topology.View, now topology.Mono) {
	f := v.Facts
	if r.Member == nil || r.Member.Assigned == nil || f.Authority == nil {
		return
	}
	h := heard{current: v.Valid(now) && v.Snapshot.Authority.State == topology.AuthorityStateCurrent, age: -1}
	for _, s := range f.Sources {
		if s.Source == f.AuthoritySource && s.OKAt != 0 {
			h.age = now.Sub(s.OKAt)
		}
	}
	r.Monitor = monitorReport(f.Authority.Monitor, r.Member.Assigned, h)
	if r.Monitor != nil && h.current {
		r.Monitor.Promotion = promotion(r.Name, f.Authority, h.since())
	}
	plain := *r.Member
	plain.Assigned = nil
	r.Member = &plain
}

func nodeReport(n topology.Node, v *topology.View, now topology.Mono) NodeReport {
	f := v.Facts.Nodes[n.Name]
	r := NodeReport{
		Name: n.Name, Address: n.Address, HostName: n.HostName, Tags: n.Tags, Role: role(f),
		RoleAge: ago(now, f.RoleAt), Answered: ago(now, f.AnsweredAt), LoginAge: ago(now, f.LoginAt),
		Failing: elapsed(now, f.FailingAt), Member: f.Member,
	}
	r.addProbe(f)
	r.addMonitor(v, now)
	if f.Lag.Known == topology.Yes {
		b := int64(f.Lag.Bytes)
		r.LagBytes, r.LagTime, r.LagEstimated = &b, f.Lag.Time.Seconds(), f.Lag.Estimated
	}
	if f.WriteAt != 0 || f.WriteFailingAt != 0 {
		r.Write = &WriteReport{Age: ago(now, f.WriteAt), Failing: elapsed(now, f.WriteFailingAt)}
	}
	for _, port := range slices.Sorted(maps.Keys(f.Ports)) {
		p := f.Ports[port]
		r.Ports = append(r.Ports, PortReport{Port: port, Age: ago(now, p.OKAt), Failing: elapsed(now, p.FailingAt), Failure: p.Failure})
	}
	r.ListedBy = listedBy(n.Name, v.Facts)
	for _, p := range v.Snapshot.Pools {
		if nv, ok := p.Verdict(n.Name); ok {
			r.Verdicts = append(r.Verdicts, PoolVerdict{Pool: p.Pool, Mode: p.Mode, NodeVerdict: nv})
		}
	}
	r.addTrouble(f, v)
	return r
}

// addProbe adds what the last full probe said.
func (r *NodeReport) addProbe(f topology.NodeFacts) {
	p := f.Probe
	if p == nil {
		return
	}
	r.Timeline, r.SystemID = p.Timeline, p.SystemID
	r.WriteLSN, r.Replay = lsn(p.WriteLSN), lsn(p.ReplayLSN)
	r.SyncWaiters = max(0, p.SyncWaiters)
	for _, s := range p.Standbys {
		r.Standbys = append(r.Standbys, StandbyReport{Name: s.Name, State: s.State, SyncState: s.SyncState})
	}
	if p.InRecovery != topology.Yes {
		return
	}
	r.Receiver, r.ReplayPaused, r.ApplyDelay = receiver(p.Receiver), p.ReplayPaused == topology.Yes, p.ApplyDelay.Seconds()
	if c := p.Receiver; c.Running == topology.Yes {
		r.Upstream = &UpstreamReport{Timeline: c.Timeline}
		if c.SenderHost != "" {
			r.Upstream.Address = net.JoinHostPort(c.SenderHost, strconv.Itoa(int(c.SenderPort)))
		}
		if c.MessageAge >= 0 {
			age := c.MessageAge.Seconds()
			r.Upstream.MessageAge = &age
		}
	}
}

// addTrouble adds what is wrong with the way the node is asked. A failure beside
// a kept session that answers is one of a new login.
func (r *NodeReport) addTrouble(f topology.NodeFacts, v *topology.View) {
	if f.FailingAt != 0 {
		r.Failure = f.Failure
	} else if f.AnsweredAt != 0 {
		r.LoginFailure = loginFailure(f.Failure)
		if r.LoginFailure == nil {
			r.LoginFailure = loginFailure(sourceFailure(v.Facts, r.Name))
		}
		r.PrivilegesMissing = f.InRecovery == topology.Yes && r.Receiver == receiverHidden
	}
	r.SlotsExhausted = isSlots(r.Failure) || isSlots(r.LoginFailure)
	for _, p := range r.Verdicts {
		r.SlotsExhausted = r.SlotsExhausted || slices.ContainsFunc(p.Reasons, isCode(topology.CodeSaturated))
	}
}

func loginFailure(f *topology.Failure) *topology.Failure {
	if f == nil || f.Asked != topology.ProbeLogin {
		return nil
	}
	return f
}

func sourceFailure(f *topology.Facts, node string) *topology.Failure {
	for _, s := range f.Sources {
		if s.Source.Kind == topology.SourcePostgres && s.Source.Name == node {
			return s.Failure
		}
	}
	return nil
}

func isSlots(f *topology.Failure) bool { return f != nil && f.Class == topology.FailSlots }

func isCode(c topology.Code) func(topology.Reason) bool {
	return func(r topology.Reason) bool { return r.Code == c }
}

// listedBy finds who has the node among its standbys, by application_name.
func listedBy(node string, f *topology.Facts) []StandbyReport {
	var out []StandbyReport
	for _, name := range sortedKeys(f.Nodes) {
		p := f.Nodes[name].Probe
		if p == nil || name == node {
			continue
		}
		for _, s := range p.Standbys {
			if s.Name == node {
				out = append(out, StandbyReport{Name: name, State: s.State, SyncState: s.SyncState})
			}
		}
	}
	return out
}

func sourceReport(s topology.SourceFacts, now topology.Mono) SourceReport {
	r := SourceReport{Source: s.Source.String(), State: "current", Age: ago(now, s.OKAt)}
	switch {
	case s.FailingAt != 0:
		r.State, r.Failing = "failing", elapsed(now, s.FailingAt)
	case s.OKAt == 0:
		r.State = "waiting"
	}
	if s.Failure != nil {
		r.Error = s.Failure.Text
	}
	return r
}

const (
	rolePrimary = "primary"
	roleReplica = "replica"
	roleUnknown = "unknown"
)

func role(f topology.NodeFacts) string {
	switch {
	case f.InRecovery == topology.Yes:
		return roleReplica
	case f.InRecovery == topology.No && f.ReadOnly == topology.Yes:
		return "read-only primary"
	case f.InRecovery == topology.No:
		return rolePrimary
	}
	return roleUnknown
}

// receiverHidden: the probe's role may not see the receiver (field report P3).
const receiverHidden = "unknown"

func receiver(r topology.Receiver) string {
	switch {
	case r.Running == topology.Unknown:
		return receiverHidden
	case r.Running == topology.No:
		return "none"
	case r.Streaming == topology.Yes:
		return "streaming"
	}
	return "starting"
}

func lsn(l topology.LSN) string {
	if l == 0 {
		return ""
	}
	return l.String()
}

// ago is the age of a moment in seconds; nil: never.
func ago(now, at topology.Mono) *float64 {
	if at == 0 {
		return nil
	}
	s := elapsed(now, at)
	return &s
}

// elapsed is the time since a moment in seconds; zero: never.
func elapsed(now, at topology.Mono) float64 {
	if at == 0 {
		return 0
	}
	return now.Sub(at).Seconds()
}

// sortedKeys is for output that must not change from one call to the next.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
