package engine

import "github.com/pgsteer/pgsteer/agent/topology"

// The rules of an authority that assigns a state to each node (pg_auto_failover's
// monitor): the goal first, the node's own word second, what it reported third.
//
//   - A node leaves the write role on its goal, before anybody else is named.
//   - Of several nodes with a goal that takes writes none does.
//   - Who is writable against its goal is fenced, but for one that is just being
//     promoted, which is merely not up yet.
//   - A replica serves while its goal and its confirmed state let it; while the
//     monitor is away only what an operator ordered still holds.
//
// What the monitor thinks of a node's health decides nothing by itself.

// assignment is the monitor's last word on a node; nil: there is none.
func (r *round) assignment(n *node) *topology.Assignment {
	if r.p.Authority != topology.AuthorityMonitor || n.member == nil {
		return nil
	}
	return n.member.Assigned
}

// monitor is the monitor's last word on the group; nil: there is none.
func (r *round) monitor() *topology.Monitor {
	if a := r.s.authority.picture; a != nil && r.p.Authority == topology.AuthorityMonitor {
		return a.Monitor
	}
	return nil
}

// barredByGoal keeps a node that is writable from entering a write pool.
func (r *round) barredByGoal(n *node) (effect, bool) {
	m, a := r.monitor(), r.assignment(n)
	switch {
	case m == nil:
		return effect{}, false
	case len(m.Claimants) > 1:
		return r.effect(topology.Down, topology.CodeTwoGoals, r.s.authority.at, "goals of several nodes take writes: %v", m.Claimants), true
	case a == nil || a.Writes != topology.No:
		return effect{}, false
	case a.Promoting:
		return r.effect(topology.Down, topology.CodePromoting, n.roleAt, "writable; its goal is still %s", a.Goal), true
	}
	return r.effect(topology.Down, topology.CodeFenced, n.roleAt, "writable; its goal is %s", a.Goal), true
}

// fencedByGoal: the node is writable, and the monitor wants it to be something else.
func (r *round) fencedByGoal(n *node) (effect, bool) {
	a := r.assignment(n)
	if a == nil || a.Writes != topology.No || a.Promoting || !n.writable() || r.auth.State != topology.AuthorityStateCurrent {
		return effect{}, false
	}
	return r.effect(topology.Down, topology.CodeFenced, n.roleAt, "writable; its goal is %s", a.Goal), true
}

// unassigned keeps a node out of read pools for which the monitor has other plans.
// Before its first word only who served before the start goes on.
func (r *round) unassigned(s seat) (effect, bool) {
	m, a := r.monitor(), r.assignment(s.n)
	switch {
	case r.auth.State == topology.AuthorityStateUnknown && r.p.Authority == topology.AuthorityMonitor:
		served := r.s.saved != nil && r.s.saved.Verdicts[s.pool.Name][s.n.Name] == topology.Up
		return r.effect(topology.Undecided, topology.CodeAuthorityUnknown, r.s.start.Mono, "monitor not heard yet"), !served
	case m == nil:
		return effect{}, false
	case a == nil:
		return r.effect(topology.Drain, topology.CodeAssigned, 0, "the monitor does not know it"), true
	case r.auth.State != topology.AuthorityStateCurrent || a.Reads != topology.Drain && a.Reads != topology.Down:
		return effect{}, false
	case a.Why != "":
		return r.effect(a.Reads, topology.CodeAssigned, 0, "%s", a.Why), true
	}
	return r.effect(a.Reads, topology.CodeAssigned, 0, "its goal is %s", a.Goal), true
}

// ordered is an operator's word at the monitor.
func (r *round) ordered(n *node) (effect, bool) {
	a := r.assignment(n)
	if a == nil || !a.Operator {
		return effect{}, false
	}
	return r.effect(topology.Drain, topology.CodeMaintenance, 0, "the monitor's goal is %s", a.Goal), true
}

// lastResort: its goal keeps it out, and a pool that takes stale replicas rather than
// nobody may use it. One that has not answered since a start only stands on.
func (r *round) lastResort(c candidate) bool {
	a, n := r.assignment(c.n), c.n
	return c.code == topology.CodeAssigned && a != nil && a.Stale &&
		(n.inRecovery == topology.Yes || c.was.Verdict == topology.Up) &&
		(n.strayAt == 0 || !r.since(n.strayAt, r.p.StreamingGrace))
}

// nobodyNamed says that the authority names nobody, though somebody is writable.
func (r *round) nobodyNamed(writable bool) string {
	switch assigns := r.p.Authority == topology.AuthorityMonitor; {
	case assigns && writable:
		return "writable but no node is assigned to take writes"
	case assigns:
		return "no node is assigned to take writes"
	case writable:
		return "writable but the leader key is absent"
	}
	return "leader key is absent"
}
