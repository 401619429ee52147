package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// The monitor's words that its rules on a promotion go by (pg_auto_failover 2.0 to 2.2).
const (
	goalPrimary     = "primary"
	goalSettings    = "apply_settings"
	goalSecondary   = "secondary"
	goalCatchingUp  = "catchingup"
	goalReportLSN   = "report_lsn"
	goalFastForward = "fast_forward"
	goalDraining    = "draining"
	goalDemoted     = "demoted"
	goalDropped     = "dropped"
)

// group is what a monitor says of its group, some time ago.
type group struct {
	monitor *topology.Monitor
	leader  string // the one node with a goal in which it takes writes; empty: none
	members []topology.Member
	since   time.Duration
}

// promotion tells who could be promoted if the monitor gave its primary up, or why
// nobody could; empty for a node to which that says nothing: while there is a
// primary it stands with that one. Positions are not looked at, since the
// monitor's are no evidence here.
func promotion(node string, a *topology.Authority, since time.Duration) string {
	if len(a.Monitor.Claimants) > 1 || a.Leader != "" && node != a.Leader {
		return ""
	}
	g := group{monitor: a.Monitor, leader: a.Leader, since: since}
	for _, m := range a.Members {
		if m.Assigned == nil || m.Assigned.Goal == goalDropped {
			continue
		}
		if m.Assigned.Promoting || m.Assigned.Goal == goalFastForward {
			return fmt.Sprintf("%s, which has the goal %s", m.Name, m.Assigned.Goal)
		}
		g.members = append(g.members, m)
	}
	who, why := g.elect()
	if why != "" {
		return "nobody: " + why
	}
	return strings.Join(who, " or ") + ", unless it lacks more than promote_wal_log_threshold, which is not seen here"
}

// elect returns who is promoted, several when their positions decide, or why nobody is.
func (g group) elect() (who []string, why string) {
	var others []topology.Member
	for _, m := range g.members {
		switch a := m.Assigned; {
		case m.Name != g.leader:
			others = append(others, m)
		case a.Goal != a.Reported && (!inService(a.Goal) || !inService(a.Reported)):
			return nil, fmt.Sprintf("the monitor replaces no primary between two states, and %s", stateOf(m))
		}
	}
	switch {
	case len(others) == 0:
		return nil, "the group has no other node"
	case len(others) == 1 && g.leader != "":
		if why := g.againstHeir(others[0]); why != "" {
			return nil, why
		}
		return []string{others[0].Name}, ""
	}
	return g.election(others)
}

// inService are the two states between which a primary counts as settled.
func inService(state string) bool { return state == goalPrimary || state == goalSettings }

// againstHeir is what keeps the only standby from its primary's place.
func (g group) againstHeir(m topology.Member) string {
	a := m.Assigned
	switch {
	case a.Goal != goalSecondary || a.Reported != goalSecondary:
		return stateOf(m)
	case a.Priority == 0:
		return m.Name + " has candidate priority 0"
	case a.Running == topology.No:
		return "PostgreSQL does not run on " + m.Name
	case a.Health == topology.Unknown:
		return "the monitor has not checked " + m.Name + " yet"
	case a.Health == topology.No && (a.ReportAge < 0 || a.ReportAge >= a.HealthAge):
		return "the check of " + m.Name + " is bad and its keeper has not reported since"
	}
	return ""
}

// election is that among several standbys: all that can be reached must tell their
// positions, and so must those that commits may have waited for.
func (g group) election(others []topology.Member) (who []string, why string) {
	var against, missing []string
	quorum, highest := 0, 0
	for _, m := range others {
		a := m.Assigned
		if a.Reads == topology.Down && !demoted(a) {
			continue // the primary that is replaced
		}
		switch gone := g.unhealthy(a) && g.silent(a); {
		case gone && a.Quorum && a.Reported != goalReportLSN:
			missing = append(missing, m.Name)
			continue
		case gone:
			against = append(against, m.Name+" is unhealthy")
			continue
		case !elector(a):
			against = append(against, stateOf(m))
			continue
		}
		if a.Quorum || g.monitor.SyncStandbys == 0 {
			quorum++
		}
		switch {
		case a.Priority == 0:
			against = append(against, m.Name+" has candidate priority 0")
		case g.unhealthy(a):
			against = append(against, "PostgreSQL does not run on "+m.Name)
		case a.Priority > highest:
			who, highest = []string{m.Name}, a.Priority
		case a.Priority == highest:
			who = append(who, m.Name)
		}
	}
	switch need := g.monitor.SyncStandbys + 1; {
	case len(missing) > 0:
		return nil, "the monitor wants the positions of all of the quorum first, and none comes from " + strings.Join(missing, " and ")
	case len(who) > 0 && quorum < need:
		return nil, fmt.Sprintf("number_sync_standbys %d wants %d standbys of the quorum that tell their positions, and there are %d", need-1, need, quorum)
	case len(who) == 0:
		return nil, strings.Join(against, ", ")
	}
	return who, ""
}

// elector reports whether a node tells its position in an election.
func elector(a *topology.Assignment) bool {
	standby := func(state string) bool { return slices.Contains([]string{goalSecondary, goalCatchingUp}, state) }
	return a.Goal == goalReportLSN || standby(a.Goal) && standby(a.Reported) || demoted(a)
}

// demoted reports whether a node was primary and has confirmed that it is no more.
func demoted(a *topology.Assignment) bool {
	return a.Goal == a.Reported && (a.Goal == goalDraining || a.Goal == goalDemoted)
}

func stateOf(m topology.Member) string {
	if m.Assigned.Goal == m.Assigned.Reported {
		return fmt.Sprintf("%s is in state %s", m.Name, m.Assigned.Goal)
	}
	return fmt.Sprintf("%s has the goal %s and has confirmed %s", m.Name, m.Assigned.Goal, m.Assigned.Reported)
}

func (g group) silent(a *topology.Assignment) bool { return silent(g.monitor, a, g.since) }

func (g group) unhealthy(a *topology.Assignment) bool { return unhealthy(g.monitor, a, g.since) }
