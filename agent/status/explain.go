package status

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// WriteStatus prints a report for people.
func WriteStatus(w io.Writer, r Report) {
	for _, c := range r.Clusters {
		writeCluster(w, c)
	}
	if r.Agent.ConfigError != "" {
		fmt.Fprintf(w, "! the last reload was refused, the configuration before it runs on: %s\n", strings.ReplaceAll(r.Agent.ConfigError, "\n", "\n    "))
	}
	for _, s := range r.Sinks {
		writeSink(w, s)
	}
}

// writeSink prints a sink that does not apply what is decided.
func writeSink(w io.Writer, s Sink) {
	if s.Error == "" {
		return
	}
	mark, since := "!", ""
	if s.State == SinkWaiting {
		mark = "-"
	}
	if !s.Since.IsZero() {
		since = " (since " + s.Since.Format(time.TimeOnly) + ")"
	}
	fmt.Fprintf(w, "%s %s: %s%s\n", mark, s.Name, s.Error, since)
}

const tooOld = "! this decision is too old to be believed; answers are those of undecided"

func writeCluster(w io.Writer, c ClusterReport) {
	if c.Snapshot == nil {
		fmt.Fprintf(w, "cluster %s: nothing decided yet\n\n", c.Name)
		return
	}
	s := c.Snapshot
	writer := s.Writer
	if writer == "" {
		writer = "none"
		if s.Held != "" {
			writer = "undecided (" + s.Held + " held from before)"
		}
	}
	authority := string(s.Authority.Kind)
	if s.Authority.Kind != topology.AuthorityNone {
		leader := s.Authority.Leader
		if leader == "" {
			leader = "nobody"
		}
		authority += " " + s.Authority.State + ", names " + leader
	}
	fmt.Fprintf(w, "cluster %s   writer %s   authority %s   generation %d\n", c.Name, writer, authority, s.Generation)
	if !c.Valid {
		fmt.Fprintln(w, tooOld)
	}
	writeNodes(w, c)
	for _, n := range c.Nodes {
		if n.Failure != nil {
			fmt.Fprintf(w, "! %s failing for %s, %s: %s\n", n.Name, seconds(n.Failing), n.Failure.Class, n.Failure.Text)
		}
	}
	if s.Complete && len(s.Nodes) == 0 {
		fmt.Fprintf(w, "! no node is known: %s\n", nobodyListed(c))
	}
	for _, a := range s.Alarms {
		fmt.Fprintf(w, "! %s: %s (since %s)\n", a.Code, a.Text, a.Since.Format(time.TimeOnly))
	}
	for _, src := range c.Sources {
		if src.State == "failing" && !strings.HasPrefix(src.Source, string(topology.SourcePostgres)) {
			fmt.Fprintf(w, "! stale: %s failing for %s: %s\n", src.Source, seconds(src.Failing), src.Error)
		}
	}
	fmt.Fprintln(w)
}

// nobodyListed says which sources were asked for nodes and listed none.
func nobodyListed(c ClusterReport) string {
	var names []string
	for _, src := range c.Sources {
		if !strings.HasPrefix(src.Source, string(topology.SourceLocal)) {
			names = append(names, src.Source)
		}
	}
	return strings.Join(names, " and ") + " lists none; is the name right?"
}

func writeNodes(w io.Writer, c ClusterReport) {
	tw := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprint(tw, "  NODE\tADDRESS\tROLE\tTL\tLAG\tANSWERED")
	for _, p := range c.Snapshot.Pools {
		fmt.Fprintf(tw, "\t%s", strings.ToUpper(p.Pool))
	}
	fmt.Fprintln(tw)
	for _, n := range c.Nodes {
		fmt.Fprintf(tw, "  %s\t%s\t%s\t%s\t%s\t%s", n.Name, n.Address, n.Role, number(int(n.Timeline)), lagText(n), answered(n))
		for _, v := range n.Verdicts {
			fmt.Fprintf(tw, "\t%s", verdictText(v.NodeVerdict))
		}
		fmt.Fprintln(tw)
	}
	_ = tw.Flush()
}

func verdictText(v topology.NodeVerdict) string {
	r := v.Reason()
	if v.Verdict == topology.Up && r.Code.Info().Severity == topology.SeverityOK {
		return fmt.Sprintf("up %d%%", v.Weight)
	}
	return fmt.Sprintf("%s (%s: %s)", v.Verdict, r.Code, r.Text)
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func lagText(n NodeReport) string {
	if n.LagBytes == nil {
		return "-"
	}
	return topology.Size(*n.LagBytes).Short()
}

func answered(n NodeReport) string {
	switch {
	case n.Answered == nil:
		return "never"
	case n.Failing > 0:
		return seconds(*n.Answered) + " ago, failing"
	}
	return seconds(*n.Answered) + " ago"
}

func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// explanation says why a node has its verdicts, by which evidence and of what
// age, against which thresholds, and what would change them.
func explanation(c ClusterReport, n NodeReport, p topology.Policy) Explanation {
	e := Explanation{Node: n, Next: make(map[string]string)}
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s at %s\n\n", c.Name, n.Name, n.Address)
	if !c.Valid {
		fmt.Fprintf(&b, "%s\n\n", tooOld)
	}
	for _, v := range n.Verdicts {
		fmt.Fprintf(&b, "pool %s (%s): %s\n", v.Pool, v.Mode, v.Verdict)
		for i, r := range v.Reasons {
			mark := "rule"
			if i > 0 {
				mark = "also"
			}
			fmt.Fprintf(&b, "  %s    %s: %s, since %s\n", mark, r.Code, r.Text, r.Since.Format(time.RFC3339))
			fmt.Fprintf(&b, "          %s\n", r.Code.Info().Manual)
		}
		next := whatNext(v, c.Snapshot, p)
		e.Next[v.Pool] = next
		fmt.Fprintf(&b, "  change  %s\n\n", next)
	}
	writeEvidence(&b, c, n)
	e.Text = b.String()
	return e
}

func writeEvidence(b *strings.Builder, c ClusterReport, n NodeReport) {
	fmt.Fprintln(b, "evidence")
	role := n.Role
	if n.RoleAge != nil {
		role += ", seen " + seconds(*n.RoleAge) + " ago"
	}
	fmt.Fprintf(b, "  role      %s\n", role)
	fmt.Fprintf(b, "  answered  %s\n", answered(n))
	if n.Failure != nil {
		fmt.Fprintf(b, "  failing   for %s, %s: %s\n", seconds(n.Failing), n.Failure.Class, n.Failure.Text)
	}
	if n.Timeline != 0 {
		fmt.Fprintf(b, "  timeline  %d; highest ever seen %d\n", n.Timeline, c.Timeline)
	}
	if n.Replay != "" && n.Role == "replica" {
		fmt.Fprintf(b, "  replay    %s, lag %s, receiver %s\n", n.Replay, lagText(n), n.Receiver)
	}
	if n.WriteLSN != "" && n.Role != "replica" {
		fmt.Fprintf(b, "  position  %s\n", n.WriteLSN)
	}
	a := c.Snapshot.Authority
	switch {
	case a.Kind == topology.AuthorityNone:
		fmt.Fprintln(b, "  authority none: SQL evidence alone decides")
	case a.Leader == "":
		fmt.Fprintf(b, "  authority %s %s, names nobody\n", a.Kind, a.State)
	default:
		fmt.Fprintf(b, "  authority %s %s, names %s\n", a.Kind, a.State, a.Leader)
	}
	for _, s := range c.Sources {
		if !strings.HasPrefix(s.Source, string(topology.SourcePostgres)+"/") || s.Source == string(topology.SourcePostgres)+"/"+n.Name {
			line := s.State
			if s.Age != nil {
				line += ", " + seconds(*s.Age) + " old"
			}
			fmt.Fprintf(b, "  source    %s: %s\n", s.Source, line)
		}
	}
}

// whatNext says what would change a verdict.
func whatNext(v PoolVerdict, s *topology.Snapshot, p topology.Policy) string {
	entry := "it enters when SQL shows it writable alone on the highest timeline ever seen"
	if s.Authority.Kind != topology.AuthorityNone {
		entry = fmt.Sprintf("it enters when %s names it and SQL shows it writable (evidence at most %s old)", s.Authority.Kind, p.EvidenceMaxAge)
	}
	switch v.Reason().Code {
	case topology.CodeWriter, topology.CodeLinkCut:
		return fmt.Sprintf("down at once on contrary evidence (another node named, recovery, read-only, wrong identifier, refused for %s); drain after %s of silence", p.RefusedConfirm, p.SilentAfter)
	case topology.CodeReplica, topology.CodeLagOverride:
		return fmt.Sprintf("drain when lag exceeds the pool's max_lag, after %s without WAL receiver, or after %s of silence", p.StreamingGrace, p.SilentAfter)
	case topology.CodeFallback:
		return "it leaves in the same decision in which a replica becomes eligible"
	case topology.CodeSilent:
		if v.Mode == topology.ModeWrite && s.Authority.Kind != topology.AuthorityNone {
			return "an answer ends it; sessions end when another node is named"
		}
		return fmt.Sprintf("an answer ends it; sessions end after %s of silence", p.KillAfter)
	case topology.CodeNoLeader:
		return "the leader key ends it; sessions end when another node is named or when leader_gap is over"
	case topology.CodeLag, topology.CodeLagHard, topology.CodePaused, topology.CodeNotStreaming, topology.CodeLagUnknown, topology.CodeReturning:
		return fmt.Sprintf("it returns after %s of good evidence below the limit", p.ReturnAfter)
	case topology.CodeMaintenance:
		return "it returns when the maintenance record ends"
	case topology.CodeNoEvidence, topology.CodeAuthorityUnknown:
		return "the first complete evidence decides; until then every sink keeps silent"
	case topology.CodeRoleUnknown:
		return "a login that succeeds decides; it is tried again within a minute, and at once when the password's file changes"
	case topology.CodeIdentity:
		return fmt.Sprintf("only a server with the cluster's own identifier enters; if the cluster was built anew, stop pgsteer, remove cluster-%s.json from its state folder and start it again", s.Cluster)
	case topology.CodeMinDown:
		return fmt.Sprintf("after %s %s", p.MinDown, entry)
	default: // the rest is about entering
	}
	if v.Mode == topology.ModeWrite {
		return entry
	}
	return fmt.Sprintf("it enters as a replica within the lag limit, after %s of good evidence", p.ReturnAfter)
}
