package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pgsteer/pgsteer/agent/admin"
	"github.com/pgsteer/pgsteer/agent/maintenance"
	"github.com/pgsteer/pgsteer/agent/status"
)

type maintenanceCmd struct {
	Start maintenanceStart `cmd:"" help:"Take a node, a pool, a cluster or all of this agent out: no new sessions, at once."`
	Stop  maintenanceStop  `cmd:"" help:"Put it back."`
	List  maintenanceList  `cmd:"" help:"Show what is out, why, by whom and until when."`
	Wait  maintenanceWait  `cmd:"" help:"Wait until a node that start has drained is empty or its time is over, and say who was ended and who is left."`
	Watch maintenanceWatch `cmd:"" help:"Show it, and each change as it comes, until interrupted."`
}

// asked is who asks the agent.
type asked struct {
	running
	TokenFile string `env:"PGSTEER_TOKEN_FILE" placeholder:"FILE" help:"File with one's token, or with a name and the token."`
	output
}

// what is taken out or put back.
type what struct {
	Target string `arg:"" optional:"" placeholder:"CLUSTER[/NODE]" help:"What: a node, such as main/n2, or every node of a cluster."`
	Pool   string `placeholder:"POOL" help:"In this pool alone."`
	Agent  bool   `help:"All that this agent steers, on this agent alone; /readyz says so."`
}

// target is what it names, be it of names that cannot be.
func (w what) target() maintenance.Target {
	cluster, node, _ := strings.Cut(w.Target, "/")
	return maintenance.Target{Cluster: cluster, Node: node, Pool: w.Pool}
}

// path is where the agent is asked about it.
func (w what) path() (string, error) {
	t := w.target()
	switch {
	case w.Agent == (w.Target != ""), w.Agent && w.Pool != "":
		return "", misused("say what: CLUSTER/NODE, such as main/n2, CLUSTER for all of its nodes, or --agent for all that the agent steers; the agent was not asked")
	case w.Agent:
		return "/admin/maintenance", nil
	case t.Node == "" && strings.Contains(w.Target, "/"):
		return "", misused("%q is neither CLUSTER/NODE nor CLUSTER; the agent was not asked", w.Target)
	}
	if err := t.Check(); err != nil {
		return "", misused("%q is neither CLUSTER/NODE nor CLUSTER: %w; the agent was not asked", w.Target, err)
	}
	path := "/admin/maintenance/" + w.Target
	if w.Pool != "" {
		path += "?pool=" + w.Pool
	}
	return path, nil
}

// ask sends a request with the token and decodes the answer.
func (a asked) ask(ctx context.Context, method, path string, body, into any) error {
	token, err := a.token()
	if err != nil {
		return err
	}
	q := question{method: method, path: path, token: token}
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		q.body = string(text)
	}
	answer, err := a.send(ctx, q)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("the answer of the agent at %s is no JSON: %w", a.Address, err)
	}
	return nil
}

// token reads one's token, "" when there is no file of it.
func (a asked) token() (string, error) {
	if a.TokenFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(a.TokenFile)
	if err != nil {
		return "", fmt.Errorf("read the token: %w; the agent was not asked", err)
	}
	words := strings.Fields(string(text))
	if n := len(words); n != 1 && n != 2 {
		return "", fmt.Errorf("%s has %d words, not a token, or a name and a token; the agent was not asked", a.TokenFile, n)
	}
	return words[len(words)-1], nil
}

type maintenanceStart struct {
	what
	asked
	Reason string `short:"r" placeholder:"TEXT" help:"Why; every balancer and status shows it."`
	Who    string `placeholder:"NAME" help:"Who; else one's login name."`
	For    string `placeholder:"TIME" help:"End by itself after this time, such as 30m; else it lasts until it is stopped."`
	Drain  string `placeholder:"TIME" help:"End sessions that are still there after this time; else they go on for as long as they like. Balancers end them, unless one of the next three says otherwise."`

	EndIdle   bool `help:"With --drain, of a node: have the server end sessions while they are between two transactions."`
	Terminate bool `help:"With --drain, of a node: have the server end the rest after that time."`
	Keep      bool `help:"With --drain, of a node: end nobody; ask the server who is there until nobody is, or that time is over, and report."`
	Wait      bool `help:"Wait for the end of that and report, as wait does."`

	Force bool `help:"Also take out the primary, or the last node of a pool."`
}

// Run takes something out.
func (c *maintenanceStart) Run(ctx context.Context, std streams) error {
	path, err := c.path()
	if err != nil {
		return err
	}
	ch := admin.Change{
		Reason: c.Reason, Who: cmp.Or(c.Who, login()), For: c.For, Drain: c.Drain, EndIdle: c.EndIdle, Terminate: c.Terminate, Keep: c.Keep, Force: c.Force,
	}
	if !c.Wait {
		return c.changed(ctx, std, order{http.MethodPost, path, c.target(), ch})
	}
	if !c.EndIdle && !c.Terminate && !c.Keep {
		return misused("--wait needs --end-idle, --terminate or --keep beside it; the agent was not asked")
	}
	if err := c.changed(ctx, streams{out: std.err, err: std.err}, order{http.MethodPost, path, c.target(), ch}); err != nil {
		return err
	}
	return c.drained(ctx, std, path, c.Target)
}

// login is the name of the user, "" when nobody knows it.
func login() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

type maintenanceStop struct {
	what
	asked
}

// Run puts something back.
func (c *maintenanceStop) Run(ctx context.Context, std streams) error {
	path, err := c.path()
	if err != nil {
		return err
	}
	return c.changed(ctx, std, order{http.MethodDelete, path, c.target(), nil})
}

// changeWait is how long a change may take: its store, and a node whose sessions are
// to be ended.
const changeWait = 9 * time.Second

// order is a change that the agent is asked for.
type order struct {
	method, path string
	target       maintenance.Target
	body         any // nil: none
}

// changed makes a change and prints what came of it, of what.
func (a asked) changed(ctx context.Context, std streams, o order) error {
	ctx, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	var res admin.Answer
	if err := a.ask(ctx, o.method, o.path, o.body, &res); err != nil {
		return err
	}
	if a.Output == "json" {
		return a.json(std, struct { // the target has its keys as in list; the agent itself has none
			maintenance.Target
			admin.Answer
		}{o.target, res})
	}
	text := o.target.String() + ": " + res.Status
	if res.Scope != "" {
		text += " on " + res.Scope
	}
	if res.EnteredAt != nil {
		text += ", since " + res.EnteredAt.Format(time.RFC3339)
	}
	if len(res.Still) > 0 {
		text += "; still out by the maintenance of " + strings.Join(res.Still, ", ")
	}
	_, err := fmt.Fprintln(std.out, text)
	return err
}

type maintenanceList struct{ asked }

// Run prints what is out.
func (c *maintenanceList) Run(ctx context.Context, std streams) error {
	l, err := c.list(ctx)
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return c.json(std, l)
	}
	return printRecords(std.out, l)
}

func (a asked) list(ctx context.Context) (l admin.List, err error) {
	return l, a.ask(ctx, http.MethodGet, "/api/v1/maintenance", nil, &l)
}

func printRecords(w io.Writer, l admin.List) error {
	if len(l.Records) == 0 {
		fmt.Fprintln(w, "nothing is out")
	} else {
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "WHAT\tON\tSINCE\tUNTIL\tSESSIONS\tWHO\tREASON")
		for _, r := range l.Records {
			until, sessions := "until ended", "go on"
			if !r.Until.IsZero() {
				until = r.Until.Format(time.RFC3339)
			}
			if !r.DrainUntil.IsZero() {
				sessions = "end at " + r.DrainUntil.Format(time.RFC3339)
			}
			if s := r.Sessions; s.ID != "" {
				sessions = drainWords(s, l.Drain(s.ID), time.Now())
			}
			on := l.Scope
			if r.Target == maintenance.Agent {
				on = admin.ScopeAgent
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Target, cmp.Or(on, "-"), r.Since.Format(time.RFC3339), until, sessions, cmp.Or(r.Who, "-"), cmp.Or(r.Reason, "-"))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if l.Trouble != "" {
		fmt.Fprintln(w, "! "+l.Trouble)
	}
	return nil
}

// drainWords says what a drain does, and how far it is where the agent that was asked
// does it (else how is nil), in the words of status.
func drainWords(s maintenance.Sessions, how *admin.Drained, now time.Time) string {
	d := status.Drain{Over: !now.Before(s.Deadline), By: s.By, Deadline: s.Deadline, EndIdle: s.EndIdle, Terminate: s.Terminate}
	if how != nil {
		d.Phase, d.Left, d.Ended, d.Over = string(how.Phase), how.Left, how.Ended, how.Phase.Over()
	}
	return d.Words()
}

type maintenanceWatch struct {
	asked
	Every time.Duration `default:"1s" help:"How often the agent is asked (${default})."`
}

// Validate refuses to ask all the time.
func (c *maintenanceWatch) Validate() error {
	if c.Every < 200*time.Millisecond {
		return fmt.Errorf("--every %s: at least 200ms", c.Every)
	}
	return c.asked.Validate()
}

// Run prints what is out, and changes.
func (c *maintenanceWatch) Run(ctx context.Context, std streams) error {
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	var before admin.List
	for first := true; ; first = false {
		l, err := c.list(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case first || l.Trouble != before.Trouble || !slices.Equal(l.Records, before.Records) || !slices.Equal(l.Drains, before.Drains):
			if err := c.show(std, l); err != nil {
				return err
			}
		}
		before = l
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (c *maintenanceWatch) show(std streams, l admin.List) error {
	if c.Output == "json" {
		return json.NewEncoder(std.out).Encode(l)
	}
	fmt.Fprintln(std.out, time.Now().Format(time.TimeOnly))
	return printRecords(std.out, l)
}
