package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/pgsteer/pgsteer/agent/pgbouncer"
	"github.com/pgsteer/pgsteer/agent/switchover"
	"github.com/pgsteer/pgsteer/agent/topology"
)

type switchoverCmd struct {
	Cluster string `arg:"" placeholder:"CLUSTER" help:"The cluster."`
	asked
	To    string        `placeholder:"NODE" help:"Who should become the writer; else the authority chooses."`
	Limit time.Duration `placeholder:"TIME" help:"How long PgBouncers may be paused at most; else switchover.limit of the cluster."`
	Force bool          `help:"Also for a node that is not up, lags, or is delayed or tagged nofailover; the authority may refuse all the same."`
}

// Run has the agent do it, and prints what happens. To be interrupted is to abort: the
// agent resumes everything at once.
func (c *switchoverCmd) Run(ctx context.Context, std streams) error {
	for _, name := range []string{c.Cluster, c.To} {
		if err := topology.CheckName(name); err != nil && name != "" {
			return fmt.Errorf("%w; the agent was not asked", err)
		}
	}
	q := switchover.Request{To: c.To, Force: c.Force}
	if c.Limit > 0 {
		q.Limit = c.Limit.String()
	}
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	token, err := c.token()
	if err != nil {
		return err
	}
	var last switchover.Event
	err = c.lines(ctx, question{method: http.MethodPost, path: "/admin/switchover/" + c.Cluster, body: string(body), token: token}, func(line []byte) error {
		last = switchover.Event{}
		if err := json.Unmarshal(line, &last); err != nil {
			return fmt.Errorf("the answer of the agent at %s is no JSON: %w", c.Address, err)
		}
		return c.print(std, line, last)
	})
	switch {
	case ctx.Err() != nil && last.RunsOn != "":
		return fmt.Errorf("aborted: the agent resumes what was paused; %s goes on until it ends, or its time is up (switchover.timeout), and the agent's log tells what came of it", last.RunsOn)
	case ctx.Err() != nil:
		return errors.New("aborted: the agent resumes what was paused; what the authority was asked for it may still do")
	case last.Result == nil:
		return wentAway(cmp.Or(err, error(&cut{c.Address, io.ErrUnexpectedEOF})))
	case err != nil:
		return err
	case last.Result.Error != "":
		return exitCode(1) // it was printed
	}
	return nil
}

func (c *switchoverCmd) print(std streams, line []byte, e switchover.Event) (err error) {
	switch {
	case c.Output == "json":
		_, err = fmt.Fprintln(std.out, string(line))
	case e.Result == nil:
		_, err = fmt.Fprintln(std.out, e.At.Local().Format("15:04:05.000"), e.Text)
	case e.Result.Error != "":
		_, err = fmt.Fprintln(std.err, "pgsteer:", strings.ReplaceAll(e.Result.Error, "\n", "; "))
	}
	return err
}

// lines asks the agent and hands out each line of its answer as it comes. When ctx ends,
// the connection does.
func (r running) lines(ctx context.Context, q question, each func(line []byte) error) error {
	ctx, p := r.listen(ctx)
	defer p.end()
	req, err := http.NewRequestWithContext(ctx, q.method, r.url(q.path), strings.NewReader(q.body))
	if err != nil {
		return fmt.Errorf("ask the agent at %s: %w", r.Address, err)
	}
	if q.token != "" {
		req.Header.Set("Authorization", "Bearer "+q.token)
	}
	transport := r.transport()
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return p.why(r.absent(err))
	}
	defer func() { _ = res.Body.Close() }()
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		p.heard()
		if res.StatusCode != http.StatusOK {
			var e struct{ Error string }
			if json.Unmarshal(in.Bytes(), &e) == nil && e.Error != "" {
				return &refusal{e.Error}
			}
			break
		}
		if err := each(in.Bytes()); err != nil {
			return err
		}
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("the agent at %s answers %s to %s", r.Address, res.Status, q.path)
	}
	if err := in.Err(); err != nil {
		return p.why(&cut{r.Address, err})
	}
	return nil
}

// cut says that an answer ended before it was whole.
type cut struct {
	address string
	err     error
}

func (e *cut) Error() string {
	return fmt.Sprintf("the agent at %s went away in the middle (%v)", e.address, e.err)
}

// wentAway adds what becomes of a switchover whose agent is not heard any more.
func wentAway(err error) error {
	var c *cut
	var s *silent
	if !errors.As(err, &c) && !errors.As(err, &s) {
		return err
	}
	return fmt.Errorf("%w. What it has paused is resumed as soon as it goes on, at its end, or at its next start; what the authority was asked for it may still do: look at the authority, and at `pgsteer status`", err)
}

type pgbouncerCmd struct {
	Action    string   `arg:"" enum:"pause,resume,disable,enable,kill,reconnect,reload,forget" placeholder:"ACTION" help:"pause (clients wait; it ends by itself), resume, disable (no new clients), enable, kill (ends all sessions), reconnect (replaces server connections as each is released), reload, forget (what was left paused at one that is configured no more, once it was resumed there)."`
	Bouncer   string   `arg:"" placeholder:"PGBOUNCER" help:"Name of the PgBouncer in the agent's configuration."`
	Databases []string `arg:"" optional:"" placeholder:"DATABASE" help:"Its databases; else all that are configured."`
	asked
	For time.Duration `placeholder:"TIME" help:"How long a pause lasts at most: 10s, unless this says otherwise; 5m at most."`
}

// Run has the agent say it to a PgBouncer.
func (c *pgbouncerCmd) Run(ctx context.Context, std streams) error {
	if err := topology.CheckName(c.Bouncer); err != nil {
		return fmt.Errorf("%w; the agent was not asked", err)
	}
	o := pgbouncer.Order{Databases: c.Databases}
	if c.For > 0 {
		o.For = c.For.String()
	}
	// A pause takes until the last transaction has ended.
	ctx, cancel := context.WithTimeout(ctx, max(c.For, 10*time.Second)+5*time.Second)
	defer cancel()
	var answer pgbouncer.Done
	if err := c.ask(ctx, http.MethodPost, "/admin/pgbouncer/"+c.Bouncer+"/"+c.Action, o, &answer); err != nil {
		return err
	}
	if c.Output == "json" {
		return c.json(std, answer)
	}
	note := ""
	if answer.Note != "" {
		note = "; " + answer.Note
	}
	_, err := fmt.Fprintf(std.out, "%s: %s %s%s\n", answer.Status, c.Bouncer, strings.Join(answer.Databases, " "), note)
	return err
}
