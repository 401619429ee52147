package status

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pgsteer/pgsteer/agent/topology"
)

// WriteStatus prints a report for people. A line that begins with ! tells of
// something that somebody should look at.
func WriteStatus(w io.Writer, r Report) {
	for _, c := range r.Clusters {
		writeCluster(w, c)
	}
	for _, m := range r.Agent.Maintenance {
		writeMaintenance(w, m)
	}
	if r.Agent.ConfigError != "" {
		fmt.Fprintf(w, "! the last reload was refused, the configuration before it runs on: %s\n", strings.ReplaceAll(r.Agent.ConfigError, "\n", "\n    "))
	}
	for _, s := range r.Sinks {
		writeSink(w, s)
	}
}

// writeMaintenance prints what an operator took out, and how far its server is emptied.
func writeMaintenance(w io.Writer, m Maintenance) {
	until := "until it is ended"
	if !m.Until.IsZero() {
		until = "until " + m.Until.UTC().Format(time.DateTime) + " UTC"
	}
	if !m.DrainUntil.IsZero() {
		until += ", sessions end at " + m.DrainUntil.UTC().Format(time.DateTime) + " UTC"
	}
	fmt.Fprintf(w, "- maintenance of %s since %s UTC, %s: %s (%s)\n", m.what(), m.Since.UTC().Format(time.DateTime), until,
		cmp.Or(m.Reason, "no reason given"), cmp.Or(m.Who, "nobody named"))
	if m.Drain != nil {
		fmt.Fprintf(w, "- drain of %s: %s\n", m.what(), m.Drain.Words())
	}
}

// writeSink prints a sink that does not apply what is decided, and what one does of
// which that is not plain.
func writeSink(w io.Writer, s Sink) {
	if s.Detail != "" {
		fmt.Fprintf(w, "- %s: %s\n", s.Name, s.Detail)
	}
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
	fmt.Fprintf(w, "cluster %s   writer %s   authority %s   generation %d\n", c.Name, writer, authorityText(c), s.Generation)
	if !c.Valid {
		fmt.Fprintln(w, tooOld)
	}
	writeNodes(w, c)
	for _, p := range s.Pools {
		writePool(w, p)
	}
	for _, n := range c.Nodes {
		for _, line := range troubles(n) {
			fmt.Fprintf(w, "! %s\n", line)
		}
	}
	if s.Complete && len(s.Nodes) == 0 {
		fmt.Fprintf(w, "! no node is known: %s\n", nobodyListed(c))
	}
	for _, a := range s.Alarms {
		fmt.Fprintf(w, "! %s (since %s)\n", said(a), a.Since.Format(time.TimeOnly))
		if todo := advice[a.Code]; todo != "" {
			fmt.Fprintf(w, "    %s\n", todo)
		}
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

func authorityText(c ClusterReport) string {
	a := c.Snapshot.Authority
	if a.Kind == topology.AuthorityNone {
		return string(a.Kind)
	}
	leader := a.Leader
	if leader == "" {
		leader = "nobody"
	}
	text := string(a.Kind) + " " + a.State + ", names " + leader
	if c.Authority != nil && c.Authority.Pause == topology.Yes {
		text += ", paused"
	}
	return text
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

// verdictText is a verdict with its reason. A node that is up shows its weight,
// and the first reason why that is less than good.
func verdictText(v topology.NodeVerdict) string {
	if v.Verdict != topology.Up {
		return fmt.Sprintf("%s (%s)", v.Verdict, said(v.Reason()))
	}
	up := fmt.Sprintf("up %d%%", v.Weight)
	for _, r := range v.Reasons {
		if r.Code == topology.CodeRamping || r.Code.Info().Severity != topology.SeverityOK {
			return up + " (" + said(r) + ")"
		}
	}
	return up
}

// said is a reason's code and text without saying one thing twice: texts stand
// alone elsewhere, in an agent check or a log line, and so repeat the code.
func said(r topology.Reason) string {
	words := strings.ReplaceAll(string(r.Code), "_", " ")
	text := r.Text
	rest, repeated := strings.CutPrefix(text, words)
	if repeated && (rest == "" || strings.ContainsAny(rest[:1], ":;") || startsWithNumber(rest)) {
		text = strings.TrimLeft(rest, " :;")
	}
	if text == "" {
		return string(r.Code)
	}
	return string(r.Code) + ": " + text
}

// startsWithNumber: a blank and a digit, as in "lag 25MB > 16MB".
func startsWithNumber(s string) bool { return len(s) > 1 && s[0] == ' ' && s[1] >= '0' && s[1] <= '9' }

// writePool prints how many nodes of a pool take new sessions. An empty pool is
// marked, unless it is meant to be empty or nothing is known yet.
func writePool(w io.Writer, p topology.PoolVerdicts) {
	up := p.Up()
	mark, more := " ", ""
	if p.Fallback {
		more = ", a fallback: no replica is eligible, so the primary serves"
		if len(up) > 0 && up[0].Reason().Code == topology.CodeFallbackStale {
			more = ", a fallback: no replica is eligible, so the one that lags least serves"
		}
	}
	if len(up) == 0 {
		more = ", nobody takes new sessions"
		if p.Undecided() {
			more = ", undecided: balancers keep what they have"
		} else if troubled(p) {
			mark = "!"
		}
	}
	fmt.Fprintf(w, "%s pool %s (%s): %d of %d up%s\n", mark, p.Pool, p.Mode, len(up), len(p.Nodes), more)
}

// troubled reports whether more than normal states keep a pool's nodes out.
func troubled(p topology.PoolVerdicts) bool {
	for _, n := range p.Nodes {
		for _, r := range n.Reasons {
			if s := r.Code.Info().Severity; s == topology.SeverityWarn || s == topology.SeverityError {
				return true
			}
		}
	}
	return false
}

// troubles are what is wrong with the way a node is asked.
func troubles(n NodeReport) []string {
	var out []string
	if f := n.Failure; f != nil {
		out = append(out, fmt.Sprintf("%s failing for %s, %s: %s", n.Name, seconds(n.Failing), f.Class, f.Text))
	}
	if f := n.LoginFailure; f != nil {
		line := fmt.Sprintf("%s: new logins of the probe fail although its open session answers, %s: %s", n.Name, f.Class, f.Text)
		if todo := loginAdvice[f.Class]; todo != "" {
			line += "\n    " + todo
		}
		out = append(out, line)
	}
	if n.PrivilegesMissing {
		out = append(out, n.Name+": the probe's role may not see the WAL receiver\n    "+privilegesAdvice)
	}
	for _, p := range n.Ports {
		if p.Failure != nil {
			out = append(out, fmt.Sprintf("%s port %d failing for %s, %s: %s", n.Name, p.Port, seconds(p.Failing), p.Failure.Class, p.Failure.Text))
		}
	}
	return out
}

func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// lagText is a replica's lag in bytes and, from a second on, in time; ~ marks an
// estimate.
func lagText(n NodeReport) string {
	if n.LagBytes == nil {
		return "-"
	}
	text := topology.Size(*n.LagBytes).Short()
	if n.LagTime >= 1 {
		text += ", " + seconds(n.LagTime)
	}
	if n.LagEstimated {
		text = "~" + text
	}
	return text
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

func seconds(s float64) string { return span(time.Duration(s * float64(time.Second))) }

// span writes a time that has passed, rounded for people: 20ms, 2s, 1m30s.
func span(d time.Duration) string {
	switch {
	case d < time.Second:
		return exactly(d.Round(time.Millisecond))
	case d < 10*time.Second:
		return exactly(d.Round(100 * time.Millisecond))
	}
	return exactly(d.Round(time.Second))
}

// exactly writes a duration as configurations do: 50ms, 2s, 5m, 1h30m.
func exactly(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
