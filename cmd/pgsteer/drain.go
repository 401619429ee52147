package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/pgsteer/pgsteer/agent/admin"
	"github.com/pgsteer/pgsteer/agent/drain"
)

type maintenanceWait struct {
	Target string `arg:"" placeholder:"CLUSTER/NODE" help:"The node, such as main/n2."`
	asked
}

// Run waits for the end of a drain and reports.
func (c *maintenanceWait) Run(ctx context.Context, std streams) error {
	path, err := what{Target: c.Target}.path()
	if err != nil {
		return err
	}
	if !strings.Contains(c.Target, "/") {
		return misused("%q is a cluster: sessions are drained at one node, CLUSTER/NODE; the agent was not asked", c.Target)
	}
	return c.drained(ctx, std, path, c.Target)
}

// askEvery is how often the agent is asked how far a drain is. askLater bounds how long
// it may have one wait for the next question, so that the end of a drain is heard.
const (
	askEvery = time.Second
	askLater = time.Minute
)

// drained shows how far a drain is until it is over, and then what became of it. To be
// interrupted changes nothing: the agent goes on.
func (a asked) drained(ctx context.Context, std streams, path, target string) error {
	p := progress{w: std.err, live: isTerminal(std.err)}
	next := time.NewTimer(askEvery)
	defer next.Stop()
	heard := time.Now()
	for {
		var s admin.State
		err := a.askSoon(ctx, path, &s)
		if err == nil {
			heard = time.Now()
		}
		pause := askEvery
		var no *refusal
		var often *tooOften
		switch {
		case ctx.Err() != nil:
			p.end()
			fmt.Fprintf(std.err, "interrupted: the drain of %[1]s goes on as it is. pgsteer maintenance wait %[1]s waits for it again, pgsteer maintenance stop %[1]s puts %[1]s back and ends nobody any more\n", target)
			return exitCode(1)
		case errors.As(err, &often): // it lives, and the drain goes on
			pause = min(max(askEvery, often.after), askLater)
			p.say(fmt.Sprintf("the agent is asked too often; asking again in %s", pause))
			heard = time.Now().Add(pause)
		case errors.As(err, &no):
			p.end()
			return err
		case err != nil && time.Since(heard) >= a.silence():
			p.end()
			return fmt.Errorf("%w, and is waited for no longer (%w). The drain of %[3]s goes on if the agent does; pgsteer maintenance wait %[3]s waits for it again",
				&silent{a.Address, time.Since(heard)}, err, target)
		case err != nil: // it may be restarting
			p.say(err.Error() + "; asking again")
		case s.Record != nil && s.Record.Sessions.ID != "" && (s.Drain == nil || s.Drain.ID != s.Record.Sessions.ID):
			p.end()
			return fmt.Errorf("the agent at %s drains %s and reports; ask it (--address)", cmp.Or(s.Record.Sessions.By, "another host"), target)
		case s.Drain != nil:
			p.show(*s.Drain, time.Now())
			if s.Drain.Phase.Over() {
				p.end()
				return a.reported(std, *s.Drain)
			}
		default:
			p.end()
			return fmt.Errorf("nobody drains %s: pgsteer maintenance start %s --drain TIME with --end-idle, --terminate or --keep does", target, target)
		}
		next.Reset(pause)
		select {
		case <-ctx.Done():
		case <-next.C:
		}
	}
}

// askSoon asks how far a drain is. One question takes a part of the silence alone that
// the agent may keep.
func (a asked) askSoon(ctx context.Context, path string, s *admin.State) error {
	ctx, cancel := context.WithTimeout(ctx, a.silence()/3)
	defer cancel()
	return a.ask(ctx, http.MethodGet, path, nil, s)
}

// reported prints the report. The exit code is 0 when nobody is left.
func (a asked) reported(std streams, r drain.Report) error {
	if a.Output == "json" {
		if err := a.json(std, r); err != nil {
			return err
		}
	} else if err := printReport(std.out, r); err != nil {
		return err
	}
	if r.Phase != drain.Done {
		return exitCode(1)
	}
	return nil
}

func printReport(w io.Writer, r drain.Report) error {
	fmt.Fprintf(w, "%s: %s\n", r.Target, drainOutcome(r))
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(r.Ended)+len(r.Left) > 0 {
		fmt.Fprintln(t, "WHAT\tPID\tUSER\tAPPLICATION\tCLIENT\tSTATE\tAGE")
	}
	for _, c := range r.Ended {
		what := "ended, " + c.Why
		if !c.Told {
			what += " (unconfirmed)"
		}
		printClient(t, what, c.Client)
	}
	for _, c := range r.Left {
		printClient(t, "left", c)
	}
	return t.Flush()
}

func printClient(w io.Writer, what string, c drain.Client) {
	fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", what, c.PID, printable(c.User), cmp.Or(printable(c.Application), "-"), printable(c.Client), printable(c.State), c.Age().Round(time.Millisecond))
}

// printable keeps what clients call themselves from steering a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// drainOutcome is the end of a drain in words.
func drainOutcome(r drain.Report) string {
	text := map[drain.Phase]string{
		drain.Done: "nobody is left", drain.Left: "the time is over",
		drain.Stopped: "the maintenance ended before its drain did; nobody is ended any more",
		drain.Failed:  "it could not go on, and nobody is ended any more: " + r.Trouble,
	}[r.Phase]
	return fmt.Sprintf("%s; left: %d, ended: %d", text, len(r.Left), len(r.Ended))
}

// progress shows how far a drain is: on a terminal one line that changes, elsewhere a
// line for each change.
type progress struct {
	w     io.Writer
	live  bool
	last  string
	width int // of the line that stands on the terminal
}

// barWidth is how many characters the bar has.
const barWidth = 20

// show shows a report at a moment.
func (p *progress) show(r drain.Report, now time.Time) {
	n, oldest := r.Transactions()
	text := fmt.Sprintf("%s: in a transaction: %d", r.Phase, n)
	age := ""
	if n > 0 {
		age = fmt.Sprintf(" (the oldest for %s)", oldest.Round(time.Second))
	}
	rest := fmt.Sprintf(", others: %d, ended: %d", len(r.Left)-n, len(r.Ended))
	if r.Trouble != "" {
		rest += "; " + printable(r.Trouble)
	}
	if !p.live {
		p.say(text + rest)
		return
	}
	p.say(bar(r, now) + " " + text + age + rest)
}

// bar is how much of the time is over.
func bar(r drain.Report, now time.Time) string {
	whole, left := r.Deadline.Sub(r.Began), max(r.Deadline.Sub(now), 0)
	full := barWidth
	if whole > 0 {
		full = barWidth - int(left*barWidth/whole)
	}
	full = min(max(full, 0), barWidth)
	return fmt.Sprintf("[%s%s] %s left,", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), left.Round(time.Second))
}

func (p *progress) say(text string) {
	if p.live {
		fmt.Fprintf(p.w, "\r%-*s", p.width, text)
		p.width = len(text)
		return
	}
	if text != p.last {
		fmt.Fprintln(p.w, text)
	}
	p.last = text
}

// end leaves what stands on the terminal and goes to the next line.
func (p *progress) end() {
	if p.live && p.width > 0 {
		fmt.Fprintln(p.w)
	}
	p.width = 0
}

// isTerminal reports whether somebody sees a line change.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
