package engine

import (
	"fmt"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// oracle keeps the log of everything observed and judges each snapshot by it,
// without a line of the engine's code.
type oracle struct {
	w         *world
	log       []topology.Observation
	since     int    // first entry since the last decision
	writer    string // of the last decision
	holding   string // who was up and has at most drained since
	pinned    uint64
	addresses map[string]topology.Address
}

func watch(w *world) *oracle {
	o := &oracle{w: w, addresses: make(map[string]topology.Address)}
	w.onDecide = o.judge
	w.onFold = func(ob topology.Observation) {
		o.log = append(o.log, ob)
		if ob.Nodes != nil {
			for _, n := range ob.Nodes.Nodes {
				o.addresses[n.Name] = n.Address
			}
		}
	}
	for _, n := range w.s.Nodes() {
		o.addresses[n.Name] = n.Address
	}
	return o
}

func (o *oracle) fail(s *topology.Snapshot, format string, args ...any) {
	o.w.t.Helper()
	o.w.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), show(s, o.w.now))
}

// judge checks invariants 1, 2 and 3 on one decision.
func (o *oracle) judge(s *topology.Snapshot) {
	o.w.t.Helper()
	for _, p := range s.Pools {
		up := p.Up()
		if p.Mode == topology.ModeWrite && len(up) > 1 {
			o.fail(s, "%d nodes are up in a write pool", len(up))
		}
		if p.Mode == topology.ModeWrite && (len(up) == 1) != (s.Writer != "") {
			o.fail(s, "writer %q does not fit the pool", s.Writer)
		}
		if s.Writer != "" && p.Mode == topology.ModeWrite {
			for _, n := range p.Nodes {
				if n.Node != s.Writer && n.Verdict != topology.Down {
					o.fail(s, "%s is %s beside a writer", n.Node, n.Verdict)
				}
			}
		}
	}
	if o.writer != "" && s.Writer == o.writer {
		if why := o.contrary(o.writer); why != "" {
			o.fail(s, "%s is up although %s", o.writer, why)
		}
	}
	if o.holding != "" && verdict(s, "primary", o.holding) != topology.Up && verdict(s, "primary", o.holding) != topology.Drain {
		o.holding = ""
	}
	if s.Writer != "" && s.Writer != o.holding {
		if why := o.mayNotEnter(s.Writer); why != "" {
			o.fail(s, "%s entered although %s", s.Writer, why)
		}
		o.holding = s.Writer
	}
	if o.holding == "" {
		o.holding = o.admittedInMaintenance(s)
	}
	o.writer, o.since = s.Writer, len(o.log)
}

// admittedInMaintenance is a node that got the role by the rules of entry while
// an operator has it out: it drains, and later it is up without entering again.
func (o *oracle) admittedInMaintenance(s *topology.Snapshot) string {
	p, _ := s.Pool("primary")
	for _, n := range p.Nodes {
		if n.Verdict == topology.Drain && n.Reason().Code == topology.CodeMaintenance && o.mayNotEnter(n.Node) == "" {
			return n.Node
		}
	}
	return ""
}

// newest returns the newest role evidence about a node at its address, and the
// newest full probe.
func (o *oracle) newest(name string) (role, full *topology.Observation) {
	for i := range o.log {
		ob := &o.log[i]
		p := ob.Probe
		if p == nil || p.Node != name || p.Address != o.addresses[name] || p.Kind == topology.ProbeLogin {
			continue
		}
		role = ob
		if p.Kind == topology.ProbeFull {
			full = ob
		}
	}
	return role, full
}

func (o *oracle) mayNotEnter(name string) string {
	now := o.w.now.Mono
	role, full := o.newest(name)
	switch {
	case role == nil || full == nil:
		return "it has not been asked"
	case role.Probe.InRecovery != topology.No || role.Probe.ReadOnly != topology.No:
		return "it is not writable"
	case now.Sub(role.AskedAt.Mono) >= o.w.p.EvidenceMaxAge:
		return "its evidence is old"
	}
	if o.w.p.Authority == none {
		return o.notAlone(name, full)
	}
	if full.Probe.SystemID != ownID {
		return "its identifier is wrong"
	}
	return o.notNamed(name, full)
}

func (o *oracle) notNamed(name string, full *topology.Observation) string {
	now := o.w.now.Mono
	var newest, good *topology.Observation
	for i := range o.log {
		if o.log[i].Source != consulSource {
			continue
		}
		newest = &o.log[i]
		if newest.Authority != nil {
			good = newest
		}
	}
	switch {
	case good == nil:
		return "the authority was never heard"
	case good.Authority.StandbyCluster:
		return "it is a standby cluster"
	}
	old := now.Sub(good.AskedAt.Mono) >= o.w.p.AuthorityMaxAge
	if o.w.p.AuthorityLost == topology.LostSQLOnly && old {
		return o.notAlone(name, full)
	}
	switch a := good.Authority; {
	case newest != good || old:
		return "the authority is lost"
	case a.Leader != name:
		return "the authority does not name it"
	case a.SessionAgrees == topology.No:
		return "the sessions differ"
	}
	return ""
}

// notAlone is the rule without an authority.
func (o *oracle) notAlone(name string, full *topology.Observation) string {
	id, own := full.Probe.SystemID, full.Probe.Timeline
	if o.pinned == 0 {
		o.pinned = id
	}
	if id != o.pinned {
		return "its identifier is wrong"
	}
	for _, ob := range o.log {
		if p := ob.Probe; p != nil && p.SystemID == id && p.Address == o.addresses[p.Node] && max(p.Timeline, p.Receiver.Timeline) > own {
			return fmt.Sprintf("%s was on a higher timeline", p.Node)
		}
	}
	for other := range o.addresses {
		role, f := o.newest(other)
		if other == name || role == nil || f == nil || f.Probe.SystemID != id {
			continue
		}
		writable := role.Probe.InRecovery == topology.No && role.Probe.ReadOnly == topology.No
		if writable && f.Probe.InRecovery == topology.No && f.Probe.Timeline >= own &&
			o.w.now.Mono.Sub(role.AskedAt.Mono) < o.w.p.KillAfter && !o.refusedTwice(other, 0) {
			return other + " is writable too"
		}
	}
	return ""
}

// contrary says what came in since the last decision against a writer.
func (o *oracle) contrary(name string) string {
	for _, ob := range o.log[o.since:] {
		if p := ob.Probe; p != nil && p.Node == name && p.Address == o.addresses[name] && p.Kind != topology.ProbeLogin {
			switch {
			case p.InRecovery == topology.Yes:
				return "it was in recovery"
			case p.ReadOnly == topology.Yes:
				return "it was read-only"
			case p.Kind == topology.ProbeFull && o.w.p.Authority != none && p.SystemID != ownID:
				return "another server answered"
			}
		}
		if a := ob.Authority; a != nil && a.Leader != "" && a.Leader != name {
			return "another was named"
		}
		if a := ob.Authority; a != nil && a.StandbyCluster && ob.Seq == o.w.seq[consulSource] {
			return "it is a standby cluster"
		}
	}
	if o.refusedTwice(name, o.since) {
		return "it was refused twice"
	}
	return ""
}

// refusedTwice: two refusals far enough apart with no sign of life between, the
// second of them not before an entry of the log.
func (o *oracle) refusedTwice(name string, from int) bool {
	first, confirmed := topology.Mono(-1), false
	for i, ob := range o.log {
		switch f := ob.Failure; {
		case ob.Nodes != nil:
			first, confirmed = -1, false
		case ob.Probe != nil && ob.Probe.Node == name && ob.Probe.Kind != topology.ProbeLogin:
			first = -1
			confirmed = confirmed && from > 0
		case f == nil || f.Node != name || f.Asked == topology.ProbeLogin:
		case f.Class == topology.FailRefused || f.Class == topology.FailReset:
			if first < 0 {
				first = ob.At.Mono
			}
			confirmed = confirmed || i >= from && ob.At.Mono.Sub(first) >= o.w.p.RefusedConfirm
		case f.Class == topology.FailStarting || alive(f.Class):
			if !confirmed {
				first = -1
			}
		}
	}
	return confirmed
}
