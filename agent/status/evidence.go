package status

import (
	"fmt"
	"strings"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// rows prints lines of a label and a text.
type rows struct{ b *strings.Builder }

func (r rows) add(label, format string, args ...any) {
	fmt.Fprintf(r.b, "  %-9s %s\n", label, fmt.Sprintf(format, args...))
}

// writeEvidence prints what is known of a node, each with its age.
func writeEvidence(b *strings.Builder, c ClusterReport, n NodeReport) {
	fmt.Fprintln(b, "evidence")
	r := rows{b}
	role := n.Role
	if n.RoleAge != nil {
		role += ", seen " + seconds(*n.RoleAge) + " ago"
	}
	r.add("role", "%s", role)
	r.add("answered", "%s", answered(n))
	r.asked(n)
	if n.Timeline != 0 {
		r.add("timeline", "%d; highest ever seen %d", n.Timeline, c.Timeline)
	}
	if n.SystemID != 0 && c.SystemID != 0 && n.SystemID != c.SystemID {
		r.add("system", "identifier %d; the cluster's is %d", n.SystemID, c.SystemID)
	}
	switch n.Role {
	case roleReplica:
		r.standby(n)
	default:
		r.primary(n)
	}
	for _, p := range n.Ports {
		r.port(p)
	}
	r.others(c, n)
}

// asked is how the ways to ask the node fare.
func (r rows) asked(n NodeReport) {
	if f := n.Failure; f != nil {
		r.add("failing", "for %s, %s: %s", seconds(n.Failing), f.Class, f.Text)
	}
	switch f := n.LoginFailure; {
	case f != nil && n.LoginAge != nil:
		r.add("login", "refused, %s: %s; the last good one %s ago", f.Class, f.Text, seconds(*n.LoginAge))
	case f != nil:
		r.add("login", "refused, %s: %s", f.Class, f.Text)
	case n.LoginAge != nil:
		r.add("login", "a new one succeeded %s ago", seconds(*n.LoginAge))
	}
	if n.PrivilegesMissing {
		r.add("rights", "%s", privilegesAdvice)
	}
}

func (r rows) standby(n NodeReport) {
	text := n.Receiver
	if u := n.Upstream; u != nil {
		if u.Address != "" {
			text += " from " + u.Address
		}
		if u.Timeline != 0 {
			text += fmt.Sprintf(" on timeline %d", u.Timeline)
		}
		if u.MessageAge != nil {
			text += ", last message " + seconds(*u.MessageAge) + " old"
		}
	}
	if text != "" {
		r.add("receiver", "%s", text)
	}
	if n.Replay != "" {
		text := n.Replay
		if n.ReplayPaused {
			text += ", paused"
		}
		if n.ApplyDelay > 0 {
			text += ", delayed by " + seconds(n.ApplyDelay) + " on purpose"
		}
		r.add("replay", "%s", text)
		r.add("lag", "%s", lagEvidence(n))
	}
	for _, l := range n.ListedBy {
		r.add("listed", "by %s as %s", l.Name, standbyText(l))
	}
	r.standbys(n)
}

// lagEvidence is the lag in bytes and in time, and what it was measured against.
func lagEvidence(n NodeReport) string {
	if n.LagBytes == nil {
		return "unknown: no proven writer, or no fresh position of it"
	}
	text := fmt.Sprintf("%s (%d bytes), %s in time", topology.Size(*n.LagBytes).Short(), *n.LagBytes, seconds(n.LagTime))
	if n.Failing > 0 && n.RoleAge != nil {
		text += ", as of " + seconds(*n.RoleAge) + " ago"
	}
	if n.LagEstimated {
		return text + "; estimated by an old position of the writer"
	}
	return text
}

func (r rows) primary(n NodeReport) {
	if n.WriteLSN != "" {
		r.add("position", "%s", n.WriteLSN)
	}
	switch w := n.Write; {
	case w == nil:
	case w.Failing > 0 && w.Age != nil:
		r.add("writes", "probes in vain for %s; the last good one %s ago", seconds(w.Failing), seconds(*w.Age))
	case w.Failing > 0:
		r.add("writes", "probes in vain for %s", seconds(w.Failing))
	default:
		r.add("writes", "a probe went through %s ago", seconds(*w.Age))
	}
	r.standbys(n)
	if n.SyncWaiters > 0 {
		r.add("waiting", "%d commits wait for a synchronous standby", n.SyncWaiters)
	}
}

func (r rows) standbys(n NodeReport) {
	for _, s := range n.Standbys {
		r.add("standby", "%s: %s", s.Name, standbyText(s))
	}
}

func standbyText(s StandbyReport) string {
	switch {
	case s.SyncState == "":
		return s.State
	case s.State == "":
		return s.SyncState
	}
	return s.State + ", " + s.SyncState
}

func (r rows) port(p PortReport) {
	switch {
	case p.Failure != nil && p.Age != nil:
		r.add("port", "%d failing for %s, %s: %s; answered %s ago", p.Port, seconds(p.Failing), p.Failure.Class, p.Failure.Text, seconds(*p.Age))
	case p.Failure != nil:
		r.add("port", "%d failing for %s, %s: %s", p.Port, seconds(p.Failing), p.Failure.Class, p.Failure.Text)
	case p.Age != nil:
		r.add("port", "%d answered %s ago", p.Port, seconds(*p.Age))
	default:
		r.add("port", "%d not checked yet", p.Port)
	}
}

// others is what the authority and the sources say.
func (r rows) others(c ClusterReport, n NodeReport) {
	if m := n.Member; m != nil {
		text := m.Role + ", " + m.State
		if m.Timeline != 0 {
			text += fmt.Sprintf(", timeline %d", m.Timeline)
		}
		r.add("member", "%s, says %s", text, c.Snapshot.Authority.Kind)
	}
	r.monitor(n.Monitor)
	for _, k := range sortedKeys(n.Tags) {
		r.add("tag", "%s=%s", k, n.Tags[k])
	}
	if c.Snapshot.Authority.Kind == topology.AuthorityNone {
		r.add("authority", "none: SQL evidence alone decides")
	} else {
		r.add("authority", "%s", authorityText(c))
	}
	if a := c.Authority; a != nil && a.SyncMode != "" {
		r.add("sync", "mode %s: %s", a.SyncMode, strings.Join(a.SyncStandbys, " "))
	}
	for _, s := range c.Sources {
		if strings.HasPrefix(s.Source, string(topology.SourcePostgres)+"/") && s.Source != string(topology.SourcePostgres)+"/"+n.Name {
			continue
		}
		line := s.State
		if s.Age != nil {
			line += ", " + seconds(*s.Age) + " old"
		}
		if s.State == "failing" && s.Error != "" && !strings.HasPrefix(s.Source, string(topology.SourcePostgres)) {
			line += "; failing for " + seconds(s.Failing) + ": " + s.Error
		}
		r.add("source", "%s: %s", s.Source, line)
	}
}
